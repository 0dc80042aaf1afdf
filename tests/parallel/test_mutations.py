"""With any one collective taken out, a run differs from one process, or fails: nothing that is summed may go unseen."""

import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.parallel.layouts import EXACT, FIGURES, LAYOUTS, refusal, told
from tests.parallel.trajectory import Difference, Result, Run, compare, largest_of, perform
from tests.ranks import LOST_PEER, RankError, RankServer, complaint

STEPS, LIMIT = 2, 30.0
EVERYTHING = {"clip": "tight", "penalty": 0.01, "steps": STEPS, "microbatches": 5}
"""What sums over ranks besides losses, gradients and norms."""
BUILT = [
    (name, family)
    for name, layout in LAYOUTS.items()
    for family in ("experts", "decoder")
    if family in layout.families and refusal(layout.run(family, "fp64")) is None
]
"""Each layout with the family that has most to sum, and the plain one."""
RECORD, REMOVE = "tests.parallel.mutations:record:", "tests.parallel.mutations:remove:"
NOTHING = Result([], [], [], [], [], {}, {}, [], [])
MISMATCH = "Received data size doesn't match expected size"
"""Gloo's words before it aborts a rank whose peer sends another number of bytes: without the counts told beforehand."""
DEADLOCKS: tuple[str, ...] = ()
"""Sites without whose collective ranks must wait for each other for ever: of these alone a time-out is an answer."""
Performer = Callable[[Run], Result]


@pytest.fixture
def do(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Performer:
    return lambda run: perform(run_ranks, run, tmp_path_factory.mktemp("run") / "weights", limit=LIMIT)


def sites_of(do: Performer, run: Run, folder: Path) -> list[str]:
    """The collectives of a run, which is itself equal to one process."""
    folder.mkdir()
    difference = compare(do(replace(run, before=f"{RECORD}{folder}")), do(run.alone))
    assert worst(difference) < EXACT, difference
    return sorted({line for path in folder.iterdir() for line in path.read_text().splitlines()})


def noticed(do: Performer, run: Run, expected: Result) -> str:
    """How the run differs from one process, or the error that a rank reports; empty if neither."""
    try:
        difference = compare(do(run), expected)
    except AssertionError as error:
        if "in _keep_" in str(error):  # of `mutations`, which must not fail itself
            raise
        how = told(error) if is_reported(error) or run.before.removeprefix(REMOVE) in DEADLOCKS else ""
    else:
        how = "" if worst(difference) < EXACT else str(difference)
    print(f"{run.before.removeprefix(REMOVE)}: {how or 'UNSEEN'}")
    return how


def is_reported(error: AssertionError) -> bool:
    """Whether results differ, ranks send other sizes, or one ended with an error of its own.

    A run that a signal or the limit of the harness ended says nothing about what it computes, nor does a rank that
    lost its peer by that.
    """
    if not isinstance(error, RankError) or MISMATCH in str(error):
        return True
    words = re.split(r"^(?=rank \d+ )", str(error), flags=re.MULTILINE)
    return any(re.match(r"rank \d+ failed:$", each, re.MULTILINE) and LOST_PEER not in each for each in words)


def is_needless(run: Run, site: str) -> bool:
    """Experts are divided whole: where nothing else divides parameters, the squares of a row lie on one rank, and the
    sum over ranks of experts adds zeros."""
    alone = run.expert > 1 and run.tensor == 1 and run.shard == "none"
    return alone and "by Clipping._limit_rows" in site


def worst(difference: Difference) -> float:
    return largest_of(getattr(difference, name) for name in FIGURES)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "family"), BUILT)
def test_no_collective_can_be_left_out(do: Performer, tmp_path: Path, name: str, family: str) -> None:
    run = LAYOUTS[name].run(family, "fp64", **EVERYTHING)
    sites, expected = sites_of(do, run, tmp_path / "sites"), do(run.alone)
    assert len(sites) >= 2, sites
    unseen = [
        site
        for site in sites
        if not is_needless(run, site) and not noticed(do, replace(run, before=REMOVE + site), expected)
    ]
    assert not unseen


@pytest.mark.parametrize(
    ("status", "words", "counts"),
    [
        (1 << 8, "ValueError: sums differ", True),
        (1 << 8, f"RuntimeError: Connection closed {LOST_PEER}", False),
        (None, "ValueError: of a step before", False),
        (signal.SIGSEGV, "", False),
        (signal.SIGABRT, f"what(): 15360 vs 13440. {MISMATCH}", True),
    ],
)
def test_neither_a_crash_nor_a_timeout_counts_as_noticed(
    tmp_path: Path, status: int | None, words: str, counts: bool
) -> None:
    (tmp_path / "1.log").write_text(words)
    error = RankError("case on 2 ranks\n" + complaint(tmp_path, 1, status))

    def fail(_: Run) -> Result:
        raise error

    name, family = BUILT[0]
    assert bool(noticed(fail, LAYOUTS[name].run(family, "fp64"), NOTHING)) == counts
    assert is_reported(AssertionError("ranks disagree"))
