"""What `parallel.tensor` refuses before a run, by the key to change."""

from typing import Any

import pytest

from hornbook.model.config.model_config import ModelConfig
from hornbook.parallel.config import ParallelConfig
from hornbook.settings.layout.tensor import tensor_problems
from hornbook.settings.training import TrainConfig


def problems(parallel: dict[str, Any], train: dict[str, Any] | None = None, **model: Any) -> list[tuple[str, str]]:
    sizes = ModelConfig.model_validate({"heads": 4, **model})
    config = ParallelConfig.model_validate(parallel)
    return list(tensor_problems(config, TrainConfig.model_validate(train or {}), sizes))


@pytest.mark.parametrize(
    ("parallel", "model", "key", "text"),
    [
        ({"tensor": 2}, {"heads": 3, "width": 96}, "parallel.tensor", "3 heads (model.heads) do not divide among 2"),
        ({"tensor": 2}, {"heads": 6, "attention": {"kv_heads": 3}}, "parallel.tensor", "3 key-value heads"),
        ({"tensor": 4}, {"mlp": {"kind": "glu", "hidden": 3}}, "parallel.tensor", "3 hidden values"),
        ({"tensor": 4}, {"vocab": 3}, "parallel.tensor", "a vocabulary of 3"),
        ({"sequence": True}, {}, "parallel.sequence", "set that to 2 or more"),
        ({"tensor": 2, "sequence": True}, {"kind": "encoder", "norm": {"kind": "batch"}}, "parallel.sequence", "whole"),
    ],
)
def test_what_cannot_be_divided(parallel: dict[str, Any], model: dict[str, Any], key: str, text: str) -> None:
    attention = {"kind": "full", **model.pop("attention", {})}
    ((found, said),) = problems(parallel, attention=attention, **model)
    assert found == key
    assert text in said


def test_what_can() -> None:
    assert problems({"tensor": 4}, attention={"kind": "full", "kv_heads": 2}) == []
    assert problems({"tensor": 2, "sequence": True}, attention={"kind": "delta"}, heads=3, width=96) == []
