"""Gradients that are computed again: whose fault it is, and nothing of training changes by it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hornbook.errors import Exit
from hornbook.run.job import Job
from hornbook.run.observe import audit
from hornbook.run.observe.audit import Audit, Replay, judge
from hornbook.run.state import State
from hornbook.settings.recipe import Recipe
from tests.run.launcher import Launcher, Started

Events = Callable[..., list[dict[str, Any]]]
TWO = ("parallel.data=2", "model.dropout=0.1", "checkpoint.background=false")
A, B, C, D, X, Y = range(6)


def test_the_verdict_names_the_rank() -> None:
    """Rows: own digest, own again, digest of the rank before."""
    assert judge([(A, A, D), (B, B, A), (C, C, B), (D, D, C)]) == Replay("real", [])
    assert judge([(A, A, D), (B, X, A), (C, C, B), (D, D, C)]) == Replay("transient", [1])
    # Rank 1 is always wrong: in its own work, and in that of rank 0; ranks 0 and 2 agree with others.
    assert judge([(A, A, D), (X, X, Y), (C, C, B), (D, D, C)]) == Replay("persistent", [1])
    assert judge([(A, A, B), (X, X, Y)]) == Replay("persistent", [0, 1])
    assert judge([(A, A, A)]) == Replay("real", [])


@pytest.fixture(scope="module")
def whole(train_whole: Callable[..., Path]) -> Path:
    """The same run without any interruption and audit."""
    return train_whole(*TWO)


@pytest.fixture
def train(launcher: Launcher, tiny_settings: tuple[str, ...], tmp_path: Path) -> Callable[..., Started]:
    def start(folder: Path, *words: str, **how: Any) -> Started:
        words = ("train", "--out", str(folder), *tiny_settings, *TWO, "guard.audit_every=5", *words)
        return launcher.start(words, tmp_path / "output.txt", supervisor__BACKOFF=[0.0], **how)

    return start


@pytest.mark.parametrize("always", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_faulty_rank_is_found_and_training_is_the_same(
    tmp_path: Path, train: Callable[..., Started], same: Callable[[Path], None], events: Events, always: bool
) -> None:
    run = tmp_path / "run"
    wrong = {"do": "wrong again", "always": always, "generation": 0, "rank": 1, "phase": "data", "step": 3}
    started = train(run, faults=[wrong])
    assert started.wait() == 0, started.text
    same(run)
    found = [(each["found"], each["ranks"], each["step"]) for each in events(run, "audit")]
    assert found[0] == (("persistent", [0, 1], 4) if always else ("transient", [1], 4))
    assert len(events(run, "machine_check")) == len(events(run, "restart")) == int(always)
    assert "a transient fault" in started.text or always


@pytest.mark.parametrize(("kind", "ranks"), [("inf_grad", [0, 1]), ("nan_batch", [1])])
def test_a_step_that_was_refused_for_a_passing_fault_is_made(
    tmp_path: Path,
    train: Callable[..., Started],
    same: Callable[[Path], None],
    events: Events,
    kind: str,
    ranks: list[int],
) -> None:
    """What was not finite on one rank is finite when it is computed again: nothing is lost, without audits too.

    A rank whose loss was wrong is named; of gradients nobody knows whose it was.
    """
    run = tmp_path / "run"
    started = train(run, "guard.audit_every=0", faults=[{"do": kind, "generation": 0, "rank": 1, "step": 6}])
    assert started.wait() == 0, started.text
    same(run)
    (audit,) = events(run, "audit")
    assert (audit["found"], audit["step"], audit["ranks"]) == ("transient", 6, ranks)
    assert audit["digests"][0] is None
    assert audit["digests"][1] == audit["digests"][2]
    assert audit["gradient_norms"][0] != audit["gradient_norms"][1] == audit["gradient_norms"][2]
    assert not events(run, "skip")


def test_an_audit_without_memory_is_dropped_and_the_run_goes_on(
    tmp_path: Path, launch_run: Callable[..., Any], events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()

    def full(state: State, _: Any) -> Any:
        asked.append(state.step)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(audit, "microbatch_gradients", full)
    assert launch_run(tmp_path / "run", "guard.audit_every=3") == Exit.DONE
    assert asked == [2]
    (found,) = events(tmp_path / "run", "audit")
    assert (found["found"], found["ranks"]) == ("no memory", [0])


def test_ranks_that_hold_a_part_are_not_audited() -> None:
    said = list[str]()
    for parallel, ranks, data in (("none", 2, 2), ("optimizer", 2, 2), ("everything", 2, 2), ("none", 4, 2)):
        recipe = Recipe()
        recipe = recipe.model_copy(
            update={
                "guard": recipe.guard.model_copy(update={"audit_every": 5}),
                "parallel": recipe.parallel.model_copy(update={"shard": parallel}),
            }
        )
        world = SimpleNamespace(size=ranks, data_size=data)
        state = SimpleNamespace(engine=SimpleNamespace(world=world, model=torch.nn.Linear(2, 2)))
        made = Audit(cast("Job", SimpleNamespace(recipe=recipe, ledger=None)), cast("State", state), said.append)
        assert made.possible == (len(said) == 0)
    assert said == ["warning: guard.audit_every: ranks that hold a part of the model, or experts, are not audited"] * 2
