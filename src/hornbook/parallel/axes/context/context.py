"""Context parallelism: the ranks of the axis `context` take the same rows and each computes a part of every row.

Everything but attention works on tokens one by one, so a rank computes the embedding, the MLPs, the norms and the loss
of its own tokens. Attention looks at the others' through `FullAttention.attend`, which is replaced here. Losses and
gradients are sums over tokens, and are summed over this axis as over those of data.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.model.attention.attention import FullAttention
from hornbook.model.attention.latent import LatentAttention
from hornbook.model.attention.mask import AttentionMask, RowPart, as_tuples
from hornbook.model.heads.mtp import MultiToken, targets_ahead
from hornbook.model.layers.transfer import to_device
from hornbook.model.mlp.experts import Experts
from hornbook.model.transformer import Transformer
from hornbook.parallel.axes.context.all_to_all import AllToAllAttention
from hornbook.parallel.axes.context.context_layout import order, row_part
from hornbook.parallel.axes.context.part_exchange import CONTEXT, Ring, SumOfParts
from hornbook.parallel.axes.context.ring_attention import RingAttention
from hornbook.parallel.axes.context.shift import shift_parts
from hornbook.parallel.config import ContextConfig
from hornbook.parallel.world import World


class RowParts:
    """What this rank computes of the rows of a batch: all of them where the axis has one rank."""

    def __init__(self, model: Transformer, world: World) -> None:
        self._model, self._world = model, world
        self.ranks, self.rank = world.axis_size(CONTEXT), world.axis_rank(CONTEXT)

    def inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Arguments of `Transformer.forward` for whole rows -> those for this rank's part of them."""
        if self.ranks == 1:
            return inputs
        tokens, lengths, source = inputs["tokens"], inputs["lengths"], inputs["source"]
        part = self._part(self._model.kind, lengths, inputs["prefixes"], tokens.shape)
        names = ("tokens", "positions", "types", "token_mask")
        cut = {name: None if inputs[name] is None else cut_rows(inputs[name], part) for name in names}
        if source is not None:
            at = self._part("bidirectional", source.lengths, None, source.tokens.shape)
            fields = ("tokens", "positions", "token_mask")
            found = {name: getattr(source, name) for name in fields}
            cut["source"] = source._replace(
                **{name: None if each is None else cut_rows(each, at) for name, each in found.items()}, part=at
            )
        return {**inputs, **cut, "part": part}

    def batch(self, batch: Batch) -> Batch:
        """The batch as losses read it: targets and weights of this rank's tokens."""
        if self.ranks == 1:
            return batch
        part = self._of_batch(batch)
        read = ("targets", "weights", "values", "teacher_ids", "teacher_logs")
        there: dict[str, Tensor | None] = {name: getattr(batch, name) for name in read}
        return replace(batch, **{name: None if each is None else cut_rows(each, part) for name, each in there.items()})

    def ahead(self, batch: Batch) -> Callable[[int], tuple[Tensor, Tensor]]:
        """Of how many tokens further on -> `targets_ahead` of this rank's tokens."""

        def found(count: int) -> tuple[Tensor, Tensor]:
            targets, weights = targets_ahead(batch.targets, batch.weights, batch.document_lengths, count)
            if self.ranks == 1:
                return targets, weights
            part = self._of_batch(batch)
            return cut_rows(targets, part), cut_rows(weights, part)

        return found

    def row_weights(self, batch: Batch, weights: Tensor) -> Tensor:
        """[rows]: weight of each row of a whole batch in what is counted once a row, of which each rank has its share.

        weights: those of this rank's tokens, on the device.
        """
        if batch.compared is not None:  # what is counted are comparisons, and a row that is left out has none
            return to_device(batch.compared.row_weights, weights.device) * (weights.sum(1) > 0)
        return weights.sum(1) if self.ranks == 1 else to_device(batch.weights.sum(1) / self.ranks, weights.device)

    def whole(self, values: Tensor, batch: Batch) -> Tensor:
        """Values of this rank's tokens [rows, part] -> those of the rows of the whole batch."""
        if self.ranks == 1:
            return values
        part = self._of_batch(batch)
        found = torch.cat(self._world.all_gather(values, CONTEXT), 1)
        return found.index_select(1, order(part, values.device))

    def _of_batch(self, batch: Batch) -> RowPart:
        return self._part(self._model.kind, batch.document_lengths, batch.prefixes, batch.tokens.shape)

    def _part(self, kind: Any, lengths: Any, prefixes: Any, shape: tuple[int, ...]) -> RowPart:
        mask = AttentionMask(kind, as_tuples(lengths), prefixes=as_tuples(prefixes))
        return row_part(mask, self.ranks, self.rank, shape[1], shape[0])


def cut_rows(x: Tensor, part: RowPart) -> Tensor:
    """The part's columns of x [rows, sequence, ...]; zeros where it is padded."""
    runs = []
    for first, end in part.spans:
        run = x[:, first : min(end, part.length)]
        missing = end - first - run.shape[1]
        runs += [run] if not missing else [run, x.new_zeros(len(x), missing, *x.shape[2:])]
    return torch.cat(runs, 1)


def apply_context(model: Transformer, world: World, config: ContextConfig) -> None:
    """Have attention, statistics of experts and multi-token prediction look at the parts that other ranks have."""
    if world.axis_size(CONTEXT) == 1:
        return
    attend = RingAttention(Ring(world)) if config.kind == "ring" else AllToAllAttention(world)
    for module in model.modules():
        if isinstance(module, FullAttention | LatentAttention):
            module.attend = attend
        elif isinstance(module, Experts):
            module.sum_parts = lambda x: SumOfParts.apply(x, world)
        elif isinstance(module, MultiToken):
            module.shift = partial(shift_parts, world)
