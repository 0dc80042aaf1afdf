"""Single values that config.json says in another way than ours: scales by width, shifted lengths, T5's feed-forward."""

from hornbook.errors import IntegrityError, UsageError
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.head_config import LMHead
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import LearnedPositionsConfig
from hornbook.model.hf.tables.vocabulary_names import ACTIVATIONS, Codec, Json

# ---- Scales that follow from the width


def _read_root_scale(_: Json, tree: Json) -> None:
    """Embeddings times sqrt(width), always (Gemma)."""
    tree.setdefault("embedding", {})["scale"] = tree["width"] ** 0.5


def _read_scale_embedding(keys: Json, tree: Json) -> None:
    """Embeddings times sqrt(width), if so said (BART)."""
    if keys.get("scale_embedding"):
        _read_root_scale(keys, tree)


def _read_scaled_head(keys: Json, tree: Json) -> None:
    """Hidden states over sqrt(width) before the head (T5 v1.0)."""
    # transformers 5 ties the head in every configuration and keeps what the key said under this name.
    scaled = keys.get("scale_decoder_outputs", keys.get("tie_word_embeddings") is not False)
    tree.setdefault("head", {})["scale"] = tree["width"] ** -0.5 if scaled else 1.0


def _write_scaled_head(config: ModelConfig) -> Json:
    assert isinstance(config.head, LMHead)
    return {"tie_word_embeddings": config.head.scale != 1}


def _read_scalar(keys: Json, tree: Json) -> None:
    """Scores over the root of a number (Gemma 2)."""
    tree.setdefault("attention", {})["scale"] = keys.get("query_pre_attn_scalar", 256) ** -0.5


def _write_scalar(config: ModelConfig) -> Json:
    assert isinstance(config.attention, FullAttentionConfig)
    square = (config.attention.scale or config.head_dim**-0.5) ** -2
    return {"query_pre_attn_scalar": round(square) if abs(square - round(square)) < 1e-6 * square else square}


# ---- Positions


def _read_shifted(keys: Json, tree: Json) -> None:
    """Positions count from behind the padding token's id (RoBERTa)."""
    offset = keys.get("pad_token_id", 1)
    rows = keys.get("max_position_embeddings", 512)
    if offset is None:
        raise UsageError(
            "config.json: pad_token_id is null, and positions count from behind it: say which id it is, such as 1"
        )
    if type(offset) is not int or type(rows) is not int or not 0 <= offset < rows - 1:
        raise IntegrityError(f"config.json: pad_token_id {offset!r} leaves no room in {rows!r} positions")
    tree.setdefault("position", {}).update(offset=offset + 1, length=rows - offset - 1)


def _write_shifted(config: ModelConfig) -> Json:
    assert isinstance(config.position, LearnedPositionsConfig)
    offset, length = config.position.offset, config.position.length
    return {"pad_token_id": offset - 1, "max_position_embeddings": offset + length}


# ---- Widths


def _read_vector_width(keys: Json, tree: Json) -> None:
    """Width of the embedding's vectors (OPT)."""
    width = keys.get("word_embed_proj_dim")
    if width is not None and width != tree["width"]:
        tree.setdefault("embedding", {})["width"] = width


def _read_embedding_size(keys: Json, tree: Json) -> None:
    """Width of the vectors, of positions and types, and of their norm (ELECTRA)."""
    width = keys.get("embedding_size", 128)
    if width != tree["width"]:
        tree.setdefault("embedding", {}).update(width=width, projected="last", bias=True)


def _read_shared(keys: Json, tree: Json) -> None:
    """Experts that serve every token, as one of their width in all (DeepSeek)."""
    count, hidden = keys.get("n_shared_experts", 1), tree["mlp"]["hidden"]
    if type(count) is not int or type(hidden) is not int:
        raise IntegrityError(f"config.json: n_shared_experts {count!r} of width {hidden!r} are no numbers")
    if count < 1:
        raise UsageError(f"config.json: n_shared_experts {count!r} is not supported: there is at least one")
    tree["mlp"]["shared_hidden"] = count * hidden


def _write_shared(config: ModelConfig) -> Json:
    return {"n_shared_experts": (getattr(config.mlp, "shared_hidden", None) or 0) // config.hidden}


def _read_depths(keys: Json, tree: Json) -> None:
    """Layers of both stacks (T5)."""
    encoder = keys.get("num_layers", 6)
    decoder = keys.get("num_decoder_layers")
    tree |= {"encoder_layers": encoder, "layers": encoder if decoder is None else decoder}


# ---- T5's feed-forward

_GATED = {"gated-gelu": "gelu_tanh", **{f"gated-{name}": kind for name, kind in ACTIVATIONS.items() if name != "gelu"}}


def _read_feed_forward(keys: Json, tree: Json) -> None:
    """Activation, and whether it is a gate."""
    name, names = keys.get("feed_forward_proj", "relu"), ACTIVATIONS | _GATED
    if name not in names:
        raise UsageError(f"config.json: feed_forward_proj {name!r} is not supported; known are {', '.join(names)}")
    kind = "glu" if name in _GATED else "mlp"
    tree.setdefault("mlp", {}).update(kind=kind, activation=names[name], bias=False)


def _write_feed_forward(config: ModelConfig) -> Json:
    names = _GATED if config.mlp.kind == "glu" else ACTIVATIONS
    return {"feed_forward_proj": next((name for name, kind in names.items() if kind == config.mlp.activation), "relu")}


CODECS = {
    # Written for converters that ask for it, and not read: transformers has dropped the key.
    "context": Codec((), lambda *_: None, lambda config: {"n_ctx": config.position.length}),
    "root_scale": Codec((), _read_root_scale, lambda _: {}),
    "scale_embedding": Codec(
        ("scale_embedding",), _read_scale_embedding, lambda config: {"scale_embedding": config.embedding.scale != 1}
    ),
    "scaled_head": Codec(("scale_decoder_outputs", "tie_word_embeddings"), _read_scaled_head, _write_scaled_head),
    "query_scalar": Codec(("query_pre_attn_scalar",), _read_scalar, _write_scalar),
    "shifted_positions": Codec(("pad_token_id", "max_position_embeddings"), _read_shifted, _write_shifted),
    "vector_width": Codec(
        ("word_embed_proj_dim",),
        _read_vector_width,
        lambda config: {"word_embed_proj_dim": config.embedding.width or config.width},
    ),
    "embedding_size": Codec(
        ("embedding_size",),
        _read_embedding_size,
        lambda config: {"embedding_size": config.embedding.width or config.width},
    ),
    "shared_experts": Codec(("n_shared_experts",), _read_shared, _write_shared),
    "depths": Codec(
        ("num_layers", "num_decoder_layers"),
        _read_depths,
        lambda config: {"num_layers": config.encoder.layers, "num_decoder_layers": config.layers},
    ),
    "feed_forward": Codec(("feed_forward_proj",), _read_feed_forward, _write_feed_forward),
}
