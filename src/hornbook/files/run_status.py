"""Status and newest results of a run, read from its directory without disturbing it."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hornbook.errors import HornbookError, IntegrityError
from hornbook.files.filesystem import is_folder, list_folder
from hornbook.files.journal import current_branch, read_records
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import is_alive

SILENCE_SECONDS = 300.0
"""Age of the heartbeat from which a run on another host counts as dead."""

Verdict = Literal["running", "dead", "finished", "stopped", "failed", "new", "unreadable"]
COUNTS = ("tokens", "bytes", "labels", "read", "of")
"""Keys of a score that are counts, not metrics."""


@dataclass(frozen=True)
class Summary:
    """A run in `hornbook runs ls`."""

    name: str
    path: str
    status: Verdict
    step: int
    tokens: int
    total_tokens: int | None
    loss: float | None
    """Of the last step, in nats per token."""
    bits_per_byte: float | None
    """Of the newest evaluation, over all sources; None for labels."""
    held_out: dict[str, float]
    """All metrics of the newest evaluation by name."""
    coverage: str
    """How much of the validation text the newest evaluation read."""
    heartbeat_seconds: float | None
    """Age of the heartbeat."""
    attempt: int
    problem: str = ""
    """Why the run cannot be read; all other fields are empty then."""


def status_of(run: RunDir) -> Verdict:
    """Status by the heartbeat; `dead` if the heartbeat says running and the process is gone."""
    state = run.read_state()
    if state is None:
        return "new"
    if state["status"] != "running":
        return state["status"]
    alive = is_alive(state)
    if alive is None:
        alive = time.time() - state["heartbeat"] < SILENCE_SECONDS
    return "running" if alive else "dead"


def summarize(run: RunDir) -> Summary:
    """Summary of a run, without reading its metrics; of a damaged run, with `problem`."""
    try:
        return _summarize(run)
    except (HornbookError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        text = str(error) if isinstance(error, HornbookError | OSError) else f"its records are damaged ({error!r})"
        return Summary(run.name, str(run.path), "unreadable", 0, 0, None, None, None, {}, "", None, 0, problem=text)


def _summarize(run: RunDir) -> Summary:
    state = run.read_state()
    evaluation = newest_evaluation(run)
    score = fullest(evaluation)["all"] if evaluation else {}
    return Summary(
        name=run.name,
        path=str(run.path),
        status=status_of(run),
        step=int(state["step"]) if state else 0,
        tokens=int(state["tokens"]) if state else 0,
        total_tokens=state.get("total_tokens") if state else None,
        loss=state.get("loss") if state else None,
        bits_per_byte=score.get("bits_per_byte"),
        held_out=metrics_of(score),
        coverage=coverage(score),
        heartbeat_seconds=max(0.0, time.time() - state["heartbeat"]) if state else None,
        attempt=state["attempt"] if state else 0,
    )


def find_runs(folder: Path) -> list[RunDir]:
    """The runs directly in a folder by name, or the folder itself if it is a run."""
    if RunDir(folder).exists():
        return [RunDir(folder)]
    inside = [path for path in list_folder(folder) if is_folder(path)] if is_folder(folder) else []
    return [run for path in inside if (run := RunDir(path)).exists()]


def steps_that_count(run: RunDir) -> list[dict[str, Any]]:
    """The record of each step by its last attempt."""
    return current_branch(read_records(run.metrics))


def newest_evaluation(run: RunDir) -> dict[str, Any] | None:
    """Result of the newest evaluation: `step`, `all`, `sources`."""
    files = _evaluation_files(run)
    return _read(files[-1]) if files else None


def evaluations(run: RunDir) -> list[dict[str, Any]]:
    """All evaluations by step."""
    return [_read(path) for path in _evaluation_files(run)]


def fullest(evaluation: Mapping[str, Any]) -> Mapping[str, Any]:
    """`rows`, `sources` and `all` of an evaluation: over all rows if it has these, else over the sampled rows."""
    return evaluation.get("whole") or evaluation


def objective_of(score: Mapping[str, Any]) -> float:
    """The loss by which a run is judged: what it minimises, of replaced-token detection more than the `loss`."""
    return score.get("objective", score["loss"])


def metrics_of(score: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a score (loss, bits per byte, those of labels), without its counts."""
    return {name: value for name, value in score.items() if name not in COUNTS}


def task_metrics(evaluation: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(task, metric, value) of the tasks of an evaluation, without counts and standard errors."""
    for task, score in evaluation.get("tasks", {}).items():
        for name, value in score.items():
            if isinstance(value, float) and not name.endswith("_se"):
                yield task, name, value


def coverage(score: Mapping[str, Any]) -> str:
    """How much of the validation text was read: `32,768 of 85,732 tokens`; "" if it is not recorded."""
    if "of" not in score:
        return ""
    read, of = score["read"], score["of"]
    return f"all {of:,} tokens" if read == of else f"{read:,} of {of:,} tokens"


def events(run: RunDir) -> list[dict[str, Any]]:
    """The records of the ledger."""
    return list(read_records(run.events))


def _evaluation_files(run: RunDir) -> list[Path]:
    return list_folder(run.evals, "step-*.json") if is_folder(run.evals) else []


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is not JSON: the file was damaged") from error
    if not isinstance(record, dict):
        raise IntegrityError(f"{path} holds no evaluation: the file was damaged")
    return record
