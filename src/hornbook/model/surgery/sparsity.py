"""Single weights taken out of the linear layers of a model: two of four neighbours, or a share of each row.

The score of a weight says which are least: its size, or its size times the L2 norm of its input over some text (Wanda:
Sun et al. 2023, arXiv 2306.11695, equation 1), |W_ij| |X_j|. Scores are compared within a row (an output), of N:M
sparsity within M neighbours of a row. With text the layers are gone through in order, so each is judged by what it
reads once those before it are sparse. What is 0 stays 0 in further training by surgery of kind `sparse`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.config.surgery_config import LINEARS, Sparse
from hornbook.model.layers.linear import Linear
from hornbook.model.surgery.added import matching_linears
from hornbook.model.surgery.calibration import Report, calibrate, squares
from hornbook.model.transformer import Transformer

_GROUPS, _SHARE = re.compile(r"([1-9]\d?):([1-9]\d?)"), re.compile(r"0?\.\d+")


@dataclass(frozen=True)
class Pattern:
    """Which weights of a row become 0: all but `keep` of each `of` neighbours, or a share of the row, but never all."""

    keep: int = 0
    of: int = 0
    """0: a share."""
    share: float = 0.0

    def least(self, scores: Float[Tensor, "outputs inputs"]) -> Bool[Tensor, "outputs inputs"]:
        """True at the weights of the lowest scores."""
        groups = scores.unflatten(1, (-1, self.of)) if self.of else scores
        count = self.of - self.keep if self.of else min(round(self.share * scores.shape[1]), scores.shape[1] - 1)
        least = groups.topk(count, dim=-1, largest=False).indices
        return torch.zeros_like(groups, dtype=torch.bool).scatter(-1, least, value=True).view(scores.shape)


def parse_pattern(text: str) -> Pattern:
    """`2:4`, `4:8`, or the share of weights that become 0, as `0.5`. Raises UsageError that lists the forms."""
    groups = _GROUPS.fullmatch(text)
    if groups is not None and int(groups[1]) < int(groups[2]):
        return Pattern(keep=int(groups[1]), of=int(groups[2]))
    if _SHARE.fullmatch(text) and float(text) > 0:
        return Pattern(share=float(text))
    raise UsageError(
        f"--sparse {text}: write 2:4 or 4:8 (kept of so many neighbours), or the share to set to 0, as 0.5"
    )


@torch.no_grad()
def sparsify(
    model: Transformer,
    pattern: Pattern,
    microbatches: Sequence[dict[str, Any]] | None = None,
    report: Report = lambda _done, _of: None,
) -> float:
    """Set the least weights of a decoder's blocks to 0, in place; returns the share of their weights that is 0.

    microbatches: text, as of `calibrate`, that inputs are measured on; None scores by size, as are layers that no text
    reaches. Raises UsageError for groups that do not fill a row.
    """
    layers = matching_linears(model, LINEARS, "--sparse")
    if odd := next((name for name, each in layers.items() if pattern.of and each.weight.shape[1] % pattern.of), None):
        text = f"{odd} has rows of {layers[odd].weight.shape[1]}, which groups of {pattern.of} do not divide"
        raise UsageError(f"--sparse {pattern.keep}:{pattern.of}: {text}: take a share, as 0.5")
    left = dict(layers)

    def act(name: str, layer: Linear, found: Tensor) -> None:
        weight = left.pop(name).weight
        weight.masked_fill_(pattern.least(layer.weight.abs() * found.sqrt().to(weight)), 0.0)

    if microbatches is not None:
        calibrate(model, microbatches, layers, squares, act, report)
    for layer in left.values():
        layer.weight.masked_fill_(pattern.least(layer.weight.abs()), 0.0)
    zeros, count = (sum(int(size) for size in sizes) for sizes in zip(*map(_counts, layers.values()), strict=True))
    return zeros / count


def _counts(layer: Linear) -> tuple[int, int]:
    return int((layer.weight == 0).sum()), layer.weight.numel()


def keep_zeros(model: nn.Module, step: Sparse) -> None:
    """Weights of the layers the step names that are 0 stay so in training (`hornbook.parallel.gradients.zeros`)."""
    for layer in matching_linears(model, step.targets, "surgery sparse targets").values():
        layer.keeps_zeros = True
