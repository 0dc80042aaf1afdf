"""What the quickstart chooses on machines that the tests make up."""

from dataclasses import replace

import pytest

from hornbook.cli.start import demo_time
from hornbook.cli.start.demo import SIZES
from hornbook.cli.start.demo_time import (
    LEAST_STEPS,
    PROBED,
    SLACK,
    Budget,
    Machine,
    choose_size,
    least_seconds,
    machine_of,
)

XS, M = (size.parameters for size in PROBED)


def machine(start: float = 2.5, compiling: float = 0.0, xs: float = 5e-5, m: float = 1.5e-4) -> Machine:
    """By default about two idle cores; `xs` and `m` are seconds per token."""
    return Machine(start, compiling, {XS: xs, M: m}, "fp32")


IDLE = machine()
MACHINES = {
    "idle": IDLE,
    "cold": machine(compiling=20),
    "fast": machine(start=1, xs=3e-6, m=8e-6),
    "busy": machine(start=5, xs=3e-4, m=1.2e-3),
    "busy and cold": machine(start=5, compiling=45, xs=3e-4, m=1.2e-3),
    "one slow thread": Machine(4, 10, {XS: 6e-4}, "fp32"),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("seconds", [60, 100, 180, 600])
def test_what_is_chosen_fits_and_the_next_does_not(name: str, seconds: float) -> None:
    here = MACHINES[name]
    size = choose_size(seconds, here)
    needed = SLACK * here.remaining(size)
    if size.steps == LEAST_STEPS:
        return
    assert needed <= seconds
    names = [each.name for each in SIZES]
    if size not in SIZES:  # the smallest, cut: one step more would be too many
        assert SLACK * here.remaining(replace(size, steps=size.steps + 1)) > seconds
    elif size != SIZES[-1]:
        assert SLACK * here.remaining(SIZES[names.index(size.name) + 1]) > seconds


def test_a_slower_machine_never_gets_a_larger_demo() -> None:
    order = [choose_size(180, MACHINES[name]) for name in ("one slow thread", "busy", "idle", "fast")]
    assert [size.parameters * size.steps for size in order] == sorted(size.parameters * size.steps for size in order)
    assert choose_size(180, MACHINES["fast"]) == SIZES[-1]
    assert least_seconds(MACHINES["busy and cold"]) > least_seconds(MACHINES["busy"]) > least_seconds(IDLE)


def test_time_that_is_gone_makes_the_demo_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text took longer than estimated: the size is chosen anew by what is left, and never grows."""
    now = [50.0]
    monkeypatch.setattr(demo_time.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(demo_time, "process_start", lambda: 3.0)
    budget = Budget(180, IDLE, elapsed=10)
    first, note = budget.first_size()
    assert (budget.left, note) == (170, "")
    now[0] += 100
    plan = budget.plan(first)
    assert plan.size.parameters < first.parameters
    assert plan.size.corpus_bytes == first.corpus_bytes  # the text is there
    assert plan.train_seconds is not None
    assert plan.train_seconds == pytest.approx(70 - SLACK * IDLE.beside(plan.size))
    assert SLACK * IDLE.training(plan.size) <= plan.train_seconds
    now[0] -= 99
    assert budget.plan(SIZES[0]).size == SIZES[0]


def test_a_first_start_from_a_cold_disk_does_not_take_the_time_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_time, "process_start", lambda: 4.0)
    plan = Budget(180, machine(start=23, compiling=19, xs=1.8e-4), elapsed=83).plan(SIZES[0])
    assert plan.size.steps > LEAST_STEPS
    monkeypatch.setattr(demo_time, "process_start", lambda: 30.0)
    plan = Budget(180, machine(start=23, compiling=19, xs=1.8e-4), elapsed=83).plan(SIZES[0])
    assert plan.train_seconds == pytest.approx(0.35 * 97, abs=1)


@pytest.mark.parametrize(
    ("limit", "elapsed", "slow"),
    [(20, 8, IDLE), (170, 9, MACHINES["busy and cold"]), (180, 100, machine(start=30, compiling=100, xs=5e-3, m=2e-2))],
)
def test_too_little_time_gives_the_smallest_demo_and_says_how_long_it_takes(
    limit: float, elapsed: float, slow: Machine
) -> None:
    """It was refused: `--seconds 170 is too short`, beside one busy process."""
    budget = Budget(limit, slow, elapsed)
    size, note = budget.first_size()
    needed = elapsed + least_seconds(slow)
    assert note.startswith(f"{limit:g} s are too few for this machine as it is now: the smallest demo takes about ")
    assert float(note.split("about ")[1].split(" s")[0]) == pytest.approx(needed, abs=1)
    assert (size.name, size.steps) == ("xs", LEAST_STEPS)
    assert budget.seconds == pytest.approx(needed, abs=0.1), "the training has the time that the line says"


def test_rates_are_a_line_over_parameters() -> None:
    for size, expected in ((PROBED[0], 5e-5), (PROBED[1], 1.5e-4)):
        assert IDLE.token(size) == pytest.approx(expected)
    assert IDLE.token(SIZES[-1]) > IDLE.token(SIZES[-2]) > 1.5e-4
    alone = Machine(2, 0, {XS: 1e-4})
    assert alone.token(PROBED[1]) == pytest.approx(1e-4 * M / XS)


def test_the_probe_tells_start_compiling_and_rates_apart() -> None:
    found = {"precision": "fp32", "computing": 9.0, "compiling": 6.5, "seconds_per_token": [1e-4]}
    assert machine_of(found, 11.5) == Machine(2.5, 6.5, {XS: 1e-4}, "fp32")
