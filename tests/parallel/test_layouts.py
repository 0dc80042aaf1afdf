"""The equality matrix: every layout of `tests.parallel.layouts` against one process.

20 steps in every precision, as a table: `python -m benchmarks.training.layouts`.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.parallel import tiling
from tests.parallel.layouts import EVERY, LAYOUTS, Layout, examine, limits_of, refusal
from tests.parallel.mutations import CONTROL
from tests.parallel.trajectory import Result, Run, compare, perform
from tests.ranks import RankError, RankServer

STEPS = 3
Performer = Callable[[Run], Result]
PAIRS = [layout for layout in LAYOUTS.values() if layout.ranks == 2]
"""Layouts of two ranks, with which every change is tested."""
DIFFERENT = {"encoder": "ZeRO-3, data 2", "encoder-decoder": "ZeRO-2, data 2", "hybrid": "data 2"}
"""Families besides the decoder and, where there are experts, theirs; and the layout that tests them."""


@pytest.fixture(scope="module")
def done(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Performer:
    """The result of a run; the same run is not done twice."""

    @cache
    def result(run: Run) -> Result:
        return perform(run_ranks, run, tmp_path_factory.mktemp("run") / "weights", limit=60.0)

    return result


def check(done: Performer, run: Run) -> None:
    cell = examine(done, run, limits_of(run.precision, []))
    if cell.state == "refused":
        pytest.skip(cell.reason)
    assert cell.state == "equal", cell


def test_the_table_has_every_axis() -> None:
    fields = [layout.run("experts", "fp64") for layout in LAYOUTS.values()]
    for axis in ("world", "replicas", "tensor", "stages", "context", "expert"):
        assert any(getattr(run, axis) > 1 for run in fields), axis
    assert [refusal(Layout("alone", {}).run(family, "fp64")) for family in EVERY] == [None] * len(EVERY)
