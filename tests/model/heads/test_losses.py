"""The loss with smoothing, z-loss and soft cap by its kernel: beside the written-out form, and what it allocates."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hornbook.model.heads.head import Head
from hornbook.model.heads.losses import PLAIN, LossTerms, _written_out, loss_and_grad_
from hornbook.model.layers.products import is_widened

TERMS = {
    "z-loss": LossTerms(z_loss=1e-2),
    "soft cap": LossTerms(softcap=5.0),
    "smoothing": LossTerms(smoothing=0.1),
    "smoothing without padding rows": LossTerms(smoothing=0.1, num_real_tokens=37),
    "z-loss and soft cap": LossTerms(z_loss=1e-2, softcap=30.0),
    "all": LossTerms(0.1, 1e-2, 5.0, 40),
}
# Of the largest value: sums of some hundred float32, and a tanh to 1.5e-7; of each gradient in bfloat16, one rounding.
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
TINY = torch.finfo(torch.float32).tiny


@pytest.fixture(autouse=True, params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def problem(vocab: int, dtype: torch.dtype, size: float = 4.0) -> tuple[Tensor, Tensor, Tensor]:
    """70 rows of logits; targets, some of the last token; weights, of which some are 0."""
    generator = torch.Generator().manual_seed(vocab)
    logits = (size * torch.randn(70, vocab, generator=generator)).to(dtype)
    targets = torch.randint(0, vocab, (70,), generator=generator)
    targets[::9] = vocab - 1
    weights = torch.rand(70, generator=generator)
    weights[::4] = 0
    return logits, targets, weights


def both(logits: Tensor, targets: Tensor, weights: Tensor, terms: LossTerms) -> tuple[list[Tensor], list[Tensor]]:
    """(losses, z-losses, gradients) of the kernel and, in float64, of the written-out form."""
    found, wanted = logits.clone(), logits.double()
    kernel = loss_and_grad_(found, targets, weights, True, terms)
    formula = _written_out(wanted, targets, weights.double(), True, terms)
    return [*(each for each in kernel if each is not None), found], [*formula, wanted]


def near(found: Tensor, wanted: Tensor, rounding: float) -> None:
    assert float((found.double() - wanted).abs().max()) <= rounding * max(float(wanted.abs().max()), 1.0)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("vocab", [41, 1000])
@pytest.mark.parametrize("terms", TERMS.values(), ids=list(TERMS))
def test_the_kernel_is_the_written_out_form(terms: LossTerms, vocab: int, dtype: torch.dtype) -> None:
    logits, targets, weights = problem(vocab, dtype)
    (losses, z_losses, grads), (true_losses, true_z_losses, true_grads) = both(logits, targets, weights, terms)
    near(losses, true_losses, 2e-6)
    near(z_losses, true_z_losses, 2e-6)
    far = (grads.double() - true_grads).abs() - ROUNDING[dtype] * true_grads.abs()
    assert float(far.max()) <= 1e-6
    assert torch.all(grads[weights == 0] == 0)
    untouched = logits.clone()
    again = loss_and_grad_(untouched, targets, weights, False, terms)
    assert torch.equal(again[0], losses)
    assert torch.equal(untouched, logits)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("terms", [LossTerms(z_loss=1e-4), LossTerms(z_loss=1e-4, softcap=30.0), LossTerms(0.1)])
@pytest.mark.parametrize("extreme", [1e4, -1e4, -3e38, "one", "others"])
def test_extreme_logits(extreme: Any, terms: LossTerms, dtype: torch.dtype) -> None:
    """One token far above or below all others, or logits as large as the number each."""
    logits, targets, weights = problem(100, dtype, 1e4 if isinstance(extreme, str) else 1.0)
    if extreme == "one":
        logits[:, 7] = 1e4
    elif not isinstance(extreme, str):
        logits[:, 7] = extreme
    (losses, z_losses, grads), (true_losses, true_z_losses, true_grads) = both(logits, targets, weights, terms)
    for found, wanted in ((losses, true_losses), (z_losses, true_z_losses)):
        assert torch.isfinite(found).all()
        assert torch.allclose(found.double(), wanted, rtol=1e-5, atol=1e-5)
    # Near 1e4 a float32 is known to 1e-3, so a difference of two such logits is as well.
    near(grads, true_grads, 2 * ROUNDING[dtype] + (2e-3 if terms.softcap is None else 0))
    assert not torch.any((grads != 0) & (grads.abs() < TINY))


@pytest.mark.parametrize("terms", [LossTerms(z_loss=1e-2), LossTerms(z_loss=1e-2, softcap=5.0)])
def test_a_logit_of_minus_infinity_is_no_probability(terms: LossTerms) -> None:
    logits, targets, weights = problem(50, torch.float32)
    logits[:, 3] = float("-inf")
    targets[targets == 3] = 4
    (losses, _, grads), (true_losses, _, true_grads) = both(logits, targets, weights, terms)
    near(losses, true_losses, 2e-6)
    near(grads, true_grads, 1e-6)
    assert torch.all(grads[:, 3] == 0)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("terms", TERMS.values(), ids=list(TERMS))
def test_what_is_no_number_is_not_hidden(terms: LossTerms, dtype: torch.dtype) -> None:
    logits, targets, weights = problem(41, dtype)
    logits[5, 2] = float("nan")
    losses, z_losses = loss_and_grad_(logits, targets, weights.clamp(min=0.1), True, terms)
    assert losses.isnan().nonzero().flatten().tolist() == [5]
    assert z_losses is not None
    assert bool(logits[5].isnan().any())
    assert torch.isfinite(logits[[4, 6]]).all()


class Allocations(TorchDispatchMode):
    """Bytes of every tensor that an operation makes, largest first."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, list | tuple) else [made]:
            if isinstance(each, Tensor):
                self.seen.setdefault(each.untyped_storage().data_ptr(), each)  # kept, so that no other gets its place
        return made

    def sizes(self) -> list[int]:
        return sorted((each.untyped_storage().nbytes() for each in self.seen.values()), reverse=True)


@cache
def large_tensors(terms: LossTerms, dtype: torch.dtype) -> list[int]:
    """Sizes of all tensors of at least a chunk's row of logits that a pass of the loss makes."""
    head = Head(4096, 16, None, None, False, terms.softcap)
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))
    hidden, targets = torch.randn(1, 2500, 16).to(dtype).requires_grad_(), torch.randint(0, 4096, (1, 2500))
    is_widened(hidden)  # times products once for a process
    with Allocations() as made:
        found = head.losses(hidden, targets, torch.ones(1, 2500), smoothing=terms.smoothing, z_loss=terms.z_loss)
        torch.stack(list(found.values())).sum().backward()
    return [size for size in made.sizes() if size >= 4096 * 8]


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("terms", TERMS.values(), ids=list(TERMS))
def test_nothing_larger_is_allocated_than_by_the_plain_loss(terms: LossTerms, dtype: torch.dtype) -> None:
    assert large_tensors(terms, dtype) == large_tensors(PLAIN, dtype)
