"""Rounding that makes good its errors: against a slow form of the same, and against rounding to nearest."""

import pytest
import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.config.surgery_config import Grid, Integers
from hornbook.model.surgery.calibration import calibrate, second_moments
from hornbook.model.surgery.quantization.gptq import DAMPING, gptq, output_error
from hornbook.model.surgery.quantization.integers import encode, quantize, ranges
from hornbook.model.surgery.quantization.quantize import Sample, quantize_model
from tests.model.surgery.conftest import Operated, ids, logits, spoil

GRIDS = [
    Grid(bits=4, per="group", group=16),
    Grid(bits=4, per="group", group=16, symmetric=False),
    Grid(bits=8, per="channel"),
    Grid(bits=3, per="tensor"),
]


def correlated(inputs: int = 48, tokens: int = 400, seed: int = 0) -> Tensor:
    """[tokens, inputs] with much in common, and one input that is always 0."""
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randn(tokens, inputs, generator=draw) @ torch.randn(inputs, inputs, generator=draw)
    found = mixed + 3 * torch.randn(tokens, 1, generator=draw)
    found[:, 5] = 0
    return found


def matrix(inputs: int = 48, seed: int = 1) -> Tensor:
    return torch.randn(20, inputs, generator=torch.Generator().manual_seed(seed))


def written_out(weight: Tensor, moments: Tensor, grid: Grid) -> Tensor:
    """OBQ in the order of the inputs, in float64: equation 2 with the inverse of what is left, anew for each input."""
    inputs = weight.shape[1]
    damped = moments + DAMPING * moments.diagonal().mean() * torch.eye(inputs).double()
    left, made = weight.double().clone(), torch.zeros(weight.shape).double()
    span = grid.group if grid.per == "group" else inputs
    scale, zero = torch.ones(1, 1), None
    for here in range(inputs):
        if here % span == 0:
            part = left[:, here : here + span].float()
            scale, zero = ranges(part.reshape(1, -1) if grid.per == "tensor" else part, grid)
        codes = encode(left[:, here, None].float(), (scale, zero), grid)
        made[:, here] = ((codes.double() if zero is None else codes - zero) * scale)[:, 0]
        inverse = torch.linalg.inv(damped[here:, here:])
        left[:, here:] -= ((left[:, here] - made[:, here]) / inverse[0, 0])[:, None] * inverse[0]
    return made


@pytest.mark.parametrize("grid", GRIDS)
def test_it_is_optimal_brain_quantization_in_the_order_of_the_inputs(grid: Grid) -> None:
    weight, moments = matrix(), second_moments(correlated())
    made = gptq(weight, moments, grid).restored().double()
    torch.testing.assert_close(made, written_out(weight, moments, grid), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("grid", GRIDS)
def test_outputs_are_nearer_than_of_rounding_to_nearest(grid: Grid, act_order: bool) -> None:
    """More inputs than a block of lazy updates holds."""
    weight, moments = matrix(160), second_moments(correlated(160, 800))
    nearest, made = quantize(weight, grid), gptq(weight, moments, grid, act_order=act_order)
    errors = [output_error(weight, each.restored(), moments) for each in (nearest, made)]
    assert errors[1] < 0.7 * errors[0]
    assert made.codes.shape == nearest.codes.shape
    assert made.scale.shape == nearest.scale.shape
    x = correlated(160, 800)
    measured = float((x @ (weight - made.restored()).T).norm() / (x @ weight.T).norm())
    assert errors[1] == pytest.approx(measured, rel=1e-3)


def test_independent_inputs_are_rounded_to_nearest() -> None:
    weight, grid = matrix(), Grid(bits=4, per="channel")
    made = gptq(weight, torch.eye(48).double(), grid)
    assert torch.equal(made.codes, quantize(weight, grid).codes)
    assert torch.equal(gptq(weight, torch.zeros(48, 48).double(), grid).codes, made.codes)


def test_moments_of_few_tokens_are_damped_and_others_refused() -> None:
    few = second_moments(correlated(48, 3))
    assert gptq(matrix(), few, GRIDS[0]).restored().isfinite().all()
    with pytest.raises(UsageError, match="calibrate on more text"):
        gptq(matrix(), -torch.eye(48).double() * 9, GRIDS[0])


@pytest.mark.parametrize("base", ["llama", "gpt2"])
def test_layers_are_calibrated_on_what_the_changed_ones_before_compute(operated: Operated, base: str) -> None:
    """Each layer's moments are those of its inputs in the model with all earlier layers already rounded."""
    step, tokens, plain = Integers(bits=3, per="group", group=16), ids(4, 32), operated(base)
    nearest, made = (spoil(operated(base), size=0.05) for _ in range(2))
    spoil(plain, size=0.05)
    figures = quantize_model(made, step, Sample([{"tokens": tokens[:2]}, {"tokens": tokens[2:]}]))
    quantize_model(nearest, step)
    assert figures.output_errors is not None
    assert figures.output_errors[1] < figures.output_errors[0]
    expected = logits(plain, tokens)
    assert (logits(made, tokens) - expected).norm() < 0.9 * (logits(nearest, tokens) - expected).norm()
    again, order, seen = spoil(operated(base), size=0.05), list[str](), dict[str, Tensor]()
    layers = {name: each for name, each in again.named_modules() if name.endswith((".query", ".value", ".up", ".down"))}

    def zero(name: str, _: object, found: Tensor) -> None:
        order.append(name)
        seen[name] = found
        layers[name].weight.zero_()  # pyright: ignore

    calibrate(again, [{"tokens": tokens}], layers, second_moments, zero)  # pyright: ignore
    kinds = [name.rpartition(".")[2] for name in order]
    assert kinds == ["query", "value", "up", "down"] * 2
    if base == "llama":  # no bias: what the zeroed layer `up` gives is 0
        assert not seen["blocks.0.mlp.down"].any()
        assert seen["blocks.1.attention.query"].any()


def test_tokens_of_padding_are_left_out(operated: Operated) -> None:
    model, tokens, found = operated("llama"), ids(2, 16), list[Tensor]()
    mask = torch.ones(2, 16, dtype=torch.bool)
    mask[1, 9:] = False
    layers = {"blocks.0.attention.query": model.get_submodule("blocks.0.attention.query")}
    for inputs in ([{"tokens": tokens, "token_mask": mask}], [{"tokens": tokens[:1]}, {"tokens": tokens[1:, :9]}]):
        calibrate(model, inputs, layers, second_moments, lambda _, __, each: found.append(each))  # pyright: ignore
    torch.testing.assert_close(found[0], found[1])
    nothing = [{"tokens": tokens, "token_mask": torch.zeros_like(mask)}]
    with pytest.raises(UsageError, match="more training text"):
        calibrate(model, nothing, layers, second_moments, lambda *_: None)  # pyright: ignore
