"""What `parallel.context` refuses before a run begins."""

from typing import Any

import pytest

from hornbook.settings.recipe import Recipe, cross_check

RING = {"context": 2}
EXCHANGE = {"context": {"ranks": 2, "kind": "all-to-all"}}


@pytest.mark.parametrize(
    ("parallel", "changes", "keys"),
    [
        (RING, {}, []),
        (EXCHANGE, {}, []),
        ({"context": 3}, {}, []),
        ({"context": {"ranks": 7, "kind": "all-to-all"}}, {}, ["parallel.context.kind"]),
        (RING, {"model": {"attention": {"kind": "delta"}}}, ["parallel.context"]),
        (
            RING,
            {
                "model": {"kind": "encoder", "norm": {"kind": "batch"}},
                "data": {"objective": {"kind": "masked"}},
            },
            ["parallel.context"],
        ),
        (RING, {"model": {"pattern": [{}, {"attention": {"kind": "delta"}}]}}, ["parallel.context"]),
        (RING, {"model": {"mlp": {"kind": "experts"}}}, []),
        (RING, {"model": {"mlp": {"kind": "experts", "capacity": 1.5}}}, ["model.mlp.capacity"]),
        (RING, {"train": {"compile": True}}, ["train.compile"]),
        ({**RING, "pipeline": 2, "data": 2}, {}, []),
        (
            {**RING, "pipeline": 2},
            {"model": {"kind": "encoder_decoder"}, "data": {"objective": {"kind": "span"}}},
            ["parallel.context"],
        ),
        ({**RING, "exact": True}, {}, ["parallel.exact"]),
        (RING, {"log": {"noise_scale": 10}}, ["log.noise_scale"]),
        (RING, {"surgery": [{"kind": "prompt", "length": 4}]}, ["surgery"]),
        (
            RING,
            {"model": {"kind": "encoder", "head": {"kind": "masked"}}, "data": {"objective": {"kind": "masked"}}},
            [],
        ),
    ],
)
def test_rules(parallel: dict[str, Any], changes: dict[str, Any], keys: list[str]) -> None:
    recipe = Recipe.model_validate({"parallel": parallel, **changes})
    assert [key for key, _ in cross_check(recipe)] == keys


def test_a_label_head_needs_whole_rows() -> None:
    head = {"kind": "classification", "labels": ["a", "b"]}
    model, data = {"kind": "encoder", "head": head}, {"objective": {"kind": "labels"}}
    recipe = Recipe.model_validate({"parallel": RING, "model": model, "data": data})
    assert [key for key, _ in cross_check(recipe)] == ["parallel.context"]
