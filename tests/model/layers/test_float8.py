"""Products of float8 operands: the emulation against torch's own products, errors, and what stays in bfloat16."""

from typing import Any, Literal

import pytest
import torch

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.layers.float8 import E4M3, E5M2, Float8, missing_float8, quantize, use_float8
from hornbook.model.layers.linear import Linear
from hornbook.run.machine.choose_dtype import settle_precision
from hornbook.settings.resolve import resolve

Scaling = Literal["tensor", "row"]
SCALINGS = pytest.mark.parametrize("scaling", ["tensor", "row"])


def operands(*shapes: tuple[int, int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]


@SCALINGS
@pytest.mark.parametrize("kind", [E4M3, E5M2])
def test_the_emulation_is_torchs_own_product(scaling: Scaling, kind: torch.dtype) -> None:
    """`torch._scaled_mm` on this CPU, as on a GPU; sums in another order may differ in the last bit of bfloat16."""
    left, right = operands((32, 64), (64, 48))
    emulated = Float8(scaling, emulate=True).product(left, right, kind)
    (a, a_scale), (b, b_scale) = (
        quantize(each, dtype, dim if scaling == "row" else None)
        for each, dtype, dim in ((left, kind, 1), (right, E4M3, 0))
    )
    b = b.t().contiguous().t()
    if scaling == "row" or kind == E5M2:  # the CPU's product has neither; scaled by hand it is the same
        expected = ((a.float() @ b.float()) / a_scale / b_scale).bfloat16()
    else:
        expected = torch._scaled_mm(a, b, 1 / a_scale, 1 / b_scale, out_dtype=torch.bfloat16)
    assert torch.allclose(emulated.float(), expected.float(), rtol=2**-7, atol=1e-2)


@SCALINGS
def test_codes_are_the_nearest_and_use_the_whole_range(scaling: Scaling) -> None:
    (x,) = operands((32, 64))
    for kind, unit in ((E4M3, 2.0**-4), (E5M2, 2.0**-3)):
        codes, scale = quantize(x, kind, 1 if scaling == "row" else None)
        assert scale.shape == ((32, 1) if scaling == "row" else ())
        largest = codes.float().abs().amax(1 if scaling == "row" else (0, 1))
        assert bool((largest > torch.finfo(kind).max * 0.45).all())
        big = x.abs() > 0.1 * x.abs().max()
        assert bool(((codes.float() / scale - x.float()).abs() <= unit * x.float().abs() * 1.001)[big].all())


def test_an_operand_of_zeros_stays_zero() -> None:
    zeros, other = torch.zeros(16, 32), torch.randn(32, 16)
    for scaling in ("tensor", "row"):
        assert not Float8(scaling, emulate=True).product(zeros, other, E4M3).any()


@SCALINGS
def test_gradients_are_products_of_rounded_operands(scaling: Scaling) -> None:
    by = Float8(scaling, emulate=True)
    x, weight = (each.float().requires_grad_() for each in operands((32, 64), (48, 64)))
    (grad,) = (each.float() for each in operands((32, 48)))
    y = by.linear(x.view(2, 16, 64), weight, torch.ones(48))
    assert y.shape == (2, 16, 48)
    y.backward(grad.view(2, 16, 48))
    exact = (x.detach() @ weight.detach().T + 1, grad @ weight.detach(), grad.T @ x.detach())
    assert x.grad is not None
    assert weight.grad is not None
    for found, wanted in zip((y.detach().view(32, 48), x.grad, weight.grad), exact, strict=True):
        error = float((found - wanted).norm() / wanted.norm())
        assert 1e-3 < error < 0.08  # three bits of mantissa: about 3 % of each operand


def test_layers_whose_dims_do_not_fit_and_parts_outside_blocks_stay() -> None:
    model = build_model(ModelConfig(layers=2, width=64, heads=2), 96)
    layers = {name: each for name, each in model.named_modules() if isinstance(each, Linear)}
    odd = next(iter(layers.values()))
    odd.weight = torch.nn.Parameter(torch.zeros(64, 40))
    number = use_float8(list(model.all_blocks()), Float8("tensor", emulate=True))
    assert number == sum(name.startswith("blocks.") for name in layers) - 1
    assert odd.product is None
    assert all(each.product is None for name, each in layers.items() if not name.startswith("blocks."))


def test_a_device_without_it_is_refused_with_the_remedy() -> None:
    words: list[Any] = ["train.precision=float8", "train.device=cpu"]
    with pytest.raises(UsageError, match=r"cpu has no products of float8: use --train.precision bf16, .*emulate true"):
        settle_precision(resolve(None, words, {}))
    assert settle_precision(resolve(None, [*words, "train.float8.emulate=true"], {})).recipe.train.float8.emulate
    assert missing_float8(torch.device("mps"))
