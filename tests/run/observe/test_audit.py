"""Gradients that are computed again: whose fault it is, and nothing of training changes by it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hornbook.errors import Exit, HardwareError
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.state import State
from hornbook.run.job.job import Job
from hornbook.run.ledger.ledger import At, Ledger
from hornbook.run.observe import audit
from hornbook.run.observe.audit import Audit, FaultyRankError, Replay, judge
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


def test_a_rank_whose_fault_passed_does_not_hide_one_whose_fault_stays() -> None:
    """Rank 0 or 1 gives two results; rank 2 is always wrong, and agrees with nobody."""
    assert judge([(A, A, D), (B, X, A), (Y, Y, Y), (D, D, C)]) == Replay("persistent", [2], [1])
    assert judge([(A, X, D), (B, B, A), (Y, Y, Y), (D, D, C)]) == Replay("persistent", [2], [0])
    # Rank 1 agrees with one of the two results of rank 0, so it is sound.
    assert judge([(X, A, C), (B, B, A), (Y, Y, X)]) == Replay("persistent", [2], [0])
    assert judge([(A, X, B), (B, B, Y)]) == Replay("transient", [0])


def concluding(run: RunDir, ranks: int = 4, device: str = "cpu", *, silent: bool = False) -> tuple[Ledger, Audit]:
    """The audit of an attempt, with its ledger."""
    world = SimpleNamespace(size=ranks, data_size=ranks, data_rank=0, device=torch.device(device))
    world.all_gather_values = lambda value, _: [value] * ranks
    engine = SimpleNamespace(world=world, model=torch.nn.Linear(2, 2))
    state = SimpleNamespace(engine=engine, step=4, tokens=0)
    ledger = Ledger(run, silent=silent)
    return ledger, Audit(
        cast("Job", SimpleNamespace(recipe=Recipe(), ledger=ledger)), cast("State", state), list[str]().append
    )


def found(run: RunDir) -> list[tuple[str, list[int]]]:
    return [(each["found"], each["ranks"]) for each in read_records(run.events) if each["kind"] == "audit"]


@pytest.mark.parametrize("silent", [False, True])
def test_a_rank_that_audits_name_alone_twice_is_faulty(tmp_path: Path, silent: bool) -> None:
    """On every rank alike."""
    run = RunDir(tmp_path).create()
    ledger, audit = concluding(run, silent=silent)
    with ledger:
        for ranks in ([1], [2], [0, 1], [0, 2]):
            audit.conclude(Replay("transient", ranks))
        with pytest.raises(FaultyRankError, match="on rank 2, not for the first time"):
            audit.conclude(Replay("transient", [2]))
    assert found(run)[4:] == ([] if silent else [("persistent", [2])])


@pytest.mark.parametrize("silent", [False, True])
def test_a_rank_that_was_named_before_a_restart_is_faulty(tmp_path: Path, silent: bool) -> None:
    run = RunDir(tmp_path).create()
    ledger, audit = concluding(run)
    with ledger:
        audit.conclude(Replay("transient", [1]))
        ledger.note("restart", At(4))
    ledger, audit = concluding(run, silent=silent)
    with ledger, pytest.raises(FaultyRankError, match="on rank 1, not for the first time"):
        audit.conclude(Replay("transient", [1]))


def test_both_faults_of_an_audit_are_noted(tmp_path: Path) -> None:
    run = RunDir(tmp_path).create()
    ledger, audit = concluding(run)
    with ledger, pytest.raises(FaultyRankError, match="on rank 3, every time"):
        audit.conclude(Replay("persistent", [3], [1]))
    assert found(run) == [("transient", [1]), ("persistent", [3])]


@pytest.mark.parametrize(("device", "ranks", "ends"), [("cuda", 1, False), ("cpu", 1, True), ("cuda", 2, True)])
def test_a_gpu_alone_is_not_blamed_for_sums_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, ranks: int, ends: bool
) -> None:
    """Where other ranks come to the same bits twice, kernels add in one order."""
    run = RunDir(tmp_path).create()
    ledger, made = concluding(run, ranks, device)
    digests = [[(A, X, A), (B, B, A)][:ranks] for _ in range(3)]
    monkeypatch.setattr(made, "_digests", lambda *_: (A, A, A))
    monkeypatch.setattr(made._world, "all_gather_values", lambda *_: digests[0])
    with ledger:
        for number in range(3):
            replay = made.replay(cast("Any", None))
            assert replay is not None
            assert (replay.kind, replay.ranks) == ("transient", [0])
            if ends and number == 1:
                with pytest.raises(HardwareError if ranks == 1 else FaultyRankError):
                    made.conclude(replay)
                break
            made.conclude(replay)
    kinds = ["transient", "persistent"] if ends else ["transient"] * 3
    assert [kind for kind, _ in found(run)] == kinds


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


@pytest.mark.parametrize("always", [True, False])
def test_a_faulty_rank_is_found_and_training_is_the_same(
    tmp_path: Path, train: Callable[..., Started], same: Callable[[Path], None], events: Events, always: bool
) -> None:
    run = tmp_path / "run"
    wrong = {"do": "wrong again", "always": always, "generation": 0, "rank": 1, "phase": "data", "step": 3}
    started = train(run, faults=[wrong])
    assert started.wait() == 0, started.text
    same(run)
    found = [(each["found"], each["ranks"], each["step"]) for each in events(run, "audit")]
    assert found == ([("persistent", [0, 1], 4)] if always else [("transient", [1], 4), ("persistent", [1], 9)])
    assert len(events(run, "machine_check")) == len(events(run, "restart")) == 1
    assert "a transient fault" in started.text or always


@pytest.mark.slow
def test_a_rank_that_was_named_before_a_restart_is_found(
    tmp_path: Path, train: Callable[..., Started], same: Callable[[Path], None], events: Events
) -> None:
    run, place = tmp_path / "run", {"rank": 1, "phase": "data"}
    wrong = {"do": "wrong again", "always": False, **place}
    kill = {"do": "SIGKILL", "generation": 0, "step": 7, **place}
    started = train(run, faults=[{**wrong, "generation": 0, "step": 3}, kill, {**wrong, "generation": 1, "step": 8}])
    assert started.wait() == 0, started.text
    same(run)
    found = [(each["found"], each["ranks"], each["step"]) for each in events(run, "audit")]
    assert found[0] == ("transient", [1], 4)
    assert found[-1] == ("persistent", [1], 9)
    assert len(events(run, "restart")) == 2
    assert len(events(run, "machine_check")) == 1


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
