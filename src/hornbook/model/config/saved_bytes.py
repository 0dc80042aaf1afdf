"""Bytes that autograd keeps of a forward pass until backward: arithmetic on a configuration, without building it.

Every distinct memory that backward needs counts once, parameters not: equal to the byte to what
`torch.autograd.graph.saved_tensors_hooks` sees on a CPU, for rows that are one document each. In rows of several
documents attention keeps fewer probabilities. Of a block that is computed again only its input counts; `recomputed` is
what the largest of them holds while it is.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.model_config import ModelConfig, Parallel
from hornbook.model.config.norm_config import NormConfig
from hornbook.model.config.part import Rows, method
from hornbook.parallel.config import BlockRecompute, Recompute


@dataclass(frozen=True)
class SavedBytes:
    """Bytes kept of one microbatch, by where they are."""

    ends: int
    """Ids, positions, what stands before the first block, and the norm at the end."""
    shared: int
    """What all blocks read: angles of positions, scores by distance."""
    blocks: int
    """Of all blocks."""
    head: int
    """Gradients that the loss has made: of hidden states, and of the matrix to the vocabulary; with multi-token
    prediction those of each further loss, and what stands around its blocks."""
    recomputed: int
    """Of the largest block that backward computes again: there during backward of each of them."""
    final: int
    """Of `ends`, the norm behind the last block."""

    @property
    def total(self) -> int:
        """Bytes kept at the end of the forward pass."""
        return self.ends + self.shared + self.blocks + self.head


def saved_bytes(
    model: ModelConfig, vocab: int, rows: Rows, recompute: Recompute, targets: int | None = None
) -> SavedBytes:
    """Bytes kept of `rows`; `targets` are the tokens that a masked model predicts, by default all.

    Raises UsageError for a model with a part that does not say what it keeps.
    """
    every = recompute.every if isinstance(recompute, BlockRecompute) else 0
    stacks = _stacks(model, replace(rows, rebuilding=recompute.kind == "selective"))
    every_block = [(stack, number) for stack in stacks for number in range(stack.model.num_blocks)]
    blocks = [stack.block(number) for stack, number in every_block]
    again = [each for each in range(len(blocks)) if every and each % every == 0]
    inputs = sum(every_block[each][0].stream for each in again)
    kept = sum(blocks) - sum(blocks[each] for each in again) + inputs
    held = [[n for i, (own, n) in enumerate(every_block) if own is stack and i not in again] for stack in stacks]
    whole = [stack for stack, numbers in zip(stacks, held, strict=True) if numbers]
    shared = sum(stack.memory for stack in whole)
    shared += sum(_shared(stack.model, stack.rows, numbers) for stack, numbers in zip(stacks, held, strict=True))
    ends = sum(stack.ends for stack in stacks)
    ends += 4 * rows.rows if any(stack.weighs_rows for stack in stacks) else 0
    targets = rows.tokens if targets is None else targets
    ahead = (targets - number * rows.rows for number in range(1 + model.mtp.depth))  # a row's last tokens have none
    head = sum(model.head.saved_bytes(model, vocab, stacks[-1].rows, max(each, 0)) for each in ahead)
    head += model.mtp.saved_bytes(model, stacks[-1].rows.narrow)
    if (generator := model.head.generator_of(model)) is not None:
        head += generator.head.saved_bytes(generator, vocab, rows, targets)
    states = 0 if stacks[-1] in whole else stacks[-1].memory  # held all the same, by the blocks that read them
    recomputed = max((blocks[each] for each in again), default=0)
    return SavedBytes(ends, shared, kept, head, recomputed + states, stacks[-1].final)


@dataclass(frozen=True)
class BlockBytes:
    """Bytes that one block keeps: all, and where it is computed again."""

    whole: int
    stream: int
    backward: int
    """Gradients of activations that are there at once while it goes backward."""


def block_bytes(model: ModelConfig, rows: Rows) -> list[BlockBytes]:
    """Of each block, an encoder's first. Raises UsageError as `saved_bytes` does."""
    found = list[BlockBytes]()
    for stack in _stacks(model, rows):
        kinds = dict[tuple[int, bool], BlockBytes]()
        for number in range(stack.model.num_blocks):
            kind = stack.model.alike(number), number > 0
            if kind not in kinds:
                kinds[kind] = BlockBytes(stack.block(number), stack.stream, stack.backward(number))
            found.append(kinds[kind])
    return found


def _stacks(model: ModelConfig, rows: Rows) -> "list[_Stack]":
    """The encoder or the generator, if there is one, then the model itself."""
    generator = model.head.generator_of(model)
    if generator is not None:
        return [_Stack(generator, rows, reads=model), _Stack(model, rows)]
    if model.kind != "encoder_decoder":
        return [_Stack(model, rows)]
    source = replace(rows, sequence=rows.source or rows.sequence)
    return [_Stack(model.encoder, source), _Stack(model, rows, source)]


@dataclass(frozen=True)
class _Stack:
    """A stack and the rows it reads; `source`: those of the encoder that it attends to.

    reads: the model whose vectors a generator reads."""

    model: ModelConfig
    rows: Rows
    source: Rows | None = None
    reads: ModelConfig | None = None
    known: dict[tuple[int, bool], int] = field(default_factory=dict[tuple[int, bool], int], compare=False)
    """Bytes of blocks by what those alike have in common, and whether one is before them."""

    @property
    def stream(self) -> int:
        return self.rows.narrow.stream(self.model)

    @property
    def ends(self) -> int:
        own = _entrance(self.model, self.rows) if self.reads is None else _read(self.reads, self.model, self.rows)
        return own + self.final

    @property
    def final(self) -> int:
        return _norm(self.model.norm, self.model, self.rows) if self.model.final_norm else 0

    @property
    def weighs_rows(self) -> bool:
        """Whether losses of its experts are multiplied by the weight of each row."""
        return any(
            getattr(self.model.layer(number).mlp, "has_losses", False) for number in range(self.model.num_blocks)
        )

    @property
    def memory(self) -> int:
        """The encoder's states, which all blocks of the decoder project."""
        return 0 if self.source is None else self.source.stream(self.model)

    def backward(self, number: int) -> int:
        """Gradients of the stream, of its norm, and of what the widest product gave."""
        layer = self.model.layer(number)
        products = [each for part in (layer.attention, layer.mlp) for each in method(part, "products")(layer)]
        return 2 * self.stream + self.rows.values(max(each.columns * each.uses for each in products))

    def block(self, number: int) -> int:
        key = self.model.alike(number), number > 0
        if key not in self.known:
            self.known[key] = self._block(number)
        return self.known[key]

    def _block(self, number: int) -> int:
        own = _block(self.model, number, self.rows)
        return own if self.source is None else own + _across(self.model, number, self.rows, self.source)


def _across(model: ModelConfig, number: int, rows: Rows, source: Rows) -> int:
    """Bytes that attention to the encoder keeps in a block of the decoder, its norms and its input included."""
    assert not isinstance(model.block, Parallel)
    layer = model.layer(number)
    assert isinstance(layer.attention, FullAttentionConfig)
    drops = _dropped(model.dropout, rows) + (rows.itemsize * rows.rows if model.stochastic_depth else 0)
    norms = _around(model, model.norm, rows, "sum" in model.block.norms)
    return layer.attention.saved_bytes_across(layer, rows, source) + drops + norms


def _entrance(model: ModelConfig, rows: Rows) -> int:
    """Ids, positions and the layers before the first block, which compute in float32."""
    part, wide = model.embedding, replace(rows, itemsize=4, rebuilding=False)
    project = 4 * rows.tokens * part.width if part.width else 0
    norm = _norm(model.norm, model.entrance, wide) if part.norm else 0
    return 8 * rows.tokens + model.position.saved_bytes(rows) + project + norm + _dropped(model.dropout, rows)


def _read(model: ModelConfig, generator: ModelConfig, rows: Rows) -> int:
    """What a generator's vectors keep, which the model's embedding makes once more: all but positions; and their
    projection, which is in the dtype of blocks."""
    plain = replace(rows, rebuilding=False)
    project = plain.stream(model) + plain.cast(model.width * generator.width) if generator.embedding.width else 0
    return _entrance(model, rows) - model.position.saved_bytes(rows) + project


def _shared(model: ModelConfig, rows: Rows, numbers: list[int]) -> int:
    """Angles of each kind of rotary positions, and a table of scores by distance, as these blocks read them."""
    parts = set[tuple[Any, int]]()
    for layer in map(model.layer, numbers):
        dims = layer.attention.rotary_dims(layer) if layer.position.kind == "rope" else 0
        if layer.position.kind == "rope" or layer.attention.scored:
            parts.add((layer.position, dims))
    return sum(position.shared_bytes(rows, model.heads, dims) for position, dims in parts)


def _block(model: ModelConfig, number: int, rows: Rows) -> int:
    """Bytes that a block keeps, its input included."""
    layer = model.layer(number)
    attention, mlp = (method(part, "saved_bytes")(layer, rows) for part in (layer.attention, layer.mlp))
    rows = rows.narrow
    drops = 2 * _dropped(model.dropout, rows) + 2 * (rows.itemsize * rows.rows if model.stochastic_depth else 0)
    if isinstance(model.block, Parallel):
        return attention + mlp + drops + _parallel_norms(model, rows)
    made = number > 0 and "sum" in model.block.norms  # the stream is a norm's output
    first = _around(model, model.attention_norm(number), rows, made)
    return attention + mlp + drops + first + _around(model, model.norm, rows, "sum" in model.block.norms)


def _around(model: ModelConfig, norm: NormConfig, rows: Rows, made: bool) -> int:
    """The norms around a sublayer, and its input; `made`: its input can be made again from what a norm keeps."""
    assert not isinstance(model.block, Parallel)
    sites = model.block.norms
    kept = len(sites) * _norm(norm, model, rows)
    remade = rows.rebuilding and (made or "before" in sites) and norm.rebuilt
    return kept + (0 if remade else rows.stream(model))


def _parallel_norms(model: ModelConfig, rows: Rows) -> int:
    """One norm or two of the same stream, and what they give to the branches."""
    assert isinstance(model.block, Parallel)
    count, stream = 1 if model.block.shared_norm else 2, rows.stream(model)
    own = count * model.norm.saved_bytes(model.width, rows) + model.norm.keeps_input(rows) * stream
    return own + (0 if rows.rebuilding and model.norm.rebuilt else count * stream)


def _norm(norm: NormConfig, model: ModelConfig, rows: Rows) -> int:
    """A norm of the stream, and its input where it keeps that."""
    return norm.saved_bytes(model.width, rows) + norm.keeps_input(rows) * rows.stream(model)


def _dropped(rate: float, rows: Rows) -> int:
    """Keys of a place where values are dropped; no mask is kept."""
    return 8 * rows.rows if rate else 0
