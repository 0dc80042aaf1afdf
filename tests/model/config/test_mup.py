"""Recipes under muP: what follows from the sizes is filled in, and what contradicts it is refused."""

import pytest

from hornbook.settings.resolve import ConfigError, resolve

WORDS = ["model.init.kind=mup", "model.init.base_width=64", "model.init.base_layers=2"]


def test_factors_are_filled_in_and_say_where_they_come_from() -> None:
    resolved = resolve("tiny", [*WORDS, "model.width=256", "model.layers=4"], environ={})
    model = resolved.recipe.model
    assert model.model_dump()["head"]["scale"] == 0.25
    assert model.model_dump()["block"]["multiplier"] == 0.5
    assert model.model_dump()["attention"]["scale"] == 1 / model.head_dim
    assert resolved.origins["model.head.scale"] == "model.init.kind = mup"
    assert resolve("tiny", [], environ={}).recipe.model.model_dump()["head"]["scale"] == 1


def test_a_resolved_recipe_reads_back_as_itself(tmp_path) -> None:
    first = resolve("tiny", WORDS, environ={})
    path = tmp_path / "again.toml"
    path.write_text(first.to_toml())
    assert resolve(str(path), [], environ={}).recipe == first.recipe


def test_a_factor_that_contradicts_the_sizes_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"model.head.scale  is 3.0, but model.init.kind mup makes it 0.25: leave it"):
        resolve("tiny", [*WORDS, "model.width=256", "model.head.scale=3"], environ={})
    path = tmp_path / "small.toml"
    path.write_text(resolve("tiny", [*WORDS, "model.width=256"], environ={}).to_toml())
    with pytest.raises(ConfigError, match=r"model.head.scale  is 0.25, but model.init.kind mup makes it 0.125"):
        resolve(str(path), ["model.width=512", "model.heads=8"], environ={})


def test_parts_without_a_place_for_a_factor_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"model.block.kind  model.init.base_layers scales branches, which 'parallel'"
    ):
        resolve("tiny", [*WORDS, "model.block.kind=parallel"], environ={})


def test_data_dependent_values_need_one_process() -> None:
    with pytest.raises(ConfigError, match=r"model.init.kind  lsuv looks at data with one process"):
        resolve("tiny", ["model.init.kind=lsuv", "parallel.data=2"], environ={})
    words = ["model.init.kind=lsuv", "surgery=lora"]
    with pytest.raises(
        ConfigError, match=r"the base of an adapter is kept before that: train it without surgery first"
    ):
        resolve("tiny", words, environ={})
