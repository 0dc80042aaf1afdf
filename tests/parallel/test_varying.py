"""Every value of a step varies along the axes that it should; a reduction that is taken out is told."""

from typing import Any

import pytest

from hornbook.parallel import data_parallel
from hornbook.parallel.axes.tensor import tensor_collectives as collectives
from hornbook.parallel.gradients import sums
from hornbook.parallel.world import Axis
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve
from tests.parallel.varying import check

SMALL = ("model.layers=1", "model.width=32", "model.heads=4", "train.sequence=16", "train.micro_batch=1")
SMALL += ("train.device=cpu", "train.precision=fp32", "train.batch_tokens=1024")
DATA, ZERO = ("parallel.data=2",), ("parallel.data=2", "parallel.shard=everything")
TENSOR, SEQUENCE = ("parallel.tensor=2",), ("parallel.tensor=2", "parallel.sequence=true")
LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[Axis, ...]]] = {
    "data": (DATA, ("replica",)),
    "ZeRO-3": (ZERO, ("shard",)),
    "tensor": (TENSOR, ("tensor",)),
    "data, tensor": ((*DATA, *TENSOR), ("replica", "tensor")),
    "ZeRO-3, sequence": ((*ZERO, *SEQUENCE), ("shard", "tensor")),
    "pipeline, tensor": (("model.layers=2", "parallel.pipeline=2", *TENSOR), ("tensor",)),
}


def recipe(words: tuple[str, ...]) -> Recipe:
    return resolve(None, [*SMALL, *words], environ={}).recipe


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_vary_where_they_should(layout: str) -> None:
    words, axes = LAYOUTS[layout]
    assert [problem for axis in axes for problem in check(recipe(words), 64, axis)] == []


@pytest.mark.parametrize(
    ("module", "name", "words", "axis", "problem"),
    [
        (sums, "_buckets", DATA, "replica", "the gradient of embedding.weight varies along replica"),
        (collectives, "_summed", TENSOR, "tensor", "the gradient of blocks.0.norm1.weight varies along tensor"),
        (data_parallel, "add_partial", SEQUENCE, "tensor", "the gradient of blocks.0.norm1.weight varies along tensor"),
    ],
    ids=["gradients", "activations", "norms in sequence parallelism"],
)
def test_a_sum_that_is_missing_is_told(
    module: Any, name: str, words: tuple[str, ...], axis: Axis, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, name, {"_buckets": lambda *_: [], "_summed": lambda x, _: x.clone()}.get(name, _nothing)
    )
    assert problem in check(recipe(words), 64, axis)


def _nothing(*_: Any) -> None:
    pass
