"""Copies of tensors in memory: whole or not there, and every bit compared when they are read."""

import math
import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from hornbook.errors import IntegrityError
from hornbook.parallel.world import World
from hornbook.run.checkpoints import memory_copies
from hornbook.run.checkpoints.memory_copies import CopyMemory
from hornbook.run.checkpoints.memory_tier import MemoryTier, UntrustedCopyError
from hornbook.run.checkpoints.state import State
from hornbook.run.ledger.ledger import Ledger
from hornbook.run.ledger.step_report import Step


def tensors(number: float) -> dict[str, Tensor]:
    value = float(number)
    return {
        "a": torch.full((3, 5), value),
        "b": torch.full((7,), value, dtype=torch.bfloat16),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(value),
    }


def test_the_two_newest_copies_are_kept() -> None:
    memory = CopyMemory(1)
    copies = memory.of_rank(0)
    assert (memory.newest(1), copies.steps) == (-1, [])
    for step in (3, 4, 5):
        copies.write(step, {"clock": 10 * step}, tensors(step))
    assert (memory.newest(1), sorted(copies.steps)) == (5, [4, 5])
    for step in (4, 5):
        found = tensors(0.0)
        assert copies.read(step, found) == {"clock": 10 * step}
        for name, tensor in tensors(step).items():
            assert torch.equal(found[name], tensor)


def test_a_copy_that_was_not_finished_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it ended: at each tensor, or once all were copied."""
    memory = CopyMemory(1)
    copies = memory.of_rank(0)
    for step in (3, 4):
        copies.write(step, {}, tensors(step))
    for left in range(len(tensors(0.0))):
        calls, digest = iter(range(left)), memory_copies._digest

        def die(*arguments: Any, calls: Any = calls, digest: Any = digest) -> int:
            if next(calls, None) is None:
                raise InterruptedError
            return digest(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(memory_copies, "_digest", die)
            with pytest.raises(InterruptedError):
                copies.write(5, {}, tensors(5.0))
        assert (memory.newest(1), copies.steps) == (4, [4])
    found = tensors(0.0)
    copies.read(4, found)
    assert torch.equal(found["a"], tensors(4.0)["a"])


def test_a_step_counts_once_every_rank_has_it() -> None:
    memory = CopyMemory(2)
    for rank, steps in enumerate([(1, 2, 3), (1, 2)]):
        for step in steps:
            memory.of_rank(rank).write(step, {}, tensors(step))
    assert memory.newest(2) == 2
    memory.of_rank(1).forget()
    assert (memory.newest(2), memory.newest(1)) == (-1, 3)  # ranks of a slot that is left out have none


@pytest.mark.parametrize("place", ["first", "last", "header", "preamble"])
def test_a_flipped_bit_is_found(place: str) -> None:
    memory = CopyMemory(1)
    copies = memory.of_rank(0)
    copies.write(4, {}, tensors(1.0))
    (slot,) = [each for each in memory._slots[0] if each.size]
    offset = {"first": 4096, "last": 4096 + 64 + 64, "header": slot.size - 1, "preamble": 17}[place]
    os.pwrite(slot._file, bytes([os.pread(slot._file, 1, offset)[0] ^ 4]), offset)
    if place in ("header", "preamble"):
        assert copies.steps == []
        return
    found = tensors(0.0)
    with pytest.raises(IntegrityError, match=f"step 4 in memory is damaged: {'a' if place == 'first' else 'scalar'} "):
        copies.read(4, found)
    assert torch.equal(found["a"], torch.zeros(3, 5))  # nothing was taken from it


def test_a_copy_of_other_tensors_is_refused() -> None:
    copies = CopyMemory(1).of_rank(0)
    copies.write(4, {}, tensors(1.0))
    with pytest.raises(IntegrityError, match="other tensors"):
        copies.read(4, {**tensors(0.0), "a": torch.zeros(5, 3)})


def test_trust_ends_for_all_ranks_and_their_supervisor() -> None:
    memory = CopyMemory(2)
    for rank in (0, 1):
        memory.of_rank(rank).write(4, {}, tensors(1.0))
    pid = os.fork()
    if not pid:
        memory.of_rank(1).distrust()
        os._exit(0)
    os.waitpid(pid, 0)
    assert (memory.newest(2), memory.of_rank(0).trusted, memory.of_rank(0).steps) == (-1, False, [])


def test_a_rank_that_has_memory_asks_as_one_that_has_none() -> None:
    """After a death within the first copy one rank has a copy and another none: both enter the same collectives."""
    calls: list[list[Any]] = [[], []]
    for rank, written in enumerate((True, False)):
        copies = CopyMemory(1).of_rank(0)
        if written:
            copies.write(1, {}, tensors(1.0))
            copies.write(2, {}, tensors(2.0))

        def gather(value: Any, _: Any, rank: int = rank) -> list[Any]:
            calls[rank].append(value)
            return [value]

        world = SimpleNamespace(all_gather_values=gather, rank=rank)
        spec = SimpleNamespace(surgery=())
        state = SimpleNamespace(step=4, spec=spec, tensors=lambda: tensors(3.0), counters=dict)
        tier = MemoryTier(copies, 1, cast("World", world), cast("Ledger", None), print)
        for _ in range(2):
            tier.copy_if_due(cast("State", state))
        assert copies.steps == [4, 4] if not written else 4 in copies.steps
    assert len(calls[0]) == len(calls[1]) == 2
    assert calls[0][0] == 0 < calls[1][0]


@pytest.mark.parametrize(
    ("scaler", "loss", "norm", "blamed"),
    [(False, 1.0, math.inf, True), (True, 1.0, math.inf, False), (True, math.nan, 1.0, True), (True, 1.0, 1.0, False)],
)
def test_under_fp16_a_loss_that_is_not_finite_is_blamed_on_the_copy_and_an_overflow_is_not(
    scaler: bool, loss: float, norm: float, blamed: bool
) -> None:
    copies, noted = CopyMemory(1).of_rank(0), list[str]()
    copies.write(2, {}, tensors(2.0))
    world = SimpleNamespace(all_gather_values=lambda value, _: [value], rank=0)
    ledger = SimpleNamespace(note=lambda kind, *_, **__: noted.append(kind))
    tier = MemoryTier(copies, 1, cast("World", world), cast("Ledger", ledger), print)
    tier._start, tier._scaled = 2, scaler  # as `restore` leaves them
    step = cast("Step", SimpleNamespace(step=5, loss=loss, grad_norm=norm))
    with pytest.raises(UntrustedCopyError) if blamed else nullcontext():
        tier.judge(step)
    assert noted == ["tier_distrusted"] * blamed
