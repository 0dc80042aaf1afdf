"""Rotary positions in config.json: base, share of a head that turns, scaling; as transformers 4 and 5 spell them."""

from typing import Any

from hornbook.errors import IntegrityError, UsageError
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import RopeConfig, RopeScaling
from hornbook.model.hf.tables.vocabulary_names import Codec, Json

_FIELDS: dict[str, dict[str, tuple[str, Any]]] = {
    "linear": {"factor": ("factor", 1.0)},
    "llama3": {
        "factor": ("factor", 8.0),
        "low_freq_factor": ("low", 1.0),
        "high_freq_factor": ("high", 4.0),
        "original_max_position_embeddings": ("original", None),
    },
    "yarn": {
        "factor": ("factor", 1.0),
        "original_max_position_embeddings": ("original", None),
        "beta_fast": ("beta_fast", 32.0),
        "beta_slow": ("beta_slow", 1.0),
        "mscale": ("mscale", None),
        "mscale_all_dim": ("mscale_all_dim", None),
        "attention_factor": ("attention_factor", None),
    },
}
"""Their kind of scaling, which is also ours -> their field -> (ours, its default)."""
_WITHOUT_EFFECT: dict[str, dict[str, Any]] = {"default": {"factor": 1.0}, "yarn": {"truncate": True}}
"""Their kind -> fields that change nothing at that value."""
_THEIRS = (
    "rope_theta",
    "rope_parameters",
    "rope_scaling",
    "rotary_emb_base",
    "partial_rotary_factor",
    "rotary_pct",
)


def rope(theta: float = 10_000.0, fraction: float | None = None) -> Codec:
    """theta: what transformers takes if none is given. fraction: the same, for those whose heads may turn in part."""

    def read(keys: Json, tree: Json) -> None:
        parameters = {**_object(keys, "rope_scaling"), **_object(keys, "rope_parameters")}
        share = parameters.pop("partial_rotary_factor", keys.get("partial_rotary_factor", keys.get("rotary_pct")))
        if fraction is None and share not in (None, 1.0):
            raise UsageError(f"config.json: partial_rotary_factor = {share!r} is not supported; only 1.0 is")
        default = keys.get("rope_theta", keys.get("rotary_emb_base", theta))
        tree["position"].update(
            theta=_or(parameters.pop("rope_theta", None), default),
            fraction=1.0 if fraction is None else _or(share, fraction),
            scaling=read_scaling(parameters, tree["position"].get("length")),
        )

    def write(config: ModelConfig) -> Json:
        position = config.position
        assert isinstance(position, RopeConfig)
        parameters = {"rope_theta": position.theta, **write_scaling(position.scaling)}
        found: Json = {"rope_theta": position.theta, "rope_parameters": parameters}
        if fraction is not None:
            parameters["partial_rotary_factor"] = found["rotary_pct"] = position.fraction
            found["rotary_emb_base"] = position.theta
        if position.scaling.kind != "none":
            found["rope_scaling"] = write_scaling(position.scaling)
        return found

    return Codec(_THEIRS, read, write)


def read_scaling(parameters: Json, length: int | None) -> Json:
    """Our scaling from what is left of their parameters; UsageError where we have none such. `length`: of sequences."""
    kinds = {parameters.pop("rope_type", None), parameters.pop("type", None)} - {None} or {"default"}
    kind = kinds.pop()
    if kinds or (kind != "default" and kind not in _FIELDS):
        known = ", ".join(["default", *_FIELDS])
        raise UsageError(f"config.json: rope_parameters with rope_type {kind!r} are not supported; known are {known}")
    fields = _FIELDS.get(kind, {})
    idle = _WITHOUT_EFFECT.get(kind, {})
    strange = {
        key: value
        for key, value in parameters.items()
        if key not in fields and value is not None and (key not in idle or value != idle[key])
    }
    if strange:
        raise UsageError(f"config.json: rope_parameters {strange} are not understood for rope_type {kind!r}")
    if kind == "default":
        return {"kind": "none"}
    found = {ours: _or(parameters.get(theirs), default) for theirs, (ours, default) in fields.items()}
    if "original" in found:
        found["original"] = _or(found["original"], length)
    return {"kind": kind, **found}


def write_scaling(scaling: RopeScaling) -> Json:
    """Their parameters, without the base; of a kind that they do not have, none."""
    if scaling.kind not in _FIELDS:
        return {"rope_type": "default"}
    fields = {theirs: getattr(scaling, ours) for theirs, (ours, _) in _FIELDS[scaling.kind].items()}
    return {"rope_type": scaling.kind, **{theirs: value for theirs, value in fields.items() if value is not None}}


def _object(keys: Json, name: str) -> Json:
    value = keys.get(name) or {}
    if not isinstance(value, dict):
        raise IntegrityError(f"config.json: {name} must be an object, found {value!r}")
    return value


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _read_rotary_dim(keys: Json, tree: Json) -> None:
    """How many dims of a head turn (GPT-J)."""
    width, heads = tree["width"], tree["heads"]
    rotary_dim = _or(keys.get("rotary_dim"), 64)
    if not all(type(each) is int and each > 0 for each in (width, heads, rotary_dim)) or rotary_dim * heads > width:
        raise IntegrityError(
            f"config.json: rotary_dim {rotary_dim!r} does not fit {heads!r} heads of width {width!r} in all"
        )
    tree.setdefault("position", {})["fraction"] = rotary_dim / (width // heads)


def _write_rotary_dim(config: ModelConfig) -> Json:
    assert isinstance(config.position, RopeConfig)
    return {"rotary_dim": int(config.head_dim * config.position.fraction)}


CODECS = {"rope": rope, "rotary_dim": Codec(("rotary_dim",), _read_rotary_dim, _write_rotary_dim)}
