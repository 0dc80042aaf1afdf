"""Layers that differ, in config.json: sliding windows, dense layers among experts, ModernBERT's alternation."""

from collections.abc import Callable, Sequence
from typing import Any

from hornbook.errors import IntegrityError, UsageError
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import RopeConfig
from hornbook.model.hf.tables.rope import read_scaling, write_scaling
from hornbook.model.hf.tables.vocabulary_names import Codec, Json

FULL, SLIDING = "full_attention", "sliding_attention"
MOST_LAYERS = 2048
"""Where layers differ: how they are told apart takes steps that grow with the square of their number."""
Listed = Callable[[Json, int], list[str]]
"""(Their keys, layers) -> the types that transformers gives the layers if config.json does not list them."""


def lay(tree: Json, layers: Sequence[Json]) -> None:
    """Say what is different in each layer as `first` and `pattern`, as briefly as it can be said."""
    count = len(layers)
    least = max((i + 1 for i, layer in enumerate(layers) if "attention_norm" in layer), default=0)

    def period(start: int) -> int:
        rest = list(layers[start:])
        lengths = (
            n for n in range(1, len(rest) + 1) if len(rest) % n == 0 and rest == list(rest[:n]) * (len(rest) // n)
        )
        return next(lengths, 0)

    # Of all ways to say the same the one with the fewest layers: `start` of them one by one, then one period.
    start = min(range(least, count + 1), key=lambda first: (first + period(first), first))
    tree["first"] = list(layers[:start])
    pattern = list(layers[start : start + period(start)])
    tree["pattern"] = [] if pattern == [{}] else pattern


def _depth(tree: Json) -> int:
    layers = tree["layers"]
    if layers > MOST_LAYERS:
        raise IntegrityError(f"config.json: layers: a number up to {MOST_LAYERS} is expected, found {layers!r}")
    return layers


def _types(keys: Json, layers: int, listed: Listed) -> list[str]:
    types = keys.get("layer_types") or listed(keys, layers)
    if not isinstance(types, list) or len(types) != layers or not all(each in (FULL, SLIDING) for each in types):
        raise IntegrityError(f"config.json: layer_types must name {FULL} or {SLIDING} for each of {layers} layers")
    return types


def _window(part: Any) -> int | None:
    return part.window if isinstance(part, FullAttentionConfig) else None


def _written_types(config: ModelConfig) -> tuple[list[str], int | None]:
    """Type of each layer, and the one size of all windows."""
    windows = [_window(config.layer(i).attention) for i in range(config.layers)]
    sizes = [size for size in windows if size is not None]
    return [FULL if size is None else SLIDING for size in windows], min(sizes, default=None)


def windows(listed: Listed, size: int, *, switch: bool) -> Codec:
    """Windows in some layers. `size`: if none is given. `switch`: `use_sliding_window` turns them on."""

    def read(keys: Json, tree: Json) -> None:
        window = keys.get("sliding_window", size)
        on = window is not None and (not switch or bool(keys.get("use_sliding_window")))
        if not on and SLIDING in (keys.get("layer_types") or ()):
            off = "use_sliding_window is false" if switch and window is not None else "sliding_window is null"
            raise UsageError(f"config.json: layer_types name {SLIDING}, and {off}: transformers cannot run it either")
        types = _types(keys, _depth(tree), listed) if on else [FULL]
        attention = tree.setdefault("attention", {})
        if set(types) == {SLIDING}:
            attention["window"] = window
        elif SLIDING in types:
            lay(tree, [{"attention": {**attention, "window": window}} if each == SLIDING else {} for each in types])

    def write(config: ModelConfig) -> Json:
        types, window = _written_types(config)
        if not switch:
            return {"layer_types": types, "sliding_window": window or size}
        switches = {"use_sliding_window": window is not None, "sliding_window": window, "layer_types": types}
        return switches | {"max_window_layers": types.index(SLIDING) if window else config.layers}

    names = ("layer_types", "sliding_window")
    return Codec((*names, "use_sliding_window", "max_window_layers") if switch else names, read, write)


def _from_some_layer_on(keys: Json, layers: int) -> list[str]:
    cut = keys.get("max_window_layers", 28)
    return [SLIDING if i >= cut else FULL for i in range(layers)]


def one_window(*, switch: bool) -> Codec:
    """The same window in all layers; `switch`: `use_sliding_window` turns it on."""

    def read(keys: Json, tree: Json) -> None:
        if not switch or keys.get("use_sliding_window"):
            tree.setdefault("attention", {})["window"] = keys.get("sliding_window", 4096 if switch else None)

    def write(config: ModelConfig) -> Json:
        window = _window(config.attention)
        return {"sliding_window": window} | ({"use_sliding_window": window is not None} if switch else {})

    return Codec(("sliding_window", "use_sliding_window", "max_window_layers"), read, write)


def dense(names: tuple[str, ...], which: Callable[[Json, int], bool], write: Callable[[list[bool]], Json]) -> Codec:
    """Dense layers among layers of experts: GLUs of `intermediate_size`.

    names: keys that say which. which: (their keys, layer) -> whether it is dense. write: the keys from that.
    """

    def read(keys: Json, tree: Json) -> None:
        flags = [which(keys, i) for i in range(_depth(tree))]
        if any(flags):
            glu = {"kind": "glu", "hidden": keys["intermediate_size"], "activation": tree["mlp"]["activation"]}
            lay(tree, [{"mlp": glu} if flag else {} for flag in flags])

    def write_all(config: ModelConfig) -> Json:
        own = [config.layer(i) for i in range(config.layers)]
        flags = [not isinstance(each.mlp, ExpertsConfig) for each in own]
        sizes = [each.hidden for each, flag in zip(own, flags, strict=True) if flag]
        return {"intermediate_size": max(sizes, default=config.hidden), **write(flags)}

    return Codec((*names, "intermediate_size"), read, write_all)


# ---- ModernBERT

_EVERY = "global_attn_every_n_layers"
_THETA = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


def _every_third(keys: Json, layers: int) -> list[str]:
    every = keys.get(_EVERY, 3)
    return [SLIDING if i % every else FULL for i in range(layers)]


def _read_alternation(keys: Json, tree: Json) -> None:
    """Layers with a window and without, each with wavelengths of its own; no norm before the first attention."""
    types = _types(keys, _depth(tree), _every_third)
    attention, length = tree.setdefault("attention", {}), keys.get("max_position_embeddings", 8192)
    parts = {}
    for kind in (FULL, SLIDING):
        rotation = dict((keys.get("rope_parameters") or {}).get(kind) or keys.get("rope_scaling") or {})
        old, default = _THETA[kind]
        theta = rotation.pop("rope_theta", None) or keys.get(old, default)
        size = keys.get("local_attention", 128)
        if size < 2:
            raise UsageError(f"config.json: local_attention {size!r} is not supported: a window has at least 2 tokens")
        window = None if kind == FULL else 2 * (size // 2)
        position = {"kind": "rope", "theta": theta, "length": length, "scaling": read_scaling(rotation, length)}
        parts[kind] = {"attention": {**attention, "window": window}, "position": position}
    base = parts[FULL]
    tree |= {"attention": base["attention"], "position": base["position"]}
    differing = [parts[SLIDING] if each == SLIDING else {} for each in types]
    lay(tree, [{**differing[0], "attention_norm": {"kind": "none"}}, *differing[1:]])


def _write_alternation(config: ModelConfig) -> Json:
    types, window = _written_types(config)
    positions = {}
    for i, kind in enumerate(types):
        position = config.layer(i).position
        assert isinstance(position, RopeConfig)
        positions.setdefault(kind, position)
    parameters = {kind: {"rope_theta": p.theta, **write_scaling(p.scaling)} for kind, p in positions.items()}
    other = {kind: {"rope_theta": _THETA[kind][1], "rope_type": "default"} for kind in (FULL, SLIDING)}
    thetas = {_THETA[kind][0]: position.theta for kind, position in positions.items()}
    found = {"layer_types": types, "local_attention": window or 128, "rope_parameters": other | parameters, **thetas}
    found["max_position_embeddings"] = config.position.length
    for every in range(1, config.layers + 1):
        if types == _every_third({_EVERY: every}, config.layers):
            return found | {_EVERY: every}
    return found


_ALTERNATION_KEYS = ("layer_types", _EVERY, "global_rope_theta", "local_rope_theta", "local_attention")
_ALTERNATION_KEYS += ("rope_parameters", "rope_scaling", "max_position_embeddings")

CODECS = {
    "one_window": one_window,
    # Qwen's windows from some layer on, Gemma's in every other one
    "qwen_windows": windows(_from_some_layer_on, 4096, switch=True),
    "gemma_windows": windows(lambda _, n: [FULL if i % 2 else SLIDING for i in range(n)], 4096, switch=False),
    # the first layers dense (DeepSeek-V3), or any (Qwen3-MoE)
    "first_dense": dense(
        ("first_k_dense_replace",),
        lambda keys, i: i < keys.get("first_k_dense_replace", 3),
        lambda flags: {"first_k_dense_replace": (*flags, False).index(False)},
    ),
    "listed_dense": dense(
        ("mlp_only_layers", "decoder_sparse_step"),
        lambda keys, i: i in (keys.get("mlp_only_layers") or ()) or (i + 1) % keys.get("decoder_sparse_step", 1) != 0,
        lambda flags: {"mlp_only_layers": [i for i, flag in enumerate(flags) if flag], "decoder_sparse_step": 1},
    ),
    "alternation": Codec(_ALTERNATION_KEYS, _read_alternation, _write_alternation),
}
