"""Low-rank updates in place: the sum that is written out, and its gradients, for layers side by side."""

import pytest
import torch
from torch import Tensor

from hornbook.model.layers import onednn
from hornbook.model.layers.low_rank import Update, add_updates
from hornbook.model.layers.products import linear

INPUTS, WIDTHS, RANK = 48, (64, 32, 96), 16


def operands(tokens: int, dtype: torch.dtype) -> list[Tensor]:
    """x, y, and A and B of the first and the last of three layers."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, tokens, INPUTS), (2, tokens, sum(WIDTHS))]
    shapes += [(RANK, INPUTS), (WIDTHS[0], RANK), (RANK, INPUTS), (WIDTHS[2], RANK)]
    made = [torch.randn(shape, generator=generator) * 0.3 for shape in shapes]
    return [each.to(dtype) if len(each.shape) == 3 else each for each in made]


def in_place(x: Tensor, y: Tensor, *matrices: Tensor) -> Tensor:
    first, last = (Update(a, b, 0.5) for a, b in (matrices[:2], matrices[2:]))
    return add_updates(x, y.clone() if y.is_leaf else y, [(0, first), (WIDTHS[0] + WIDTHS[1], last)])


def written_out(x: Tensor, y: Tensor, *matrices: Tensor) -> Tensor:
    one, two = (0.5 * x @ a.T @ b.T for a, b in (matrices[:2], matrices[2:]))
    return y + torch.cat([one, torch.zeros_like(y[..., : WIDTHS[1]]), two], -1)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_the_sum_and_its_gradients(
    dtype: torch.dtype, close: float, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own and not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(onednn, "is_faster", lambda: own)
    monkeypatch.setattr(onednn, "LEAST_PRODUCTS", 1)
    narrow = [each.requires_grad_() for each in operands(64, dtype)]
    exact = [each.detach().double().requires_grad_() for each in narrow]
    y, wanted = in_place(*narrow), written_out(*exact)
    grad = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = [y, *torch.autograd.grad(y, narrow, grad)]
    right = [wanted, *torch.autograd.grad(wanted, exact, grad.double())]
    for one, other in zip(found, right, strict=True):
        apart = (one.detach().double() - other.detach()).abs().max() / other.detach().abs().max()
        assert apart < close
    with torch.no_grad():
        assert torch.equal(in_place(*narrow), y)


def test_behind_a_product_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose output autograd lets nobody change: the gradient of the frozen layer's input is that of both."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(onednn, "is_faster", lambda: True)
    monkeypatch.setattr(onednn, "LEAST_PRODUCTS", 1)
    x, _, *matrices = operands(64, torch.float32)
    weight = torch.randn(sum(WIDTHS), INPUTS, generator=torch.Generator().manual_seed(2))
    trained = [each.requires_grad_() for each in (x, *matrices)]
    y = in_place(x, linear(x, weight), *matrices)
    found = torch.autograd.grad(y.square().mean(), trained)
    wanted = torch.autograd.grad(written_out(x, x @ weight.T, *matrices).square().mean(), trained)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_nothing_is_made_for_what_needs_no_gradient() -> None:
    x, y, *matrices = operands(3, torch.float32)
    trained = [each.requires_grad_() for each in matrices]
    found = torch.autograd.grad(in_place(x, y, *trained).sum(), trained)
    wanted = torch.autograd.grad(written_out(x, y, *trained).sum(), trained)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_an_update_of_zero_changes_no_bit() -> None:
    x, y, *matrices = operands(3, torch.float32)
    assert torch.equal(in_place(x, y, matrices[0], matrices[1] * 0, matrices[2], matrices[3] * 0), y)
