"""Configuration of attention: how positions exchange information."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hornbook.model.config.part import FEW_ROWS, Cut, LayerPart, Model, Problems, Rows, Weight, keys_seen, linear
from hornbook.model.config.tiling import kept_pairs, kept_pairs_across
from hornbook.settings.fields import OPEN, Count, Number

DELTA_CHUNK = 64
"""Tokens that the delta rule computes at a time (`hornbook.model.attention.delta_rule`)."""


def _probabilities(model: Model, rows: Rows, window: int | None, head_dim: int) -> int:
    """Bytes kept of attention's probabilities, or of what they are made of again."""
    if rows.fused:
        return 4 * rows.tokens * model.heads
    pairs = 0 if rows.rebuilding else kept_pairs(rows.sequence, model, window, head_dim)
    return rows.itemsize * rows.rows * model.heads * pairs


class FullAttentionConfig(LayerPart):
    """Softmax attention with any number of key-value heads (MHA, GQA arXiv 2305.13245, MQA)."""

    builder = "attention.attention:FullAttention"
    kind: Literal["full"] = "full"
    kv_heads: Count | None = Field(default=None, ge=1)
    """Key-value heads; by default as many as heads."""
    head_dim: Count | None = Field(default=None, ge=1)
    """Width of a head; by default width / heads."""
    bias: bool = False
    """Biases of the query, key and value projections."""
    out_bias: bool = False
    """Bias of the output projection."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """RMSNorm of queries and keys before positions are applied: over each head (Qwen3) or over all (OLMo 2)."""
    window: Count | None = Field(default=None, ge=1)
    """Positions each query sees at most, itself included: the last ones; in an encoder window // 2 on each side."""
    scale: Number | None = Field(default=None, gt=0)
    """Factor of the scores; by default 1 / sqrt(head_dim)."""
    softcap: Number | None = Field(default=None, gt=0)
    """Scores s become softcap * tanh(s / softcap) (Gemma 2)."""
    clip: Number | None = Field(default=None, gt=0)
    """Queries, keys and values are cut to [-clip, clip] (OLMoE)."""
    sinks: bool = False
    """A learned score per head that takes part in the softmax and has no value (gpt-oss)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the attention probabilities."""

    def weights(self, model: Model) -> list[Weight]:
        queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        by_heads, by_keys = Cut(0, "heads", model.heads), Cut(0, "kv_heads", model.kv_heads)
        found = linear("query", model.width, queries, by_heads, bias=self.bias)
        for name in ("key", "value"):
            found += linear(name, model.width, keys, by_keys, bias=self.bias, joined=True)
        found += linear("out", queries, model.width, Cut(1, "heads", model.heads), bias=self.out_bias)
        if self.qk_norm == "head":
            found += [
                Weight(f"{name}_norm.weight", (model.head_dim,), "norm", is_per_head=True) for name in ("query", "key")
            ]
        elif self.qk_norm == "full":
            found.append(Weight("query_norm.weight", (queries,), "norm", by_heads))
            found.append(Weight("key_norm.weight", (keys,), "norm", by_keys))
        return [*found, Weight("sinks", (model.heads,), "vector", by_heads)] if self.sinks else found

    def of_rank(self, model: Model, ranks: int) -> Any:
        return self.model_copy(update={"kv_heads": max(model.kv_heads // ranks, 1), "head_dim": model.head_dim})

    def attention_flops(self, model: Model, sequence: int) -> tuple[float, float]:
        keys = keys_seen(sequence, self.window, bidirectional=model.kind == "encoder")
        return self.pair_flops(model) * keys, self.pair_flops(model) * sequence

    def rotary_dims(self, model: Model) -> int:
        return model.head_dim

    def saved_bytes(self, model: Model, rows: Rows) -> int:
        """Queries, keys and values, what the heads found, and probabilities where they are few."""
        queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        kept = rows.values(2 * (queries + keys)) + _probabilities(model, rows, self.window, model.head_dim)
        if rows.eager:
            kept += self._saved_eagerly(model, rows, queries, keys)
        kept += rows.stacked(model.width * (queries + 2 * keys)) + rows.cast(model.width * queries)
        if self.qk_norm == "head":
            kept += 4 * rows.tokens * (model.heads + model.kv_heads)
            kept += 0 if rows.rebuilding else rows.values(queries + keys)
        elif self.qk_norm == "full":
            kept += 4 * rows.tokens * 2 + rows.values(queries + keys)
        kept += rows.values(queries + 2 * keys) if self.clip is not None else 0
        return kept + (4 * rows.tokens * model.heads if self.sinks else 0)

    def _saved_eagerly(self, model: Model, rows: Rows, queries: int, keys: int) -> int:
        """What is kept besides where rotation and norms are torch's operations."""
        rotated = self.rotary_dims(model) and model.position.kind == "rope"
        kept = rows.values(queries) * rows.traced if rotated else 0
        if rotated and rows.tokens >= FEW_ROWS:
            kept += rows.values(queries + keys)  # values lie beside what was rotated
        if self.qk_norm == "head" and rows.itemsize == 2:
            wider = 2 * rows.traced if rows.rebuilding else 2 + 4 * rows.traced
            kept += wider * rows.tokens * (queries + keys)
        return kept

    def saved_bytes_across(self, model: Model, rows: Rows, source: Rows) -> int:
        """The same of attention from a decoder's rows to the encoder's states; those are not counted."""
        queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        lengths = rows.sequence, source.sequence
        pairs = 0 if rows.rebuilding or rows.fused else kept_pairs_across(*lengths, model.head_dim)
        kept = rows.values(2 * queries) + source.values(2 * keys) + rows.itemsize * rows.rows * model.heads * pairs
        kept += 4 * rows.tokens * model.heads * rows.fused
        kept += 2 * rows.cast(model.width * (queries + keys))
        if self.qk_norm == "head":
            kept += 4 * (rows.tokens * model.heads + source.tokens * model.kv_heads)
            kept += 0 if rows.rebuilding else rows.values(queries) + source.values(keys)
        elif self.qk_norm == "full":
            kept += 4 * (rows.tokens + source.tokens) + rows.values(queries) + source.values(keys)
        if self.clip is not None:
            remade = rows.rebuilding and self.qk_norm == "full"
            kept += source.values(keys) + (0 if remade else rows.values(queries) + source.values(keys))
        return kept + (4 * rows.tokens * model.heads if self.sinks else 0)

    def pair_flops(self, model: Model) -> int:
        """Operations of one query and one key in all heads: a score and its share of the sum, three times."""
        return 12 * model.heads * model.head_dim

    def problems(self, model: Model) -> Problems:
        rotary_dim = int(model.head_dim * model.position.fraction) if model.position.kind == "rope" else 0
        if self.head_dim is None and model.width % model.heads:
            text = f"width {model.width} does not divide into {model.heads} heads"
            yield "heads", f"{text}: change one, or set model.attention.head_dim"
        elif rotary_dim % 2:
            yield "attention.head_dim", f"rotary positions need an even number of dims, not {rotary_dim}"
        if model.heads % model.kv_heads:
            text = f"{model.heads} heads do not divide among {model.kv_heads} key-value heads"
            yield "attention.kv_heads", text


class LatentAttentionConfig(LayerPart):
    """Keys and values from a small latent vector, positions in extra dims of their own (DeepSeek, arXiv 2405.04434)."""

    builder = "attention.latent:LatentAttention"
    kind: Literal["latent"] = "latent"
    query_rank: Count | None = Field(default=1536, ge=1)
    """Width of the queries' latent; none projects directly."""
    kv_rank: Count = Field(default=512, ge=1)
    """Width of the latent of keys and values: what a cache has to hold."""
    nope_dim: Count = Field(default=128, ge=1)
    """Dims of each head without positions."""
    rope_dim: Count = Field(default=64, ge=2)
    """Dims of each head that turn; their key is shared by all heads."""
    value_dim: Count = Field(default=128, ge=1)
    """Dims of each head's values."""
    bias: bool = False
    """Biases of the projections down to the latents and out."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the attention probabilities."""

    def weights(self, model: Model) -> list[Weight]:
        width, heads, rank, by_heads = model.width, model.heads, self.query_rank, Cut(0, "heads", model.heads)
        queries = heads * (self.nope_dim + self.rope_dim)
        if rank is None:
            found = linear("query", width, queries, by_heads)
        else:
            found = linear("query_down", width, rank, bias=self.bias)
            found += [Weight("query_norm.weight", (rank,), "norm"), *linear("query_up", rank, queries, by_heads)]
        return [
            *found,
            *linear("kv_down", width, self.kv_rank + self.rope_dim, bias=self.bias),
            Weight("kv_norm.weight", (self.kv_rank,), "norm"),
            # The latent goes to all ranks with the key that heads share.
            *linear(
                "kv_up", self.kv_rank, heads * (self.nope_dim + self.value_dim), by_heads._replace(is_input_shared=True)
            ),
            *linear("out", heads * self.value_dim, width, Cut(1, "heads", heads), bias=self.bias),
        ]

    def rotary_dims(self, _model: Model) -> int:
        return self.rope_dim

    def saved_bytes(self, model: Model, rows: Rows) -> int:
        """Latents, queries, keys and values, what the heads found, and probabilities where they are few."""
        dims, rank = self.nope_dim + self.rope_dim, self.query_rank
        normed = 0 if rank is None else 4 * rows.tokens + rows.values(rank if rows.rebuilding else 2 * rank)
        # The norm keeps a copy of the latent, which lies beside the shared key.
        latent = 4 * rows.tokens + rows.values(2 * self.kv_rank + self.rope_dim)
        heads = rows.values(model.heads * (2 * dims + self.nope_dim + 2 * self.value_dim))
        probabilities = _probabilities(model, rows, None, dims)
        return normed + latent + heads + probabilities + rows.cast(self.num_matmul_weights(model))

    def attention_flops(self, model: Model, sequence: int) -> tuple[float, float]:
        pair = 6 * model.heads * (self.nope_dim + self.rope_dim + self.value_dim)
        return pair * keys_seen(sequence, None, bidirectional=model.kind == "encoder"), pair * sequence

    def problems(self, model: Model) -> Problems:
        rotary_dim = int(self.rope_dim * model.position.fraction) if model.position.kind == "rope" else 0
        if rotary_dim % 2:
            text = f"rotary positions need an even number of dims, not {rotary_dim}: change it"
            yield "attention.rope_dim", text


class DeltaAttentionConfig(LayerPart):
    """Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): a linear recurrence that corrects its state."""

    builder = "attention.delta:DeltaAttention"
    scored: ClassVar = False
    kind: Literal["delta"] = "delta"
    key_heads: Count | None = Field(default=None, ge=1)
    """Heads of queries and keys; by default as many as heads."""
    value_heads: Count | None = Field(default=None, ge=1)
    """Heads of values, a multiple of `key_heads`; by default as many as heads."""
    key_dim: Count | None = Field(default=None, ge=1)
    """Width of a key; by default width / heads."""
    value_dim: Count | None = Field(default=None, ge=1)
    """Width of a value; by default width / heads."""
    convolution: Count = Field(default=4, ge=1)
    """Positions of the causal convolution before queries, keys and values."""

    def weights(self, model: Model) -> list[Weight]:
        (keys, values), heads = self.widths(model), self.value_heads or model.heads
        found = linear("query", model.width, keys)
        further = {"key": keys, "value": values, "gate": values, "rate": heads, "decay": heads}
        found += [each for name, size in further.items() for each in linear(name, model.width, size, joined=True)]
        return [
            *found,
            *linear("out", values, model.width),
            Weight("convolution.weight", (2 * keys + values, self.convolution), "vector"),
            *(Weight(name, (heads,), "vector") for name in ("log_decay", "decay_bias")),
            Weight("norm.weight", (values // heads,), "norm"),
        ]

    def of_rank(self, model: Model, _ranks: int) -> Any:
        """The whole part: no rank has a share of it."""
        head = model.width // model.heads
        sizes = {"key_heads": model.heads, "value_heads": model.heads, "key_dim": head, "value_dim": head}
        return self.model_copy(update={name: getattr(self, name) or size for name, size in sizes.items()})

    def widths(self, model: Model) -> tuple[int, int]:
        """(width of all keys, width of all values)."""
        head = model.width // model.heads
        keys, values = self.key_heads or model.heads, self.value_heads or model.heads
        return keys * (self.key_dim or head), values * (self.value_dim or head)

    def attention_flops(self, model: Model, _sequence: int) -> tuple[float, float]:
        """Each value head reads its state [key, value] by key and by query and adds an outer product to it."""
        recurrence = 3 * 6 * self.widths(model)[1] * (self.key_dim or model.width // model.heads)
        return recurrence, recurrence

    def saved_bytes(self, model: Model, rows: Rows) -> int:
        """What the joint product gives, the convolution, units, rates and the rule; then the norm, gate and output."""
        keys, values = self.widths(model)
        heads, mixed, taps = self.value_heads or model.heads, 2 * keys + values, self.convolution
        joint = mixed + values + 2 * heads
        kept = rows.stacked(model.width * joint) + rows.cast(values * model.width) + rows.values(joint)
        kept += rows.values(taps * mixed) + (taps - 1) * rows.tokens + 4 * rows.tokens * mixed
        kept += 2 * mixed * taps if rows.itemsize == 2 else 0
        kept += 8 * rows.tokens * (self.key_heads or model.heads) + 8 * heads + 12 * rows.tokens * heads
        kept += self._saved_by_rule(model, rows, heads)
        widened = 3 if rows.itemsize == 4 else 4  # what the norm reads, its result, the gate's SiLU, the gate
        padded = rows.rows * -(-rows.sequence // DELTA_CHUNK) * DELTA_CHUNK
        normed = 4 * values * (padded if rows.rebuilding else rows.tokens)  # made again from what the rule gave
        return kept + 4 * rows.tokens * (heads + (widened - 1) * values) + normed + rows.values(values)

    def _saved_by_rule(self, model: Model, rows: Rows, heads: int) -> int:
        """Squares of chunks, keys and values in chunks, and a state for each; rows of whole chunks lie as they are,
        and are copied for products."""
        chunks, rest = divmod(rows.sequence, DELTA_CHUNK)
        chunks += rest > 0
        square, tokens = DELTA_CHUNK**2, rows.rows * DELTA_CHUNK  # of a chunk of all rows
        key, value = self.key_dim or model.width // model.heads, self.value_dim or model.width // model.heads
        of_keys, of_values, rates = (5, 3, 4) if rest else (8, 2, 3)
        each = rates + of_keys * key + of_values * value
        kept = 4 * heads * chunks * (5 * rows.rows * square + tokens * each + rows.rows * key * value)
        read = chunks - (rest == 0 and rows.rows > 1) if chunks > 1 else 0  # the first state is no variable
        kept += 4 * heads * tokens * key * read
        return kept + square + chunks * (rows.rows * square + tokens)  # which tokens are of one document

    def problems(self, model: Model) -> Problems:
        if model.kind == "encoder_decoder":
            return  # refused as a whole
        keys, values = self.key_heads or model.heads, self.value_heads or model.heads
        if values % keys:
            text = f"{values} heads of values do not divide among {keys} heads of keys"
            yield "attention.value_heads", text
        if None in (self.key_dim, self.value_dim) and model.width % model.heads:
            text = f"width {model.width} does not divide into {model.heads} heads: set key_dim and value_dim"
            yield "attention.key_dim", text
        if model.kind == "encoder":
            yield "attention.kind", 'it sees earlier tokens only: an encoder needs "full"'


AttentionConfig = Annotated[
    FullAttentionConfig | LatentAttentionConfig | DeltaAttentionConfig, Field(discriminator="kind"), *OPEN
]
