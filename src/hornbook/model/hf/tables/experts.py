"""Mixtral, OLMoE, Qwen3-MoE, DeepSeek-V3. Sources: their files in transformers 4 and 5.

Files hold a tensor for each matrix of each expert; transformers 5 puts them together when it loads them.
"""

from hornbook.model.hf.tables.layers import FIRST_DENSE, LISTED_DENSE, one_window
from hornbook.model.hf.tables.llama import (
    ATTENTION_BIAS,
    ATTENTION_ROWS,
    BUFFERS,
    END_ROWS,
    MLP_ROWS,
    NORM_ROWS,
    QK_NORM_ROWS,
    REQUIRES,
    SILU,
    sizes,
)
from hornbook.model.hf.tables.rope import rope
from hornbook.model.hf.tables.values import SHARED_EXPERTS
from hornbook.model.hf.tables.vocabulary import LM_HEAD, Architecture, Key, Row, pairs

_REQUIRES = {**REQUIRES, "mlp.kind": "experts", "mlp.shared_hidden": None, "mlp.router.kind": "softmax"}
_ACTIVATION = Key("hidden_act", ("mlp.activation",), "silu", SILU)
_EXPERT = "model.layers.{i}.mlp.experts.{e}."
_EXPERT_ROWS = (
    Row("blocks.{i}.mlp.router.weight", "model.layers.{i}.mlp.gate.weight"),
    Row("blocks.{i}.mlp.gate", _EXPERT + "gate_proj.weight"),
    Row("blocks.{i}.mlp.up", _EXPERT + "up_proj.weight"),
    Row("blocks.{i}.mlp.down", _EXPERT + "down_proj.weight"),
)

_ATTENTION = "model.layers.{i}.self_attn."
_MIXTRAL = "model.layers.{i}.block_sparse_moe."

MIXTRAL = Architecture(
    name="MixtralForCausalLM",
    model_type="mixtral",
    prefix="model.",
    keys=(
        *sizes(),
        _ACTIVATION,
        Key("rms_norm_eps", ("norm.eps",), 1e-5),
        Key("intermediate_size", ("mlp.hidden",), 14336),
        Key("num_key_value_heads", ("attention.kv_heads",), 8),
        Key("head_dim", ("attention.head_dim",), None),
        Key("max_position_embeddings", ("position.length",), 131072),
        Key("num_local_experts", ("mlp.count",), 8),
        Key("num_experts_per_tok", ("mlp.active",), 2),
    ),
    requires={
        **_REQUIRES,
        "attention.qk_norm": "none",
        "attention.bias": False,
        "attention.out_bias": False,
        "mlp.router.renormalize": True,
    },
    codecs=(rope(1e6), one_window(switch=False)),
    rows=(
        *ATTENTION_ROWS,
        *NORM_ROWS,
        *END_ROWS,
        Row("blocks.{i}.mlp.router.weight", _MIXTRAL + "gate.weight"),
        Row("blocks.{i}.mlp.gate", _MIXTRAL + "experts.{e}.w1.weight"),
        Row("blocks.{i}.mlp.up", _MIXTRAL + "experts.{e}.w3.weight"),
        Row("blocks.{i}.mlp.down", _MIXTRAL + "experts.{e}.w2.weight"),
    ),
    buffers=BUFFERS,
    copies=LM_HEAD,
)

OLMOE = Architecture(
    name="OlmoeForCausalLM",
    model_type="olmoe",
    prefix="model.",
    keys=(
        *sizes(16, 2048, 16),
        ATTENTION_BIAS,
        _ACTIVATION,
        Key("rms_norm_eps", ("norm.eps",), 1e-5),
        Key("intermediate_size", ("mlp.hidden",), 2048),
        Key("num_key_value_heads", ("attention.kv_heads",), None),
        Key("max_position_embeddings", ("position.length",), 4096),
        Key("clip_qkv", ("attention.clip",), None),
        Key("num_experts", ("mlp.count",), 64, aliases=("num_local_experts",)),
        Key("num_experts_per_tok", ("mlp.active",), 8),
        Key("norm_topk_prob", ("mlp.router.renormalize",), False),
    ),
    requires={**_REQUIRES, "attention.qk_norm": "full"},
    codecs=(rope(),),
    rows=(*ATTENTION_ROWS, *QK_NORM_ROWS, *NORM_ROWS, *END_ROWS, *_EXPERT_ROWS),
    buffers=BUFFERS,
    copies=LM_HEAD,
)

QWEN3_MOE = Architecture(
    name="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    prefix="model.",
    keys=(
        *sizes(24, 2048),
        ATTENTION_BIAS,
        _ACTIVATION,
        Key("rms_norm_eps", ("norm.eps",), 1e-6),
        Key("moe_intermediate_size", ("mlp.hidden",), 768),
        Key("num_key_value_heads", ("attention.kv_heads",), 4),
        Key("head_dim", ("attention.head_dim",), None),
        Key("max_position_embeddings", ("position.length",), 32768),
        Key("num_experts", ("mlp.count",), 128, aliases=("num_local_experts",)),
        Key("num_experts_per_tok", ("mlp.active",), 8),
        Key("norm_topk_prob", ("mlp.router.renormalize",), False),
    ),
    requires={**_REQUIRES, "attention.qk_norm": "head"},
    codecs=(rope(), one_window(switch=True), LISTED_DENSE),
    rows=(*ATTENTION_ROWS, *QK_NORM_ROWS, *NORM_ROWS, *MLP_ROWS, *END_ROWS, *_EXPERT_ROWS),
    buffers=BUFFERS,
    copies=LM_HEAD,
)

DEEPSEEK_V3 = Architecture(
    name="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    prefix="model.",
    keys=(
        *(key for key in sizes(61, 7168) if key.ours != ("heads",)),
        Key("num_attention_heads", ("heads",), 128, also=("num_key_value_heads",)),
        _ACTIVATION,
        Key("rms_norm_eps", ("norm.eps",), 1e-6),
        Key("max_position_embeddings", ("position.length",), 4096),
        Key("rope_interleave", ("position.layout",), True, {True: "interleaved", False: "half"}),
        Key("attention_bias", ("attention.bias",), False),
        Key("q_lora_rank", ("attention.query_rank",), 1536, off=True),
        Key("kv_lora_rank", ("attention.kv_rank",), 512),
        Key("qk_nope_head_dim", ("attention.nope_dim",), 128),
        Key("qk_rope_head_dim", ("attention.rope_dim",), 64),
        Key("v_head_dim", ("attention.value_dim",), 128),
        Key("moe_intermediate_size", ("mlp.hidden",), 2048),
        Key("n_routed_experts", ("mlp.count",), 256, aliases=("num_local_experts",)),
        Key("num_experts_per_tok", ("mlp.active",), 8),
        Key("norm_topk_prob", ("mlp.router.renormalize",), True),
        Key("routed_scaling_factor", ("mlp.router.scale",), 2.5),
        Key("n_group", ("mlp.router.groups",), 8),
        Key("topk_group", ("mlp.router.groups_active",), 4),
    ),
    requires={
        **{path: value for path, value in REQUIRES.items() if path != "position.layout"},
        "attention.kind": "latent",
        "mlp.kind": "experts",
        "mlp.router.kind": "sigmoid",
    },
    constant={"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    inert=(
        "aux_loss_alpha",
        "ep_size",
        "head_dim",
        "num_nextn_predict_layers",
        "qk_head_dim",
        "seq_aux",
    ),
    codecs=(rope(), SHARED_EXPERTS, FIRST_DENSE),
    rows=(
        *pairs("blocks.{i}.attention.query", _ATTENTION + "q_proj"),
        *pairs("blocks.{i}.attention.query_down", _ATTENTION + "q_a_proj"),
        Row("blocks.{i}.attention.query_norm.weight", _ATTENTION + "q_a_layernorm.weight"),
        *pairs("blocks.{i}.attention.query_up", _ATTENTION + "q_b_proj"),
        *pairs("blocks.{i}.attention.kv_down", _ATTENTION + "kv_a_proj_with_mqa"),
        Row("blocks.{i}.attention.kv_norm.weight", _ATTENTION + "kv_a_layernorm.weight"),
        *pairs("blocks.{i}.attention.kv_up", _ATTENTION + "kv_b_proj"),
        *pairs("blocks.{i}.attention.out", _ATTENTION + "o_proj"),
        *NORM_ROWS,
        *MLP_ROWS,
        *END_ROWS,
        *_EXPERT_ROWS,
        Row("blocks.{i}.mlp.router.bias", "model.layers.{i}.mlp.gate.e_score_correction_bias"),
        Row("blocks.{i}.mlp.shared.gate.weight", "model.layers.{i}.mlp.shared_experts.gate_proj.weight"),
        Row("blocks.{i}.mlp.shared.up.weight", "model.layers.{i}.mlp.shared_experts.up_proj.weight"),
        Row("blocks.{i}.mlp.shared.down.weight", "model.layers.{i}.mlp.shared_experts.down_proj.weight"),
    ),
    buffers=BUFFERS,
    copies=LM_HEAD,
    unused=("model.layers.61.*",),
)
"""Of the published file, layer 61 predicts further tokens and is left out, as transformers does."""
