"""Values that each rank holds: the formula beside built models."""

from typing import Any

import pytest

from hornbook.model.build_model import build_model
from hornbook.parallel.axes.pipeline.cuts import settle_cuts
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.plan.counts.held_counts import held_values
from hornbook.run.diagnose.simulate import fake_world
from hornbook.settings.recipe import Recipe
from tests.parallel import odd
from tests.parallel.layouts import EVERY
from tests.parallel.test_further_tokens import VARIANTS

LAYOUTS: list[dict[str, Any]] = [
    {"pipeline": 2},
    {"tensor": 2},
    {"pipeline": {"stages": 2, "schedule": "zbv"}},
    {"tensor": 3},
    {"tensor": 2, "pipeline": 2},
]
HEADS = {2: {"kv_heads": 2}, 3: {}, 1: {}}


def check(family: str, sizes: dict[str, Any], settings: dict[str, Any]) -> None:
    """The formula is what those ranks of each stage hold that have most, of trained values."""
    model, parallel = odd.model_config(family, sizes), ParallelConfig.model_validate(settings)
    parallel = settle_cuts(parallel, model, odd.VOCAB, sequence=25)
    recipe = Recipe().model_copy(update={"model": model, "parallel": parallel})
    formula = held_values(model, odd.VOCAB, parallel, sequence=25)
    beside = parallel.world // parallel.pipeline.stages
    most = [0] * parallel.pipeline.stages
    for rank in range(parallel.world):
        with fake_world(recipe, rank) as world:
            made = build_model(model, odd.VOCAB, device="meta")
            engine = parallelize(made, parallel, recipe.train, world)
        held = sum(each.numel() for each in engine.named_parameters.values())
        most[rank // beside] = max(most[rank // beside], held)
    assert formula == most


@pytest.mark.parametrize("settings", LAYOUTS, ids=str)
@pytest.mark.parametrize("family", EVERY)
def test_the_formula_is_what_ranks_hold(family: str, settings: dict[str, Any]) -> None:
    check(family, HEADS[settings.get("tensor", 1)], settings)


@pytest.mark.parametrize("settings", [{"expert": 2}, {"expert": 4}, {"expert": 2, "tensor": 2, "pipeline": 2}], ids=str)
def test_experts(settings: dict[str, Any]) -> None:
    check("experts", HEADS[settings.get("tensor", 1)], settings)


@pytest.mark.parametrize("settings", [*LAYOUTS, {"expert": 4}, {"expert": 2, "tensor": 2, "pipeline": 2}], ids=str)
@pytest.mark.parametrize("name", ["sequential", "parallel", "post norm"])
def test_blocks_of_multi_token_prediction(name: str, settings: dict[str, Any]) -> None:
    sizes = {"layers": 4} | VARIANTS.get(name, {}) | HEADS[settings.get("tensor", 1)]
    check("further tokens", sizes, settings)


def test_more_tensor_ranks_than_key_value_heads() -> None:
    check("decoder", {"heads": 12, "kv_heads": 2}, {"tensor": 4})
