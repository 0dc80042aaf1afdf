"""A small model of each family whose sizes divide by no number of ranks, and its batches: for the equality matrix.

Vocabulary 97, 6 heads over 3 key-value heads, 5 blocks, an inner width of 45, rows of two documents of any lengths,
dropout of the residual stream and of attention's probabilities. In them is what others lost on many ranks
(NVIDIA/Megatron-LM#7452): a score of its own per head (sinks), norms of single heads and of a linear attention's
output, which every tensor rank holds and has a part of the gradient of, biases behind products that are divided, a
latent attention with norms between its matrices, routers with two losses and a bias that follows loads, blocks without
experts before those with.
"""

from collections.abc import Mapping
from typing import Any

import torch

from hornbook.data.batch import Batch, Source
from hornbook.model.config.model_config import ModelConfig

VOCAB, ROWS, INPUTS = 97, 2, 19
"""Rows of the embedding; of a microbatch; tokens of an encoder-decoder's source."""
ATTENTION = {"kind": "full", "kv_heads": 3, "dropout": 0.1}
COMMON: dict[str, Any] = {"layers": 5, "width": 48, "heads": 6, "dropout": 0.1, "attention": ATTENTION}
INNER = {"kind": "glu", "hidden": 45}
LATENT = {"kind": "latent", "query_rank": 20, "kv_rank": 12, "nope_dim": 8, "rope_dim": 4, "value_dim": 6}
DELTA = {"attention": {"kind": "delta", "key_heads": 3, "value_heads": 6, "convolution": 3}}
EXPERTS = {
    "kind": "experts",
    "count": 6,
    "active": 2,
    "hidden": 21,
    "shared_hidden": 15,
    "z_loss": 0.01,
    "router": {"kind": "sigmoid", "balance_rate": 0.02},
}
MODELS: dict[str, dict[str, Any]] = {
    "decoder": {"mlp": INNER, "attention": ATTENTION | {"qk_norm": "head", "sinks": True}},
    "encoder": {
        "kind": "encoder",
        "block": {"kind": "post"},
        "embedding": {"norm": True, "types": 2},
        "attention": ATTENTION | {"bias": True, "out_bias": True},
        "mlp": {"kind": "mlp", "activation": "gelu", "hidden": 45},
        "norm": {"kind": "layer"},
        "position": {"kind": "learned", "length": 64},
        "head": {"kind": "masked"},
    },
    "encoder-decoder": {
        "kind": "encoder_decoder",
        "layers": 3,
        "encoder_layers": 2,
        "attention": ATTENTION | {"scale": 1.0},
        "mlp": INNER,
        "position": {"kind": "relative", "length": 64},
        "head": {"kind": "lm", "tied": True, "scale": 48**-0.5},
    },
    "experts": {"mlp": EXPERTS, "first": [{"mlp": INNER, "attention": LATENT}]},
    "hybrid": {"mlp": INNER, "first": [DELTA], "pattern": [DELTA, {}]},
    "further tokens": {
        "layers": 2,
        "mlp": EXPERTS,
        "first": [{"mlp": INNER}],
        "mtp": {"kind": "sequential", "depth": 2},
    },
}
"""Tied embeddings in all; the first block of the mixture of experts has none."""


def tree(family: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """The settings of a model; `sizes` replaces some of them, and `kv_heads` of its softmax attention."""
    found = {**COMMON, **MODELS[family], **sizes}
    heads = found.pop("kv_heads", None)
    return found if heads is None else {**found, "attention": {**found["attention"], "kv_heads": heads}}


def deeper(family: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """`sizes` for a family: blocks of an encoder-decoder are divided over its stacks."""
    if family == "encoder-decoder" and "layers" in sizes:
        return {**sizes, "layers": sizes["layers"] - sizes["layers"] // 2, "encoder_layers": sizes["layers"] // 2}
    return dict(sizes)


def model_config(family: str, sizes: dict[str, Any]) -> ModelConfig:
    """The configuration of a model."""
    return ModelConfig.model_validate(tree(family, sizes))


def grid(family: str, step: int, count: int, sequence: int) -> list[Batch]:
    """The microbatches of a step: rows of unequal weight, the last microbatch a row short."""
    generator = torch.Generator().manual_seed(2000 + step)
    return [_batch(family, generator, ROWS - (number == count - 1), sequence) for number in range(count)]


def _batch(family: str, generator: torch.Generator, rows: int, sequence: int) -> Batch:
    tokens = torch.randint(0, VOCAB, (rows, sequence), generator=generator)
    lengths = [_lengths(generator, sequence) for _ in range(rows)]
    source = _source(generator, rows) if family == "encoder-decoder" else None
    counted = torch.randint(1, sequence + 1, (rows, 1), generator=generator)
    weights = (torch.arange(sequence).expand(rows, -1) < counted).float()
    if family == "encoder":
        weights *= torch.rand(weights.shape, generator=generator) < 0.4
        weights[:, 0] = 1.0
    samples = torch.randint(0, 2**40, (rows,), generator=generator)
    sources = torch.zeros(rows, dtype=torch.int64)
    targets = (tokens * 7 + 1) % VOCAB
    return Batch(tokens, targets, weights, _positions(lengths), lengths, samples, sources, source=source)


def _source(generator: torch.Generator, rows: int) -> Source:
    lengths = [_lengths(generator, INPUTS) for _ in range(rows)]
    return Source(torch.randint(0, VOCAB, (rows, INPUTS), generator=generator), _positions(lengths), lengths)


def _lengths(generator: torch.Generator, sequence: int) -> tuple[int, ...]:
    """Two documents that fill a row."""
    first = int(torch.randint(1, sequence, (), generator=generator))
    return first, sequence - first


def _positions(lengths: list[tuple[int, ...]]) -> torch.Tensor:
    return torch.stack([torch.cat([torch.arange(length) for length in row]) for row in lengths])
