"""`hornbook doctor RUN`: what happened to a run, what is wrong with it, and whether more training is worth it."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from textwrap import shorten
from typing import Any

import numpy as np

from hornbook.errors import Exit, HornbookError
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import evaluations, steps_that_count
from hornbook.run.doctor.convergence import MIN_POINTS, Convergence, convergence
from hornbook.run.doctor.curve_rules import Diagnosis, judge, not_judged
from hornbook.run.doctor.curves import WINDOW, Curves, curves_of
from hornbook.run.doctor.deaths import examine
from hornbook.run.doctor.run_history import RunHistory, read_history

TOLD = ("start", "resume", "restart", "shorten", "micro_batch", "intervention", "checkpoint_damaged", "warning", "fail")
TOLD += (
    "stop_requested",
    "stop",
    "finish",
    "throughput",
    "straggler",
    "rollback",
    "spike",
    "precursor",
    "audit",
    "overlay",
    "swap",
    "pause",
    "fault",
)
"""Kinds of records that the story of a run consists of."""
LONGEST = 120
"""Characters of what a line says of an event."""
WORST, ROWS, SHOWN = 5, 64, 3
"""Steps that waited longest for their batch, rows of each, and shards that are named."""
LINES = 12
"""Newest lines of the story that are shown."""


@dataclass(frozen=True)
class RunReport:
    """The findings of the doctor on a run."""

    run: str
    status: str
    attempt: int
    step: int
    tokens: int
    story: list[str]
    findings: list[Diagnosis]
    convergence: Convergence
    not_judged: list[str]
    """Rules that had too little to judge by."""

    @property
    def code(self) -> Exit:
        """That of the first finding that fails, DEFECT where it has none of its own; DONE where nothing fails."""
        failed = [each.name for each in self.findings if each.severity == "fail"]
        codes = {
            "damaged_checkpoint": Exit.INTEGRITY,
            "damaged_data": Exit.INTEGRITY,
            "unreadable": Exit.INTEGRITY,
            "disk_full": Exit.STORAGE,
            "storage": Exit.STORAGE,
            "out_of_memory": Exit.DOES_NOT_FIT,
            "diverged": Exit.DIVERGED,
            "paused": Exit.DIVERGED,
            "above_unigram": Exit.DIVERGED,
            "usage": Exit.USAGE,
            "hang": Exit.HARDWARE,
            "hardware": Exit.HARDWARE,
            "lost_device": Exit.HARDWARE,
            "shared_memory": Exit.STORAGE,
            "lost_rank": Exit.RESUMABLE,
        }
        return codes.get(failed[0], Exit.DEFECT) if failed else Exit.DONE

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {**asdict(self), "code": int(self.code)}


def diagnose_run(run: RunDir) -> RunReport:
    """Read a run and judge it. UsageError where there is none."""
    history = read_history(run)
    curves = history.curves
    state: Mapping[str, Any] = run.read_state() or {}
    return RunReport(
        str(run.path),
        history.status,
        history.attempt,
        history.last_step,
        int(state.get("tokens", 0)),
        story(history),
        [*examine(history), *(_with_shards(each, history) for each in judge(curves))],
        verdict_of(curves),
        not_judged(curves),
    )


def _with_shards(found: Diagnosis, history: RunHistory) -> Diagnosis:
    """Waits for data name the shards that were waited for."""
    if found.name != "stalled_data":
        return found
    return replace(found, evidence=found.evidence + stalled_shards(history))


def verdict_of(curves: Curves, gain: float = 1e-3) -> Convergence:
    """Whether more training is worth it, by the evaluations of a run."""
    rows = evaluated_series(curves)
    if not rows:
        return Convergence("unknown", "there are no evaluations (eval.every)")
    _, tokens, loss, rate, training = (np.array(each) for each in zip(*rows, strict=True))
    return convergence(tokens, loss, rate, training, gain)


def conclusion(run: RunDir) -> str:
    """The verdict as a line for the end of a run; "" where it has few evaluations, or none can be given."""
    with suppress(HornbookError, OSError, LookupError, TypeError, ValueError):
        scored = evaluations(run)
        if len(scored) >= MIN_POINTS:
            found = verdict_of(curves_of(steps_that_count(run), (), scored))
            return "" if found.verdict == "unknown" else f"convergence: {found.verdict}: {found.text}"
    return ""


def evaluated_series(curves: Curves) -> list[tuple[int, int, float, float, float]]:
    """Of each evaluation: step, tokens, loss, learning rate then, median training loss of the steps before."""
    found, rows = curves.evaluated, list[tuple[int, int, float, float, float]]()
    for step, tokens, loss in zip(found.step.tolist(), found.tokens.tolist(), found.loss.tolist(), strict=True):
        end = int(np.searchsorted(curves.step, step, side="right"))
        if end:
            recent = curves.loss[max(end - WINDOW, 0) : end]
            rows.append((step, tokens, loss, float(curves.lr[end - 1]), float(np.median(recent[np.isfinite(recent)]))))
    return rows


def story(history: RunHistory) -> list[str]:
    """The newest events, a line each; those of one kind at one step once."""
    told = [_line(each) for each in history.events if each.get("kind") in TOLD]
    skips = sum(each.get("kind") == "skip" for each in history.events)
    if skips:
        told.append(f"{skips} updates were skipped" if skips > 1 else "1 update was skipped")
    return told[-LINES:]


def _line(record: Mapping[str, Any]) -> str:
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(record.get("time", 0.0)))
    text = record.get("text") or record.get("reason") or record.get("cause") or record.get("checkpoint") or ""
    if record["kind"] == "restart":
        text = f"rank {record.get('rank')} {record.get('cause')} ({record.get('phase')})"
    if record["kind"] == "fault":
        text = f"{record.get('do')} on rank {record.get('rank')} ({record.get('phase')}), as the fault plan asks"
    if record["kind"] == "shorten":
        text = f"to {record.get('length'):,} tokens{': ' + str(record['reason']) if record.get('reason') else ''}"
    first = shorten(str(text), LONGEST) if text else ""
    return (
        f"{when}  attempt {record['attempt']}  step {record['step']:,}  {record['kind']}{'  ' + first if first else ''}"
    )


def stalled_shards(history: RunHistory, steps: int = 200) -> str:
    """`; they read prose/00003 (41 rows), ...` of the newest `steps` steps' longest waits; "" where it is not known."""
    newest = [
        each for each in history.steps[-steps:] if "first_sample" in each and each.get("data_seconds") is not None
    ]
    worst = sorted(newest, key=lambda each: -each["data_seconds"])[:WORST]
    try:
        from hornbook.run.doctor.exposure import loader_of  # batches are of torch, which no other finding needs

        index = loader_of(history.run).index
        counts = Counter(shard for step in worst for shard in _shards(index, step))
    except (HornbookError, OSError):  # the data is gone, or damaged: that is told elsewhere
        return ""
    named = ", ".join(f"{shard} ({count} rows)" for shard, count in counts.most_common(SHOWN))
    return f"; the {len(worst)} steps that waited longest read {named}" if named else ""


def _shards(index: Any, step: Mapping[str, Any]) -> Iterable[str]:
    """Yield for each row of a step the shards that its documents come from."""
    first = step["first_sample"]
    for sample in range(first, first + min(step.get("num_samples", 1), ROWS)):
        yield from {each.shard for each in index.documents(sample)}
