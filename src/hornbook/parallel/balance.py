"""What a mixture of experts tells the engine besides its output: losses by row, and loads that move routers' biases.

A row's auxiliary loss counts as much as the row does in the objective: it is multiplied by the sum of the row's target
weights, and divided by the weight of the global batch as everything is. Both it and the row's statistics know nothing
of other rows, so microbatches of any shape on any number of ranks add up to the same objective.

Loads are whole numbers, summed over the global batch; after an applied step each bias moves by its rate against the
sign of its expert's excess load (Wang et al. 2024, arXiv 2408.15664). No rounding depends on the number of ranks.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from hornbook.data.batch import Batch
from hornbook.model.context import Auxiliary
from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.router import load_direction
from hornbook.parallel.mesh import Mesh
from hornbook.parallel.pieces import Piece


class Balance:
    """The mixtures of experts of a model, as the engine sees them."""

    def __init__(self, model: nn.Module) -> None:
        experts = {name: module for name, module in model.named_modules() if isinstance(module, Experts)}
        self.present = bool(experts)
        """Whether there are any."""
        # A frozen router, as under an adapter, keeps its bias.
        moving = {
            name: each for name, each in experts.items() if each.balance_rate and each.router.weight.requires_grad
        }
        self._biases = {each.load_name: f"{name}.router.bias" for name, each in moving.items()}
        self._rates = {each.load_name: each.balance_rate for each in moving.values()}
        assert len(self._biases) == len(moving), "two layers have one number"
        self._loads: dict[str, Tensor] = {}

    def forget(self) -> None:
        """Begin a step: no loads yet."""
        self._loads = {}

    def take(self, auxiliary: Auxiliary, weights: Tensor, blank: bool) -> dict[str, Tensor]:
        """The losses of a microbatch as summands of the objective; its loads are kept until the step."""
        rows, losses = weights.sum(1), {}
        for name, value in auxiliary.items():
            if not name.startswith("load."):
                losses[name] = (value * rows).sum()
            elif name in self._biases and not blank:
                self._loads[name] = self._loads[name] + value if name in self._loads else value
        return losses

    @torch.no_grad()
    def step(self, pieces: Mapping[str, Piece], mesh: Mesh, applied: Tensor) -> None:
        """Move this rank's part of every bias, if the step was applied (1.0); all ranks call it together."""
        for name, bias in self._biases.items():
            piece = pieces[bias]
            loads = self._loads.get(name, torch.zeros(piece.shape, dtype=torch.int64, device=mesh.device))
            move = load_direction(mesh.sum_(loads)) * applied * self._rates[name]
            piece.tensor.add_(move[piece.slices].to(piece.tensor.dtype))
        self._loads = {}


def counted_tokens(batch: Batch) -> tuple[Bool[Tensor, "rows sequence"], Bool[Tensor, "rows inputs"] | None]:
    """Tokens of a batch, and of its source, that are not padding.

    Padding ends a row, and nothing in it or behind it is predicted: so what counts are the tokens up to the last one
    that is, and of a source the pieces whose target counts. Where only some tokens are predicted (masked), the few
    behind the last of them are left out too.
    """
    ahead = batch.weights.flip(1).cumsum(1).flip(1)
    if batch.source is None:
        return ahead > 0, None
    rows = []
    for weights, targets, inputs in zip(batch.weights, batch.lengths, batch.source.lengths, strict=True):
        pieces = torch.stack([part.sum() > 0 for part in weights.split(list(targets))])
        rows.append(pieces.repeat_interleave(torch.tensor(inputs)))
    return ahead > 0, torch.stack(rows)
