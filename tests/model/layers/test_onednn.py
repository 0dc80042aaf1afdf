"""Float32 products by oneDNN: which ones, on which CPUs, and that they are the same numbers up to rounding."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hornbook.model.layers import onednn, products
from hornbook.model.layers.products import (
    add_weight_gradient_,
    input_gradient,
    is_own,
    linear,
    mm_into,
    weight_gradient,
)

HAS_ONEDNN = torch.backends.mkldnn.is_available()
TOKENS, INPUTS, OUTPUTS = 128, 160, 1280
CLOSE = 2e-5
"""Of sums of a few hundred products of normal numbers, in float32."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """A CPU on which oneDNN is faster; the shapes of the products that it makes."""
    if not HAS_ONEDNN:
        pytest.skip("torch has no oneDNN here")
    shapes: list[tuple[int, ...]] = []
    real = onednn.product

    def noted(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        shapes.append((*left.shape, len(right)))
        return real(left, right, bias)

    monkeypatch.setattr(onednn, "is_faster", lambda: True)
    monkeypatch.setattr(onednn, "product", noted)
    return shapes


def operands(tokens: int = TOKENS, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (tokens, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,)
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return x, weight / INPUTS**0.5, bias


@pytest.mark.parametrize("flipped", [False, True])
def test_a_linear_layer_and_its_gradients(taken: list[tuple[int, ...]], flipped: bool) -> None:
    x, weight, bias = operands()
    if flipped:  # more inputs than outputs
        x, weight, bias = torch.cat([x] * 8, 1), weight.T.contiguous(), bias[:INPUTS]
    narrow = [each.requires_grad_() for each in (x.view(2, TOKENS // 2, -1), weight, bias)]
    exact = [each.detach().double().requires_grad_() for each in narrow]
    y, wanted = linear(*narrow), linear(*exact)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    found = [y, *torch.autograd.grad(y, narrow, grad)]
    right = [wanted, *torch.autograd.grad(wanted, exact, grad.double())]
    assert len(taken) == 3
    for one, other in zip(found, right, strict=True):
        assert one.is_contiguous()
        apart = (one.detach().double() - other.detach()).abs().max() / other.detach().abs().max()
        assert apart < CLOSE


def test_code_that_makes_its_gradients_itself(taken: list[tuple[int, ...]]) -> None:
    x, weight, _ = operands()
    grad = torch.randn(TOKENS, OUTPUTS, generator=torch.Generator().manual_seed(1))
    sums, out = torch.ones(OUTPUTS, INPUTS), torch.empty(TOKENS, INPUTS)
    add_weight_gradient_(sums, grad, x)
    torch.testing.assert_close(sums, 1 + grad.T @ x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weight_gradient(grad, x), grad.T @ x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(input_gradient(grad, weight), grad @ weight, rtol=1e-4, atol=1e-4)
    assert mm_into(grad, weight, out) is out
    torch.testing.assert_close(out, grad @ weight, rtol=1e-4, atol=1e-4)
    assert len(taken) == 5  # the sum of more than 1,024 rows is made in two parts


def test_a_frozen_weight_keeps_no_input(taken: list[tuple[int, ...]]) -> None:
    x, weight, _ = operands()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        y = linear(x.requires_grad_(), weight)
    assert [each.data_ptr() for each in kept] == [weight.data_ptr()]
    y.sum().backward()
    assert x.grad is not None
    assert len(taken) == 2
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        linear(x.detach(), weight.requires_grad_()).sum().backward()
    assert len(taken) == 4  # and none for what the first layer reads


def test_a_row_has_the_same_bits_whatever_is_beside_it(taken: list[tuple[int, ...]]) -> None:
    x, weight, _ = operands(4 * TOKENS)
    parts = torch.cat([linear(part, weight) for part in x.split(TOKENS)])
    assert torch.equal(linear(x, weight), parts)
    assert torch.equal(linear(x, torch.cat([weight, weight]))[:, :OUTPUTS], parts)
    assert len(taken) == 6


def test_what_is_left_to_torch(taken: list[tuple[int, ...]]) -> None:
    x, weight, _ = operands()
    assert is_own(x, OUTPUTS)
    assert not is_own(x[:-1], OUTPUTS)  # a number of tokens that may be another each time
    assert not is_own(x[:64], 128)  # too small
    assert not is_own(x[:0], OUTPUTS)
    assert not is_own(x, 8)
    assert not is_own(x.double(), OUTPUTS)
    assert not is_own(x.to("meta"), OUTPUTS)
    assert taken == []
    compiled = torch.compile(linear, backend="eager")
    compiled(x, weight)
    assert taken == []


@pytest.fixture
def _forget() -> Iterator[None]:
    onednn.is_faster.cache_clear()
    yield
    onednn.is_faster.cache_clear()


@pytest.mark.skipif(not HAS_ONEDNN or not torch.backends.mkl.is_available(), reason="torch has one library here")
@pytest.mark.usefixtures("_forget")
@pytest.mark.parametrize(
    ("vendor", "capability", "machine", "faster"),
    [
        ("AuthenticAMD", "AVX512", "x86_64", True),
        ("AuthenticAMD", "AVX2", "x86_64", False),
        ("GenuineIntel", "AVX512", "x86_64", False),
        ("AuthenticAMD", "AVX512", "aarch64", False),
        (None, "AVX512", "x86_64", False),
    ],
)
def test_the_kind_of_the_cpu_decides(
    vendor: str | None, capability: str, machine: str, faster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    if vendor is not None:
        info.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: a CPU\n")
    monkeypatch.setattr(onednn.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert onednn.is_faster(info) is faster


def test_widened_products_are_of_float32(taken: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_multiplies", lambda dtype: dtype == torch.float32)
    x, weight, bias = (each.requires_grad_() for each in operands(dtype=torch.bfloat16))
    linear(x, weight, bias).sum().backward()
    assert len(taken) == 3
