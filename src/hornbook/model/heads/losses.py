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
from hornbook.model.cpu.cpu_loss import cross_entropy_with_terms_
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


# ---- Distillation


class SoftTargets(NamedTuple):
    """What a teacher predicts at each token: its likeliest ids; all others are one class, which has the rest."""

    ids: Int[Tensor, "rows top"]
    """Different ids in each row."""
    logs: Float[Tensor, "rows top"]
    """Their log-probabilities at `temperature`, float32."""
    temperature: float
    weight: float

    def part(self, part: slice | Tensor) -> "SoftTargets":
        """Those of some rows."""
        return self._replace(ids=self.ids[part], logs=self.logs[part])


LEAST_REST = 1e-6
"""A rest of the teacher's probability below it is what float32 sums leave of nothing."""


def distillation(
    logits: Float[Tensor, "rows vocab"], soft: SoftTargets, weights: Rows, grad: bool, softcap: float | None = None
) -> tuple[Rows, Float[Tensor, "rows vocab"] | None]:
    """(weighted losses, float32, and their gradient with respect to the logits before the soft cap, or None).

    With T the temperature, u = z / T, q = softmax(u), p the teacher's probabilities of its likeliest tokens S, and P, Q
    what teacher and model give all others together:

        loss = w T^2 lambda [sum_S p (log p - log q) + P (log P - log Q)]
        d z  = w T lambda [q - p (in S) - P q / Q (not in S)]

    The divergence of two distributions over |S| + 1 classes: at most that over the vocabulary, and equal where S is all
    of it. T^2 keeps the size of the gradient (Hinton et al. 2015, section 2).
    """
    capped = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if softcap:
        capped = softcap * torch.tanh(capped / softcap)
    scaled = capped / soft.temperature
    logsum = scaled.logsumexp(1, keepdim=True)
    others = scaled.scatter(1, soft.ids, float("-inf"))
    rest_logsum = others.logsumexp(1, keepdim=True)
    known = soft.logs.exp()
    rest = 1 - known.sum(1, keepdim=True)
    rest = rest.where((rest > LEAST_REST) & rest_logsum.isfinite(), 0.0)
    # 0 log 0 is 0, and log Q of no other token at all is never asked for.
    rest_term = torch.where(rest > 0, rest * (rest.clamp(min=LEAST_REST).log() - rest_logsum + logsum), 0.0)
    losses = (known * (soft.logs - scaled.gather(1, soft.ids) + logsum)).sum(1, keepdim=True) + rest_term
    factor = (weights * (soft.weight * soft.temperature))[:, None]
    if not grad:
        return (losses * factor).squeeze(1) * soft.temperature, None
    slope = (scaled - logsum).exp_()
    slope -= torch.where(rest > 0, rest * (others - rest_logsum).exp(), 0.0)
    slope.scatter_add_(1, soft.ids, -known)
    if softcap:
        slope.mul_(1 - (capped / softcap).square_())
    slope = torch.where(slope.abs() < SMALLEST_NORMAL, 0.0, slope * factor)  # subnormal operands are slow, as above
    return (losses * factor).squeeze(1) * soft.temperature, slope
