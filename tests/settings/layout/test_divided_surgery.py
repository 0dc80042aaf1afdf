"""What surgery is refused on ranks that divide the model or its rows, by the key to change."""

from typing import Any

import pytest

from hornbook.settings.resolve import ConfigError, resolve


def problem(words: list[str]) -> str:
    settings = ["model.heads=4", "train.batch_tokens=2048", "train.sequence=256", "train.micro_batch=1", *words]
    try:
        resolve("tiny", settings, environ={})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "surgery",
    [
        "lora",
        "dora",
        "ia3",
        "bottleneck",
        '{kind = "freeze", names = ["embedding.*"]}',
        '{kind = "lora", targets = ["*.query", "*.down"]}',
    ],
)
def test_what_can_be_divided(surgery: str) -> None:
    word = surgery if surgery.startswith("{") else f'"{surgery}"'
    layout = ["parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline.stages=2"]
    assert problem([*layout, f"surgery=[{word}]"]) == ""


@pytest.mark.parametrize(
    ("surgery", "layout", "key", "text"),
    [
        (
            "prompt",
            "parallel.tensor=2",
            "parallel.tensor",
            "layers with prompt (surgery) cannot be divided: leave it 1",
        ),
        ("nf4 lora", "parallel.tensor=2", "parallel.tensor", "layers with nf4 (surgery) cannot be divided"),
        ("fake_quant", "parallel.tensor=2", "parallel.tensor", "layers with fake_quant (surgery)"),
        ("llama_adapter", "parallel.tensor=2", "parallel.tensor", "layers with llama_adapter (surgery)"),
        (
            '{kind="bottleneck",targets=["*.mlp.up"]}',
            "parallel.tensor=2",
            "parallel.tensor",
            "reads all outputs of blocks.0.mlp.up, which ranks would divide: leave it out of the targets",
        ),
        ("prefix", "parallel.pipeline.stages=2", "surgery", "leave parallel.pipeline.stages 1"),
        ("prefix", "parallel.context.ranks=2", "surgery", "leave parallel.context 1"),
    ],
)
def test_what_cannot(surgery: str, layout: str, key: str, text: str) -> None:
    words: Any = [surgery] if surgery.startswith("{") else [f'"{kind}"' for kind in surgery.split()]
    said = problem([layout, f"surgery=[{', '.join(words)}]"])
    assert f"{key} " in said
    assert text in said
