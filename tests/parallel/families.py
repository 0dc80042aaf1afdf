"""A tiny model of each family, and its batches as the data room makes them: encoders, encoder-decoders, and decoders
with experts, linear attention or a prefix."""

from functools import cache
from typing import Any

import numpy as np

from hornbook.data.batch import Batch
from hornbook.data.config.data import DataConfig
from hornbook.data.corpus import Corpus
from hornbook.data.loader.global_index import GlobalIndex
from hornbook.model.config.model_config import ModelConfig

VOCAB = 320
"""Rows of the embedding: room for the marked corpus."""
ROWS = 2
"""Of a microbatch."""
EXPERTS = {"kind": "experts", "count": 16, "active": 1, "hidden": 16, "z_loss": 0.01}
BERT = {
    "kind": "encoder",
    "block": {"kind": "post"},
    "embedding": {"norm": True, "types": 2},
    "attention": {"kind": "full", "bias": True, "out_bias": True},
    "mlp": {"kind": "mlp", "activation": "gelu"},
    "norm": {"kind": "layer"},
    "position": {"kind": "learned", "length": 64},
    "head": {"kind": "masked"},
}
T5 = {
    "kind": "encoder_decoder",
    "attention": {"kind": "full", "scale": 1.0},
    "mlp": {"kind": "glu", "activation": "gelu_tanh"},
    "position": {"kind": "relative", "length": 64},
    "head": {"kind": "lm", "tied": False},
}
BART = BERT | {"kind": "encoder_decoder", "embedding": {"norm": True}, "head": {"kind": "lm", "bias": True}}
MODELS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "local": {"kind": "encoder", "pattern": [{"attention": {"kind": "full", "window": 8}}, {}]},
    "t5": T5,
    "ul2": T5,
    "bart": BART,
    "t5 of experts": T5 | {"layers": 3, "encoder_layers": 1, "mlp": EXPERTS},
    "prefix": {},
    "experts": {"mlp": EXPERTS | {"capacity": 1.5}},
    "delta": {"attention": {"kind": "delta", "value_dim": 32}},
}
DENOISERS = [{"mode": "R", "density": 0.15, "mean_span": 3}, {"mode": "S", "density": 0.25}]
OBJECTIVES: dict[str, dict[str, Any]] = {
    "bert": {"kind": "masked"},
    "local": {"kind": "masked", "rate": 0.3},
    "t5": {"kind": "span"},
    "ul2": {"kind": "ul2", "denoisers": DENOISERS},
    "bart": {"kind": "infill"},
    "t5 of experts": {"kind": "span"},
    "prefix": {"kind": "prefix"},
    "experts": {"kind": "causal"},
    "delta": {"kind": "causal"},
}


def model_config(family: str) -> ModelConfig:
    """Two layers (of each stack, mostly), width 32, with dropout."""
    return ModelConfig.model_validate({"layers": 2, "width": 32, "heads": 2, "dropout": 0.1, **MODELS[family]})


@cache
def _index(family: str, corpus: str, sequence: int) -> GlobalIndex:
    config = DataConfig.model_validate({"objective": OBJECTIVES[family]})
    return GlobalIndex(Corpus.open(corpus), config, sequence=sequence, seed=1)


def grid(family: str, corpus: str, step: int, count: int, sequence: int) -> list[Batch]:
    """The microbatches of a step: `count` of them, the last a row short."""
    return rows(family, corpus, step * ROWS * count, ROWS * count - 1, ROWS, sequence)


def rows(family: str, corpus: str, first: int, number: int, micro_batch: int, sequence: int) -> list[Batch]:
    """`number` samples from `first` on, as microbatches of `micro_batch` rows."""
    positions = np.arange(first, first + number, dtype=np.int64)
    return _index(family, corpus, sequence).batch(positions, micro_batch).batches
