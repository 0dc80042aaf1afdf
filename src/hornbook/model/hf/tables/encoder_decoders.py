"""T5 (v1.0 and v1.1), BART. Sources: their files in transformers 4 and 5."""

from hornbook.model.hf.tables.values import DEPTHS, FEED_FORWARD, SCALE_EMBEDDING, SCALED_HEAD
from hornbook.model.hf.tables.vocabulary import GELU_FIRST, Architecture, Key, Row, pairs

_COMMON = {
    "kind": "encoder_decoder",
    "head.kind": "lm",
    "attention.kind": "full",
    "attention.qk_norm": "none",
}


def _t5_attention(ours: str, theirs: str) -> tuple[Row, ...]:
    names = {"query": "q", "key": "k", "value": "v", "out": "o"}
    return tuple(Row(f"{ours}.{name}.weight", f"{theirs}.{letter}.weight") for name, letter in names.items())


def _t5_stack(ours: str, theirs: str, last: int) -> tuple[Row, ...]:
    """Rows of one stack, whose feed-forward is sublayer `last`."""
    block, layer = ours + "blocks.{i}.", theirs + "block.{i}.layer."
    first = theirs + "block.0.layer.0.SelfAttention."
    return (
        Row(ours + "bias.weight", first + "relative_attention_bias.weight"),
        Row(block + "norm1.weight", layer + "0.layer_norm.weight"),
        *_t5_attention(block + "attention", layer + "0.SelfAttention"),
        Row(block + "norm2.weight", f"{layer}{last}.layer_norm.weight"),
        Row(block + "mlp.up.weight", f"{layer}{last}.DenseReluDense.wi.weight"),
        Row(block + "mlp.gate.weight", f"{layer}{last}.DenseReluDense.wi_0.weight"),
        Row(block + "mlp.up.weight", f"{layer}{last}.DenseReluDense.wi_1.weight", beside=block + "mlp.gate.weight"),
        Row(block + "mlp.down.weight", f"{layer}{last}.DenseReluDense.wo.weight"),
        Row(ours + "norm.weight", theirs + "final_layer_norm.weight"),
    )


_T5_COPIES = ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")

T5 = Architecture(
    name="T5ForConditionalGeneration",
    model_type="t5",
    prefix="",
    keys=(
        Key("d_model", ("width",), 512),
        Key("num_heads", ("heads",), 8),
        Key("d_kv", ("attention.head_dim",), 64),
        Key("d_ff", ("mlp.hidden",), 2048),
        Key("layer_norm_epsilon", ("norm.eps",), 1e-6),
        Key("n_positions", ("position.length",), 512),
        Key("relative_attention_num_buckets", ("position.buckets",), 32),
        Key("relative_attention_max_distance", ("position.max_distance",), 128),
    ),
    requires={
        **_COMMON,
        "block.kind": "pre",
        "attention.bias": False,
        "attention.out_bias": False,
        "attention.scale": 1.0,
        "mlp.bias": False,
        "norm.kind": "rms",
        "position.kind": "relative",
    },
    constant={"is_decoder": False},
    inert=("dense_act_fn", "is_gated_act"),
    codecs=(DEPTHS, FEED_FORWARD, SCALED_HEAD),
    rows=(
        Row("embedding.weight", "shared.weight"),
        *_t5_stack("", "decoder.", 2),
        *_t5_stack("encoder.", "encoder.", 1),
        Row("blocks.{i}.cross_norm.weight", "decoder.block.{i}.layer.1.layer_norm.weight"),
        *_t5_attention("blocks.{i}.cross", "decoder.block.{i}.layer.1.EncDecAttention"),
        Row("head.weight", "lm_head.weight"),
    ),
    dropout=("dropout_rate",),
    attention_dropout=(),
    std=None,
    copies=dict.fromkeys(_T5_COPIES, "embedding.weight"),
    unused=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    position_ids=None,
    decoder_start="pad_token_id",
    head_by_file=True,
)


def _bart_stack(ours: str, theirs: str) -> tuple[Row, ...]:
    block, layer = ours + "blocks.{i}.", theirs + "layers.{i}."
    return (
        Row(ours + "positions.weight", theirs + "embed_positions.weight"),
        *pairs(ours + "entrance.norm", theirs + "layernorm_embedding"),
        *_bart_attention(block + "attention", layer + "self_attn"),
        *pairs(block + "sum_norm1", layer + "self_attn_layer_norm"),
        *pairs(block + "mlp.up", layer + "fc1"),
        *pairs(block + "mlp.down", layer + "fc2"),
        *pairs(block + "sum_norm2", layer + "final_layer_norm"),
    )


def _bart_attention(ours: str, theirs: str) -> tuple[Row, ...]:
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    return tuple(row for name, each in names.items() for row in pairs(f"{ours}.{name}", f"{theirs}.{each}"))


_BART_COPIES = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")

BART = Architecture(
    name="BartForConditionalGeneration",
    model_type="bart",
    prefix="model.",
    keys=(
        Key("d_model", ("width",), 1024),
        Key("encoder_layers", ("encoder_layers",), 12),
        Key("decoder_layers", ("layers",), 12),
        Key("encoder_attention_heads", ("heads",), 16, also=("decoder_attention_heads",)),
        Key("encoder_ffn_dim", ("mlp.hidden",), 4096, also=("decoder_ffn_dim",)),
        Key("activation_function", ("mlp.activation",), "gelu", GELU_FIRST),
        Key("max_position_embeddings", ("position.length",), 1024),
        Key("tie_word_embeddings", ("head.tied",), True),
    ),
    requires={
        **_COMMON,
        "block.kind": "post",
        "attention.bias": True,
        "attention.out_bias": True,
        "mlp.kind": "mlp",
        "mlp.bias": True,
        "norm.kind": "layer",
        "norm.bias": True,
        "norm.eps": 1e-5,
        "position.kind": "learned",
        "position.offset": 2,
        "embedding.norm": True,
        "head.bias": True,
    },
    constant={
        "add_bias_logits": False,
        "add_final_layer_norm": False,
        "is_decoder": False,
        "normalize_before": False,
        "normalize_embedding": True,
        "static_position_embeddings": False,
    },
    inert=("extra_pos_embeddings", "num_hidden_layers"),
    codecs=(SCALE_EMBEDDING,),
    rows=(
        Row("embedding.weight", "model.shared.weight"),
        *_bart_stack("", "model.decoder."),
        *_bart_stack("encoder.", "model.encoder."),
        *_bart_attention("blocks.{i}.cross", "model.decoder.layers.{i}.encoder_attn"),
        *pairs("blocks.{i}.cross_sum_norm", "model.decoder.layers.{i}.encoder_attn_layer_norm"),
        Row("head.bias", "final_logits_bias", "row"),
        Row("head.weight", "lm_head.weight"),
    ),
    dropout=("dropout",),
    std="init_std",
    copies=dict.fromkeys(_BART_COPIES, "embedding.weight"),
    position_ids=None,
    decoder_start="eos_token_id",
)
