"""What the outputs of a head for labels say: probabilities, the best answer of a context, entities of tags."""

from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from hornbook.model.config.head_config import ClassificationHead, LabelHeadConfig, RegressionHead


def text_place(kind: str) -> int:
    """Which token of a text carries its label, by the kind of the model: the first that sees all of it, or the last."""
    return 0 if kind == "encoder" else -1


def probabilities(head: LabelHeadConfig, outputs: Float[Tensor, "*batch outputs"]) -> Float[Tensor, "*batch outputs"]:
    """Of each label: together 1, or each by itself where a text may have several; of a regression the values."""
    if isinstance(head, RegressionHead):
        return outputs
    several = isinstance(head, ClassificationHead) and head.multiple
    return outputs.sigmoid() if several else outputs.softmax(-1)


class Answer(NamedTuple):
    """Tokens of an answer."""

    first: int
    last: int
    score: float
    """Sum of the outputs for its begin and its end: comparable among windows of one context."""


def best_span(
    outputs: Float[Tensor, "tokens two"], choosable: Bool[Tensor, " tokens"], longest: int = 30
) -> Answer | None:
    """The answer of at most `longest` tokens with the largest score, the earliest of equals; None: nothing choosable.

    outputs: of a span's head, for begin and end. Linear in the tokens: for each end the best begin of a window.
    """
    if not bool(choosable.any()):
        return None
    starts, ends = outputs.float().masked_fill(~choosable[:, None], float("-inf")).unbind(1)
    ahead = F.pad(starts, (longest - 1, 0), value=float("-inf"))[None]
    best, best_starts = F.max_pool1d(ahead, longest, stride=1, return_indices=True)
    scores = best[0] + ends
    last = int(scores.argmax())
    return Answer(int(best_starts[0, last]) - (longest - 1), last, float(scores[last]))


class Entity(NamedTuple):
    """Words that are named together."""

    label: str
    first: int
    end: int
    """One past its last word."""


_BEGIN, _INSIDE, _LAST = ("B", "S", "U"), ("I", "E", "L", "M"), ("E", "S", "L", "U")


def entities(tags: Sequence[str]) -> list[Entity]:
    """Entities of tags B-X, I-X, O, and of schemes that also mark ends (IOBES, BILOU); as conlleval counts them.

    An I-X after another label, or after O, begins an entity; tags without a prefix name none.
    """
    found: list[Entity] = []
    opened: str | None = None
    for number, tag in enumerate(tags):
        prefix, label = _parts(tag)
        if opened is not None and prefix in _INSIDE and label == opened:
            found[-1] = found[-1]._replace(end=number + 1)
        elif prefix:
            found.append(Entity(label, number, number + 1))
        opened = label if prefix and prefix not in _LAST else None
    return found


def _parts(tag: str) -> tuple[str, str]:
    """`B-PER` -> ("B", "PER"); a tag without such a prefix has none."""
    prefix, dash, label = tag.partition("-")
    return (prefix, label) if dash and prefix in (*_BEGIN, *_INSIDE) else ("", tag)
