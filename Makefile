# Everything runs in .venv, made with plain venv and pip; nothing else is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-all check bench docs clean

demo: $(READY)
	$(BIN)/hornbook quickstart

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=10

test-all: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

bench: $(READY)
	$(BIN)/python -m benchmarks

docs: $(READY)
	$(BIN)/python scripts/capture_demo.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV)
