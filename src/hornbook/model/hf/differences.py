"""Whether two configurations compute the same, key by key and layer by layer."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.model_config import ModelConfig

FREE = (
    "vocab",
    "dropout",
    "init.",
    "stochastic_depth",
    "attention.dropout",
    "head.dropout",
    "mlp.balance_loss",
    "mlp.z_loss",
    "mlp.capacity",
    "mlp.router.jitter",
    "mlp.router.balance_rate",
)
"""Dotted keys of `ModelConfig`, or their begin, that do not change what a trained model computes (or are sizes of their
own)."""


def flatten(config: ModelConfig) -> dict[str, Any]:
    """Every leaf by dotted key, with the sizes that follow from others (kv_heads, head_dim, hidden) filled in."""
    flat = dict(leaves(config.model_dump(exclude={"first", "pattern"})))
    if isinstance(config.attention, FullAttentionConfig):
        flat["attention.kv_heads"] = config.kv_heads
        flat["attention.head_dim"] = config.head_dim
    flat["mlp.hidden"] = config.hidden
    flat["encoder_layers"] = config.encoder.layers if config.kind == "encoder_decoder" else None
    return flat


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(Dotted key, value) of what is no mapping."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def typical(config: ModelConfig) -> ModelConfig:
    """The configuration as its last layer sees it: what differs comes first, as a rule."""
    return config.layer(config.layers - 1)


def differences(config: ModelConfig, other: ModelConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted key, of a layer where it is only there -> values, where the two do not compute the same."""
    both, found = (config, other), _unequal(flatten(typical(config)), flatten(typical(other)))
    if config.layers != other.layers:
        return found
    for i in range(config.layers):
        if not (config.first or config.pattern or other.first or other.pattern):
            break
        a, b = (flatten(each.layer(i)) | {"attention_norm": each.attention_norm(i).model_dump()} for each in both)
        found |= {f"{path} of layer {i}": pair for path, pair in _unequal(a, b).items() if path not in found}
    return found


def _unequal(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    paths = [path for path in {**ours, **theirs} if not path.startswith(FREE)]
    pairs = {path: (ours.get(path), theirs.get(path)) for path in paths}
    return {path: pair for path, pair in pairs.items() if not _same(*pair)}


def _same(a: Any, b: Any) -> bool:
    """Equal, and numbers within what float32 can tell apart: a square root need not be written to its last bit."""
    if isinstance(a, float | int) and isinstance(b, float | int):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=0)
    return a == b
