"""One Transformer, by composition: embedding, blocks, norm, head; every part chosen by the config's `kind`.

A `Stack` is what an encoder and a decoder have in common. The Transformer is a stack with ends: an encoder (every
position sees its whole document), a decoder (each sees what came before), or a decoder that also looks at an encoder.
The ends are optional and the blocks live in a ModuleDict, so a pipeline stage is the same model with blocks deleted
and names kept. The model is plain PyTorch: it knows no device, no rank, no mesh.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.attention.key_tables import with_tables
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.attention.mask import AttentionMask, RowPart, as_tuples
from hornbook.model.attention.position import AddedPositions, Lengths, Rope, document_positions
from hornbook.model.forward_context import Auxiliary, Context, Memory, Prefix
from hornbook.model.heads.head import Head
from hornbook.model.heads.mtp import MultiToken
from hornbook.model.heads.replaced import CORRUPTED, GENERATED, Chosen, Detector, replaced
from hornbook.model.layers.dropout import Dropout, embedding_noise
from hornbook.model.layers.embedding import Embedding, InputLayers, Mixing

_NOISE = 60  # site of the noise on embeddings, and the one behind it for a decoder; no layer draws there


class Source(NamedTuple):
    """Input of a stack, as of the encoder of an encoder-decoder."""

    tokens: Int[Tensor, "batch time"]
    positions: Int[Tensor, "batch time"] | None = None
    lengths: Lengths | None = None
    """Document lengths of each row; the k-th document of a row's target attends to the k-th of its source."""
    token_mask: Bool[Tensor, "batch time"] | None = None
    """True for real tokens, of which statistics of experts are made; None: all."""
    part: RowPart | None = None
    """Which positions of each row these are; None: all."""
    mixing: Mixing | None = None
    """What token vectors are mixed with; None: nothing."""


class Stack(nn.Module):
    """Positions, blocks and the norm at their end."""

    def __init__(
        self,
        *,
        kind: Literal["causal", "bidirectional"],
        embedding: Embedding | None = None,
        positions: AddedPositions | None,
        bias: nn.Module | None,
        entrance: InputLayers,
        dropout: Dropout,
        blocks: dict[str, nn.Module],
        norm: nn.Module | None,
    ) -> None:
        super().__init__()
        self.kind: Literal["causal", "bidirectional"] = kind
        self.embedding = embedding  # first, for parameters are summed over in the order they are named here
        self.positions, self.bias = positions, bias
        self.entrance, self.dropout = entrance, dropout
        self.blocks = nn.ModuleDict(blocks)
        self.norm = norm
        self.saving: Callable[[], AbstractContextManager[object]] = nullcontext
        """Entered around the blocks and the norm: decides what autograd keeps of them."""
        self.ropes: set[Rope] = set()
        """Each kind of rotary positions that some layer has."""
        self.windows: set[int | None] = {None}
        """Sliding windows that some layer has."""
        self.serve_layers(self.blocks)
        self.compiled = False
        """Whether the blocks are compiled: what they read of masks must be ready then."""

    def serve_layers(self, layers: nn.Module) -> None:
        """Make what these layers read of positions and masks a part of each context."""
        for module in layers.modules():
            if isinstance(rope := getattr(module, "rope", None), Rope):
                self.ropes.add(rope)
            self.windows.add(getattr(getattr(module, "cfg", None), "window", None))

    def position_ids(
        self, tokens: Tensor, positions: Tensor | None, lengths: Lengths | None, start: int
    ) -> Int[Tensor, "rows time"]:
        """Given positions, or those that count from `start` (in each document from 0); one row if all agree."""
        if positions is not None:
            return positions
        if lengths is not None:
            return document_positions(lengths, tokens.device)
        end = start + tokens.shape[1]
        if self.positions is not None and end > self.positions.length:
            known = self.positions.length
            raise UsageError(f"{end} positions asked for, but the model has learned only {known} of them")
        return torch.arange(start, end, device=tokens.device)[None]

    def embed(
        self, x: Float[Tensor, "batch time vector"], positions: Tensor, types: Tensor | None, dtype: torch.dtype
    ) -> Float[Tensor, "batch time width"]:
        """From token vectors to the input of the first block, before dropout."""
        added = None if self.positions is None else self.positions(positions)
        return self.entrance(x, added, types).to(dtype)

    def run_blocks(
        self, x: Float[Tensor, "batch time width"], context: Context
    ) -> tuple[Float[Tensor, "batch time width"], Auxiliary]:
        """Output of all blocks and the norm; auxiliary values of the blocks are summed by name."""
        auxiliary: Auxiliary = {}
        with self.saving():
            for block in self.blocks.values():
                x, found = block(x, context)
                add_auxiliary(auxiliary, found)
            return (x if self.norm is None else self.norm(x)), auxiliary


class Generator(Stack):
    """Predicts masked tokens in training, for the model to tell what was replaced; it reads the model's own vectors."""

    loss_names = ("detection",)

    def __init__(self, head: Head, **stack: Any) -> None:
        super().__init__(**stack)
        self.head = head

    def forward(
        self, vectors: Float[Tensor, "batch time vector"], context: Context
    ) -> Float[Tensor, "batch time width"]:
        """States of its last block. vectors: what the model's first block would read of the masked tokens."""
        states, auxiliary = self.run_blocks(self.entrance(vectors, None, None).to(vectors.dtype), context)
        assert not auxiliary, "the generator has no experts"
        return states


def add_auxiliary(total: Auxiliary, found: Auxiliary) -> None:
    """Add by name."""
    for name, value in found.items():
        total[name] = total[name] + value if name in total else value


class Transformer(Stack):
    """A stack between an embedding and a head; `head` gives losses and logits of its hidden states."""

    def __init__(
        self, *, head: Head | None, encoder: Stack | None = None, mtp: MultiToken | None = None, **stack: Any
    ) -> None:
        super().__init__(**stack)
        self.compute_dtype = torch.float32
        """Dtype of activations and matrix products; parameters are always float32."""
        self.noise = 0.0
        """How much noise is added to embeddings in training (`embedding_noise`); 0: none."""
        self.encoder = encoder
        self.head = head
        self.mtp = mtp
        """Blocks that predict further tokens, in training alone; last, for its parameters come after all others."""
        self.prefix: Callable[[Tensor], Prefix] | None = None
        """Says where trained keys and values stand among tokens, where surgery put them."""
        if mtp is not None:
            self.serve_layers(mtp.blocks)
        if self.generator is not None:
            self.serve_layers(self.generator.blocks)

    @property
    def generator(self) -> Generator | None:
        """What replaces tokens in training, for the head to tell."""
        return self.head.generator if isinstance(self.head, Detector) else None

    @property
    def token_head(self) -> Head | None:
        """The head that predicts tokens, or labels in their place."""
        return self.head if self.generator is None else self.generator.head

    def stacks(self) -> Iterator[Stack]:
        """The encoder or the generator, if there is one, then the model itself."""
        yield from (each for each in (self.encoder, self.generator) if each is not None)
        yield self

    def all_blocks(self) -> Iterator[nn.Module]:
        """Every block of both stacks, the encoder's first, then those of multi-token prediction."""
        for stack in self.stacks():
            yield from stack.blocks.values()
        yield from () if self.mtp is None else self.mtp.blocks.values()

    def forward(
        self,
        tokens: Int[Tensor, "batch time"] | Float[Tensor, "batch time width"],
        positions: Int[Tensor, "batch time"] | None = None,
        lengths: Lengths | None = None,
        keys: Int[Tensor, " batch"] | None = None,
        cache: KVCache | None = None,
        *,
        prefixes: Lengths | None = None,
        types: Int[Tensor, "batch time"] | None = None,
        source: Source | None = None,
        memory: Memory | None = None,
        token_mask: Bool[Tensor, "batch time"] | None = None,
        part: RowPart | None = None,
        ahead: bool = False,
        chosen: Chosen | None = None,
        mixing: Mixing | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], Auxiliary]:
        """Hidden states (of `compute_dtype`), and auxiliary values of layers by name (losses of each row of experts).

        tokens: ids; or, in a model without embedding, the hidden states of the stage before.
        positions: place of each token in its document; by default counted from `cache.length`, anew in each document.
        lengths: documents of each row that attention is confined to; None sees the whole row.
        keys: dropout keys from `row_keys`; None turns dropout off.
        cache: continue after the positions it holds, and add to it; one of several documents can be divided among them.
        prefixes: number of tokens at the start of each document that all see one another (prefix language model).
        types: token types (BERT's segments); by default all 0.
        source, memory: input of the encoder, as tokens or as the output of `encode`.
        token_mask: True for tokens that are not padding, of which statistics of experts are made; None: all.
        part: which positions of each row `tokens` are, where the rest is computed elsewhere; lengths and prefixes are
            of whole rows, and `FullAttention.attend` looks at the rest. None: all.
        ahead: add the states of multi-token prediction to the auxiliary values (`hornbook.model.heads.mtp`).
        chosen: masked tokens that the generator replaces first; its states, and what the model then reads, are among
            the auxiliary values (`hornbook.model.heads.replaced`).
        mixing: what token vectors are mixed with (`hornbook.data.labelled.mixup`).
        """
        assert cache is None or lengths is None or cache.length == 0, "a cache continues one document per row"
        assert self.encoder is None or source is not None or memory is not None, "an encoder-decoder needs its source"
        assert self.encoder is not None or source is None, "only an encoder-decoder has a source"
        auxiliary: Auxiliary = {}
        if source is not None:
            memory, auxiliary = self._encode(source, keys)
        assert part is None or (cache is None and positions is not None), "a part of a row needs its positions"
        inputs = Source(tokens, positions, lengths, token_mask, part, mixing)
        if chosen is not None and self.generator is not None:
            states = self.generator(*self._prepare(self, inputs, keys, types=types))
            inputs = inputs._replace(tokens=replaced(tokens, states, self.generator.head, chosen))
            auxiliary |= {GENERATED: states, CORRUPTED: inputs.tokens}
        vectors, context = self._prepare(self, inputs, keys, cache, prefixes, types, memory)
        x, found = self.run_blocks(vectors, context)
        add_auxiliary(auxiliary, found)
        if ahead and self.mtp is not None:
            with self.saving():
                add_auxiliary(auxiliary, self.mtp(x, vectors, context))
        if cache is not None:
            cache.advance(x.shape[1])
        return x, auxiliary

    def further_states(
        self, states: Float[Tensor, "batch time width"], inputs: Source, keys: Tensor | None, types: Tensor | None
    ) -> Auxiliary:
        """What `ahead` adds in `forward`, of states that the blocks have made of the inputs elsewhere."""
        assert self.mtp is not None
        vectors, context = self._prepare(self, inputs, keys, types=types)
        with self.saving():
            return self.mtp(states, vectors, context)

    def look_ahead(
        self,
        ahead: int,
        states: Float[Tensor, "batch time width"],
        tokens: Int[Tensor, "batch time"],
        cache: KVCache,
    ) -> Float[Tensor, "batch time width"]:
        """States of block `ahead` (from 1) of multi-token prediction, which follow those whose keys its cache holds.

        states: of the block before, or the model's; tokens: those `ahead` positions further on.
        """
        assert self.mtp is not None
        assert self.embedding is not None
        first, time = cache.length, tokens.shape[1]
        _, context = self._prepare(self, Source(tokens), None, cache)
        positions = torch.arange(first + ahead, first + ahead + time, device=tokens.device)[None]
        vectors = self.embed(self.embedding(tokens), positions, None, self.compute_dtype)
        found, _ = self.mtp.step(ahead, states, vectors, context)
        cache.advance(time)
        return found

    def encode(self, source: Source) -> Memory:
        """The encoder's states, once for all steps of a generation."""
        return self._encode(source, None)[0]

    def _encode(self, source: Source, keys: Tensor | None) -> tuple[Memory, Auxiliary]:
        assert self.encoder is not None
        x, context = self._prepare(self.encoder, source, keys)
        x, auxiliary = self.encoder.run_blocks(x, context)
        return Memory(x, as_tuples(source.lengths), source.part), auxiliary

    def _prepare(
        self,
        stack: Stack,
        inputs: Source,
        keys: Tensor | None,
        cache: KVCache | None = None,
        prefixes: Lengths | None = None,
        types: Tensor | None = None,
        memory: Memory | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], Context]:
        """Input of the first block of a stack, and the context that its blocks share."""
        tokens, positions, lengths, token_mask, part, mixing = inputs
        start = 0 if cache is None else cache.length
        positions = stack.position_ids(tokens, positions, lengths, start)
        mask = AttentionMask(stack.kind, as_tuples(lengths), prefixes=as_tuples(prefixes), part=part)
        cross = None
        if memory is not None:
            cross = AttentionMask("cross", mask.lengths, memory.lengths, part=part, key_part=memory.part)
        time = tokens.shape[1] if part is None else part.length
        if cache is not None:
            tables = {window: cache.tables(window) for window in stack.windows}
            mask = mask if tables[None] is None else replace(mask, tables=tables)
        elif stack.compiled or tokens.device.type != "cpu":
            batch = len(tokens)
            mask = with_tables(mask, (batch, time, time), tokens.device, stack.windows)
            if cross is not None and memory is not None:
                keys_there = memory.states.shape[1] if memory.part is None else memory.part.length
                cross = with_tables(cross, (batch, time, keys_there), tokens.device)
        context = Context(
            rotations={rope.name: rope.rotation(positions) for rope in stack.ropes},
            mask=mask,
            cross=cross,
            keys=keys,
            cache=cache,
            bias=None if stack.bias is None else stack.bias(start + time, tokens.device),
            memory=memory,
            token_mask=token_mask,
            prefix=None if self.prefix is None or start > 0 else self.prefix(tokens),  # a cache holds it already
        )
        if self.embedding is None:
            return tokens, context
        vectors = self.embedding(tokens)
        if mixing is not None:
            vectors = mixing.of(self.embedding, vectors)
        if self.noise and keys is not None:
            vectors = embedding_noise(vectors, keys, _NOISE + (stack is self), self.noise, mask)
        x = stack.embed(vectors, positions, types, self.compute_dtype)
        return stack.dropout(x, context), context
