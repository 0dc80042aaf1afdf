"""The emulated GPU refuses what a GPU refuses, notes every wait of the host, and leaves torch as it was."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hornbook.model.layers.transfer import fetch, to_device
from tests.helpers.emulated_cuda import emulated_cuda
from tests.helpers.emulated_tensor import CUDA, CudaTensor, Waits

CHANGED: list[tuple[Any, tuple[str, ...]]] = [
    (torch, ("tensor", "empty", "empty_like", "zeros_like")),
    (Tensor, ("to", "pin_memory", "is_pinned")),
    (torch.cuda, ("is_available", "Event", "Stream", "current_stream", "synchronize", "mem_get_info")),
    (torch._C, ("_group_tensors_by_device_and_dtype",)),
]


def state_of_torch() -> list[dict[str, Any]]:
    places: list[Any] = [torch, Tensor, torch.cuda, torch.cuda.memory, torch._C, torch.nn.attention.varlen]
    return [
        {name: id(value) for name, value in vars(each).items() if not isinstance(value, ModuleType)} for each in places
    ]


def trained(device: torch.device) -> Tensor:
    """Weights after three steps of a small model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 11)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    tokens = to_device(torch.arange(11), device)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens), tokens.roll(1)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()]).cpu()


def test_values_are_those_of_the_cpu_and_torch_is_as_before() -> None:
    before, want = state_of_torch(), trained(torch.device("cpu"))
    with emulated_cuda() as waits:
        within = state_of_torch()
        got = trained(CUDA)
        assert sum(waits.places().values()) == waits.places()["to host @ "] + waits.places()["copy to device @ "]
    assert torch.equal(want, got)
    assert state_of_torch() == before != within
    assert not torch.cuda.is_available()
    assert not torch.__future__.get_overwrite_module_params_on_conversion()
    assert torch.equal(trained(torch.device("cpu")), want)


def test_all_is_undone_after_an_error() -> None:
    before = state_of_torch()
    with pytest.raises(ZeroDivisionError), emulated_cuda():
        raise ZeroDivisionError
    assert state_of_torch() == before
    with pytest.raises((RuntimeError, AssertionError)):  # no GPU is there any more
        torch.ones(2, device=CUDA)


MIXES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "sum": lambda x, y: x + y,
    "product": lambda x, y: y @ x,
    "in place": lambda x, y: y.add_(x),
    "out": lambda x, y: torch.add(x, x, out=y),
    "cat": lambda x, y: torch.cat([x, y]),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "foreach": lambda x, y: torch._foreach_add([x], [y]),
    "index of the host's": lambda x, y: y[x.long()],
    "values to put": lambda x, y: x.index_put_((torch.arange(3),), y),
    "loss": F.mse_loss,
    "numpy": lambda x, _: x.numpy(),
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=list(MIXES))
def test_devices_do_not_mix(mix: Callable[[Tensor, Tensor], object], emulated_cuda: Waits) -> None:  # noqa: ARG001
    with pytest.raises((RuntimeError, TypeError), match=r"same device|numpy"):
        mix(torch.ones(3, device=CUDA), torch.ones(3))


def test_scalars_of_the_host_mix(emulated_cuda: Waits) -> None:
    x = torch.ones(3, device=CUDA) * torch.tensor(2.0) + 1
    assert not emulated_cuda.found
    assert x.tolist() == [3, 3, 3]


PAGEABLE = "copy of pageable memory to device"
WAITS: dict[str, tuple[Callable[[Tensor], object], str | None]] = {
    "float": (lambda x: float(x.sum()), "item"),
    "bool": (lambda x: bool(x.any()), "item"),
    "allclose": (lambda x: torch.allclose(x, x), "item"),
    "tolist": (lambda x: x.tolist(), "tolist"),
    "cpu": (lambda x: x.cpu(), "to host"),
    "to host": (lambda x: x.to("cpu", torch.float64), "to host"),
    "to host, later": (lambda x: x.to("cpu", non_blocking=True), None),
    "nonzero": (lambda x: x.nonzero(), "nonzero"),
    "equal": (lambda x: torch.equal(x, x), "equal"),
    "mask": (lambda x: x[x > 0], "index of booleans"),
    "put by mask": (lambda x: x.index_put_((x > 0,), x * 2), "index of booleans"),
    "fill by mask": (lambda x: x.__setitem__(x > 0, 2.0), None),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 2.0), None),
    "index": (lambda x: x[torch.tensor([1])], "index on the host"),
    "numbers": (lambda _: torch.tensor([1.0], device=CUDA), "numbers to device"),
    "new_tensor": (lambda x: x.new_tensor([1.0]), "numbers to device"),
    "up": (lambda _: torch.ones(3).to(CUDA), "copy to device"),
    "up, pageable": (lambda _: torch.ones(3).to(CUDA, non_blocking=True), PAGEABLE),
    "up, pinned": (lambda _: to_device(torch.ones(3), CUDA), None),
    "up, pinned, other dtype": (lambda _: torch.ones(3).pin_memory().to(CUDA, torch.half, non_blocking=True), PAGEABLE),
    "up, pinned with gaps": (lambda _: torch.ones(3, 4)[:, :2].pin_memory().to(CUDA, non_blocking=True), PAGEABLE),
    "up, transposed": (lambda _: torch.ones(3, 4).T.pin_memory().to(CUDA, non_blocking=True), None),
    "copy_ down": (lambda x: torch.empty(3).copy_(x), "copy to host"),
    "copy_ down, pageable": (lambda x: torch.empty(3).copy_(x, non_blocking=True), "copy to host"),
    "copy_ down, pinned": (lambda x: torch.empty(3, pin_memory=True).copy_(x, non_blocking=True), None),
    "made there": (lambda _: torch.arange(3, device=CUDA) + torch.zeros(3, device=CUDA), None),
    "like": (lambda x: torch.zeros_like(x) + x.new_ones(3), None),
    "repeat": (lambda x: x.repeat_interleave(x.long()), "repeat_interleave"),
    "repeat, number": (lambda x: x.repeat_interleave(2), None),
    "synchronize": (lambda _: torch.cuda.synchronize(), "synchronize"),
    "stream": (lambda _: torch.cuda.current_stream().synchronize(), "synchronize"),
}


@pytest.mark.parametrize(("act", "kind"), WAITS.values(), ids=list(WAITS))
def test_waits_are_noted(act: Callable[[Tensor], object], kind: str | None, emulated_cuda: Waits) -> None:
    x = torch.ones(3, device=CUDA)
    act(x)
    assert {each.kind for each in emulated_cuda.found} == ({kind} if kind else set())


def test_a_wait_has_the_place_in_hornbook(emulated_cuda: Waits) -> None:
    assert fetch(torch.ones((), device=CUDA)) == [1]
    (wait,) = emulated_cuda.found
    assert wait.place.startswith("model/layers/transfer.py:")
    assert wait.drains


def test_only_a_wait_for_the_newest_launch_drains(emulated_cuda: Waits) -> None:
    event = torch.cuda.Event()
    x = torch.ones(3, device=CUDA)
    event.record()
    y = x + 1
    event.synchronize()
    assert [each.drains for each in emulated_cuda.found] == [False]
    event.synchronize()  # has ended: no wait
    event.record()
    y.view(1, 3)  # no launch
    event.synchronize()
    assert [each.drains for each in emulated_cuda.found] == [False, True]
    assert list(emulated_cuda.places(draining=False)) == ["synchronize @ "]
    assert emulated_cuda.places() == {"synchronize @ ": 1}


def test_gradients_pass_between_devices(emulated_cuda: Waits) -> None:  # noqa: ARG001
    x = torch.ones(3, requires_grad=True)
    (x.to(CUDA) * 3).cpu().sum().backward()
    assert x.grad is not None
    assert not isinstance(x.grad, CudaTensor)
    assert x.grad.tolist() == [3, 3, 3]
