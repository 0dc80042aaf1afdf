"""From hidden states to what labels say: classes, tags, numbers, and where an answer begins and ends.

One idea: a label sits on a token. Outputs are a few numbers per token, so rows hold as many labelled texts as fit, and
only tokens with a weight are projected. What a span is chosen from are the tokens of its document.
"""

from itertools import accumulate, compress
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.model.attention.position import Lengths
from hornbook.model.config import head_config as config_head
from hornbook.model.config.init_config import NormalValues
from hornbook.model.forward_context import Context
from hornbook.model.heads.head import Head
from hornbook.model.heads.losses import SoftTargets
from hornbook.model.layers.dropout import Dropout, mix
from hornbook.model.layers.transfer import to_device

START, END, CHOOSABLE = 1, 2, 4
"""Bits of a span's targets: the answer starts here, ends here, or might have done so."""
_SITE = 62  # of the dropout; no layer draws there


class OtherLabels(NamedTuple):
    """Labels of the texts that those of a batch are mixed with."""

    targets: Tensor
    """As those of the batch."""
    shares: Float[Tensor, "batch time"]
    """How much the loss of a text's own label counts; that of the other has the rest."""


class LabelHead(Head):
    """Projection to a few outputs of each token, after a `transform` and dropout; in float32 whatever comes in."""

    def __init__(self, width: int, cfg: config_head.LabelHeadConfig, transform: nn.Module | None) -> None:
        super().__init__(cfg.outputs, width, None, transform, cfg.bias)
        self.dropout = Dropout(cfg.dropout, 0, _SITE)
        self.apart = False
        """Whether its values lie with an adapter, which trains it whole, and not with the adapter's base."""
        # Under every scheme: those are about language models, and large values here would spoil a trained stack.
        self.initial = {"weight": NormalValues(std=0.02)}

    @property
    def takes_rows(self) -> bool:
        return True

    def logits(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch outputs"]:
        """Outputs in float32."""
        return self._project(hidden if self.before is None else self.before(hidden), self.matrix)

    def losses(
        self,
        hidden: Float[Tensor, "batch time width"],
        targets: Tensor,
        weights: Float[Tensor, "batch time"],
        *,
        smoothing: float = 0.0,
        z_loss: float = 0.0,
        lengths: Lengths | None = None,
        keys: Int[Tensor, " batch"] | None = None,
        rows: Int[Tensor, " counting"] | None = None,
        soft: SoftTargets | None = None,
        mixed: OtherLabels | None = None,
    ) -> dict[str, Float[Tensor, ""]]:
        """Sum over tokens of weight * loss, float32, as `loss`.

        targets: ids of labels int64 [batch, time]; or values float32 [batch, time, outputs] where labels are numbers or
        independent of each other; for spans bits [batch, time]. smoothing: of a softmax over labels. z_loss: for
        vocabularies; 0 here. rows: where weights are not 0, of all tokens in a line, on the host; else the device
        is asked. mixed: the labels of what the texts are mixed with.
        """
        assert z_loss == 0, "cross_check refuses it"
        assert soft is None, "cross_check refuses a teacher"
        rows, found = self._losses(hidden, targets, weights, smoothing, lengths, keys, rows, mixed)
        return {"loss": (found * weights.flatten()[rows]).sum()}

    @torch.no_grad()
    def token_losses(
        self,
        hidden: Float[Tensor, "batch time width"],
        targets: Tensor,
        weights: Float[Tensor, "batch time"] | None = None,
        lengths: Lengths | None = None,
        rows: Int[Tensor, " counting"] | None = None,
    ) -> Float[Tensor, "batch time"]:
        """Loss of each label, float32, at its token where weights are not 0; no gradients. rows: as of `losses`."""
        weights = hidden.new_ones(hidden.shape[:2]) if weights is None else weights
        rows, losses = self._losses(hidden, targets, weights, 0.0, lengths, None, rows)
        found = hidden.new_zeros(weights.numel(), dtype=torch.float32)
        found[rows] = losses.float()
        return found.view(weights.shape)

    def _losses(
        self,
        hidden: Tensor,
        targets: Tensor,
        weights: Tensor,
        smoothing: float,
        lengths: Lengths | None,
        keys: Tensor | None,
        rows: Tensor | None = None,
        mixed: OtherLabels | None = None,
    ) -> tuple[Int[Tensor, " labels"], Float[Tensor, " labels"]]:
        """Which tokens, of all in a line, carry a label that counts, and the loss of each label, unweighted."""
        del lengths
        rows = (weights.flatten() > 0).nonzero().squeeze(1) if rows is None else to_device(rows, weights.device)
        outputs = self._read(hidden.flatten(0, 1)[rows], rows, weights.shape[1], keys)
        losses = self.label_losses(outputs, targets.flatten(0, 1)[rows], smoothing)
        if mixed is None:
            return rows, losses
        shares = mixed.shares.flatten()[rows]
        other = self.label_losses(outputs, mixed.targets.flatten(0, 1)[rows], smoothing)
        return rows, shares * losses + (1 - shares) * other

    def label_losses(
        self, outputs: Float[Tensor, "labels outputs"], targets: Tensor, smoothing: float
    ) -> Float[Tensor, " labels"]:
        """Loss of each label, unweighted."""
        raise NotImplementedError

    def _read(
        self, hidden: Float[Tensor, "tokens width"], rows: Int[Tensor, " tokens"], time: int, keys: Tensor | None
    ) -> Tensor:
        """Outputs of the tokens `rows` of all in lines of `time`; dropout takes each for a row of its own."""
        hidden = hidden if self.before is None else self.before(hidden)
        if keys is not None:
            keys = mix(keys[rows // time] + rows % time)
        return self._project(self.dropout(hidden[:, None], Context(keys=keys))[:, 0], self.matrix)

    def _project(self, hidden: Tensor, matrix: Tensor) -> Tensor:
        wide = torch.promote_types(hidden.dtype, matrix.dtype)
        return F.linear(hidden.to(wide), matrix, self.bias)


class Tagger(LabelHead):
    """One of several labels for each token: cross-entropy."""

    def label_losses(self, outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)


class Classifier(Tagger):
    """One of several labels for each text, or any number of them: the mean of their binary cross-entropies."""

    def __init__(self, width: int, cfg: config_head.ClassificationHead, transform: nn.Module | None) -> None:
        super().__init__(width, cfg, transform)
        self.multiple = cfg.multiple

    def label_losses(self, outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        if not self.multiple:
            return super().label_losses(outputs, targets, smoothing)
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none").mean(1)


class Regressor(LabelHead):
    """Numbers of each text: the mean of their squared errors."""

    def label_losses(self, outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        del smoothing
        return (outputs - targets).square().mean(1)


class SpanFinder(LabelHead):
    """Scores of each token as the first and the last of an answer: the mean of two cross-entropies over a document.

    A document counts with the weight of its first token, so that weights add up to the number of answers.
    """

    def _losses(
        self,
        hidden: Tensor,
        targets: Tensor,
        weights: Tensor,
        smoothing: float,
        lengths: Lengths | None,
        keys: Tensor | None,
        rows: Tensor | None = None,
        mixed: OtherLabels | None = None,
    ) -> tuple[Int[Tensor, " labels"], Float[Tensor, " labels"]]:
        """As of `LabelHead`. lengths: documents of each row, which answers are found in; None takes the row as one."""
        assert smoothing == 0, "cross_check refuses it"
        assert mixed is None, "cross_check refuses it"
        everything = torch.arange(weights.numel(), device=weights.device)
        outputs = self._read(hidden.flatten(0, 1), everything, weights.shape[1], keys)
        return _span_losses(outputs, targets, weights, lengths, rows)


def _span_losses(
    outputs: Float[Tensor, "tokens two"],
    targets: Tensor,
    weights: Tensor,
    lengths: Lengths | None,
    counting: Int[Tensor, " counting"] | None = None,
) -> tuple[Int[Tensor, " documents"], Float[Tensor, " documents"]]:
    """(place of the first token, loss) of each document that counts; tokens count over all rows.

    counting: where weights are not 0, on the host; else the device is asked.
    """
    rows, time = targets.shape
    sizes = [size for row in lengths or [(time,)] * rows for size in row if size]
    starts = list(accumulate(sizes[:-1], initial=0))
    known = set(((weights.flatten() > 0).nonzero() if counting is None else counting).flatten().tolist())
    chosen = [start in known for start in starts]
    first = to_device(torch.tensor([*compress(starts, chosen)], dtype=torch.int64), targets.device)
    documents = list(compress(outputs.split(sizes), chosen))
    bits = list(compress(targets.flatten().split(sizes), chosen))
    if not documents:
        return first, outputs.sum(1)[:0]
    scores: Any = nn.utils.rnn.pad_sequence(documents, batch_first=True)
    marks = nn.utils.rnn.pad_sequence(bits, batch_first=True)
    logits = scores.masked_fill((marks == 0)[..., None], float("-inf")).log_softmax(1)
    answers = torch.stack([(marks & bit > 0).int().argmax(1) for bit in (START, END)], 1)
    return first, -logits.gather(1, answers[:, None])[:, 0].mean(1)
