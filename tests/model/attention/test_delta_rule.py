"""The gated delta rule: chunks against the recurrence, and both against transformers' forms."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hornbook.model.attention.delta_rule import chunked_delta_rule, recurrent_delta_rule

BATCH, HEADS, KEY, VALUE = 2, 3, 8, 12


def inputs(time: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """Query, key, value, decay and rate as a layer makes them."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(BATCH, HEADS, time, *shape, generator=generator, dtype=torch.float64)

    query, key = (F.normalize(normal(KEY), dim=-1) for _ in range(2))
    found = [query, key, normal(VALUE), -F.softplus(normal()), normal().sigmoid()]
    return [each.to(dtype).requires_grad_() for each in found]


def starts(time: int, *rows: tuple[int, ...]) -> Tensor:
    """True at these positions of each row."""
    found = torch.zeros(len(rows), time, dtype=torch.bool)
    for row, places in enumerate(rows):
        found[row, list(places)] = True
    return found


def gradients(y: Tensor, state: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-3, 3, y.numel(), dtype=y.dtype).sin().view_as(y)
    return list(torch.autograd.grad((y * weights).sum() + state.square().sum(), tensors))


def assert_equal(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for mine, other in zip(found, wanted, strict=True):
        largest = float(other.detach().abs().max())
        torch.testing.assert_close(mine, other, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("time", [1, 63, 64, 200])
@pytest.mark.parametrize("documents", [False, True])
def test_chunks_equal_the_recurrence(documents: bool, time: int, dtype: torch.dtype, tolerance: float) -> None:
    tensors = inputs(time, dtype)
    state = torch.randn(BATCH, HEADS, KEY, VALUE, dtype=dtype, generator=torch.Generator().manual_seed(1))
    tensors.append(state.requires_grad_())
    marks = starts(time, (0, *(t for t in (5, 6, 64, 190) if t < time)), tuple(t for t in (62, 150) if t < time))
    begins = marks if documents else None
    settings: Any = {"starts": begins, "state": tensors[5]}
    y, last = chunked_delta_rule(*tensors[:5], **settings)
    wanted, wanted_last = recurrent_delta_rule(*tensors[:5], **settings)
    assert_equal([y, last], [wanted, wanted_last], tolerance)
    assert_equal(gradients(y, last, tensors), gradients(wanted, wanted_last, tensors), tolerance)


@pytest.mark.parametrize("rule", [chunked_delta_rule, recurrent_delta_rule])
def test_documents_are_alone(rule: Callable[..., tuple[Tensor, Tensor]]) -> None:
    tensors, time = inputs(150), 150
    begins = starts(time, (0, 40, 100), (0, 40, 100))
    y, last = rule(*tensors, begins)
    for first, end in ((0, 40), (40, 100), (100, 150)):
        alone, state = rule(*(each[:, :, first:end] for each in tensors))
        assert_equal([y[:, :, first:end]], [alone], 1e-12)
    assert_equal([last], [state], 1e-12)
    for found in torch.autograd.grad(y[:, :, 40:100].square().sum(), tensors):
        assert not found[:, :, :40].any()
        assert not found[:, :, 100:].any()
        assert found[:, :, 40:100].any()


@pytest.mark.parametrize("parts", [(100, 100), (64, 1, 1, 134), (3, 197)])
def test_a_state_goes_on(parts: tuple[int, ...]) -> None:
    tensors = inputs(200)
    whole, last = chunked_delta_rule(*tensors)
    state, outputs, first = None, [], 0
    for length in parts:
        part = [each[:, :, first : first + length] for each in tensors]
        rule = chunked_delta_rule if length > 1 else recurrent_delta_rule
        y, state = rule(*part, state=state)
        outputs.append(y)
        first += length
    assert state is not None
    assert_equal([torch.cat(outputs, 2), state], [whole, last], 1e-12)


def test_a_decay_that_forgets_at_once_stays_finite() -> None:
    tensors = inputs(130, torch.float32)
    with torch.no_grad():
        tensors[3][:, :, ::7] = -500.0
    y, last = chunked_delta_rule(*tensors)
    wanted, wanted_last = recurrent_delta_rule(*tensors)
    assert_equal([y, last], [wanted, wanted_last], 1e-4)
    assert all(bool(found.isfinite().all()) for found in gradients(y, last, tensors))


@pytest.mark.parametrize("name", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"])
def test_parity_with_transformers(name: str) -> None:
    from transformers.models.qwen3_next import modeling_qwen3_next

    tensors = inputs(150, torch.float32)
    query, key, value, decay, rate = (each.transpose(1, 2) for each in tensors)
    theirs = getattr(modeling_qwen3_next, name)(query, key, value, decay, rate, output_final_state=True)
    scaled = [tensors[0] * KEY**-0.5, *tensors[1:]]
    y, last = chunked_delta_rule(*scaled)
    wanted = theirs[0].transpose(1, 2)
    assert_equal([y, last], [wanted, theirs[1]], 1e-5)
    assert_equal(gradients(y, last, tensors), gradients(wanted, theirs[1], tensors), 1e-4)
