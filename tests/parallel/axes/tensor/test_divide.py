"""Parts of parameters: their sizes, what is not cut through, globs that match nothing."""

import pytest

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.part import Cut
from hornbook.parallel.axes.tensor.divide import Divider, Portion, portion
from hornbook.parallel.parameter_shard import Division


def test_portions_differ_by_one_at_most() -> None:
    assert [portion(97, 4, rank)[:2] for rank in range(4)] == [(0, 25), (25, 49), (49, 73), (73, 97)]
    assert [portion(6, 4, rank)[:2] for rank in range(4)] == [(0, 2), (2, 4), (4, 5), (5, 6)]
    assert [portion(3, 2, rank)[:2] for rank in range(2)] == [(0, 2), (2, 3)]


def test_a_key_value_head_may_have_several_ranks() -> None:
    found = [portion(2, 4, rank, copies=True) for rank in range(4)]
    assert found == [Portion(0, 1, 0), Portion(0, 1, 1), Portion(1, 2, 0), Portion(1, 2, 1)]


def divider(rank: int = 1, ranks: int = 2) -> tuple[Divider, dict[str, Division]]:
    divisions: dict[str, Division] = {"blocks.0.attention.out.weight": Division((8, 8), (0, 0), ("pipeline",))}
    model = build_model(ModelConfig(layers=1, width=8, heads=4), 97)
    return Divider(model, ranks, rank, divisions), divisions


@pytest.mark.parametrize("wrong", [("gates.weight", 8), ("gate.weight", 5)])
def test_what_a_part_lists_and_the_model_has_not_is_an_error(wrong: tuple[str, int]) -> None:
    name, units = f"blocks.0.mlp.{wrong[0]}", wrong[1]
    with pytest.raises(UsageError, match=rf"parallel\.tensor: the model has no {name} of {units} hidden"):
        divider()[0].cut(name, Cut(0, "hidden", units))


def test_heads_are_not_cut_through() -> None:
    with pytest.raises(UsageError, match=r"parallel\.tensor: 4 heads of blocks.* do not divide among 3 ranks"):
        divider(ranks=3)[0].cut("blocks.0.attention.query.weight", Cut(0, "heads", 4))


def test_divisions_add_up_with_those_before() -> None:
    cut, divisions = divider()
    cut.cut("blocks.0.attention.out.weight", Cut(1, "heads", 4))
    cut.cut("blocks.0.attention.query.weight", Cut(0, "heads", 4))
    assert divisions["blocks.0.attention.out.weight"] == Division((8, 8), (0, 4), ("pipeline", "tensor"))
    assert divisions["blocks.0.attention.query.weight"] == Division((8, 8), (4, 0), ("tensor",))
    assert cut.copies == {}
