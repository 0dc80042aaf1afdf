"""BERT, RoBERTa, ModernBERT. Sources: their files in transformers 4 and 5."""

from hornbook.model.hf.tables.layers import ALTERNATION
from hornbook.model.hf.tables.values import SHIFTED_POSITIONS
from hornbook.model.hf.tables.vocabulary import GELU_FIRST, Architecture, Key, Row, fused, pairs

_SIZES = (
    Key("num_hidden_layers", ("layers",), 12),
    Key("hidden_size", ("width",), 768),
    Key("num_attention_heads", ("heads",), 12),
    Key("intermediate_size", ("mlp.hidden",), 3072),
    Key("tie_word_embeddings", ("head.tied",), True),
)
_BERT_KEYS = (
    *_SIZES,
    Key("layer_norm_eps", ("norm.eps",), 1e-12),
    Key("type_vocab_size", ("embedding.types",), 2),
)
_REQUIRES = {
    "kind": "encoder",
    "head.kind": "masked",
    "head.bias": True,
    "attention.kind": "full",
    "attention.qk_norm": "none",
    "norm.kind": "layer",
    "embedding.norm": True,
}
_BERT_REQUIRES = {
    **_REQUIRES,
    "block.kind": "post",
    "attention.bias": True,
    "attention.out_bias": True,
    "mlp.kind": "mlp",
    "mlp.bias": True,
    "norm.bias": True,
    "position.kind": "learned",
    "head.dense_bias": True,
}
_BERT_CONSTANT = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}


def _bert_rows(prefix: str) -> tuple[Row, ...]:
    layer = prefix + "encoder.layer.{i}."
    return (
        Row("embedding.weight", prefix + "embeddings.word_embeddings.weight"),
        Row("positions.weight", prefix + "embeddings.position_embeddings.weight"),
        Row("entrance.types.weight", prefix + "embeddings.token_type_embeddings.weight"),
        *pairs("entrance.norm", prefix + "embeddings.LayerNorm"),
        *pairs("blocks.{i}.attention.query", layer + "attention.self.query"),
        *pairs("blocks.{i}.attention.key", layer + "attention.self.key"),
        *pairs("blocks.{i}.attention.value", layer + "attention.self.value"),
        *pairs("blocks.{i}.attention.out", layer + "attention.output.dense"),
        *pairs("blocks.{i}.sum_norm1", layer + "attention.output.LayerNorm"),
        *pairs("blocks.{i}.mlp.up", layer + "intermediate.dense"),
        *pairs("blocks.{i}.mlp.down", layer + "output.dense"),
        *pairs("blocks.{i}.sum_norm2", layer + "output.LayerNorm"),
    )


BERT = Architecture(
    name="BertForMaskedLM",
    model_type="bert",
    prefix="bert.",
    keys=(
        *_BERT_KEYS,
        Key("hidden_act", ("mlp.activation", "head.activation"), "gelu", GELU_FIRST),
        Key("max_position_embeddings", ("position.length",), 512),
    ),
    requires={**_BERT_REQUIRES, "position.offset": 0},
    constant=_BERT_CONSTANT,
    rows=(
        *_bert_rows("bert."),
        *pairs("head.before.dense", "cls.predictions.transform.dense"),
        *pairs("head.before.norm", "cls.predictions.transform.LayerNorm"),
        Row("head.bias", "cls.predictions.bias"),
        Row("head.weight", "cls.predictions.decoder.weight"),
    ),
    dropout=("hidden_dropout_prob",),
    attention_dropout=("attention_probs_dropout_prob",),
    buffers=("*embeddings.position_ids",),
    copies={"cls.predictions.decoder.weight": "embedding.weight", "cls.predictions.decoder.bias": "head.bias"},
    older={".gamma": ".weight", ".beta": ".bias"},
    unused=("bert.pooler.*", "cls.seq_relationship.*"),
)

ROBERTA = Architecture(
    name="RobertaForMaskedLM",
    model_type="roberta",
    prefix="roberta.",
    keys=(*_BERT_KEYS, Key("hidden_act", ("mlp.activation",), "gelu", GELU_FIRST)),
    requires={**_BERT_REQUIRES, "head.activation": "gelu"},
    constant=_BERT_CONSTANT,
    codecs=(SHIFTED_POSITIONS,),
    rows=(
        *_bert_rows("roberta."),
        *pairs("head.before.dense", "lm_head.dense"),
        *pairs("head.before.norm", "lm_head.layer_norm"),
        Row("head.bias", "lm_head.bias"),
        Row("head.weight", "lm_head.decoder.weight"),
    ),
    dropout=("hidden_dropout_prob",),
    attention_dropout=("attention_probs_dropout_prob",),
    buffers=("*embeddings.position_ids",),
    copies={"lm_head.decoder.weight": "embedding.weight", "lm_head.decoder.bias": "head.bias"},
    unused=("roberta.pooler.*",),
    position_ids="from offset",
)

MODERNBERT = Architecture(
    name="ModernBertForMaskedLM",
    model_type="modernbert",
    prefix="model.",
    keys=(
        Key("num_hidden_layers", ("layers",), 22),
        Key("hidden_size", ("width",), 768),
        Key("num_attention_heads", ("heads",), 12),
        Key("intermediate_size", ("mlp.hidden",), 1152),
        Key("tie_word_embeddings", ("head.tied",), True),
        Key("hidden_activation", ("mlp.activation",), "gelu", GELU_FIRST),
        Key("classifier_activation", ("head.activation",), "gelu", GELU_FIRST),
        Key("classifier_bias", ("head.dense_bias",), False),
        Key("decoder_bias", ("head.bias",), True),
        Key("attention_bias", ("attention.bias", "attention.out_bias"), False),
        Key("mlp_bias", ("mlp.bias",), False),
        Key("norm_eps", ("norm.eps",), 1e-5),
        Key("norm_bias", ("norm.bias",), False),
    ),
    requires={
        **{key: value for key, value in _REQUIRES.items() if key != "head.bias"},
        "block.kind": "pre",
        "mlp.kind": "glu",
        "position.kind": "rope",
        "position.layout": "half",
        "embedding.types": 0,
    },
    constant={"position_embedding_type": "absolute"},
    inert=(
        "deterministic_flash_attn",
        "layer_norm_eps",
        "reference_compile",
        "repad_logits_with_grad",
        "sparse_pred_ignore_index",
        "sparse_prediction",
    ),
    codecs=(ALTERNATION,),
    rows=(
        Row("embedding.weight", "model.embeddings.tok_embeddings.weight"),
        *pairs("entrance.norm", "model.embeddings.norm"),
        *pairs("blocks.{i}.norm1", "model.layers.{i}.attn_norm"),
        *fused("model.layers.{i}.attn.Wqkv"),
        *pairs("blocks.{i}.attention.out", "model.layers.{i}.attn.Wo"),
        *pairs("blocks.{i}.norm2", "model.layers.{i}.mlp_norm"),
        *pairs("blocks.{i}.mlp.gate", "model.layers.{i}.mlp.Wi", part=0),
        *pairs("blocks.{i}.mlp.up", "model.layers.{i}.mlp.Wi", part=1),
        *pairs("blocks.{i}.mlp.down", "model.layers.{i}.mlp.Wo"),
        *pairs("norm", "model.final_norm"),
        *pairs("head.before.dense", "head.dense"),
        *pairs("head.before.norm", "head.norm"),
        Row("head.bias", "decoder.bias"),
        Row("head.weight", "decoder.weight"),
    ),
    dropout=("embedding_dropout", "mlp_dropout"),
    copies={"decoder.weight": "embedding.weight"},
)
