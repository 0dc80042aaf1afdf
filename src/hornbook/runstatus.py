"""What a run is doing, read from its directory alone: nothing here needs the run to live, or can disturb it."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hornbook.errors import IntegrityError
from hornbook.filesystem import is_folder, list_folder
from hornbook.journal import current_branch, read_records
from hornbook.rundir import RunDir
from hornbook.runlock import is_alive

SILENCE_SECONDS = 300.0
"""A run of another host that has not written its heartbeat for so long is taken for dead."""

Verdict = Literal["running", "dead", "finished", "stopped", "failed", "new"]


@dataclass(frozen=True)
class Summary:
    """One line of `hornbook runs ls`."""

    name: str
    path: str
    status: Verdict
    step: int
    tokens: int
    total_tokens: int | None
    loss: float | None
    """Of the last step, in nats per token."""
    bits_per_byte: float | None
    """Of the newest evaluation, over all sources."""
    heartbeat_seconds: float | None
    """Age of the heartbeat."""
    attempt: int


def status_of(run: RunDir, now: float | None = None) -> Verdict:
    """Status by the heartbeat; a run that says it runs but whose process is gone is `dead`."""
    state = run.read_state()
    if state is None:
        return "new"
    if state["status"] != "running":
        return state["status"]
    alive = is_alive(state)
    if alive is None:
        alive = (time.time() if now is None else now) - state["heartbeat"] < SILENCE_SECONDS
    return "running" if alive else "dead"


def summarize(run: RunDir) -> Summary:
    """What is to be said of a run in one line; the metrics are not read."""
    state = run.read_state()
    evaluation = newest_evaluation(run)
    return Summary(
        name=run.name,
        path=str(run.path),
        status=status_of(run),
        step=state["step"] if state else 0,
        tokens=state["tokens"] if state else 0,
        total_tokens=state.get("total_tokens") if state else None,
        loss=state.get("loss") if state else None,
        bits_per_byte=evaluation["all"]["bits_per_byte"] if evaluation else None,
        heartbeat_seconds=max(0.0, time.time() - state["heartbeat"]) if state else None,
        attempt=state["attempt"] if state else 0,
    )


def find_runs(folder: Path) -> list[RunDir]:
    """The runs directly in a folder, or the folder itself if it is one; by name."""
    if RunDir(folder).exists():
        return [RunDir(folder)]
    inside = [path for path in list_folder(folder) if is_folder(path)] if is_folder(folder) else []
    return [run for path in inside if (run := RunDir(path)).exists()]


def steps_that_count(run: RunDir) -> list[dict[str, Any]]:
    """The record of each step, as its last attempt left it."""
    return current_branch(record for record, _ in read_records(run.metrics))


def newest_evaluation(run: RunDir) -> dict[str, Any] | None:
    """Result of the newest evaluation: `step`, `all`, `sources`."""
    files = _evaluation_files(run)
    return _read(files[-1]) if files else None


def evaluations(run: RunDir) -> list[dict[str, Any]]:
    """All evaluations by step."""
    return [_read(path) for path in _evaluation_files(run)]


def events(run: RunDir) -> list[dict[str, Any]]:
    """The ledger."""
    return [record for record, _ in read_records(run.events)]


def _evaluation_files(run: RunDir) -> list[Path]:
    return list_folder(run.evals, "step-*.json") if is_folder(run.evals) else []


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise IntegrityError(f"{path} is not JSON: the file was damaged") from error
