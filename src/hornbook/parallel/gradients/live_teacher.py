"""A teacher that computes beside the model in each step, for what is too large to keep on disk: relations of tokens."""

from typing import Any

import torch
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.data.config.teacher import RelationTeacher
from hornbook.model.heads.relations import Watch, divergence, seen_tokens
from hornbook.model.layers.transfer import to_device
from hornbook.model.transformer import Transformer
from hornbook.parallel.runner import model_inputs


class LiveTeacher:
    """Compares layers of a model in training with layers of another."""

    def __init__(self, teacher: Transformer, model: Transformer, config: RelationTeacher, device: torch.device) -> None:
        """teacher: frozen, on the device."""
        self._teacher, self._config, self._device = teacher.requires_grad_(False).eval(), config, device
        pairs = config.pairs(len(model.blocks), len(teacher.blocks))
        self._pairs = [(Watch(model, ours), Watch(teacher, theirs, always=True)) for ours, theirs in pairs]
        self._causal = model.kind == "causal"

    def term(self, batch: Batch) -> Tensor:
        """The weighted sum over the tokens that count of a microbatch that the model has just read; float32 scalar."""
        inputs: dict[str, Any] = model_inputs(self._teacher, batch, None, self._device, masked=False)
        with torch.no_grad():
            self._teacher(**inputs)
        seen = seen_tokens(batch.document_lengths, self._device, causal=self._causal)
        config, weights = self._config, to_device(batch.weights, self._device)
        apart = [divergence(ours.take(), theirs.take(), config.of, config.heads, seen) for ours, theirs in self._pairs]
        return config.weight / len(apart) * (torch.stack(apart).sum(0) * weights).sum()
