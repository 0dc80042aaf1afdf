"""Cross-entropy of logits with what may be added to it, and its gradient in the same place.

With z the logits (after soft cap c: z = c tanh(z' / c)), p = softmax(z), y the target, w its weight, V the vocabulary
without the rows that pad it, over which nothing is spread:

    loss   = w [(1 - e) (logsumexp(z) - z_y) + e (logsumexp(z) - mean_V(z))]      label smoothing e (arXiv 1512.00567)
    z_loss = w zeta logsumexp(z)^2                                               (PaLM, arXiv 2204.02311, section 5)
    d z    = w [p - (1 - e) onehot(y) - e / |V| (in V) + 2 zeta logsumexp(z) p],    d z' = d z (1 - (z / c)^2)
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hornbook.kernels.team import supports
from hornbook.model.cpu.loss import cross_entropy_with_terms_
from hornbook.model.cpu.softmax import cross_entropy_


class LossTerms(NamedTuple):
    """What is added to plain cross-entropy."""

    smoothing: float = 0.0
    """Share of the target's probability that is spread over the vocabulary."""
    z_loss: float = 0.0
    """Weight of the squared log-sum of exponentials."""
    softcap: float | None = None
    """Bound of the logits."""
    num_real_tokens: int | None = None
    """Rows of the vocabulary that are tokens, the first ones; None: all."""


PLAIN = LossTerms()
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
Rows = Float[Tensor, " rows"]


LossAndGrad = Callable[[Tensor, Tensor, Tensor, bool, LossTerms], tuple[Tensor, Tensor | None]]
"""`loss_and_grad_`, or what stands in for it."""


def loss_and_grad_(
    logits: Float[Tensor, "rows vocab"],
    targets: Int[Tensor, " rows"],
    weights: Rows,
    grad: bool,
    terms: LossTerms = PLAIN,
) -> tuple[Rows, Rows | None]:
    """(weighted losses, weighted z-losses or None) of some rows; if `grad`, the logits become the gradients of both."""
    if terms._replace(num_real_tokens=None) == PLAIN:
        return _plain(logits, targets, weights, grad), None
    if supports(logits, weights):
        return _by_kernel(logits, targets, weights, grad, terms)
    return _written_out(logits, targets, weights, grad, terms)


def _by_kernel(logits: Tensor, targets: Tensor, weights: Tensor, grad: bool, terms: LossTerms) -> tuple[Rows, Rows]:
    """One pass over the logits in cache: nothing of their size is made."""
    losses, z_losses = torch.empty(len(logits)), torch.empty(len(logits))
    cross_entropy_with_terms_(
        logits,
        targets.contiguous(),
        weights.float().contiguous(),
        losses,
        z_losses,
        grad,
        smoothing=terms.smoothing,
        z_loss=terms.z_loss,
        softcap=terms.softcap or 0.0,
        num_real_tokens=terms.num_real_tokens or logits.shape[1],
    )
    return losses, z_losses


def _written_out(logits: Tensor, targets: Tensor, weights: Tensor, grad: bool, terms: LossTerms) -> tuple[Rows, Rows]:
    """The formulas as torch computes them: compiled on a GPU, and for dtypes that the kernel does not take."""
    target, weight = targets[:, None], weights[:, None]
    capped = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if terms.softcap:
        capped = terms.softcap * torch.tanh(capped / terms.softcap)
    logsum = capped.logsumexp(1, keepdim=True)
    tokens = capped[:, : terms.num_real_tokens]
    losses = (1 - terms.smoothing) * (logsum - capped.gather(1, target))
    if terms.smoothing:  # 0 times the mean of logits of which one is minus infinity would be NaN
        losses = losses + terms.smoothing * (logsum - tokens.mean(1, keepdim=True))
    if grad:
        logits.copy_(_slopes(capped, logsum, target, weight, terms))
    return (losses * weight).squeeze(1), (terms.z_loss * logsum.square() * weight).squeeze(1)


def _slopes(capped: Tensor, logsum: Tensor, target: Tensor, weight: Tensor, terms: LossTerms) -> Tensor:
    """Gradient of both losses with respect to the logits before the soft cap."""
    slope = (capped - logsum).exp_()
    # Where one operand in seven is subnormal, the matrix products that follow take forty times as long on a CPU.
    torch.threshold_(slope, SMALLEST_NORMAL, 0.0).mul_(1 + 2 * terms.z_loss * logsum)
    if terms.smoothing:
        real = terms.num_real_tokens or capped.shape[1]
        slope[:, :real].sub_(terms.smoothing / real)
    slope.mul_(weight)
    if torch.compiler.is_compiling():
        hit = torch.arange(capped.shape[1], device=capped.device) == target  # one kernel, where scattering makes three
        slope = slope - hit * ((1 - terms.smoothing) * weight)
    else:
        slope.scatter_add_(1, target, ((terms.smoothing - 1) * weight).to(slope.dtype))
    return slope.mul_(1 - (capped / terms.softcap).square_()) if terms.softcap else slope


def _plain(logits: Tensor, targets: Tensor, weights: Tensor, grad: bool) -> Rows:
    if supports(logits, weights):
        losses = torch.empty(len(logits))
        cross_entropy_(logits, targets.contiguous(), weights.contiguous(), losses, grad)
        return losses
    target, weight = targets[:, None], weights[:, None]
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logsum = wide.logsumexp(1, keepdim=True)
    losses = (logsum - wide.gather(1, target)) * weight
    if grad and torch.compiler.is_compiling():
        hit = torch.arange(logits.shape[1], device=logits.device) == target  # one kernel, where scattering makes three
        logits.copy_((wide - logsum).exp() * weight - hit * weight)
    elif grad:
        logits.copy_((wide - logsum).exp_().mul_(weight).scatter_add_(1, target, -weight.to(wide.dtype)))
    return losses.squeeze(1)
