"""The objective of replaced-token detection (`hornbook.model.heads.replaced`), and what evaluations measure of it."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.model.forward_context import Auxiliary
from hornbook.model.heads.replaced import CORRUPTED, GENERATED, Detector
from hornbook.model.layers.transfer import to_device
from hornbook.model.transformer import Transformer


def detection_loss(head: Detector, hidden: Tensor, auxiliary: Auxiliary, batch: Batch, weight: float) -> Tensor:
    """The loss of all tokens that are told, times its weight: a sum that is divided by the number of masked tokens."""
    assert batch.detection is not None
    losses, _ = _told(head, hidden, auxiliary, batch)
    weights = to_device(batch.detection.weights(batch), hidden.device)
    return (losses * weights).sum() * (weight * batch.detection.share)


def _told(head: Detector, hidden: Tensor, auxiliary: Auxiliary, batch: Batch) -> tuple[Tensor, Tensor]:
    """[rows, sequence]: cross-entropy of each token, and its logit."""
    logits = head.logits(hidden)[..., 0]
    replaced = auxiliary[CORRUPTED] != to_device(batch.targets, hidden.device)
    return F.binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="none"), logits


class _Evaluated(Protocol):
    """An engine, as far as it is asked here."""

    def evaluation_mode(self) -> AbstractContextManager[Transformer]: ...
    def inputs(self, batch: Batch, /) -> dict[str, Any]: ...


def detections(engine: _Evaluated, batch: Batch) -> Float[Tensor, "rows sequence 4"]:
    """Of each token, float32: the generator's loss, the loss of telling it, whether it was replaced, whether it is told
    to be. 0 where nothing counts."""
    with engine.evaluation_mode() as model:
        return _measured(model, engine.inputs(batch), batch)


def _measured(model: Transformer, inputs: dict[str, Any], batch: Batch) -> Tensor:
    head, generator, detection = model.head, model.generator, batch.detection
    assert isinstance(head, Detector)
    assert generator is not None
    assert detection is not None
    hidden, auxiliary = model(**inputs)
    targets, weights = (to_device(each, hidden.device) for each in (batch.targets, batch.weights))
    rows = batch.weights.flatten().nonzero().squeeze(1)
    masked = generator.head.token_losses(auxiliary[GENERATED], targets, weights, rows=rows)
    losses, logits = _told(head, hidden, auxiliary, batch)
    replaced = auxiliary[CORRUPTED] != targets
    counts = to_device(detection.weights(batch), hidden.device)
    told = torch.stack([losses.float(), replaced.float(), (logits > 0).float()], 2) * counts[..., None]
    return torch.cat([masked.float()[..., None], told], 2)
