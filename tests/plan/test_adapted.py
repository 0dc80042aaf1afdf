"""What surgery leaves to train, by arithmetic: what the operated model has."""

from typing import Any

import pytest

from hornbook.errors import UsageError
from hornbook.model.config.model import ModelConfig
from hornbook.model.surgery.operate import build_operated, trained_parameters
from hornbook.plan.held import adapted
from hornbook.plan.share import rows_of
from hornbook.settings.resolve import resolve

LATENT = {"kind": "latent", "query_rank": 24, "kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "value_dim": 12}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"attention": {"kind": "full", "kv_heads": 2}},
    "gpt2": {"mlp": {"kind": "mlp"}, "attention": {"kind": "full", "bias": True}},
    "latent": {"attention": LATENT},
    "latent without query rank": {"attention": LATENT | {"query_rank": None}},
    "norms of heads": {"attention": {"kind": "full", "kv_heads": 2, "qk_norm": "head"}},
    "norms of all heads": {"attention": {"kind": "full", "kv_heads": 2, "qk_norm": "full"}},
    "other first layer": {"first": [{"mlp": {"kind": "glu", "hidden": 192}}]},
}
SURGERY = ("lora", "dora", "ia3", "prompt")
WORDS = (
    '{kind = "prefix", length = 5}',
    '{kind = "prefix", length = 5, hidden = 12}',
    '{kind = "llama_adapter", below = 1}',
    '{kind = "llama_adapter_v2", below = 2}',
)
VOCAB = 96


def config(part: dict[str, Any]) -> ModelConfig:
    return ModelConfig.model_validate({"layers": 3, "width": 64, "heads": 4} | part)


def steps(*words: Any) -> list[Any]:
    text = ", ".join(f'"{word}"' if isinstance(word, str) else word[0] for word in words)
    return resolve(None, [f"surgery=[{text}]"], environ={}).recipe.surgery


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", SURGERY)
def test_trained_values_are_those_of_the_operated_model(model: str, kind: str) -> None:
    latent = kind == "ia3" and "latent" in model  # it has no keys and values of its own
    word = ('{kind = "ia3", targets = ["*.kv_up", "*.mlp.down"]}',) if latent else kind
    same_as_operated(config(MODELS[model]), word)


@pytest.mark.parametrize("model", ["llama", "gpt2", "norms of heads", "norms of all heads", "other first layer"])
@pytest.mark.parametrize("word", WORDS)
def test_of_attention_beyond_the_row_too(model: str, word: str) -> None:
    same_as_operated(config(MODELS[model]), (word,))


def test_norms_of_latent_attention_are_trained_where_norms_are() -> None:
    latent = {"first": [{"attention": LATENT}, {"attention": LATENT}]}
    same_as_operated(config(latent), ('{kind = "llama_adapter_v2", below = 2}',))


def same_as_operated(chosen: ModelConfig, word: Any) -> None:
    surgery = steps(word)
    assert adapted(chosen, surgery).trained == trained_parameters(chosen, VOCAB, surgery) > 0


def test_rows_grow_by_what_stands_before_documents() -> None:
    found = [
        rows_of(
            resolve(None, [f"surgery=[{word}]", "train.sequence=48", "train.batch_tokens=960"], environ={}).recipe, 2
        ).sequence
        for word in ("", '{kind="prompt", length=5}', '{kind="prefix", length=7}')
    ]
    assert found == [48, 53, 55]


def test_targets_are_names_of_layers() -> None:
    chosen, surgery = config({}), steps(('{kind = "lora", rank = 4, targets = ["*.query", "blocks.1.mlp.down"]}',))
    assert adapted(chosen, surgery).trained == trained_parameters(chosen, VOCAB, surgery)
    assert adapted(chosen, surgery).inner == 4 * 4


def test_codes_take_the_bytes_of_the_buffers_that_hold_them() -> None:
    chosen, surgery = config({}), steps("nf4", "lora")
    model, left = build_operated(chosen, VOCAB, surgery), adapted(chosen, surgery)
    assert left.code_bytes == sum(each.nbytes for name, each in model.named_buffers() if ".code" in name)
    assert left.code_bytes < 0.53 * left.coded


def test_parts_without_names_and_steps_without_arithmetic_are_named() -> None:
    with pytest.raises(UsageError, match="experts"):
        adapted(config({"mlp": {"kind": "experts", "count": 4, "active": 2, "hidden": 16}}), steps("lora"))
    with pytest.raises(UsageError, match="bottleneck"):
        adapted(config({}), steps("bottleneck"))
