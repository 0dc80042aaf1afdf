"""Presets: published shapes have published numbers of parameters, and train as published."""

import pytest
import torch

from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import count_parameters
from hornbook.model.hf.hf_config import choose_architecture
from hornbook.settings.recipe import Recipe
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.resolve import resolve

PRESETS = [name for name, text in shipped_recipes().items() if name != "tiny" and 'extends = "tiny' not in text]

RELEASED = {
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    "neox-20b": 20_554_567_680,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "opt-66b": 65_719_701_504,
    "opt-175b": 174_604_468_224,
    "llama-1b": 1_235_814_400,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama-3-8b": 8_030_261_248,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "bloom-560m": 559_214_592,
    "bloom-176b": 176_247_271_424,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "roberta-base": 124_697_433,
    "roberta-large": 355_412_057,
    "modernbert-base": 149_655_232,
    "modernbert-large": 395_881_664,
    "t5-v1.0-small": 60_506_624,
    "t5-v1.0-base": 222_903_552,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-base": 247_577_856,
    "t5-v1.1-large": 783_150_080,
    "t5-v1.1-3b": 2_849_757_184,
    "t5-v1.1-11b": 11_135_332_352,
    "bart-base": 139_420_416 + 50_265,
    "bart-large": 406_291_456 + 50_265,
    "mixtral-8x7b": 46_702_792_704,
}
"""Numbers of the released models (transformers' models of the released configurations, heads untied where those are);
BART's bias of the logits is a buffer there and trained here."""

TABLE_D1 = {
    "gpt3-125m": 125e6,
    "gpt3-350m": 356e6,
    "gpt3-760m": 760e6,
    "gpt3-1.3b": 1_320e6,
    "gpt3-2.7b": 2_650e6,
    "gpt3-6.7b": 6_660e6,
    "gpt3-13b": 12_850e6,
    "gpt3-175b": 174_600e6,
}
"""Parameters of GPT-3 in table D.1 of arXiv 2005.14165, to three digits and a half."""

ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "gpt3": None,
    "neox": "GPTNeoXForCausalLM",
    "opt": "OPTForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "bloom": "BloomForCausalLM",
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "mixtral": "MixtralForCausalLM",
}
"""By the first word of the name; no table represents GPT-3's bands."""

SMALL = ("opt-350m", "gpt3-125m", "bert-base", "roberta-base", "modernbert-base", "t5-v1.0-small", "bart-base")


def preset(name: str) -> Recipe:
    return resolve(name, environ={}).recipe


def size(model: ModelConfig) -> int:
    assert model.vocab is not None
    return count_parameters(model, model.vocab)


OWN_SHAPES = ("gpt3-", "tiny-deltanet")
"""Recipes of shapes that no class of transformers has: they leave with their modelling file."""


def test_every_other_recipe_exports_to_a_class_of_transformers() -> None:
    """With the two labels that the data of `tiny-classify` have."""
    for name in shipped_recipes():
        model = preset(name).model
        if getattr(model.head, "labels", None) == []:
            model = model.model_copy(update={"head": model.head.model_copy(update={"labels": ["a", "b"]})})
        chosen = choose_architecture(model)
        assert (chosen is None) == name.startswith(OWN_SHAPES), name
        assert chosen is None or hasattr(pytest.importorskip("transformers"), chosen.name)


def test_every_preset_has_a_published_count() -> None:
    assert set(PRESETS) == {*RELEASED, *TABLE_D1}


@pytest.mark.parametrize("name", RELEASED)
def test_parameters_are_those_of_the_released_model(name: str) -> None:
    assert size(preset(name).model) == RELEASED[name]


@pytest.mark.parametrize("name", TABLE_D1)
def test_parameters_of_gpt3_round_to_its_table(name: str) -> None:
    assert size(preset(name).model) == pytest.approx(TABLE_D1[name], rel=0.004)


@pytest.mark.parametrize("name", PRESETS)
def test_architecture_and_tokenizer_fit(name: str) -> None:
    recipe = preset(name)
    architecture = choose_architecture(recipe.model)
    assert (architecture.name if architecture else None) == ARCHITECTURES[name.split("-", maxsplit=1)[0]]
    assert recipe.text.tokenizer.kind != "file"
    assert recipe.model.vocab is not None
    assert recipe.text.tokenizer.vocab <= recipe.model.vocab
    assert recipe.data.objective.kind in ("causal", *recipe.text.tokenizer.objectives)


@pytest.mark.parametrize("name", SMALL)
def test_the_arithmetic_equals_the_built_model(name: str) -> None:
    model = preset(name).model
    assert model.vocab is not None
    with torch.device("meta"):
        built = build_model(model, model.vocab)
    assert sum(each.numel() for each in built.parameters()) == size(model)


@pytest.mark.parametrize(
    ("name", "rate", "million_tokens"),
    [
        ("gpt3-125m", 6e-4, 0.5),
        ("gpt3-350m", 3e-4, 0.5),
        ("gpt3-760m", 2.5e-4, 0.5),
        ("gpt3-1.3b", 2e-4, 1),
        ("gpt3-2.7b", 1.6e-4, 1),
        ("gpt3-6.7b", 1.2e-4, 2),
        ("gpt3-13b", 1e-4, 2),
        ("gpt3-175b", 0.6e-4, 3.2),
        ("opt-125m", 6e-4, 0.5),
        ("opt-350m", 3e-4, 0.5),
        ("opt-1.3b", 2e-4, 1),
        ("opt-2.7b", 1.6e-4, 1),
        ("opt-6.7b", 1.2e-4, 2),
        ("opt-13b", 1e-4, 4),
        ("opt-30b", 1e-4, 4),
        ("opt-66b", 0.8e-4, 2),
        ("opt-175b", 1.2e-4, 2),
        ("llama-7b", 3e-4, 4),
        ("llama-13b", 3e-4, 4),
        ("llama-33b", 1.5e-4, 4),
        ("llama-65b", 1.5e-4, 4),
        ("neox-20b", 0.97e-4, 3.15),
    ],
)
def test_rates_and_batches_of_the_tables(name: str, rate: float, million_tokens: float) -> None:
    recipe = preset(name)
    assert recipe.optim.lr == rate
    assert recipe.train.batch_tokens == pytest.approx(million_tokens * 1e6, rel=0.05)  # "0.5M" is 2^19


RAMPS = {
    "gpt3-125m": (32_768, 16, 4e9),
    "gpt3-175b": (32_768, 98, 12e9),
    "bloom-560m": (192 * 2048, 5, 9_765_625 * 2048),
    "bloom-176b": (192 * 2048, 117, 9_765_625 * 2048),
    "modernbert-base": (768 * 1024, 6, 50e9),
    "modernbert-large": (448 * 1024, 11, 10e9),
    "llama-3-8b": (2**22, 3, 2.87e12),
}
"""First batch in tokens, number of sizes, tokens consumed from which on the batch is full; GPT-3's of 4 to 12B."""


@pytest.mark.parametrize("name", RAMPS)
def test_batches_grow_as_published(name: str) -> None:
    train = preset(name).train
    batches = train.ramp.batches(train.batch_tokens)
    assert (batches.sizes[0], len(batches.sizes), batches.firsts[-1]) == RAMPS[name]
    assert batches.sizes[-1] == train.batch_tokens


def test_only_published_ramps_are_there() -> None:
    ramped = {name for name in shipped_recipes() if preset(name).train.ramp.kind != "none"}
    assert ramped == set(RAMPS) | {name for name in PRESETS if name.startswith("gpt3-")}


def test_bloom_reaches_its_full_batch_as_its_log_does() -> None:
    """Iteration 85,376 of the public log (bigscience, tr11-176B-ml) had consumed 158,692,272 rows."""
    train = preset("bloom-176b").train
    assert train.ramp.batches(train.batch_tokens).tokens_of(85_376) == 158_692_272 * 2048


def test_modernbert_makes_as_many_steps_of_each_size() -> None:
    train = preset("modernbert-base").train
    steps = [count for _, _, count in train.ramp.batches(train.batch_tokens).runs()][:-1]
    assert max(steps) - min(steps) <= 1
    assert len(steps) == 5


@pytest.mark.parametrize("name", TABLE_D1)
def test_every_other_layer_of_gpt3_is_banded(name: str) -> None:
    """Section 2.1 of the paper: dense and locally banded layers in turn, dense first."""
    model = preset(name).model
    windows = [getattr(model.layer(i).attention, "window", None) for i in range(model.layers)]
    assert windows == [None, 256] * (model.layers // 2)
    assert all(model.layer(i).attention.model_dump(exclude={"window"})["bias"] for i in range(model.layers))


@pytest.mark.parametrize(("name", "warmup"), [("opt-13b", 375e6), ("opt-175b", 2000 * 2**21), ("gpt3-6.7b", 375e6)])
def test_schedules_of_opt_and_gpt3(name: str, warmup: float) -> None:
    recipe = preset(name)
    total, batch, schedule = recipe.train.tokens, recipe.train.batch_tokens, recipe.optim.schedule
    assert total == 300_000_000_000
    batches = recipe.train.ramp.batches(batch)
    assert schedule(0, total, batches) == pytest.approx(batches.at(0) / warmup)
    assert schedule(int(warmup), total, batches) == 1
    middle = schedule(int((warmup + total) / 2), total, batches)
    assert middle == pytest.approx(0.55)  # half-way down, of a line and of a cosine
    assert schedule(total, total, batches) == pytest.approx(0.1)


def test_modernbert_alternates_as_published() -> None:
    for name, layers in (("modernbert-base", 22), ("modernbert-large", 28)):
        model = preset(name).model
        windows = [getattr(model.layer(i).attention, "window", None) for i in range(model.layers)]
        assert windows == [None if i % 3 == 0 else 128 for i in range(layers)]
        assert [model.attention_norm(i).kind for i in range(3)] == ["none", "layer", "layer"]


@pytest.mark.parametrize("name", ["opt-350m", "modernbert-large", "t5-v1.0-base", "olmo2-13b"])
def test_transformers_counts_the_same(name: str) -> None:
    """By its own configuration classes, filled from the papers here."""
    import transformers as peers

    configs = {
        "opt-350m": lambda: peers.OPTConfig(
            num_hidden_layers=24,
            hidden_size=1024,
            num_attention_heads=16,
            ffn_dim=4096,
            word_embed_proj_dim=512,
            do_layer_norm_before=False,
        ),
        "modernbert-large": lambda: peers.ModernBertConfig(
            num_hidden_layers=28, hidden_size=1024, num_attention_heads=16, intermediate_size=2624
        ),
        "t5-v1.0-base": lambda: peers.T5Config(d_model=768, d_ff=3072, num_heads=12, num_layers=12),
        "olmo2-13b": lambda: peers.Olmo2Config(
            num_hidden_layers=40,
            hidden_size=5120,
            num_attention_heads=40,
            intermediate_size=13824,
            vocab_size=100352,
            tie_word_embeddings=False,
        ),
    }
    architecture = ARCHITECTURES[name.split("-", maxsplit=1)[0]]
    assert architecture is not None
    with torch.device("meta"):
        model = getattr(peers, architecture)(configs[name]())
    assert size(preset(name).model) == sum(each.numel() for each in model.parameters())
