"""config.json <-> ModelConfig, by the tables of `hf_tables`.

The one idea: nothing is left out silently. A `ModelConfig` fits an architecture only if the table accounts
for every one of its keys; a foreign config.json is read only if every key of it is mapped, known to be
without effect, or switched off. Where no table fits, the same file carries our own configuration.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from hornbook.errors import IntegrityError, UsageError
from hornbook.fields import Config
from hornbook.model.config import FullAttention, ModelConfig
from hornbook.model.hf_tables import ARCHITECTURES, FREE, INERT, LLAMA, NATIVE, Architecture

Json = dict[str, Any]


def flatten(config: ModelConfig) -> dict[str, Any]:
    """Every leaf by dotted key, with the sizes that follow from others (kv_heads, head_dim, hidden) filled in."""
    flat = dict(_leaves(config.model_dump(), ""))
    flat["attention.kv_heads"] = config.kv_heads
    flat["attention.head_dim"] = config.head_dim
    flat["mlp.hidden"] = config.hidden
    return flat


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def misfits(config: ModelConfig, architecture: Architecture) -> list[str]:
    """Why `architecture` cannot represent `config` exactly; empty if it can."""
    flat, reasons = flatten(config), []
    for path, value in architecture.requires.items():
        if flat.get(path) != value:
            reasons.append(f"{path} is {flat.get(path)!r}, it has only {value!r}")
    mapped = set(architecture.requires)
    for key in architecture.keys:
        mapped.update(key.ours)
        values = [flat[path] for path in key.ours if path in flat]
        if len(set(values)) > 1:
            reasons.append(f"{' and '.join(key.ours)} differ, its {key.theirs} sets both")
        if key.values and values and values[0] not in key.values.values():
            reasons.append(f"its {key.theirs} has no {values[0]!r}")
    if not reasons:
        mapped.update(path for path, _, _ in architecture.rules)
        reasons += [f"{path}: {reason}" for path, reason, holds in architecture.rules if not holds(config)]
        neutral = flatten(_plain(config))
        reasons += [
            f"it knows nothing of {path}"
            for path, value in flat.items()
            if path not in mapped and not path.startswith(FREE) and neutral.get(path, ...) != value
        ]
    return reasons


def _plain(config: ModelConfig) -> ModelConfig:
    """The same kinds of parts with everything else at its default, which is off."""
    parts = {name: getattr(config, name) for name in type(config).model_fields}
    return ModelConfig(**{name: type(part)() for name, part in parts.items() if isinstance(part, Config)})


def choose_architecture(config: ModelConfig) -> Architecture | None:
    """The architecture that represents `config` exactly, or None."""
    return next((each for each in ARCHITECTURES if not misfits(config, each)), None)


def to_json(config: ModelConfig, vocab: int, *, dtype: str, bos: int | None = None, eos: int | None = None) -> Json:
    """The content of config.json.

    `vocab` is the number of rows of the embedding, `dtype` the name of the stored type ("float32", "bfloat16").
    Both spellings of what was renamed between transformers 4 and 5 are written (torch_dtype, rope_theta).
    The key `hornbook` holds our own configuration: what theirs has no place for (initialisation, dropout).
    """
    architecture = choose_architecture(config)
    keys: Json = {
        "architectures": [architecture.name if architecture else NATIVE],
        "model_type": architecture.model_type if architecture else "hornbook",
        "vocab_size": vocab,
        "dtype": dtype,
        "torch_dtype": dtype,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "hornbook": {"model": config.model_dump(mode="json")},
    }
    if architecture is None:
        return keys
    flat = flatten(config)
    for key in architecture.keys:
        value = flat[key.ours[0]]
        spelling = {ours: theirs for theirs, ours in reversed(list(key.values.items()))}
        keys[key.theirs] = spelling.get(value, value)
    if "rope_theta" in keys:
        keys["rope_parameters"] = {"rope_type": "default", "rope_theta": keys["rope_theta"]}
    keys.update(architecture.constant)
    keys.update(dict.fromkeys(architecture.dropout, config.dropout))
    keys.update({"attn_pdrop": 0.0} if architecture.dropout else {"attention_dropout": 0.0})
    keys["initializer_range"] = getattr(config.init, "std", 0.02)
    return keys


def identify(keys: Json) -> Architecture | None:
    """The table for a config.json, None if it is our own; UsageError that lists what is known otherwise."""
    names = keys.get("architectures")
    names = names if isinstance(names, list) else []
    if NATIVE in names:
        return None
    for each in ARCHITECTURES:
        if each.name in names or (not names and keys.get("model_type") == each.model_type):
            return each
    known = ", ".join([*(each.name for each in ARCHITECTURES), NATIVE])
    named = ", ".join(map(str, names)) or f"model_type {keys.get('model_type')!r}"
    raise UsageError(f"config.json: cannot read a model of the architecture {named}; known are {known}")


def from_json(keys: Json) -> tuple[ModelConfig, int]:
    """(configuration, rows of the embedding) of a config.json.

    Dropout belongs to training and is not taken from a foreign file. Errors: UsageError naming the key where the
    file asks for what our Transformer does not compute; IntegrityError where it is not a configuration at all.
    """
    architecture = identify(keys)
    vocab = keys.get("vocab_size")
    if not isinstance(vocab, int) or isinstance(vocab, bool) or vocab < 1:
        raise IntegrityError(f"config.json: vocab_size must be a positive integer, found {vocab!r}")
    stored = _stored(keys)
    if architecture is None:
        if stored is None:
            raise IntegrityError(f"config.json: {NATIVE} needs the key `hornbook`, which is missing")
        return stored, vocab
    config = _translate(_with_theta(keys), architecture, vocab)
    if stored is None:
        return config, vocab
    return _agreeing(stored, config, architecture), vocab


def _stored(keys: Json) -> ModelConfig | None:
    own = keys.get("hornbook")
    if own is None:
        return None
    if not isinstance(own, dict) or "model" not in own:
        raise IntegrityError("config.json: the key `hornbook` holds no `model`")
    return _validated(own["model"])


def _agreeing(stored: ModelConfig, standard: ModelConfig, architecture: Architecture) -> ModelConfig:
    """`stored` if it says what the standard keys say: a file edited in one place only is not guessed at."""
    ours, theirs = flatten(stored), flatten(standard)
    differing = [path for path in theirs if not path.startswith(FREE) and ours.get(path) != theirs[path]]
    if misfits(stored, architecture) or differing:
        what = ", ".join(differing) or "the architecture"
        raise IntegrityError(
            f"config.json: its key `hornbook` and its standard keys disagree about {what}; "
            "correct one, or remove the key `hornbook` to go by the standard ones"
        )
    return stored


def _with_theta(keys: Json) -> Json:
    """Read both spellings of rotary positions (transformers 4: rope_theta, rope_scaling; 5: rope_parameters)."""
    keys, scaling = dict(keys), keys.get("rope_scaling")
    parameters = keys.pop("rope_parameters", None) or {}
    if not isinstance(parameters, dict):
        raise IntegrityError(f"config.json: rope_parameters must be an object, found {parameters!r}")
    if scaling:
        raise UsageError(f"config.json: rope_scaling {scaling!r} is not supported; only unscaled rotary positions are")
    parameters = dict(parameters)
    kind = parameters.pop("rope_type", parameters.pop("type", "default"))
    theta = parameters.pop("rope_theta", None)
    active = {key: value for key, value in parameters.items() if value not in (None, 1.0)}
    if kind != "default" or active:
        raise UsageError(
            f"config.json: rope_parameters with rope_type {kind!r} and {active} are not supported; "
            "only unscaled rotary positions are"
        )
    if theta is not None:
        keys["rope_theta"] = theta
    return keys


def _translate(keys: Json, architecture: Architecture, vocab: int) -> ModelConfig:
    flat: dict[str, Any] = {**architecture.requires, "vocab": vocab}
    for key in architecture.keys:
        value = keys.get(key.theirs)
        value = key.default if value is None else value
        if key.values:
            if value not in key.values:
                raise UsageError(
                    f"config.json: {key.theirs} {value!r} is not supported; known are {', '.join(key.values)}"
                )
            value = key.values[value]
        if value is not None:
            flat.update(dict.fromkeys(key.ours, value))
    _refuse_unsupported(keys, architecture)
    config = _validated(_nest(flat))
    _check_sizes(config)
    return config


def _refuse_unsupported(keys: Json, architecture: Architecture) -> None:
    for name, value in architecture.constant.items():
        if keys.get(name, value) != value:
            raise UsageError(f"config.json: {name} = {keys[name]!r} is not supported; only {value!r} is")
    known = {key.theirs for key in architecture.keys} | set(architecture.constant) | INERT
    layer_types = keys.get("layer_types")
    if layer_types and set(layer_types) != {"full_attention"}:
        raise UsageError(
            f"config.json: layer_types {sorted(set(layer_types))} are not supported; only full_attention is"
        )
    for name, value in keys.items():
        # A key we have never heard of may pass only where it is visibly switched off.
        if name not in known and name != "layer_types" and value not in (None, False, 0, "", [], {}):
            raise UsageError(
                f"config.json: {name} = {value!r} is not understood for {architecture.name}, and may change what the "
                "model computes; if you know that it does not, remove the key"
            )


def _check_sizes(config: ModelConfig) -> None:
    attention = config.attention
    if isinstance(attention, FullAttention) and attention.head_dim is None and config.width % config.heads:
        raise IntegrityError(f"config.json: width {config.width} does not divide into {config.heads} heads")
    if config.heads % config.kv_heads:
        raise IntegrityError(f"config.json: {config.heads} heads do not divide among {config.kv_heads} key-value heads")
    if config.position.kind == "rope" and config.head_dim % 2:
        raise IntegrityError(f"config.json: rotary positions need an even head width, not {config.head_dim}")


def _nest(flat: Mapping[str, Any]) -> Json:
    tree: Json = {}
    for path, value in flat.items():
        *parents, leaf = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


def _validated(tree: Any) -> ModelConfig:
    try:
        return ModelConfig.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise IntegrityError(f"config.json: {where or 'model'}: {first['msg']} (found {first['input']!r})") from error


def why_native(config: ModelConfig) -> str:
    """One sentence on why `config` is written under our own names: what the nearest architecture lacks."""
    nearest = min(ARCHITECTURES, key=lambda each: (len(misfits(config, each)), each is not LLAMA))
    return f"no architecture of transformers represents it exactly; nearest is {nearest.name}: " + "; ".join(
        misfits(config, nearest)
    )
