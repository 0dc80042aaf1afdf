"""A recipe scaled down for a rehearsal: its own parts, objective, optimizer and layout, at a size of seconds.

Each change is kept only where the recipe stays valid with it, so no family of models has to be known here.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from hornbook.parallel.config import axis_ranks
from hornbook.settings.resolve import ConfigError, Resolved, override
from hornbook.settings.schema import plain
from hornbook.settings.sources import command_line_source

STEPS, EVERY, SCORE = 12, 4, 6
"""Steps of the run, between saves, and between evaluations."""
AT_MOST: tuple[Mapping[str, int], ...] = (
    *({"model.layers": layers} for layers in (2, 4, 8)),
    {"model.encoder_layers": 2},
    {"model.width": 64, "model.heads": 2, "model.attention.kv_heads": 1, "model.attention.head_dim": 32},
    {"model.width": 128, "model.heads": 4, "model.attention.kv_heads": 2, "model.attention.head_dim": 32},
    {"model.mlp.hidden": 128},
    {"model.mlp.experts": 4},
    {"train.sequence": 64},
)
"""Sizes, each group together, where a recipe has them and they are larger; of two groups for the same, the first that
fits. Layers are taken with more where a pipeline or a pattern needs them."""
FIXED = (
    "model.vocab=none",
    "train.micro_batch=1",
    "train.threads=1",
    "train.compile=false",
    "train.seconds=none",
    "train.ramp.kind=none",
    "optim.schedule.warmup=2 steps",
    f"checkpoint.every={EVERY}",
    "checkpoint.keep=3",
    "checkpoint.keep_every=0",
    f"eval.every={SCORE}",
    "eval.tokens=1024",
    "eval.prompt=",
    "log.every=1000",
    "log.tensorboard=false",
    "log.profile=",
)
_SHRUNK_FIRST = ("parallel.data", "parallel.expert", "parallel.context.ranks", "parallel.tensor")


def scale_down(resolved: Resolved, ranks: int) -> Resolved:
    """The recipe of a rehearsal on at most `ranks` ranks: STEPS steps of a few rows."""
    found = _bound_ranks(resolved, ranks)
    done: set[str] = set()
    for group in AT_MOST:
        smaller = {key: size for key, size in group.items() if _larger(_value(found, key), size)}
        if smaller and done.isdisjoint(group):
            after = _try(found, [f"{key}={size}" for key, size in smaller.items()])
            done |= set(group) if after is not found else set()
            found = after
    found = _try_each(found, FIXED)
    rows = 4 * found.recipe.parallel.data_ranks * found.recipe.parallel.pipeline.all_stages
    batch = rows * found.recipe.train.sequence
    return _set(found, [f"train.batch_tokens={batch}", "train.epochs=none", f"train.tokens={STEPS * batch}"])


def ranks_here() -> int:
    """Ranks that a rehearsal may have on this machine: its cores, and two at least."""
    return max(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2)


def _bound_ranks(resolved: Resolved, ranks: int) -> Resolved:
    axes = {key: abs(size) for key, size in axis_ranks(resolved.recipe.parallel).items()}
    for key in (*_SHRUNK_FIRST, "parallel.pipeline.stages"):
        others = 1
        for other, size in axes.items():
            others *= size if other != key else 1
        axes[key] = min(axes[key], max(1, ranks // others))
    words = [f"{key}={size}" for key, size in axes.items() if size != _value(resolved, key)]
    if axes["parallel.data"] % resolved.recipe.parallel.replicas:
        words.append("parallel.replicas=1")
    if resolved.recipe.parallel.pipeline.cuts:
        words.append("parallel.pipeline.cuts=[]")
    return _set(resolved, words) if words else resolved


def _larger(value: Any, size: int) -> bool:
    return isinstance(value, int) and value > size


def _value(resolved: Resolved, key: str) -> Any:
    """A setting by its dotted key; None where the recipe has no such key."""
    node: Any = plain(resolved.recipe)
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _set(resolved: Resolved, words: Iterable[str]) -> Resolved:
    return override(resolved, [command_line_source(list(words))])


def _try(resolved: Resolved, words: Iterable[str]) -> Resolved:
    """With these settings where they fit, else as it was."""
    try:
        return _set(resolved, words)
    except ConfigError:
        return resolved


def _try_each(resolved: Resolved, words: Iterable[str]) -> Resolved:
    for word in words:
        resolved = _try(resolved, [word])
    return resolved
