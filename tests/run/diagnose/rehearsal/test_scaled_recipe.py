"""Recipes scaled down for a rehearsal stay themselves, and become small."""

import pytest

from hornbook.run.diagnose.rehearsal.scaled_recipe import STEPS, scale_down
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.resolve import resolve

LARGE = ("gpt2-124m", "llama-3-8b", "mixtral-8x7b", "qwen3-0.6b", "olmo2-1b", "t5-v1.1-base", "modernbert-base")


@pytest.mark.parametrize("name", [*LARGE, *(name for name in shipped_recipes() if name.startswith("tiny"))])
def test_a_recipe_becomes_some_small_steps(name: str) -> None:
    before = resolve(name, ("train.micro_batch=1", "data.path=data"), environ={}).recipe
    after = scale_down(resolve(name, ("train.micro_batch=1", "data.path=data"), environ={}), 2).recipe
    assert after.model.width <= 128
    assert after.model.layers <= max(2, len(before.model.first) + len(before.model.pattern))
    assert after.train.sequence <= 64
    assert after.train.tokens == STEPS * after.train.batch_tokens
    assert after.parallel.world <= 2
    assert (after.model.kind, after.model.head.kind, after.optim.kind) == (
        before.model.kind,
        before.model.head.kind,
        before.optim.kind,
    )
    assert after.data.objective == before.data.objective
    assert (after.model.attention.kind, after.model.mlp.kind) == (before.model.attention.kind, before.model.mlp.kind)


@pytest.mark.parametrize(
    ("words", "ranks", "axes"),
    [
        ("parallel.data=8 parallel.shard=everything", 2, (2, 1, 1)),
        ("parallel.data=8 parallel.tensor=2", 2, (1, 2, 1)),
        ("parallel.data=8 parallel.tensor=2", 4, (2, 2, 1)),
        ("parallel.data=2 parallel.pipeline.stages=4", 2, (1, 1, 2)),
        ("parallel.data=4 parallel.replicas=2 parallel.shard=everything", 2, (2, 1, 1)),
        ("parallel.data=-1", 2, (1, 1, 1)),
    ],
)
def test_a_layout_keeps_the_axes_that_fit(words: str, ranks: int, axes: tuple[int, int, int]) -> None:
    given = ("train.micro_batch=1", "train.batch_tokens=8192", "data.path=data", *words.split())
    parallel = scale_down(resolve("tiny", given, environ={}), ranks).recipe.parallel
    assert (parallel.data, parallel.tensor, parallel.pipeline.stages) == axes
    assert parallel.world <= ranks
    assert parallel.shard == ("everything" if "shard" in words else "none")
