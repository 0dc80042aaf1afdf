"""The size that the quickstart chooses on machines that the tests make up."""

import pytest

from hornbook.cli.start import demo, quickstart
from hornbook.cli.start.demo import LEAST_STEPS, SIZES, Machine

IDLE = Machine(2.5, 5e-5, "fp32")  # about two idle cores
MACHINES = {"one slow thread": Machine(4, 6e-4), "busy": Machine(5, 3e-4), "idle": IDLE, "fast": Machine(1, 3e-6)}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("seconds", [60, 100, 180, 600])
def test_what_is_chosen_fits_and_the_next_does_not(name: str, seconds: float) -> None:
    here = MACHINES[name]
    size = here.choose(seconds)
    if size.steps == LEAST_STEPS:
        return
    assert here.seconds(size) <= seconds
    larger = SIZES[SIZES.index(size) + 1 :] if size in SIZES else SIZES  # not in it: the smallest, cut
    assert all(here.seconds(each) > seconds for each in larger)


def test_a_slower_machine_never_gets_a_larger_demo() -> None:
    order = [here.choose(180) for here in MACHINES.values()]
    assert [size.parameters * size.steps for size in order] == sorted(size.parameters * size.steps for size in order)
    assert order[-1] == SIZES[-1]


@pytest.mark.parametrize(("limit", "slow"), [(20, IDLE), (170, Machine(9, 6e-4)), (180, Machine(30, 5e-3))])
def test_too_little_time_gives_the_smallest_demo_and_says_how_long_it_takes(
    limit: float, slow: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was refused: `--seconds 170 is too short`, beside one busy process."""
    monkeypatch.setattr(demo, "measure_machine", lambda: slow)
    monkeypatch.setattr(quickstart.time, "monotonic", lambda: 108.0)
    _, size, end = quickstart._machine(None, limit, 100.0)
    assert (size.name, size.steps) == ("xs", LEAST_STEPS)
    assert end == 8 + slow.seconds(size), "the training has the time that the line says"
    said = " ".join(capsys.readouterr().err.split())
    assert f"{limit:g} s are too few for this machine as it is now: the smallest demo takes about {end:.0f} s." in said


def test_training_has_the_time_that_the_other_stages_leave() -> None:
    assert IDLE.train_seconds(170) == 170 - demo.STARTS_OF_TRAINING * IDLE.start
    assert Machine(23, 1.8e-4).train_seconds(97) == pytest.approx(0.35 * 97)  # it started from a cold disk
