"""Models that explorers offer, which are shipped recipes, and recipes with the settings of a question."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from hornbook.parallel.config import ParallelConfig
from hornbook.plan.devices.hardware import Cluster, parse_cluster
from hornbook.plan.planner import settle
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved, override, resolve
from hornbook.settings.show import toml_value
from hornbook.settings.sources import command_line_source

MODELS = [
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
_MODEL = "The model: a shipped recipe, or the path of a recipe or a run of yours."
Model = Annotated[str, Field(max_length=1000, description=_MODEL, json_schema_extra={"choices": [*MODELS]})]
Device = Annotated[
    Literal["A100-40GB", "A100", "H100", "H200", "B200", "L4", "RTX4090"], Field(description="The kind of GPU.")
]
PLAIN: Mapping[str, Any] = {"train.compile": False, "train.ramp.kind": "none"}
"""Settings that recipes choose and that exclude some answers, as those of `parallel` do, which a question chooses."""
SHARDS: Mapping[str, Any] = {"none": "none", "zero-1": "optimizer", "zero-2": "gradients", "zero-3": "everything"}
"""ZeRO's stages -> `parallel.shard`."""


@lru_cache(16)
def _alone(name: str, _written: float) -> Resolved:
    found = resolve(name, environ={})
    return Resolved(found.recipe.model_copy(update={"parallel": ParallelConfig()}), found.origins)


@lru_cache(256)
def _resolved(name: str, words: tuple[str, ...], written: float) -> Recipe:
    return override(_alone(name, written), [command_line_source(words)]).recipe


def recipe_of(name: str, settings: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe on one device, with other settings by dotted key; a file that changed is read again.

    Raises UsageError for settings that exclude each other, and for a name that is no recipe, file or run.
    """
    given = {**PLAIN, **(settings or {})}
    words = [f"{key}={value if isinstance(value, str) else toml_value(value)}" for key, value in given.items()]
    file = Path(name)
    return _resolved(name, tuple(words), file.stat().st_mtime if file.is_file() else 0.0)


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
