"""The sides: hornbook, transformers' Trainer, Lightning; how each starts, goes on, and what its run shows."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.contenders.peers_here import find
from benchmarks.reliability import kill
from hornbook.files.filesystem import exists
from hornbook.files.journal import current_branch, read_records
from hornbook.files.run_directory import RunDir

PROGRAMS = Path(__file__).parents[1] / "programs"
STEPS, EVERY, SAVED, KILLED, ROWS = 16, 4, 8, 10, 80
"""Steps, steps between saves, the save that is struck, the step before which a run with whole saves dies, and rows of
data: ten steps are an epoch, so all saves but those of `AT_BEST` are within one."""
AT_BEST = {"plain": True, "rows": 32}
"""No dropout, data in order, every save at the end of an epoch."""
SETTINGS = kill.SETTINGS | {"train.tokens": STEPS * kill.BATCH, "checkpoint.every": EVERY, "eval.every": 0}
PATIENCE_SECONDS = 240.0


@dataclass(frozen=True)
class Place:
    """Where a trial happens."""

    path: Path
    data: Path
    """Prepared data of hornbook."""

    @property
    def disk(self) -> Path:
        """What the side may write to: its run and its temporary files."""
        return self.path / "disk"

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.disk / "run"

    @property
    def facts(self) -> Path:
        """What a peer's program says of itself."""
        return self.path / "facts.jsonl"


@dataclass
class Facts:
    """What a run shows."""

    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What each step began from and its loss, of the steps that count."""
    begins: int = 0
    """First step of the last process; 0: it made none."""
    final: dict[str, Any] = field(default_factory=dict)
    """Digests of weights and moments after the last step; empty: it did not come so far."""


@dataclass(frozen=True)
class Side:
    """A framework, and where its checkpoints have what."""

    name: str
    command: Callable[[Place, int | None], list[str]]
    """Starts a run or goes on with it; the number: before which step the process kills itself."""
    facts: Callable[[Place], Facts]
    newest: str
    """What holds the checkpoint of step `SAVED` that a resume takes, within the run; a folder or a file."""
    pattern: str
    """Part of every name in the checkpoint of a step, for `format(step)`."""
    files: Mapping[str, str]
    """Role (weights, moments, scheduler, random state) -> file within `newest`; "": it is that file."""
    stale: str
    """Where a killed save of it would leave a half-written checkpoint, within the run."""
    version: str = ""
    missing: str = ""


def run(command: list[str], place: Place) -> subprocess.CompletedProcess[str]:
    """Run a side's command to its end, or until patience is at its end (exit code 124)."""
    (place.disk / "tmp").mkdir(parents=True, exist_ok=True)
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment(place), timeout=PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no end within {PATIENCE_SECONDS:g} s")


def environment(place: Place) -> dict[str, str]:
    """Of a side's process."""
    return os.environ | {"TMPDIR": str(place.disk / "tmp"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def _program(name: str, python: str, more: Mapping[str, Any]) -> Callable[[Place, int | None], list[str]]:
    def command(place: Place, kill_at: int | None) -> list[str]:
        spec = {"run": str(place.run), "facts": str(place.facts), "steps": STEPS, "every": EVERY, "rows": ROWS}
        return [python, str(PROGRAMS / f"resume_{name}.py"), json.dumps(spec | {"kill_at": kill_at} | dict(more))]

    return command


def _told(place: Place) -> Facts:
    """From the lines of `watch.Watch`."""
    found = Facts()
    for line in place.facts.read_text().splitlines() if place.facts.exists() else ():
        record = json.loads(line)
        if "begin" in record:
            found.begins, found.final = 0, {}
        elif "step" in record:
            step = record.pop("step")
            found.begins = found.begins or step
            found.steps = {each: what for each, what in found.steps.items() if each < step} | {step: record}
        elif "loss" in record:
            found.steps[max(found.steps)] |= record
        else:
            found.final = {key: record[key] for key in ("weights", "moments")}
    return found


def _hornbook_command(place: Place, kill_at: int | None) -> list[str]:
    words = kill.train_command(place.data, place.run, SETTINGS)
    if kill_at is None:
        return words
    wait = {"do": "slow", "seconds": 3.0, "steps": 1, "at": {"step": kill_at - 1, "phase": "data"}}  # for the save
    end = {"do": "kill9", "at": {"step": kill_at, "phase": "data"}}
    place.path.mkdir(exist_ok=True)
    (place.path / "plan.toml").write_text(tomli_w.dumps({"faults": [wait, end]}))
    return [*words, "--faults", str(place.path / "plan.toml")]


def _hornbook_facts(place: Place) -> Facts:
    """From the run's own records and its last checkpoint."""
    run_dir, found = RunDir(place.run), Facts()
    records = list(read_records(run_dir.metrics)) if exists(run_dir.metrics) else []
    attempts = [each["attempt"] for each in read_records(run_dir.events)] if exists(run_dir.events) else []
    for record in current_branch(records):
        found.steps[record["step"]] = {"loss": float(record["loss"]).hex(), "data": record["token_hash"]}
    last = [each["step"] for each in records if each["attempt"] == max(attempts, default=0)]
    found.begins = min(last, default=0)
    folder = run_dir.checkpoints / f"step-{STEPS:08}"
    if folder.is_dir():
        files = {"weights": folder / "model.safetensors", "moments": folder / "trainer" / "optimizer.safetensors"}
        found.final = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    return found


def _hornbook() -> Side:
    files = {"weights": "model.safetensors", "moments": "trainer/optimizer.safetensors"}
    folder = f"checkpoints/step-{SAVED:08}"
    files |= {"clock": "trainer/state.json"}
    stale = f"checkpoints/{kill.TEMPORARY}step-{2 * SAVED:08}"
    return Side("hornbook", _hornbook_command, _hornbook_facts, folder, "step-{:08}", files, stale)


def _trainer() -> Side:
    found, files = find("accelerate"), {"weights": "model.safetensors", "moments": "optimizer.pt"}
    files |= {"scheduler": "scheduler.pt", "random state": "rng_state.pth", "clock": "trainer_state.json"}
    version = "" if found.missing else _version("transformers")
    return Side(
        "transformers Trainer",
        _program("trainer", sys.executable, {}),
        _told,
        f"checkpoint-{SAVED}",
        "checkpoint-{}",
        files,
        f"tmp-checkpoint-{2 * SAVED}",
        version,
        found.missing,
    )


def _lightning(name: str, more: Mapping[str, Any]) -> Side:
    found = find("lightning")
    files = {"weights": "", "moments": ""}
    program = _program("lightning", found.python, more)
    stale = f"step={2 * SAVED}.ckpt.part"
    return Side(name, program, _told, "last.ckpt", "step={}.ckpt", files, stale, found.version, found.missing)


def _version(module: str) -> str:
    from importlib.metadata import version

    return version(module)


def sides() -> dict[str, Side]:
    """All of them, by name, whether they are here or not."""
    every = (_hornbook(), _trainer(), _lightning("Lightning", {}), _lightning("Lightning at its best", AT_BEST))
    return {each.name: each for each in every}
