"""config.json <-> ModelConfig: exact where a table fits, refused with the key's name where it does not."""

import math
import re

import pytest
import transformers

from hornbook.errors import IntegrityError, UsageError
from hornbook.model.build_model import build_model
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.head_config import ClassificationHead, RegressionHead, SpanHead, TokenClassificationHead
from hornbook.model.config.init_config import ScaledNormal
from hornbook.model.config.mlp_config import GLUConfig
from hornbook.model.config.model_config import EmbeddingConfig, LayerConfig, LMHead, ModelConfig, PreNorm
from hornbook.model.config.norm_config import NoNorm
from hornbook.model.config.position_config import NTKScaling, RopeConfig
from hornbook.model.hf.differences import flatten
from hornbook.model.hf.hf_config import choose_architecture, from_json, misfits, to_json, why_native
from hornbook.model.hf.hf_layout import parameter_shapes
from hornbook.model.hf.tables.known import ARCHITECTURES, FAMILIES, INERT, NATIVE, is_class, read_toml
from hornbook.model.hf.tables.vocabulary_names import Architecture
from tests.model.likenesses import bert_like, gpt2_like

BY_NAME = {each.name: each for each in ARCHITECTURES}
GPT2, LLAMA, QWEN3 = (BY_NAME[name] for name in ("GPT2LMHeadModel", "LlamaForCausalLM", "Qwen3ForCausalLM"))
LLAMA_KEYS = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


CHANGED = [
    ({"position": RopeConfig(scaling=NTKScaling(factor=2.0))}, "position.scaling.kind is 'ntk', it has only 'none'"),
    ({"attention": FullAttentionConfig(window=8)}, "attention.window is 8, it has only None"),
    ({"embedding": EmbeddingConfig(scale=2.0)}, "embedding.scale is 2.0, it has only 1.0"),
    ({"head": LMHead(softcap=30.0)}, "head.softcap is 30.0, it has only None"),
    ({"block": PreNorm(multiplier=0.5)}, "block.multiplier is 0.5, it has only 1.0"),
    ({"first": [LayerConfig(mlp=GLUConfig(hidden=64))]}, "mlp.hidden of layer 0 is 64, it has only 2048"),
    ({"first": [LayerConfig(attention_norm=NoNorm())]}, "attention_norm of layer 0"),
    ({"mlp": GLUConfig(activation="relu2")}, None),
]


@pytest.mark.parametrize(("change", "reason"), CHANGED)
def test_whatever_an_architecture_cannot_say_keeps_it_from_being_taken(change, reason):
    config = ModelConfig(**change)
    reasons = misfits(config, LLAMA)
    assert bool(reasons) == (reason is not None)
    assert reason is None or any(each.startswith(reason) for each in reasons)


def test_the_family_follows_from_the_parts():
    assert choose_architecture(gpt2_like(length=8)) is GPT2
    assert choose_architecture(ModelConfig()) is LLAMA
    assert choose_architecture(ModelConfig(attention=FullAttentionConfig(qk_norm="head"))) is QWEN3


def test_every_leaf_of_the_configuration_is_accounted_for():
    """A part that the tables have never heard of must not be exported as though it were not there."""

    class Tomorrow(ModelConfig):
        window: int = 128

    assert misfits(ModelConfig(), LLAMA) == []
    assert misfits(Tomorrow(), LLAMA) == ["it knows nothing of window"]


def test_every_table_is_an_architecture_or_what_one_goes_on_from():
    tables = [table for family in FAMILIES for table in read_toml(family).items()]
    assert len(tables) == len(dict(tables))
    used = {name for _, table in tables for name in (*table.get("like", ()), table.get("stack"))}
    assert {name for name, _ in tables if not is_class(name)} <= used
    assert all({"model_type", "stack"} & table.keys() for name, table in tables if is_class(name))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tables_are_consistent(architecture):
    keys = [key.theirs for key in architecture.keys]
    assert len(keys) == len(set(keys))
    assert not set(keys) & (INERT | set(architecture.constant))
    assert len({(row.ours, row.beside) for row in architecture.rows}) == len(architecture.rows)
    for row in architecture.rows:
        parts = {other.part for other in architecture.rows if other.theirs == row.theirs}
        assert parts == set(range(len(parts)))
    ours = {row.ours for row in architecture.rows}
    assert set(architecture.copies.values()) <= ours
    assert {row.beside for row in architecture.rows} <= ours | {""}
    for key in architecture.keys:
        assert None not in key.values


def test_what_their_configuration_has_no_place_for_survives():
    config = ModelConfig(dropout=0.25, init=ScaledNormal(std=0.1), vocab=None)
    keys = to_json(config, 128, dtype="float32")
    assert from_json(keys) == (config, 128)
    del keys["hornbook"]
    bare, vocab = from_json(keys)
    assert (bare.dropout, vocab) == (0.0, 128)
    ours, theirs = flatten(config), flatten(bare)
    assert {path for path in ours if ours[path] != theirs[path]} == {"dropout", "init.std", "vocab"}


@pytest.mark.parametrize(
    ("old", "theta"),
    [({"rope_theta": 5e5}, 5e5), ({"rope_theta": 5e5, "rope_scaling": None}, 5e5), ({}, 1e4)],
)
def test_both_spellings_of_rotary_positions(old, theta):
    assert from_json(LLAMA_KEYS | old)[0].position.theta == theta
    new = {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    assert from_json(LLAMA_KEYS | new) == from_json(LLAMA_KEYS | old)


def test_defaults_of_transformers_stand_in_for_absent_keys():
    config, _ = from_json(LLAMA_KEYS)
    assert (config.kv_heads, config.head_dim, config.head.tied, config.norm.eps) == (4, 8, False, 1e-6)
    qwen, _ = from_json(LLAMA_KEYS | {"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 2})
    assert (qwen.head_dim, qwen.attention.qk_norm) == (128, "head")


def test_keys_without_effect_and_keys_switched_off_are_passed_over():
    harmless = {"transformers_version": "4.2", "use_cache": True, "torch_dtype": "float16", "use_mrope": False}
    assert from_json(
        LLAMA_KEYS | harmless | {"some_feature": None, "layer_types": ["full_attention"] * 2}
    ) == from_json(LLAMA_KEYS)


def test_configurations_as_the_hub_has_them():
    gpt2 = {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "bos_token_id": 50256,
        "embd_pdrop": 0.1,
        "eos_token_id": 50256,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2",
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "resid_pdrop": 0.1,
        "summary_activation": None,
        "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 50257,
    }
    config, vocab = from_json(gpt2)
    assert choose_architecture(config) is GPT2
    assert (parameters(config, vocab), config.hidden) == (124_439_808, 3072)
    qwen3 = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    }
    config, vocab = from_json(qwen3)
    assert choose_architecture(config) is QWEN3
    assert parameters(config, vocab) == 596_049_920
    assert config.position.theta == 1e6


def parameters(config: ModelConfig, vocab: int) -> int:
    return sum(math.prod(shape) for shape in parameter_shapes(config, vocab).values())


REFUSED = [
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
    ({"rope_parameters": {"rope_type": "longrope", "long_factor": [4.0], "rope_theta": 1e4}}, "longrope"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "truncate": False}}, "truncate"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"hidden_act": "laurel"}, "hidden_act 'laurel'"),
    ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ({"sliding_window": 8}, "sliding_window"),
    ({"architectures": ["Qwen3ForCausalLM"], "mlp_bias": True}, "mlp_bias"),
    (
        {"architectures": ["GPT2LMHeadModel"], "scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx",
    ),
    ({"architectures": ["GPT2LMHeadModel"], "scale_attn_weights": False}, "scale_attn_weights"),
]


@pytest.mark.parametrize(("keys", "named"), REFUSED)
def test_what_would_change_the_logits_is_refused_by_name(keys, named):
    base = {"architectures": keys["architectures"], "vocab_size": 9} if "GPT2" in str(keys) else LLAMA_KEYS
    with pytest.raises(UsageError, match=named):
        from_json(base | keys)


DAMAGED = [
    ({"vocab_size": "many"}, "vocab_size"),
    ({"vocab_size": True}, "vocab_size"),
    ({"num_hidden_layers": -1}, "layers"),
    ({"hidden_size": [1]}, "width"),
    ({"num_key_value_heads": 3}, "4 heads do not divide among 3"),
    ({"num_attention_heads": 5}, "32 does not divide into 5"),
    ({"head_dim": 7}, "even number of dims, not 7"),
    ({"rope_parameters": "default"}, "rope_parameters"),
    ({"hornbook": 3}, "hornbook"),
    ({"hornbook": {"model": {"layers": "x"}}}, "layers"),
    ({"architectures": ["HornbookForCausalLM"]}, "needs the key `hornbook`"),
]


@pytest.mark.parametrize(("keys", "named"), DAMAGED)
def test_damaged_configurations_are_refused(keys, named):
    with pytest.raises(IntegrityError, match=named):
        from_json(LLAMA_KEYS | keys)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"heads": 3}, "model.heads: width 1024 does not divide into 3 heads"),
        ({"width": 96, "heads": 32}, "model.attention.head_dim: rotary positions need an even number of dims, not 3"),
        ({"norm": {"kind": "batch"}}, "model.norm: batch norm mixes later positions into earlier ones"),
        ({"kind": "encoder_decoder", "block": {"kind": "parallel"}}, "model.block: a parallel block has no place"),
        ({"pattern": [{}, {}, {}, {}, {}]}, "model.pattern: its 5 layers do not tile the 16"),
        ({"encoder_layers": 3}, 'model.encoder_layers: a model of kind "decoder" has one stack'),
        ({"norm": {"kind": "none"}, "block": {"kind": "parallel"}}, "begins with a norm"),
    ],
)
def test_parts_that_do_not_go_together_are_refused_in_a_hand_written_file(changes, named):
    """As in a recipe: some ended in an assertion of ours when the model was built."""
    config = ModelConfig(layers=16, width=1024, heads=16)
    keys = to_json(config, 128, dtype="float32") | {"architectures": [NATIVE]}
    assert from_json(keys) == (config, 128)
    keys["hornbook"] = {"model": keys["hornbook"]["model"] | changes}
    with pytest.raises(IntegrityError, match=re.escape(named)):
        from_json(keys)


def test_a_file_edited_in_one_place_only_is_not_guessed_at():
    keys = to_json(ModelConfig(), 128, dtype="float32") | {"num_hidden_layers": 3, "rms_norm_eps": 1e-3}
    with pytest.raises(IntegrityError, match=r"disagree about layers, norm\.eps"):
        from_json(keys)
    keys = to_json(ModelConfig(), 128, dtype="float32") | {"architectures": ["Qwen3ForCausalLM"]}
    with pytest.raises(IntegrityError, match="disagree"):
        from_json(keys)


def test_the_reason_for_our_own_names_is_given():
    assert "its attention_bias sets both" in why_native(ModelConfig(attention=FullAttentionConfig(out_bias=True)))
    config = ModelConfig(
        attention=FullAttentionConfig(qk_norm="head"), mlp=GLUConfig(bias=True), position=RopeConfig(length=8)
    )
    assert "nearest is LlamaForCausalLM: attention.qk_norm is 'head', it has only 'none'" in why_native(config)


@pytest.mark.parametrize(
    ("kind", "head", "text"),
    [
        ("decoder", ClassificationHead(labels=["a", "b"]), "LlamaForSequenceClassification: head.bias is True, it has"),
        ("decoder", RegressionHead(), "LlamaForSequenceClassification: head.bias is True, it has only False"),
        ("decoder", SpanHead(bias=False), "LlamaForQuestionAnswering: head.bias is False, it has only True"),
        ("encoder", ClassificationHead(labels=["a", "b"]), "BertForSequenceClassification: head.transform.kind is 'no"),
        ("encoder", TokenClassificationHead(labels=["a", "b"], bias=False), "BertForTokenClassification: head.bias is"),
    ],
)
def test_the_nearest_says_labels_of_the_same_kind(kind, head, text):
    base = bert_like(length=24, layers=1, width=16, heads=2) if kind == "encoder" else ModelConfig()
    assert f"nearest is {text}" in why_native(base.model_copy(update={"head": head}))


LAYERS = ["full_attention", "sliding_attention"]
SIZES = {key: value for key, value in LLAMA_KEYS.items() if key != "architectures"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (LLAMA_KEYS | {"rope_parameters": YARN | {"new_factor": 1.0}}, "{'new_factor': 1.0} are not understood"),
        (LLAMA_KEYS | {"rope_parameters": YARN | {"truncate": False}}, "{'truncate': False} are not understood"),
        (LLAMA_KEYS | {"rope_parameters": {"rope_type": "linear", "attention_factor": 1.0}}, "attention_factor"),
        (SIZES | {"architectures": ["Qwen2ForCausalLM"], "layer_types": LAYERS}, "use_sliding_window is false"),
        (SIZES | {"architectures": ["Gemma2ForCausalLM"], "layer_types": LAYERS, "sliding_window": None}, "is null"),
        (SIZES | {"architectures": ["ModernBertForMaskedLM"], "local_attention": 1}, "at least 2 tokens"),
        (SIZES | {"architectures": ["RobertaForMaskedLM"], "pad_token_id": None}, "pad_token_id is null"),
        (SIZES | {"architectures": ["DeepseekV3ForCausalLM"], "n_shared_experts": 0}, "there is at least one"),
    ],
)
def test_what_the_reader_does_not_understand_is_refused_without_a_certificate_too(keys, text):
    with pytest.raises(UsageError, match=re.escape(text)):
        from_json(keys)


def test_fields_without_effect_are_read():
    for scaling in ({"rope_type": "default", "factor": 1.0}, YARN | {"truncate": True, "attention_factor": None}):
        assert isinstance(from_json(LLAMA_KEYS | {"rope_parameters": scaling})[0].position, RopeConfig)


def test_the_bias_of_bart_is_a_constant_and_others_are_learned():
    bart = ModelConfig(kind="encoder_decoder", encoder_layers=1, layers=1, width=16, heads=2, head=LMHead(bias=True))
    assert [name for name, each in build_model(bart, 64, "meta").named_parameters() if not each.requires_grad] == [
        "head.bias"
    ]
    gptj = ModelConfig(layers=1, width=16, heads=2, head=LMHead(bias=True))
    assert all(each.requires_grad for each in build_model(gptj, 64, "meta").parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.name)
def test_a_key_that_is_absent_means_what_transformers_takes_it_for(architecture: Architecture) -> None:
    """Written out by its class; keys of older versions, which it does not know any more, cannot be compared."""
    theirs = transformers.AutoConfig.for_model(architecture.model_type)
    keys = [key for key in architecture.keys if key.default is not None and hasattr(theirs, key.theirs)]
    assert len(keys) > 3
    assert {key.theirs: key.default for key in keys} == {key.theirs: getattr(theirs, key.theirs) for key in keys}
