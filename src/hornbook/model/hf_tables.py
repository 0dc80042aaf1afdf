"""How Hugging Face spells our models: one table per architecture, no code per architecture.

An `Architecture` lists which key of `config.json` says what in a `ModelConfig`, which of our choices it
has no key for (and the only value it has them at), and which of its tensors holds which of ours. Reading
and writing are the same table walked in two directions. Sources: the configuration and modelling files of
GPT-2, LLaMA and Qwen3 in transformers 4 and 5, whose class defaults stand in for absent keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hornbook.model.config import ModelConfig

NATIVE = "HornbookForCausalLM"
"""`architectures` of a model that no table represents: the same files under our own names."""


@dataclass(frozen=True)
class Key:
    """One key of config.json and the dotted keys of `ModelConfig` it sets (all must agree to be written)."""

    theirs: str
    ours: tuple[str, ...]
    default: Any
    """What transformers takes when the key is absent; None leaves our default, which means the same."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Their spelling of a value -> ours; the first spelling of a value is the one written."""


@dataclass(frozen=True)
class Row:
    """One of our tensors inside one of theirs; `{i}` is the layer.

    `transpose`: theirs is [in, out] (GPT-2's Conv1D) where ours is [out, in]. `part` of `parts`: theirs holds
    several of ours side by side along the output dim.
    """

    ours: str
    theirs: str
    transpose: bool = False
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Architecture:
    """One class of transformers."""

    name: str
    model_type: str
    prefix: str
    """First part of most tensor names; files of the bare model (GPT-2 on the hub) lack it."""
    keys: tuple[Key, ...]
    requires: Mapping[str, Any]
    """Dotted keys of `ModelConfig` that have one value here."""
    constant: Mapping[str, Any]
    """Keys of config.json for which only one value is understood; absent means this value."""
    rows: tuple[Row, ...]
    rules: tuple[tuple[str, str, Callable[[ModelConfig], bool]], ...] = ()
    """What else must hold: (the dotted key it is about, the reason to give if not, test)."""
    dropout: tuple[str, ...] = ()
    """Keys that `ModelConfig.dropout` is written to. They matter to training only and are not read."""
    buffers: tuple[str, ...] = ()
    """Globs of tensors in older files that are no parameters."""


_GPT2_ACTIVATION = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
_LLAMA_ACTIVATION = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}


def _pairs(ours: str, theirs: str, *, transpose: bool = False, part: int = 0, parts: int = 1) -> tuple[Row, Row]:
    """Weight and bias of one projection or norm; a bias is never transposed."""
    return (
        Row(f"{ours}.weight", f"{theirs}.weight", transpose, part, parts),
        Row(f"{ours}.bias", f"{theirs}.bias", False, part, parts),
    )


GPT2 = Architecture(
    name="GPT2LMHeadModel",
    model_type="gpt2",
    prefix="transformer.",
    keys=(
        Key("n_layer", ("layers",), 12),
        Key("n_embd", ("width",), 768),
        Key("n_head", ("heads",), 12),
        Key("n_positions", ("position.length",), 1024),
        Key("n_inner", ("mlp.hidden",), None),
        Key("activation_function", ("mlp.activation",), "gelu_new", _GPT2_ACTIVATION),
        Key("layer_norm_epsilon", ("norm.eps",), 1e-5),
        Key("tie_word_embeddings", ("head.tied",), True),
    ),
    requires={
        "kind": "decoder",
        "block.kind": "pre",
        "head.kind": "lm",
        "attention.kind": "full",
        "attention.bias": True,
        "attention.out_bias": True,
        "attention.qk_norm": "none",
        "mlp.kind": "mlp",
        "mlp.bias": True,
        "norm.kind": "layer",
        "norm.bias": True,
        "position.kind": "learned",
    },
    constant={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    rules=(
        ("attention.kv_heads", "its heads share no keys", lambda c: c.kv_heads == c.heads),
        ("attention.head_dim", "its heads fill the width exactly", lambda c: c.head_dim * c.heads == c.width),
    ),
    rows=(
        Row("embedding.weight", "transformer.wte.weight"),
        Row("positions.weight", "transformer.wpe.weight"),
        *_pairs("blocks.{i}.norm1", "transformer.h.{i}.ln_1"),
        *_pairs("blocks.{i}.attention.query", "transformer.h.{i}.attn.c_attn", transpose=True, part=0, parts=3),
        *_pairs("blocks.{i}.attention.key", "transformer.h.{i}.attn.c_attn", transpose=True, part=1, parts=3),
        *_pairs("blocks.{i}.attention.value", "transformer.h.{i}.attn.c_attn", transpose=True, part=2, parts=3),
        *_pairs("blocks.{i}.attention.out", "transformer.h.{i}.attn.c_proj", transpose=True),
        *_pairs("blocks.{i}.norm2", "transformer.h.{i}.ln_2"),
        *_pairs("blocks.{i}.mlp.up", "transformer.h.{i}.mlp.c_fc", transpose=True),
        *_pairs("blocks.{i}.mlp.down", "transformer.h.{i}.mlp.c_proj", transpose=True),
        *_pairs("norm", "transformer.ln_f"),
        Row("head.weight", "lm_head.weight"),
    ),
    dropout=("resid_pdrop", "embd_pdrop"),
    buffers=("*.attn.bias", "*.attn.masked_bias"),
)

_LLAMA_KEYS = (
    Key("num_hidden_layers", ("layers",), 32),
    Key("hidden_size", ("width",), 4096),
    Key("num_attention_heads", ("heads",), 32),
    Key("hidden_act", ("mlp.activation",), "silu", _LLAMA_ACTIVATION),
    Key("rms_norm_eps", ("norm.eps",), 1e-6),
    Key("rope_theta", ("position.theta",), 10_000.0),
    Key("attention_bias", ("attention.bias", "attention.out_bias"), False),
    Key("tie_word_embeddings", ("head.tied",), False),
)

_LLAMA_REQUIRES = {
    "kind": "decoder",
    "block.kind": "pre",
    "head.kind": "lm",
    "attention.kind": "full",
    "mlp.kind": "glu",
    "norm.kind": "rms",
    "position.kind": "rope",
}

_LLAMA_ROWS = (
    Row("embedding.weight", "model.embed_tokens.weight"),
    Row("blocks.{i}.norm1.weight", "model.layers.{i}.input_layernorm.weight"),
    *_pairs("blocks.{i}.attention.query", "model.layers.{i}.self_attn.q_proj"),
    *_pairs("blocks.{i}.attention.key", "model.layers.{i}.self_attn.k_proj"),
    *_pairs("blocks.{i}.attention.value", "model.layers.{i}.self_attn.v_proj"),
    *_pairs("blocks.{i}.attention.out", "model.layers.{i}.self_attn.o_proj"),
    Row("blocks.{i}.norm2.weight", "model.layers.{i}.post_attention_layernorm.weight"),
    *_pairs("blocks.{i}.mlp.gate", "model.layers.{i}.mlp.gate_proj"),
    *_pairs("blocks.{i}.mlp.up", "model.layers.{i}.mlp.up_proj"),
    *_pairs("blocks.{i}.mlp.down", "model.layers.{i}.mlp.down_proj"),
    Row("norm.weight", "model.norm.weight"),
    Row("head.weight", "lm_head.weight"),
)

LLAMA = Architecture(
    name="LlamaForCausalLM",
    model_type="llama",
    prefix="model.",
    keys=(
        *_LLAMA_KEYS,
        Key("intermediate_size", ("mlp.hidden",), 11008),
        Key("num_key_value_heads", ("attention.kv_heads",), None),
        Key("head_dim", ("attention.head_dim",), None),
        Key("max_position_embeddings", ("position.length",), 2048),
        Key("mlp_bias", ("mlp.bias",), False),
    ),
    requires={**_LLAMA_REQUIRES, "attention.qk_norm": "none"},
    constant={},
    rows=_LLAMA_ROWS,
    rules=(("width", "it refuses a width that does not divide into heads", lambda c: c.width % c.heads == 0),),
    buffers=("*.rotary_emb.inv_freq",),
)

QWEN3 = Architecture(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    prefix="model.",
    keys=(
        *_LLAMA_KEYS,
        Key("intermediate_size", ("mlp.hidden",), 22016),
        Key("num_key_value_heads", ("attention.kv_heads",), 32),
        Key("head_dim", ("attention.head_dim",), 128),
        Key("max_position_embeddings", ("position.length",), 32768),
    ),
    requires={**_LLAMA_REQUIRES, "attention.qk_norm": "head", "mlp.bias": False},
    constant={"use_sliding_window": False},
    rows=(
        *_LLAMA_ROWS,
        Row("blocks.{i}.attention.query_norm.weight", "model.layers.{i}.self_attn.q_norm.weight"),
        Row("blocks.{i}.attention.key_norm.weight", "model.layers.{i}.self_attn.k_norm.weight"),
    ),
    buffers=("*.rotary_emb.inv_freq",),
)

ARCHITECTURES = (GPT2, LLAMA, QWEN3)

FREE = ("vocab", "dropout", "init.")
"""Dotted keys of `ModelConfig` that do not change what a trained model computes (or are sizes of their own)."""

INERT = frozenset(
    {
        # what files say about themselves and their history
        "_attn_implementation",
        "_from_model_config",
        "_name_or_path",
        "architectures",
        "attn_implementation",
        "dtype",
        "hornbook",
        "model_type",
        "name_or_path",
        "tokenizer_class",
        "torch_dtype",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "vocab_size",
        # training
        "attention_dropout",
        "attn_pdrop",
        "embd_pdrop",
        "gradient_checkpointing",
        "initializer_range",
        "pretraining_tp",
        "reorder_and_upcast_attn",
        "resid_pdrop",
        # generation and output
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "return_dict",
        "use_cache",
        # other heads than the language model's
        "id2label",
        "label2id",
        "problem_type",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        # without effect unless another key, which is checked, is on
        "max_window_layers",
        "n_ctx",
        "sliding_window",
    }
)
"""Keys of config.json that do not change the logits of the models above, or are dealt with apart."""
