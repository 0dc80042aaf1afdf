"""A vocabulary divided over ranks: token vectors, losses and logits of which each rank has some tokens' part.

With z the logits of this rank and M the largest of all ranks, logsumexp = M + log of the sum over ranks of
sum exp(z - M): two reductions of a few numbers per token, whatever the vocabulary (Shoeybi et al. 2019,
arXiv 1909.08053, section 3). The formulas are those of `hornbook.model.heads.losses`.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.kernels.torch_versions import uncompiled
from hornbook.model.heads.losses import PLAIN, SMALLEST_NORMAL, LossTerms
from hornbook.parallel.axes.tensor.divide import Portion, portion
from hornbook.parallel.axes.tensor.tensor_collectives import AXIS, reduce
from hornbook.parallel.world import World


class Vocabulary:
    """The tokens of this rank."""

    def __init__(self, size: int, world: World) -> None:
        """`size`: tokens of all ranks."""
        self._size, self._world = size, world
        self._ranks = world.axis_size(AXIS)
        self._own: Portion = portion(size, self._ranks, world.axis_rank(AXIS))
        self.most = portion(size, self._ranks, 0).last
        """Tokens of the rank that has most."""

    def _here(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(number of each token among those of this rank or 0, whether it is one of them)."""
        mine = (tokens >= self._own.first) & (tokens < self._own.last)
        return (tokens - self._own.first).masked_fill(~mine, 0), mine

    def vectors(self, weight: Float[Tensor, "own width"], tokens: Int[Tensor, "*batch"]) -> Tensor:
        """The tokens' vectors [*batch, width]: one rank has each, the others add zeros."""
        numbers, mine = self._here(tokens)
        found = nn.functional.embedding(numbers, weight)
        return reduce(found.masked_fill(~mine[..., None], 0.0), self._world)

    def gathered(self, logits: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """`Head.logits` of all tokens, on every rank, given that of this rank's."""

        def gather(hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocab"]:
            own = logits(hidden)
            filled = nn.functional.pad(own, (0, self.most - own.shape[-1]))
            parts = self._world.all_gather(filled, AXIS)
            sizes = [
                each.last - each.first for each in (portion(self._size, self._ranks, i) for i in range(self._ranks))
            ]
            return torch.cat([part[..., :size] for part, size in zip(parts, sizes, strict=True)], -1)

        return gather

    @uncompiled
    def loss_and_grad_(
        self, logits: Float[Tensor, "rows own"], targets: Tensor, weights: Tensor, grad: bool, terms: LossTerms = PLAIN
    ) -> tuple[Tensor, Tensor | None]:
        """`hornbook.model.heads.losses.loss_and_grad_` of all ranks' logits: the same losses on each rank."""
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        capped = terms.softcap * torch.tanh(wide / terms.softcap) if terms.softcap else wide
        numbers, mine = self._here(targets)
        real = self._size if terms.num_real_tokens is None else terms.num_real_tokens
        own_real = min(max(real - self._own.first, 0), capped.shape[1])
        largest = capped.amax(1)
        with self._world.collective(AXIS, "all-reduce", largest.nbytes):
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._world.group(AXIS))
        exponentials = (capped - largest[:, None]).exp_()
        hit = capped.gather(1, numbers[:, None]).squeeze(1).masked_fill(~mine, 0.0)
        parts = torch.stack([exponentials.sum(1), hit, capped[:, :own_real].sum(1)])
        total, hit, tokens = self._world.all_reduce_sum(parts, AXIS)
        logsum = largest + total.log()
        losses = (1 - terms.smoothing) * (logsum - hit)
        if terms.smoothing:
            losses = losses + terms.smoothing * (logsum - tokens / real)
        if grad:
            slope = exponentials.div_(total[:, None])
            torch.threshold_(slope, SMALLEST_NORMAL, 0.0).mul_(1 + 2 * terms.z_loss * logsum[:, None])
            slope[:, :own_real].sub_(terms.smoothing / real)
            slope.mul_(weights[:, None])
            of_target = ((terms.smoothing - 1) * weights * mine).to(slope.dtype)
            slope.scatter_add_(1, numbers[:, None], of_target[:, None])
            logits.copy_(slope.mul_(1 - (capped / terms.softcap).square_()) if terms.softcap else slope)
        plain = terms._replace(num_real_tokens=None) == PLAIN
        return losses * weights, None if plain else terms.z_loss * logsum.square() * weights
