"""Columns of metrics.jsonl: rolled-back steps, growth, damage, and files too long to be read whole."""

import json
from pathlib import Path

import numpy as np
import pytest

from hornbook.files.journal import current_branch, read_records
from hornbook.studio.live import step_columns
from hornbook.studio.live.step_columns import StepColumns


def line(step: int, attempt: int = 1, **values: float | None) -> str:
    return json.dumps({"attempt": attempt, "step": step, "tokens": 10 * step, "loss": 5.0 / step} | values) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_the_steps_in_force_are_those_of_the_journal(path: Path) -> None:
    path.write_text("".join([*map(line, range(1, 9)), *(line(step, 2, loss=1.0) for step in range(5, 7))]))
    columns = StepColumns(path)
    columns.update()
    expected = current_branch(read_records(path))
    assert columns.steps.tolist() == [record["step"] for record in expected] == [1, 2, 3, 4, 5, 6]
    assert columns.column("loss").tolist() == [record["loss"] for record in expected]


@pytest.mark.parametrize("block", [1, 300, 1000, 1 << 20])
def test_blocks_of_lines_make_no_difference(path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a run went back at the beginning of a block, and where a column has a text or nothing."""
    monkeypatch.setattr(step_columns, "BLOCK", block)
    odd = {3: None, 5: True, 8: "fast"}
    with path.open("w") as file:
        for attempt, steps in ((1, range(1, 31)), (2, range(12, 25)), (4, range(24, 40))):
            for step in steps:
                record = {"attempt": attempt, "step": step, "loss": odd.get(step, 1 / step + attempt)}
                file.write(json.dumps(record) + "\n")
        file.write('{"attempt": 4, "step": 40')
    columns = StepColumns(path)
    columns.update()
    branch = current_branch(read_records(path))
    assert columns.steps.tolist() == [record["step"] for record in branch]
    losses = [value if isinstance(value := record["loss"], int | float) else np.nan for record in branch]
    assert np.array_equal(columns.column("loss"), np.array(losses, np.float64), equal_nan=True)
    assert columns.offset == path.stat().st_size - len('{"attempt": 4, "step": 40')


def test_only_what_was_appended_is_read_and_half_a_line_waits(path: Path) -> None:
    columns = StepColumns(path)
    columns.update()
    assert len(columns) == 0
    path.write_text(line(1) + line(2)[:20])
    columns.update()
    assert columns.steps.tolist() == [1]
    path.write_text("X" * len(line(1)) + line(2) + line(3, loss=None))  # what is known is not read again
    columns.update()
    assert (columns.steps.tolist(), columns.damaged) == ([1, 2, 3], 0)
    assert np.isnan(columns.column("loss")[2])
    path.write_text(line(7))  # another file
    columns.update()
    assert columns.steps.tolist() == [7]


def test_damaged_lines_are_counted_and_left_out(path: Path) -> None:
    path.write_text(line(1) + "{torn\n" + '["no record"]\n' + '{"step": true, "attempt": 1}\n' + line(2))
    columns = StepColumns(path)
    columns.update()
    assert (columns.steps.tolist(), columns.damaged) == ([1, 2], 3)


def test_a_long_file_is_sampled_and_read_whole_where_one_looks_closer(path: Path) -> None:
    path.write_text("".join(line(step) for step in range(1, 60_001)))
    columns = StepColumns(path, whole_bytes=100_000)
    columns.update()
    steps = columns.steps
    assert steps[[0, -1]].tolist() == [1, 60_000]
    assert 7_000 < len(steps) < 8_200
    assert columns.every == pytest.approx(60_000 / len(steps), abs=1)
    assert np.diff(steps).min() >= 1
    assert np.diff(steps).max() < 20
    closer = columns.detail(30_000, 30_100)
    assert closer.every == 1
    assert closer.steps[closer.steps <= 30_100][:101].tolist() == list(range(30_000, 30_101))
    with path.open("a") as file:
        file.write(line(60_001))
    columns.update()
    assert columns.steps[-1] == 60_001


def test_curves_keep_peaks_and_reach_the_edges(path: Path) -> None:
    path.write_text("".join(line(step, loss=99.0 if step == 4_321 else 1.0) for step in range(1, 10_001)))
    columns = StepColumns(path)
    columns.update()
    drawn = columns.curves(("loss", "seconds"), 1, 10_000, 100)
    assert set(drawn) == {"loss"}  # nothing was recorded of the other
    assert len(drawn["loss"]["x"]) <= 202
    assert drawn["loss"]["y"][drawn["loss"]["x"].index(4_321)] == 99.0
    part = columns.curves(("loss",), 4_000, 4_010, 100)["loss"]
    assert part["x"] == list(range(3_999, 4_012))
