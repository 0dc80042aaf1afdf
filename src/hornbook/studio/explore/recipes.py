"""Models that explorers offer, which are shipped recipes, and recipes with the settings of a question."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, get_args

from hornbook.errors import UsageError
from hornbook.plan.devices.hardware import Cluster, parse_cluster
from hornbook.plan.planner import settle
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

Model = Literal[
    "tiny",
    "gpt2-124m",
    "gpt2-1.5b",
    "bert-base",
    "bert-large",
    "t5-v1.1-base",
    "qwen3-0.6b",
    "llama-1b",
    "llama-7b",
    "llama-3-8b",
    "olmo2-13b",
    "neox-20b",
    "mixtral-8x7b",
    "llama-65b",
    "gpt3-175b",
]
Device = Literal["A100-40GB", "A100", "H100", "H200", "B200", "L4", "RTX4090"]


PLAIN: Mapping[str, Any] = {"train.compile": False, "parallel.recompute": "none", "train.ramp.kind": "none"}
"""Settings that the shipped recipes choose and that exclude some answers: a question chooses them."""


SHARDS: Mapping[str, Any] = {"none": "none", "zero-1": "optimizer", "zero-2": "gradients", "zero-3": "everything"}
"""ZeRO's stages -> `parallel.shard`."""


@lru_cache(256)
def _resolved(name: str, words: tuple[str, ...]) -> Recipe:
    return resolve(name, words, environ={}).recipe


def recipe_of(name: str, settings: Mapping[str, Any] | None = None) -> Recipe:
    """A shipped recipe with other settings, by dotted key. Raises UsageError for settings that exclude each other."""
    return _resolved(name, tuple(f"{key}={_word(value)}" for key, value in {**PLAIN, **(settings or {})}.items()))


def _word(value: object) -> str:
    """A value as the command line takes it; lists and tables as TOML writes them in a line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_word, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {json.dumps(each)}' for key, each in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def model_of(recipe: Recipe) -> str:
    """The model of a run as explorers offer it. Raises UsageError."""
    if recipe.name not in get_args(Model):
        raise UsageError(f"the run's recipe {recipe.name!r} is none of the shipped ones that this page has")
    return recipe.name


def on(cluster: str, name: str, settings: Mapping[str, Any]) -> tuple[Recipe, Cluster]:
    """A recipe with the precision that `auto` takes on a cluster, and the cluster."""
    made = parse_cluster(cluster)
    return settle(recipe_of(name, settings), made), made


def sequence_words(name: str, sequence: int) -> dict[str, Any]:
    """Settings for rows of `sequence` tokens, with positions for as many."""
    recipe = recipe_of(name)
    found: dict[str, Any] = {"train.sequence": sequence}
    if sequence > getattr(recipe.model.position, "length", sequence):
        found["model.position.length"] = sequence
    return found


SMALL_STEPS = 60
"""Steps of a model that is trained for real."""


def small_recipe() -> Recipe:
    """A narrow `tiny`, of which a step takes hundredths of a second."""
    rows = {"train.sequence": 128, "train.batch_tokens": 256, "train.micro_batch": 2}
    return recipe_of(
        "tiny", {"model.width": 64, "model.layers": 2, "train.precision": "fp32", "train.device": "cpu", **rows}
    )
