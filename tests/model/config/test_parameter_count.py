import pytest

from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import count_parameters, embedding_rows, parameter_counts
from hornbook.settings.resolve import resolve


@pytest.mark.parametrize(("name", "total"), [("gpt2-124m", 124_439_808), ("llama-1b", 1_235_814_400)])
def test_published_counts(name: str, total: int) -> None:
    recipe = resolve(name, environ={}).recipe
    assert recipe.model.vocab is not None
    assert count_parameters(recipe.model, recipe.model.vocab) == total


SHAPES = {
    "default": [],
    "gpt2": ["model.mlp=mlp", "model.norm=layer", "model.position=learned", "model.attention.bias=true"],
    "gpt2 out": ["model.mlp=mlp", "model.norm=layer", "model.attention.out_bias=true"],
    "no shift": ["model.norm=layer", "model.norm.bias=false"],
    "qwen3": ["model.attention.qk_norm=head", "model.attention.kv_heads=2", "model.attention.head_dim=10"],
    "untied": ["model.head.tied=false", "model.mlp.bias=true"],
    "hidden": ["model.mlp.hidden=72"],
    "plain mlp": ["model.mlp=mlp", "model.mlp.bias=false"],
    "experts": ["model.mlp=experts", "model.mlp.count=5", "model.mlp.hidden=20", "model.mlp.shared_hidden=12"],
    "latent": ["model.attention=latent", "model.attention.query_rank=8", "model.attention.bias=true"],
    "latent, direct queries": ["model.attention=latent", "model.attention.query_rank=none"],
    "sinks": ["model.attention.sinks=true", "model.attention.qk_norm=full"],
    "masked head": ["model.kind=encoder", "model.head=masked", "model.head.tied=false", "model.block=post"],
    "layers of other kinds": [
        "model.layers=4",
        "model.pattern=[{attention={kind='latent'}},{attention={kind='delta'},mlp={kind='experts',count=3}}]",
    ],
    "norms of attention": [
        "model.block=sandwich",
        "model.first=[{attention_norm={kind='layer'}}]",
        "model.pattern=[{attention_norm={kind='none'}}]",
    ],
    "delta": ["model.attention=delta", "model.attention.key_heads=2", "model.attention.value_dim=10"],
}


@pytest.mark.parametrize("words", SHAPES.values(), ids=SHAPES)
def test_the_arithmetic_equals_the_model(words: list[str]) -> None:
    from hornbook.model.build_model import build_model

    config = resolve(None, ["model.layers=3", "model.width=48", "model.heads=4", *words], {}).recipe.model
    built = {name: parameter.numel() for name, parameter in build_model(config, 101).named_parameters()}
    assert count_parameters(config, 101) == sum(built.values())
    counts = parameter_counts(config, 101)
    parts = {"embedding": "embedding.", "positions": "positions.", "head": "head."}
    assert {part: counts[part] for part in parts} == {
        part: sum(size for name, size in built.items() if name.startswith(prefix)) for part, prefix in parts.items()
    }
    inside = {part: sum(size for name, size in built.items() if f".{part}." in name) for part in ("attention", "mlp")}
    assert inside == {part: counts[part] for part in inside}


@pytest.mark.parametrize(
    "words",
    [
        ["model.position=relative", "model.head.tied=false", "train.sequence=512"],
        ["model.embedding.types=2", "model.embedding.norm=true", "model.position=learned"],
        [
            "model.embedding={types=2, norm=true, width=24, bias=true, projected='last'}",
            "model.position=learned",
        ],
        ["model.embedding.width=24", "model.block=sandwich", "model.attention.kv_heads=2"],
        ["model.first=[{attention={kind='full',kv_heads=2}}]", "model.attention.bias=true"],
        ["model.encoder_layers=4", "model.pattern=[{attention={kind='full',qk_norm='head'}},{mlp={kind='experts'}}]"],
        ["model.block=sandwich", "model.first=[{attention_norm={kind='layer'}}]"],
        ["model.block=post", "model.norm=layer", "model.pattern=[{attention_norm={kind='none'}}]"],
    ],
    ids=[
        "t5",
        "types in both stacks",
        "narrow until the first block",
        "narrow vectors",
        "first",
        "pattern",
        "sandwich",
        "norms of attention",
    ],
)
def test_both_stacks_count(words: list[str]) -> None:
    from hornbook.model.build_model import build_model

    shape = [
        "model.kind=encoder_decoder",
        "model.layers=2",
        "model.encoder_layers=3",
        "model.width=48",
        "model.heads=4",
    ]
    config = resolve(None, [*shape, *words], {}).recipe.model
    assert count_parameters(config, 101) == sum(each.numel() for each in build_model(config, 101).parameters())


def test_rows_follow_the_tokenizer_unless_set() -> None:
    assert [embedding_rows(ModelConfig(), size) for size in (1, 64, 65, 4096)] == [64, 64, 128, 4096]
    assert embedding_rows(ModelConfig(vocab=50257), 50000) == 50257
