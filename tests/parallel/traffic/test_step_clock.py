"""Phases of a step on a GPU are events in its stream, which are read without a wait."""

import torch

from hornbook.model.layers.transfer import fetch
from hornbook.parallel.traffic.step_clock import StepClock
from tests.helpers.emulated_tensor import CUDA, Waits


def take_step(clock: StepClock, *, update_comes_last: bool) -> dict[str, float]:
    """Phases of a step, whose one wait is before the update or after it."""
    clock.begin()
    with clock.phase("forward"):
        loss = torch.ones((), device=CUDA) + 1
    with clock.phase("optimizer"):
        if not update_comes_last:
            loss.add_(1)
        fetch(loss)
        if update_comes_last:
            loss.add_(1)
    return dict(clock.take())


def test_phases_are_read_after_the_wait_of_the_step(emulated_cuda: Waits) -> None:
    phases = take_step(StepClock(CUDA), update_comes_last=False)
    assert min(phases["forward"], phases["optimizer"]) > 0
    assert phases["backward"] == 0
    assert sum(emulated_cuda.places().values()) == 1


def test_an_update_after_the_wait_counts_in_the_next_step(emulated_cuda: Waits) -> None:
    """To read its time at once the host would wait for the device once more, and the device then for the host."""
    clock = StepClock(CUDA)
    first, second = (take_step(clock, update_comes_last=True) for _ in range(2))
    assert first["optimizer"] == 0 < second["optimizer"]
    assert min(first["forward"], second["forward"]) > 0
    assert sum(emulated_cuda.places(draining=False).values()) == 2
    clock.begin()
    torch.cuda.synchronize()
    assert clock.take()["optimizer"] > 0  # an evaluation between two steps, which begins the clock anew, loses nothing
