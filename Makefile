# Everything runs in .venv, made with plain venv and pip; nothing else is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
READY := $(VENV)/.ready
DEVELOP := $(VENV)/.develop
INSTALL := $(BIN)/python -m pip install --quiet -c $(CONSTRAINTS)

.PHONY: demo test test-all check bench gpu docs pages clean

demo: $(READY)
	$(BIN)/hornbook quickstart

test: $(DEVELOP)
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=10

test-all: $(DEVELOP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow"

check: $(DEVELOP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

bench: $(DEVELOP)
	$(BIN)/python -m benchmarks

# On a machine with a GPU; with the Python that has torch, and nothing installed.
gpu:
	$(PYTHON) -m benchmarks.gpu

docs: $(READY)
	$(BIN)/python scripts/capture_demo.py
	$(BIN)/python -m scripts.capture_console

# The explorers as static files that compute in the browser; needs npm and node, and writes build/pages.
pages: $(READY)
	$(BIN)/python -m scripts.public_pages.build

# What hornbook needs, and transformers, with which an export is compared.
$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	$(INSTALL) -e ".[hf]"
	touch $(READY)

# What tests and checks need beside it.
$(DEVELOP): $(READY)
	$(INSTALL) -e ".[dev]"
	touch $(DEVELOP)

clean:
	rm -rf $(VENV)
