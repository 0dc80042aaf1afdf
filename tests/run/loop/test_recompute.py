"""A refused step that is computed again: who is believed of three results, and on whom it falls."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hornbook.data.batch import GlobalBatch
from hornbook.errors import HardwareError
from hornbook.optim.config.clipping_config import NormClip
from hornbook.run.checkpoints.state import State
from hornbook.run.job.job import Job
from hornbook.run.ledger.decisions import fold_named
from hornbook.run.loop.recompute import Recompute, Result
from hornbook.run.observe.audit import FaultyRankError, Replay
from hornbook.settings.training import GuardConfig

BAD, OTHER = [50.0, 9.0], [70.0, 8.0]
GOOD = [1.0, 2.0]


@dataclass
class Bench:
    """One rank whose computations give scripted results."""

    script: list[Result]
    device: str = "cpu"
    ranks: int = 1
    acts: bool = True
    scaler: Any = None
    gathered: Callable[[Any], list[Any]] = lambda value: [value]
    audit_every: int = 0
    shard: str = "everything"
    noted: list[dict[str, Any]] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        named = Counter[int]()

        def count(_: Any) -> None:
            self.made += 1

        def note(kind: str, _: Any, **fields: Any) -> None:
            self.noted.append({"kind": kind, "made": self.made, **fields})
            fold_named(named, self.noted[-1])

        world = SimpleNamespace(size=self.ranks, data_size=self.ranks, device=torch.device(self.device))
        world.all_reduce_max = list
        world.all_gather_values = lambda value, _: self.gathered(value)
        engine = SimpleNamespace(
            world=world, model=torch.nn.Linear(1, 1), scaler=self.scaler, own_terms=[torch.tensor([1.0])]
        )
        engine.clipping = SimpleNamespace(state=list)
        engine.step, engine.zero_gradients = count, lambda: None
        state = SimpleNamespace(engine=engine, optimizer=None, guard=SimpleNamespace(acts=self.acts), step=6)
        guard = GuardConfig(audit_every=self.audit_every)
        recipe = SimpleNamespace(guard=guard, parallel=SimpleNamespace(shard=self.shard))
        job = SimpleNamespace(
            recipe=recipe, control=None, ledger=SimpleNamespace(note=note, now=SimpleNamespace(named=named))
        )
        job.rank_info = SimpleNamespace(host=None)
        self.again = Recompute(cast("Job", job), cast("State", state), lambda _: None)
        left = iter(self.script)
        self.again._again = lambda batch, how, limits, norms: next(left)  # noqa: ARG005

    def refused(self, seen: list[float]) -> tuple[bool, list[float], bool]:
        """Of a step that gave `seen` first."""
        return self.again.refused(cast("GlobalBatch", SimpleNamespace(batches=["a", "b"])), NormClip(), None, seen)


def result(numbers: list[float], digest: int | None = 7, own: float = 1.0) -> Result:
    return Result(numbers[0] < 10, numbers, [own], digest)


@pytest.mark.parametrize(
    ("script", "made", "same", "found"),
    [
        pytest.param([result(BAD)], False, True, None, id="twice the same is the data"),
        pytest.param([result(GOOD), result(GOOD)], True, False, "transient", id="the first was wrong"),
        pytest.param([result(OTHER), result(OTHER)], False, True, "transient", id="wrong, and bad data too"),
        pytest.param([result(GOOD), result(BAD)], False, True, "transient", id="the second was wrong"),
        pytest.param([result(GOOD), result(GOOD, 8)], None, True, "persistent", id="the digests differ"),
        pytest.param([result(OTHER), result(GOOD)], None, True, "persistent", id="three results"),
    ],
)
def test_what_two_of_three_agree_on_is_taken(script: list[Result], made: bool | None, same: bool, found: str) -> None:
    bench = Bench(script)
    if made is None:
        with pytest.raises(HardwareError, match="step 7 computed again has other bits on rank 0, every time"):
            bench.refused(BAD)
    else:
        applied, numbers, equal = bench.refused(BAD)
        assert (applied, equal) == (made, same)
        assert numbers == ([BAD, *(each.numbers for each in script)][-1] if found else BAD)
    assert [each["found"] for each in bench.noted] == ([found] if found else [])
    assert bench.made == bool(made)
    assert all(each["made"] == 0 for each in bench.noted), "the ledger is first"


def test_a_neighbour_that_has_other_bits_ends_the_attempt() -> None:
    """It is asked where it has the whole model, and a rank came to the same twice."""
    for verdict, raises in ((Replay("real", []), False), (Replay("persistent", [1]), True)):
        bench, asked = Bench([result(BAD)], ranks=2, shard="none"), list[Any]()

        def replay(batch: Any, verdict: Replay = verdict, asked: list[Any] = asked) -> Replay:
            asked.append(batch)
            return verdict

        bench.again.audit.replay = replay
        with pytest.raises(FaultyRankError, match="on rank 1") if raises else nullcontext():
            assert bench.refused(BAD) == (False, BAD, True)
        assert asked == (["a"] if raises else ["a", "b"])


def test_nan_is_equal_to_nan() -> None:
    assert Bench([result([math.nan, math.nan], None)]).refused([math.nan, math.nan])[2]


def test_results_of_a_gpu_are_equal_within_rounding() -> None:
    bench = Bench([result([1.0, 2.0], 1), result([1.0001, 2.0], 2)], device="cuda")
    assert bench.refused(BAD) == (True, [1.0001, 2.0], False)
    noisy = Bench([result([60.0, 9.0], 1), result([70.0, 9.0], 2)], device="cuda")
    assert noisy.refused(BAD) == (False, BAD, True)
    assert noisy.noted == []
    at_limit = Bench([result([9.99, 2.0], 1)], device="cuda")
    assert at_limit.refused([10.01, 2.0]) == (False, [10.01, 2.0], True)
    assert at_limit.noted == [], "a limit between two results is no fault"


def test_a_rank_that_is_named_alone_twice_is_faulty() -> None:
    def script() -> Iterator[Result]:
        for _ in range(2):
            yield from (result(GOOD, own=2.0), result(GOOD, own=2.0))

    others = {"ranks": 2, "gathered": lambda value: [(False, value[1]), value]}
    bench = Bench([*script()], **others)
    assert bench.refused(BAD)[0]
    with pytest.raises(FaultyRankError, match="on rank 1, not for the first time"):
        bench.refused(BAD)
    assert [(each["found"], each["ranks"]) for each in bench.noted] == [("transient", [1]), ("persistent", [1])]


def test_nothing_is_computed_where_the_guard_only_looks_or_a_scale_is_searched() -> None:
    assert Bench([], acts=False).refused(BAD) == (False, BAD, False)
    assert Bench([], scaler=object()).refused([math.inf, 1.0]) == (False, [math.inf, 1.0], False)
    assert Bench([result(BAD)], scaler=object()).refused(BAD)[2]
    assert Bench([result(BAD)], acts=False, audit_every=5).refused(BAD)[2]
