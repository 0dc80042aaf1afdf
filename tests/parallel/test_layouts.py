"""The equality matrix: every layout of `tests.parallel.layouts` against one process.

20 steps of each, as a table: `python -m benchmarks.training.layouts`.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.parallel import tiling
from tests.parallel.layouts import EVERY, FURTHER, LAYOUTS, Layout, examine, refusal, rounds_parts
from tests.parallel.trajectory import Result, Run, largest_of, perform
from tests.ranks import RankServer

STEPS = 2
Performer = Callable[[Run], Result]
CELLS = [(name, family) for name, layout in LAYOUTS.items() for family in layout.families]
BUILT = [(name, family) for name, family in CELLS if refusal(LAYOUTS[name].run(family, "fp32")) is None]
"""Cells that a recipe may have."""
SLOW = ("gpipe", "interleaved", "dualpipev")
"""Schedules that are like another one to all but the order of passes, which has tests of its own."""
PAIRS = [name for name, layout in LAYOUTS.items() if layout.ranks == 2 and not name.endswith(SLOW)]
SHORT = {(name, LAYOUTS[name].families[number % len(LAYOUTS[name].families)]) for number, name in enumerate(PAIRS)}
"""What every change is tested with: layouts of two ranks, with one family after the other."""


@pytest.fixture(scope="module")
def done(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Performer:
    """The result of a run; the same run is not done twice."""

    @cache
    def result(run: Run) -> Result:
        return perform(run_ranks, run, tmp_path_factory.mktemp("run") / "weights")

    return result


def test_the_table_has_every_axis_and_the_models_alone_are_not_refused() -> None:
    runs = [LAYOUTS[name].run(family, "fp64") for name, family in CELLS]
    for axis in ("world", "replicas", "tensor", "stages", "context", "expert"):
        assert any(getattr(run, axis) > 1 for run in runs), axis
    assert {refusal(run.alone) for run in runs} == {None}


def test_a_nan_is_never_lost_in_a_comparison() -> None:
    for values in ([math.nan, 1e-15], [1e-15, math.nan], [math.inf, math.nan]):
        assert math.isnan(largest_of(values))
    assert largest_of([1e-15, 2.0, math.inf]) == math.inf


def test_what_is_refused_is_refused_for_its_axes() -> None:
    for name, family in set(CELLS) - set(BUILT):
        reason = refusal(LAYOUTS[name].run(family, "fp32"))
        assert reason is not None
        assert reason.startswith("parallel."), (name, family, reason)


@pytest.mark.parametrize(("name", "family"), [cell for cell in BUILT if cell in SHORT])
def test_two_ranks_equal_one_process(done: Performer, name: str, family: str) -> None:
    run = LAYOUTS[name].run(family, "fp64", steps=STEPS, microbatches=3)
    cell = examine(done, run)
    assert cell.state == "equal", cell


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize(("name", "family"), BUILT)
def test_every_layout_equals_one_process(done: Performer, name: str, family: str, precision: str) -> None:
    run = LAYOUTS[name].run(family, precision, steps=3 * STEPS)
    cell = examine(done, run)
    assert cell.state in (("equal", "rounds") if rounds_parts(run) else ("equal",)), cell


def test_the_parts_of_all_ranks_tile_every_parameter(run_ranks: RankServer) -> None:
    """Of the family that has most kinds of them."""
    names = [name for name, family in BUILT if family == "experts" and name in PAIRS]
    runs = [LAYOUTS[name].run("experts", "fp32") for name in names]
    for run, ranks in tiling.parts_of_all(run_ranks, runs):
        tiling.check_tiling(run, ranks)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*EVERY, FURTHER])
def test_the_parts_of_all_ranks_tile_every_parameter_of_a_family(run_ranks: RankServer, family: str) -> None:
    runs = [LAYOUTS[name].run(each, "fp32") for name, each in BUILT if each == family]
    for run, ranks in tiling.parts_of_all(run_ranks, runs):
        tiling.check_tiling(run, ranks)


def test_a_tiling_with_a_gap_or_an_overlap_is_an_error(run_ranks: RankServer) -> None:
    run = Layout("", {"world": 2, "shard": "everything"}).run("decoder", "fp32")
    ((_, (first, second)),) = tiling.parts_of_all(run_ranks, [run])
    tiling.check_tiling(run, [first, second])
    name, right = next(iter(second.items()))
    earlier, shorter = [right.start[0] - 1, *right.start[1:]], [right.size[0] - 1, *right.size[1:]]
    changes: list[dict[str, Any]] = [{"start": earlier}, {"size": shorter}, {"copy": 1}, {"axes": []}]
    for change in changes:
        with pytest.raises(AssertionError, match=name):
            tiling.check_tiling(run, [first, second | {name: right._replace(**change)}])
