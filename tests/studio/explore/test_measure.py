"""Answers that do the work for real: equal to what is planned, and ended where they take too much."""

import pytest

from hornbook.errors import HornbookError, UsageError
from hornbook.studio.explore import measure
from hornbook.studio.explore.explorer import load_explorer
from hornbook.studio.explore.views import Table


def test_what_a_step_keeps_is_what_is_planned() -> None:
    """Planned by arithmetic, traced by the trainer's own code, in a child process."""
    memory = load_explorer("memory")
    values = {"model": "tiny", "gpus": 2, "micro_batch": 1, "sequence": 128, "shard": "zero-3"}
    (table,) = measure.measured(memory, memory.ask(values)).views().values()
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["kept for backward", "weights", "gradients", "optimizer"]
    for name, planned, traced in table.rows:
        assert traced == pytest.approx(planned, rel=0.01), name


def test_a_measurement_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.2)
    zero = load_explorer("zero")
    with pytest.raises(HornbookError, match="it took more than"):
        measure.measured(zero, zero.question())


def test_a_refusal_of_the_child_is_told() -> None:
    memory = load_explorer("memory")
    with pytest.raises(HornbookError, match="those of bf16-pure are bf16"):
        measure.measured(memory, memory.ask({"model": "tiny", "lora": True, "precision": "bf16-pure"}))
    with pytest.raises(UsageError, match="measures nothing"):
        measure.measured(load_explorer("pipeline"), load_explorer("pipeline").question())
