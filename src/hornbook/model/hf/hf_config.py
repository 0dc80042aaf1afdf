"""config.json <-> ModelConfig, by the tables of `hf/tables`.

The one idea: nothing is left out silently. A `ModelConfig` fits an architecture only if what the table writes of it
reads back as the same configuration, layer by layer; a foreign config.json is read only if every key of it is mapped,
known to be without effect, or switched off. Where no table fits, the same file carries our own configuration.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from hornbook.errors import HornbookError, IntegrityError, UsageError
from hornbook.model.config.head_config import ClassificationHead, LabelHeadConfig, RegressionHead
from hornbook.model.config.model_checks import model_problems
from hornbook.model.config.model_config import ModelConfig, NoMTP
from hornbook.model.config.replaced_config import NoGenerator, ReplacedHead
from hornbook.model.hf.differences import differences, flatten, typical
from hornbook.model.hf.remote.source import remote_class, remote_keys
from hornbook.model.hf.tables.known import ARCHITECTURES, INERT, NATIVE
from hornbook.model.hf.tables.vocabulary_names import Architecture, Codec, Json, Key
from hornbook.settings.fields import refuse_untrusted_parts

LARGEST_SIZE = 2**40
"""No number of a model's configuration is larger."""


def misfits(config: ModelConfig, architecture: Architecture) -> list[str]:
    """Why `architecture` cannot represent `config` exactly; empty if it can."""
    flat, reasons = flatten(typical(config)), []
    for path, value in architecture.requires.items():
        if flat.get(path) != value:
            reasons.append(f"{path} is {flat.get(path)!r}, it has only {value!r}")
    for key in architecture.keys:
        values = [flat[path] for path in key.ours if path in flat]
        if len(set(values)) > 1:
            reasons.append(f"{' and '.join(key.ours)} differ, its {key.theirs} sets both")
        if key.values and values and values[0] not in key.values.values():
            reasons.append(f"its {key.theirs} has no {values[0]!r}")
    if reasons:
        return reasons
    if architecture.whole_heads and config.width % config.heads:
        reasons.append("width: it refuses a width that does not divide into heads")
    try:
        tied = getattr(config.head, "tied", None) if architecture.head_by_file else None
        read = _translate(_written(config, architecture), architecture, tied)
    except HornbookError as error:
        return [*reasons, str(error)]
    known = {*flatten(typical(read)), "attention_norm"}
    for path, (ours, theirs) in differences(config, read).items():
        unknown = path.split(" ")[0] not in known
        reasons.append(f"it knows nothing of {path}" if unknown else f"{path} is {ours!r}, it has only {theirs!r}")
    return reasons


def choose_architecture(config: ModelConfig) -> Architecture | None:
    """The architecture that represents `config` exactly, or None."""
    return next((each for each in ARCHITECTURES if not misfits(config, each)), None)


def exported(config: ModelConfig) -> ModelConfig:
    """The configuration that an export has: without what serves training alone."""
    if isinstance(config.head, ReplacedHead):
        config = config.model_copy(update={"head": config.head.model_copy(update={"generator": NoGenerator()})})
    return config.model_copy(update={"mtp": NoMTP()})


def class_name(config: ModelConfig) -> str:
    """The class of transformers that an export has, or the one of its own modelling file."""
    architecture = choose_architecture(config)
    return architecture.name if architecture else remote_keys(config)["architectures"][0]


def describe_class(config: ModelConfig) -> str:
    """As which class a model will be exported, for people who have yet to train it."""
    config = exported(config)
    if choose_architecture(config) is not None:
        return f"{class_name(config)} of transformers"
    if remote_class(config) is None:
        return f"hornbook's own names alone, which no other program loads ({why_native(config)})"
    return f"{class_name(config)} with a modelling file of its own, for trust_remote_code=True ({why_native(config)})"


def to_json(config: ModelConfig, vocab: int, *, dtype: str, tokens: Mapping[str, int | None] | None = None) -> Json:
    """The content of config.json.

    `vocab` is the number of rows of the embedding, `dtype` the name of the stored type ("float32", "bfloat16"),
    `tokens` the ids of special tokens by their key. Both spellings of what was renamed between transformers 4 and 5 are
    written (torch_dtype, rope_theta). The key `hornbook` holds our own configuration: what theirs has no place for.
    """
    architecture = choose_architecture(config)
    keys: Json = {
        "architectures": [class_name(config)],
        "model_type": architecture.model_type if architecture else "hornbook",
        "vocab_size": vocab,
        "dtype": dtype,
        "torch_dtype": dtype,
        **(tokens or {}),
        "hornbook": {"model": config.model_dump(mode="json")},
    }
    if architecture is None:
        return keys | remote_keys(config)
    if isinstance(config.head, LabelHeadConfig) and keys.get("pad_token_id") is None:
        # It tells transformers where a text ends, whose last token carries the label; by habit that is the end token.
        keys["pad_token_id"] = keys.get("eos_token_id")
    keys |= _written(config, architecture)
    keys |= dict.fromkeys(architecture.dropout, config.dropout)
    keys |= dict.fromkeys(architecture.attention_dropout, getattr(config.attention, "dropout", 0.0))
    if architecture.std:
        keys[architecture.std] = getattr(config.init, "std", 0.02)
    if architecture.decoder_start:
        start = keys.get("decoder_start_token_id", keys.get(architecture.decoder_start))
        keys |= {"is_encoder_decoder": True, "decoder_start_token_id": start}
    return keys


def _written(config: ModelConfig, architecture: Architecture) -> Json:
    """The keys that say what the model computes."""
    flat, keys = flatten(typical(config)), dict(architecture.constant)
    for key in architecture.keys:
        value = flat.get(key.ours[0])
        spelling = {ours: theirs for theirs, ours in reversed(list(key.values.items()))}
        keys |= dict.fromkeys((key.theirs, *key.also), spelling.get(value, value))
    for codec in architecture.codecs:
        keys |= codec.write(config)
    return keys


def identify(keys: Json) -> Architecture | None:
    """The table for a config.json, None if it is our own; UsageError that lists what is known otherwise."""
    names = keys.get("architectures")
    names = names if isinstance(names, list) else []
    if any(str(name).startswith(NATIVE) for name in names):
        return None
    for each in ARCHITECTURES:
        if each.name in names or (not names and keys.get("model_type") == each.model_type):
            return each
    known = ", ".join([*(each.name for each in ARCHITECTURES), f"{NATIVE}..."])
    named = ", ".join(map(str, names)) or f"model_type {keys.get('model_type')!r}"
    raise UsageError(f"config.json: cannot read a model of the architecture {named}; known are {known}")


def from_json(keys: Json, *, tied: bool | None = None) -> tuple[ModelConfig, int]:
    """(configuration, rows of the embedding) of a config.json.

    Dropout belongs to training and is not taken from a foreign file. tied: whether the head is, where that is said by
    the tensors. Errors: UsageError naming the key where the file asks for what our Transformer does not compute;
    IntegrityError where it is not a configuration at all.
    """
    architecture = identify(keys)
    vocab = keys.get("vocab_size")
    if not isinstance(vocab, int) or isinstance(vocab, bool) or not 1 <= vocab < 2**31:
        raise IntegrityError(f"config.json: vocab_size must be a positive integer below 2^31, found {str(vocab)[:40]}")
    stored = _stored(keys)
    if architecture is None:
        if stored is None:
            raise IntegrityError(f"config.json: {keys['architectures'][0]} needs the key `hornbook`, which is missing")
        return stored, vocab
    config = _translate(keys, architecture, tied)
    if stored is None:
        _refuse_impossible(config)
        return config.model_copy(update={"vocab": vocab}), vocab
    return _agreeing(stored, config, architecture), vocab


def _stored(keys: Json) -> ModelConfig | None:
    own = keys.get("hornbook")
    if own is None:
        return None
    if not isinstance(own, dict) or "model" not in own:
        raise IntegrityError("config.json: the key `hornbook` holds no `model`")
    config = _validated(own["model"])
    _refuse_impossible(config)
    return config


def _refuse_impossible(config: ModelConfig) -> None:
    """Parts that do not go together, as a recipe is refused with them."""
    problems = dict.fromkeys(f"{key}: {text}" for key, text in model_problems(config))  # layers may share one
    if problems:
        raise IntegrityError(f"config.json: {'; '.join(problems)}")


def _agreeing(stored: ModelConfig, standard: ModelConfig, architecture: Architecture) -> ModelConfig:
    """`stored` if it says what the standard keys say: a file edited in one place only is not guessed at."""
    differing = differences(stored, standard)
    if differing or misfits(stored, architecture):
        what = ", ".join(differing) or "the architecture"
        raise IntegrityError(
            f"config.json: its key `hornbook` and its standard keys disagree about {what}; "
            "correct one, or remove the key `hornbook` to go by the standard ones"
        )
    return stored


def _translate(keys: Json, architecture: Architecture, tied: bool | None = None) -> ModelConfig:
    keys = _with_todays_names(keys, architecture)
    flat: dict[str, Any] = dict(architecture.requires)
    for key in architecture.keys:
        value = _value(keys, key)
        if value is not None or key.off:
            flat.update(dict.fromkeys(key.ours, value))
    if tied is not None:
        flat["head.tied"] = tied
    tree = _nest(flat)
    _check_counts(tree)
    for codec in architecture.codecs:
        _read_codec(codec, keys, tree)
    _refuse_unsupported(keys, architecture)
    return _validated(tree)


def _read_codec(codec: Codec, keys: Json, tree: Json) -> None:
    """Codecs reckon with values of an untrusted file: what they cannot reckon with is the file's fault."""
    try:
        codec.read(keys, tree)
    except HornbookError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        given = ", ".join(f"{name} = {keys[name]!r}" for name in codec.theirs if name in keys)
        raise IntegrityError(f"config.json: {given or 'sizes'}: values that make no sense ({error})") from error


def _with_todays_names(keys: Json, architecture: Architecture) -> Json:
    """What stands under the older name of a key only, under the key itself."""
    older = ((key.theirs, name) for key in architecture.keys for name in key.aliases)
    return {theirs: keys[name] for theirs, name in older if name in keys} | keys


def _value(keys: Json, key: Key) -> Any:
    """Our value of one key. Errors: UsageError."""
    value = keys.get(key.theirs, key.default)
    value = key.default if value is None and not key.off else value
    for other in key.also:
        if keys.get(other, value) != value:
            raise UsageError(
                f"config.json: {key.theirs} = {value!r} and {other} = {keys[other]!r} differ; here they must be equal"
            )
    if not key.values:
        return value
    if not isinstance(value, str | bool) or value not in key.values:
        known = ", ".join(map(str, key.values))
        raise UsageError(f"config.json: {key.theirs} {value!r} is not supported; known are {known}")
    return key.values[value]


def _refuse_unsupported(keys: Json, architecture: Architecture) -> None:
    for name, value in architecture.constant.items():
        if keys.get(name, value) != value:
            raise UsageError(f"config.json: {name} = {keys[name]!r} is not supported; only {value!r} is")
    known = _known_keys(architecture)
    layer_types = keys.get("layer_types")
    if "layer_types" not in known and layer_types and set(layer_types) != {"full_attention"}:
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


def _known_keys(architecture: Architecture) -> set[str]:
    known = {name for key in architecture.keys for name in (key.theirs, *key.also, *key.aliases)}
    known |= {name for codec in architecture.codecs for name in codec.theirs}
    return known | {*architecture.constant, *architecture.inert} | INERT


def _check_counts(tree: Json) -> None:
    """What codecs reckon with, before the whole is validated."""
    for name in ("layers", "width", "heads"):
        value = tree.get(name, 1)
        if type(value) is not int or value < 1:
            raise IntegrityError(f"config.json: {name}: a positive integer is expected, found {value!r}")


def _refuse_huge(tree: Any, path: str = "") -> None:
    """Sizes of which no tensor can be made. `path`: of the tree in our own configuration."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            _refuse_huge(value, f"{path}.{name}" if path else str(name))
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            _refuse_huge(value, f"{path}.{number}")
    elif isinstance(tree, int | float) and abs(tree) > LARGEST_SIZE:
        raise IntegrityError(f"config.json: {path}: {str(tree)[:30]} is more than any model has ({LARGEST_SIZE})")


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
    refuse_untrusted_parts(tree, "config.json")
    _refuse_huge(tree)
    try:
        return ModelConfig.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise IntegrityError(f"config.json: {where or 'model'}: {first['msg']} (found {first['input']!r})") from error


def why_native(config: ModelConfig) -> str:
    """One sentence on why `config` is written under our own names: what the nearest architecture lacks."""
    of_texts = isinstance(config.head, ClassificationHead | RegressionHead)  # these two share their classes

    def distance(each: Architecture) -> tuple[bool, bool, int, bool]:
        head = each.requires.get("head.kind", config.head.kind if of_texts else None) != config.head.kind
        stack = each.requires.get("kind", config.kind) != config.kind
        return head, stack, len(misfits(config, each)), not each.name.startswith("Llama")

    nearest = min(ARCHITECTURES, key=distance)
    return f"no architecture of transformers represents it exactly; nearest is {nearest.name}: " + "; ".join(
        misfits(config, nearest)
    )
