"""LLaMA, Qwen2, Qwen3, Gemma 2, OLMo 2. Sources: their files in transformers 4 and 5."""

from hornbook.model.hf.tables.layers import GEMMA_WINDOWS, QWEN_WINDOWS
from hornbook.model.hf.tables.rope import rope
from hornbook.model.hf.tables.values import QUERY_SCALAR, ROOT_SCALE
from hornbook.model.hf.tables.vocabulary import GELU_FIRST, LM_HEAD, TANH_FIRST, Architecture, Key, Row, pairs

SILU = {"silu": "silu"} | GELU_FIRST


def sizes(layers: int = 32, width: int = 4096, heads: int = 32) -> tuple[Key, ...]:
    """The keys of a model's size, with what an architecture takes where they are absent."""
    return (
        Key("num_hidden_layers", ("layers",), layers),
        Key("hidden_size", ("width",), width),
        Key("num_attention_heads", ("heads",), heads),
        Key("tie_word_embeddings", ("head.tied",), False),
    )


ATTENTION_BIAS = Key("attention_bias", ("attention.bias", "attention.out_bias"), False)
REQUIRES = {
    "kind": "decoder",
    "block.kind": "pre",
    "head.kind": "lm",
    "attention.kind": "full",
    "mlp.kind": "glu",
    "norm.kind": "rms",
    "position.kind": "rope",
    "position.layout": "half",
}
ATTENTION_ROWS = (
    *pairs("blocks.{i}.attention.query", "model.layers.{i}.self_attn.q_proj"),
    *pairs("blocks.{i}.attention.key", "model.layers.{i}.self_attn.k_proj"),
    *pairs("blocks.{i}.attention.value", "model.layers.{i}.self_attn.v_proj"),
    *pairs("blocks.{i}.attention.out", "model.layers.{i}.self_attn.o_proj"),
)
QK_NORM_ROWS = (
    Row("blocks.{i}.attention.query_norm.weight", "model.layers.{i}.self_attn.q_norm.weight"),
    Row("blocks.{i}.attention.key_norm.weight", "model.layers.{i}.self_attn.k_norm.weight"),
)
NORM_ROWS = (
    Row("blocks.{i}.norm1.weight", "model.layers.{i}.input_layernorm.weight"),
    Row("blocks.{i}.norm2.weight", "model.layers.{i}.post_attention_layernorm.weight"),
)
MLP_ROWS = (
    *pairs("blocks.{i}.mlp.gate", "model.layers.{i}.mlp.gate_proj"),
    *pairs("blocks.{i}.mlp.up", "model.layers.{i}.mlp.up_proj"),
    *pairs("blocks.{i}.mlp.down", "model.layers.{i}.mlp.down_proj"),
)
END_ROWS = (
    Row("embedding.weight", "model.embed_tokens.weight"),
    Row("norm.weight", "model.norm.weight"),
    Row("head.weight", "lm_head.weight"),
)
BUFFERS = ("*.rotary_emb.inv_freq",)

LLAMA = Architecture(
    name="LlamaForCausalLM",
    model_type="llama",
    prefix="model.",
    keys=(
        *sizes(),
        ATTENTION_BIAS,
        Key("hidden_act", ("mlp.activation",), "silu", SILU),
        Key("rms_norm_eps", ("norm.eps",), 1e-6),
        Key("intermediate_size", ("mlp.hidden",), 11008),
        Key("num_key_value_heads", ("attention.kv_heads",), None),
        Key("head_dim", ("attention.head_dim",), None),
        Key("max_position_embeddings", ("position.length",), 2048),
        Key("mlp_bias", ("mlp.bias",), False),
    ),
    requires={**REQUIRES, "attention.qk_norm": "none"},
    codecs=(rope(),),
    rows=(*ATTENTION_ROWS, *NORM_ROWS, *MLP_ROWS, *END_ROWS),
    rules=(("width", "it refuses a width that does not divide into heads", lambda c: c.width % c.heads == 0),),
    buffers=BUFFERS,
    copies=LM_HEAD,
)

_QWEN_KEYS = (
    *sizes(),
    Key("hidden_act", ("mlp.activation",), "silu", SILU),
    Key("rms_norm_eps", ("norm.eps",), 1e-6),
    Key("intermediate_size", ("mlp.hidden",), 22016),
    Key("num_key_value_heads", ("attention.kv_heads",), 32),
    Key("max_position_embeddings", ("position.length",), 32768),
)

QWEN2 = Architecture(
    name="Qwen2ForCausalLM",
    model_type="qwen2",
    prefix="model.",
    keys=_QWEN_KEYS,
    requires={
        **REQUIRES,
        "attention.qk_norm": "none",
        "attention.bias": True,
        "attention.out_bias": False,
        "mlp.bias": False,
    },
    codecs=(rope(), QWEN_WINDOWS),
    rows=(*ATTENTION_ROWS, *NORM_ROWS, *MLP_ROWS, *END_ROWS),
    buffers=BUFFERS,
    copies=LM_HEAD,
)

QWEN3 = Architecture(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    prefix="model.",
    keys=(*_QWEN_KEYS, ATTENTION_BIAS, Key("head_dim", ("attention.head_dim",), 128)),
    requires={**REQUIRES, "attention.qk_norm": "head", "mlp.bias": False},
    codecs=(rope(), QWEN_WINDOWS),
    rows=(*ATTENTION_ROWS, *QK_NORM_ROWS, *NORM_ROWS, *MLP_ROWS, *END_ROWS),
    buffers=BUFFERS,
    copies=LM_HEAD,
)

GEMMA2 = Architecture(
    name="Gemma2ForCausalLM",
    model_type="gemma2",
    prefix="model.",
    keys=(
        Key("num_hidden_layers", ("layers",), 26),
        Key("hidden_size", ("width",), 2304),
        Key("num_attention_heads", ("heads",), 8),
        Key("tie_word_embeddings", ("head.tied",), True),
        ATTENTION_BIAS,
        Key("hidden_activation", ("mlp.activation",), "gelu_pytorch_tanh", TANH_FIRST),
        Key("rms_norm_eps", ("norm.eps",), 1e-6),
        Key("intermediate_size", ("mlp.hidden",), 9216),
        Key("num_key_value_heads", ("attention.kv_heads",), 4),
        Key("head_dim", ("attention.head_dim",), 256),
        Key("max_position_embeddings", ("position.length",), 8192),
        Key("attn_logit_softcapping", ("attention.softcap",), 50.0, off=True),
        Key("final_logit_softcapping", ("head.softcap",), 30.0, off=True),
    ),
    requires={
        **REQUIRES,
        "block.kind": "sandwich",
        "norm.kind": "rms_offset",
        "attention.qk_norm": "none",
        "mlp.bias": False,
    },
    constant={"use_bidirectional_attention": None},
    inert=("cache_implementation", "hidden_act", "sliding_window_size"),
    codecs=(rope(), QUERY_SCALAR, ROOT_SCALE, GEMMA_WINDOWS),
    rules=(("width", "it refuses a width that does not divide into heads", lambda c: c.width % c.heads == 0),),
    rows=(
        *ATTENTION_ROWS,
        *MLP_ROWS,
        *END_ROWS,
        Row("blocks.{i}.norm1.weight", "model.layers.{i}.input_layernorm.weight"),
        Row("blocks.{i}.out_norm1.weight", "model.layers.{i}.post_attention_layernorm.weight"),
        Row("blocks.{i}.norm2.weight", "model.layers.{i}.pre_feedforward_layernorm.weight"),
        Row("blocks.{i}.out_norm2.weight", "model.layers.{i}.post_feedforward_layernorm.weight"),
    ),
    buffers=BUFFERS,
    copies=LM_HEAD,
)

OLMO2 = Architecture(
    name="Olmo2ForCausalLM",
    model_type="olmo2",
    prefix="model.",
    keys=(
        *sizes(),
        ATTENTION_BIAS,
        Key("hidden_act", ("mlp.activation",), "silu", SILU),
        Key("rms_norm_eps", ("norm.eps",), 1e-5),
        Key("intermediate_size", ("mlp.hidden",), 11008),
        Key("num_key_value_heads", ("attention.kv_heads",), None),
        Key("max_position_embeddings", ("position.length",), 2048),
    ),
    requires={**REQUIRES, "block.kind": "output", "attention.qk_norm": "full", "mlp.bias": False},
    codecs=(rope(),),
    rows=(
        *ATTENTION_ROWS,
        *QK_NORM_ROWS,
        *MLP_ROWS,
        *END_ROWS,
        Row("blocks.{i}.out_norm1.weight", "model.layers.{i}.post_attention_layernorm.weight"),
        Row("blocks.{i}.out_norm2.weight", "model.layers.{i}.post_feedforward_layernorm.weight"),
    ),
    buffers=BUFFERS,
    copies=LM_HEAD,
)
