"""Run directories written by hand: any history, without training."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hornbook.files.run_directory import RunDir

MakeRun = Callable[..., RunDir]


def make_run_in(
    folder: Path,
    name: str,
    losses: Sequence[float | None],
    *,
    attempts: Mapping[int, int] | None = None,
    events: Sequence[dict[str, Any]] = (),
    scores: Mapping[int, dict[str, Any]] | None = None,
) -> RunDir:
    """A run whose steps have 100 tokens each."""
    run = RunDir(folder / name).create()
    run.recipe.touch()
    lines = []
    for step, loss in enumerate(losses, 1):
        record = {"attempt": (attempts or {}).get(step, 1), "step": step, "tokens": 100 * step, "loss": loss}
        lines.append(record | {"gradient_norm": 1.0 / step, "lr": 0.001, "tokens_per_second": 5000.0})
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    base = {"attempt": 1, "time": 0.0}
    records = [base | {"tokens": 100 * event["step"]} | event for event in events]
    run.events.write_text("".join(json.dumps(record) + "\n" for record in records))
    for step, record in (scores or {}).items():
        position = {"attempt": 1, "step": step, "tokens": 100 * step}
        (run.evals / f"step-{step:08d}.json").write_text(json.dumps(position | record))
    return run


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """make_run(name, losses, events=[...], scores={step: record}) -> a run in the test's folder."""
    return functools.partial(make_run_in, tmp_path)


def score(bits: float, **whole: Any) -> dict[str, Any]:
    """An evaluation of two sources."""
    each = {"loss": 2 * bits, "bits_per_byte": bits, "tokens": 9, "bytes": 30, "read": 9, "of": 20}
    return {"rows": "drawn", "sources": {"code": each, "prose": each}, "all": each, **whole}
