"""Mixtures of experts as the engine sees them: auxiliary losses by row, and loads that move the routers' biases.

A row's auxiliary loss counts as much as the row does in the objective: it is multiplied by the sum of the row's target
weights, and divided by the weight of the global batch like every other term. Neither it nor the row's statistics
depend on other rows, so microbatches of any shape on any number of ranks add up to the same objective.

Loads are whole numbers, summed over the global batch; after an applied step each bias moves by its rate against the
sign of its expert's excess load (Wang et al. 2024, arXiv 2408.15664). No rounding depends on the number of ranks.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from hornbook.data.batch import Batch
from hornbook.model.forward_context import Auxiliary
from hornbook.model.heads.mtp import STATES
from hornbook.model.heads.replaced import CORRUPTED, GENERATED
from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.router import load_direction
from hornbook.model.transformer import Transformer, add_auxiliary
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.world import TOKENS, World


class Balance:
    """The mixtures of experts of one model."""

    def __init__(self, model: nn.Module) -> None:
        experts = {name: module for name, module in model.named_modules() if isinstance(module, Experts)}
        self.present = bool(experts)
        """Whether there are any."""
        # A frozen router, as under an adapter, keeps its bias.
        self._biases = {
            each.load_name: (f"{name}.router.bias", each.balance_rate)
            for name, each in experts.items()
            if each.balance_rate and each.router.weight.requires_grad
        }
        self._loads: dict[str, Tensor] = {}

    def begin_step(self) -> None:
        """Drop the loads of the step before."""
        self._loads = {}

    def microbatch(self, auxiliary: Auxiliary, rows: Tensor, *, is_empty: bool) -> dict[str, Tensor]:
        """The auxiliary losses of a microbatch as summands of the objective; its loads are kept until the step.

        rows: [rows], weight of each row.
        """
        losses = {}
        for name, value in auxiliary.items():
            if name.startswith((STATES, GENERATED, CORRUPTED)):  # the head's
                continue
            if not name.startswith("load."):
                losses[name] = (value * rows).sum()
            elif name in self._biases and not is_empty:
                add_auxiliary(self._loads, {name: value})
        return losses

    @torch.no_grad()
    def step(self, shards: Mapping[str, ParameterShard], world: World, applied: Tensor) -> None:
        """Move this rank's shard of every bias if the step was applied (1.0); all ranks call it together."""
        for name, (bias, rate) in self._biases.items():
            shard = shards[bias]
            loads = self._loads.get(name, torch.zeros(shard.shape, dtype=torch.int64, device=world.device))
            move = load_direction(world.all_reduce_sum(loads, TOKENS)) * applied * rate
            shard.tensor.add_(move[shard.slices].to(shard.tensor))
        self._loads = {}


def loss_names(model: Transformer) -> list[str]:
    """Names of the auxiliary losses that the layers of a model say they give, in the order of the forward pass."""
    modules = [module for block in model.all_blocks() for module in block.modules()]
    modules = modules if model.mtp is None else [model.mtp, *modules]
    modules = modules if model.generator is None else [model.generator, *modules]
    return list(dict.fromkeys(name for module in modules for name in getattr(module, "loss_names", ())))


def token_masks(batch: Batch) -> tuple[Bool[Tensor, "rows sequence"], Bool[Tensor, "rows inputs"] | None]:
    """True at the tokens of a batch, and of its source, that are not padding.

    Padding ends a row and no token in it or behind it is predicted. So the mask ends with the last predicted token of
    a row, and covers the documents of a source whose target has one. Where only some tokens are predicted (masked),
    the few behind the last of them are left out too.
    """
    ahead = batch.weights.flip(1).cumsum(1).flip(1)
    if batch.source is None:
        return ahead > 0, None
    rows = []
    for weights, targets, inputs in zip(
        batch.weights, batch.document_lengths, batch.source.document_lengths, strict=True
    ):
        predicted = torch.stack([part.sum() > 0 for part in weights.split(list(targets))])
        rows.append(predicted.repeat_interleave(torch.tensor(inputs)))
    return ahead > 0, torch.stack(rows)
