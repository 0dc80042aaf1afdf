"""The axis that fills the world, and what is said where the axes do not make the ranks that are there."""

import pytest

from hornbook.errors import UsageError
from hornbook.settings.layout.world import INNERMOST, check_world, fill_world, warning_about_nodes
from hornbook.settings.resolve import ConfigError, Resolved, resolve


def recipe(*words: str) -> Resolved:
    return resolve("tiny", [*words, "train.batch_tokens=16Ki", "train.sequence=64", "train.micro_batch=1"], {})


def test_one_axis_takes_the_ranks_that_the_others_leave():
    assert recipe("parallel.data=-1").recipe.parallel.world == 1
    filled = fill_world(recipe("parallel.data=-1", "parallel.shard=everything"), 8, "as torchrun started")
    assert filled.recipe.parallel.data == 8
    assert filled.origins["parallel.data"] == "-1: 8 ranks, as torchrun started"
    assert fill_world(filled, 4, "").recipe.parallel.data == 8  # there is nothing to fill any more


def test_without_a_setting_data_takes_them_where_it_may():
    assert fill_world(recipe(), 4, "").recipe.parallel.data == 1
    assert fill_world(recipe(), 4, "", data=True).recipe.parallel.data == 4
    assert fill_world(recipe("parallel.data=2"), 4, "", data=True).recipe.parallel.data == 2


def test_rules_between_settings_hold_for_the_filled_axis():
    with pytest.raises(
        ConfigError, match=r"parallel\.data  3 ranks cannot share 256 microbatches.*as torchrun started"
    ):
        fill_world(recipe("parallel.data=-1"), 3, "as torchrun started")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["parallel.data=0"], "no ranks: write 1 or more, or -1"),
        (["parallel.data=-2"], "parallel.data"),
        (["parallel.data=-1", "parallel.expert=-1"], "parallel.data and parallel.expert are -1, and one axis alone"),
    ],
)
def test_axes_that_no_world_fits_are_refused(words: list[str], text: str):
    with pytest.raises(ConfigError, match=text):
        recipe(*words)


def parallel_of(**axes: object):
    from hornbook.parallel.config import ParallelConfig

    return ParallelConfig.model_validate(axes)


@pytest.mark.parametrize(
    ("axes", "ranks", "text"),
    [
        ({"data": 2}, 4, "S, and parallel.data is 2: give --parallel.data 4, or start 2 R"),
        ({}, 4, "S, and parallel.data is 1: give --parallel.data 4, or start 1 R"),
        (
            {"data": 2, "tensor": 3},
            12,
            "S, and parallel.data 2 x parallel.tensor 3 is 6: give --parallel.data 4 or give --parallel.tensor 6, "
            "or start 6 R",
        ),
        ({"pipeline": 3}, 4, "S, and parallel.pipeline.stages is 3: give --parallel.pipeline.stages 4, or start 3 R"),
        (
            {"tensor": 3, "context": 5},
            4,
            "S, and parallel.tensor 3 x parallel.context.ranks 5 is 15: none of them alone can make it 4, "
            "or start 15 R",
        ),
    ],
)
def test_a_product_that_is_not_the_world_names_the_axis_to_change(axes: dict[str, int], ranks: int, text: str):
    with pytest.raises(UsageError) as error:
        check_world(parallel_of(**axes), ranks, "S", "R")
    assert str(error.value) == text
    check_world(parallel_of(**axes), parallel_of(**axes).world, "S")


def test_axes_that_leave_no_whole_number_are_named():
    given = recipe("parallel.data=-1")
    wide = given.recipe.parallel.model_copy(update={"tensor": 3})
    changed = Resolved(given.recipe.model_copy(update={"parallel": wide}), given.origins)
    with pytest.raises(
        UsageError, match=r"8 ranks, as torchrun started, and parallel.tensor is 3, .*: give --parallel.tensor 2"
    ):
        fill_world(changed, 8, "as torchrun started")


def test_ranks_that_exchange_activations_belong_on_one_machine():
    assert warning_about_nodes(parallel_of(data=4, tensor=2), 4) == ""
    assert warning_about_nodes(parallel_of(tensor=8), 8) == ""
    assert warning_about_nodes(parallel_of(data=2, tensor=8), None) == ""
    assert "parallel.tensor 8 a divisor of 4" in warning_about_nodes(parallel_of(tensor=8), 4)
    found = warning_about_nodes(parallel_of(tensor=2, context=4), 4)
    assert "ranks along parallel.context.ranks" in found
    assert "make parallel.context.ranks 4 x parallel.tensor 2 a divisor of 4" in found


def test_the_order_of_axes_is_that_of_the_mesh():
    from hornbook.parallel.world import AXES

    names = {"parallel.context.ranks": "context", "parallel.tensor": "tensor", "parallel.expert": "expert"}
    assert [names[key] for key in INNERMOST[:-1]] == list(reversed(AXES))[: len(INNERMOST) - 1]
