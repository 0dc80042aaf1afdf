"""Rules between sections, and the recipes that come with hornbook."""

import pytest

from hornbook.errors import UsageError
from hornbook.model.config.position_config import LearnedPositionsConfig, RopeConfig
from hornbook.settings.recipe import Recipe, cross_check
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.resolve import Resolved, resolve


def shipped(name: str) -> Resolved:
    return resolve(name, [], {})


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, []),
        ({"model": {"width": 100, "heads": 3}}, ["model.heads"]),
        ({"model": {"width": 100, "heads": 3, "attention": {"kind": "full", "head_dim": 32}}}, []),
        ({"model": {"width": 60, "heads": 12}}, ["model.attention.head_dim"]),
        ({"model": {"width": 60, "heads": 12, "position": {"kind": "learned"}}}, []),
        ({"model": {"attention": {"kind": "full", "kv_heads": 5}}}, ["model.attention.kv_heads"]),
        ({"model": {"attention": {"kind": "delta", "key_heads": 5}}}, ["model.attention.value_heads"]),
        ({"model": {"attention": {"kind": "delta"}, "kind": "encoder"}}, ["model.attention.kind"]),
        ({"model": {"attention": {"kind": "delta"}, "width": 100}}, ["model.attention.key_dim"]),
        ({"model": {"mlp": {"kind": "experts", "count": 4, "active": 5}}}, ["model.mlp.active"]),
        ({"model": {"mlp": {"kind": "experts", "router": {"kind": "switch"}}}}, ["model.mlp.active"]),
        ({"model": {"mlp": {"kind": "experts", "active": 1, "router": {"kind": "switch"}}}}, []),
        (
            {"model": {"mlp": {"kind": "experts", "router": {"kind": "sigmoid", "groups": 3}}}},
            ["model.mlp.router.groups"],
        ),
        (
            {"model": {"mlp": {"kind": "experts", "router": {"kind": "sigmoid", "groups": 2, "groups_active": 3}}}},
            ["model.mlp.router.groups_active"],
        ),
        (
            {"model": {"mlp": {"kind": "experts", "active": 3, "router": {"kind": "sigmoid", "groups": 4}}}},
            ["model.mlp.router.groups_active"],
        ),
        ({"name": "../x"}, ["name"]),
        ({"name": ""}, ["name"]),
        ({"name": "a b.c"}, []),
        ({"data": {"weights": {"a": -1, "b": 1}}}, ["data.weights"]),
        ({"data": {"weights": {"a": 0}}}, ["data.weights"]),
        ({"data": {"weights": {"a": 0, "b": 1}}}, []),
        ({"data": {"stages": [{"from_tokens": 5, "weights": {"a": -1}}]}}, ["data.stages.0.weights"]),
        ({"train": {"sequence": 4096}}, ["train.sequence"]),
        ({"train": {"cuda_graphs": True}}, ["train.cuda_graphs"]),
        (
            {"train": {"cuda_graphs": True, "compile": True}, "parallel": {"offload": {"kind": "cpu"}}},
            ["parallel.offload.activations"],
        ),
        ({"train": {"sequence": 1000}}, ["train.batch_tokens"]),
        ({"train": {"tokens": 1, "epochs": 1}}, ["train.epochs"]),
        ({"data": {"stages": [{"from_tokens": 5}, {"from_tokens": 5}]}}, ["data.stages"]),
        ({"data": {"stages": [{"from_tokens": 6}, {"from_tokens": 5}]}}, ["data.stages"]),
        ({"data": {"stages": [{"from_tokens": 5}, {"from_tokens": 6}]}}, []),
        (
            {"model": {"width": 100, "heads": 3}, "train": {"sequence": 3000}},
            ["model.heads", "train.sequence", "train.batch_tokens"],
        ),
    ],
)
def test_rules_between_sections(changes: dict[str, object], keys: list[str]) -> None:
    recipe = Recipe.model_validate(
        {name: {"kind": "decoder", **value} if name == "model" else value for name, value in changes.items()}  # pyright: ignore
    )
    assert [key for key, _ in cross_check(recipe)] == keys


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_shipped_recipe_says_what_it_is(name: str) -> None:
    recipe = shipped(name).recipe
    assert recipe.name == name
    assert recipe.train.tokens is not None
    assert shipped_recipes()[name].startswith("# ")
    assert all(len(line) <= 120 and line.isascii() for line in shipped_recipes()[name].splitlines())


def test_the_three_recipes_are_there() -> None:
    assert {"tiny", "gpt2-124m", "llama-1b"} <= set(shipped_recipes())


def test_gpt2_is_gpt2() -> None:
    model = shipped("gpt2-124m").recipe.model
    assert (model.layers, model.width, model.heads, model.hidden, model.vocab) == (12, 768, 12, 3072, 50257)
    assert model.norm.model_dump() == {"kind": "layer", "eps": 1e-5, "bias": True}
    assert model.position == LearnedPositionsConfig(length=1024)
    assert (model.mlp.kind, model.mlp.activation, model.mlp.bias) == ("mlp", "gelu_tanh", True)
    assert (model.attention.bias, model.attention.out_bias, model.kv_heads, model.head.tied) == (True, True, 12, True)


def test_gpt2_trains_as_gpt3_small() -> None:
    recipe = shipped("gpt2-124m").recipe
    schedule, train = recipe.optim.schedule, recipe.train
    assert train.tokens is not None
    batches = train.ramp.batches(train.batch_tokens)
    assert recipe.optim.lr * schedule(0, train.tokens, batches) == pytest.approx(6e-4 * 524_288 / 375e6)
    assert schedule(375_000_000, train.tokens, batches) == pytest.approx(1)
    assert schedule(train.tokens, train.tokens, batches) == pytest.approx(0.1)


def test_llama_is_llama() -> None:
    model = shipped("llama-1b").recipe.model
    assert (model.layers, model.width, model.heads, model.kv_heads, model.head_dim) == (16, 2048, 32, 8, 64)
    assert (model.hidden, model.vocab, model.head.tied) == (8192, 128256, True)
    assert model.position == RopeConfig(theta=500_000, length=8192)
    assert (model.norm.kind, model.norm.eps, model.mlp.kind, model.mlp.activation) == ("rms", 1e-5, "glu", "silu")


def test_about_a_hundred_settings_for_one_choice_of_kinds() -> None:
    assert len(shipped("tiny").origins) <= 180


def test_what_a_curriculum_does_not_go_with_is_refused() -> None:
    paced = ["data.curriculum.kind=difficulty", "data.curriculum.over_tokens=1M"]
    with pytest.raises(UsageError, match=r'data\.order.*cannot come by difficulty and "replacement"'):
        resolve("tiny", [*paced, "data.order=replacement"])
    reach = ["data.sequence_ramp.kind=linear", "data.sequence_ramp.over_tokens=1M"]
    with pytest.raises(
        UsageError, match=r"sequence_ramp\.start_tokens.*steps of 100 do not lead from 100 to train\.sequence"
    ):
        resolve("tiny", [*reach, "data.sequence_ramp.start_tokens=100"])
    with pytest.raises(UsageError, match=r'"answer" has texts that are not cut'):
        resolve("tiny", [*reach, "data.sequence_ramp.start_tokens=64", "data.objective.kind=answer"])
    assert resolve("tiny", [*paced, *reach, "data.sequence_ramp.start_tokens=64"]).recipe.data.curriculum.kind != "none"
