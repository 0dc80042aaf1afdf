"""Every architecture that can be read and written: the tables of this folder, put together.

A table of a `.toml` file is a class of transformers, or, in lower case, what several classes have in common.

| entry | meaning |
|---|---|
| `like` | tables that this one goes on from, entry by entry; of two that say the same thing the later counts |
| `stack` | a class whose stack this one has with another head: its table, less what belongs to the head |
| `prefix` | as in `Architecture`; tensors of other tables that begin with their prefix get this one |
| `keys` | key of config.json = ours (one or several), or the fields of `Key`; `values` are spellings or "activations" |
| `tensors` | tensor of theirs, or module with weight and bias = ours; several lie side by side, or are `either` |
| `codecs` | name in `CODECS` = its options |
| all else | fields of `Architecture` |

TOML has no null: the word "null" stands for it.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from hornbook.model.hf.differences import leaves
from hornbook.model.hf.tables import config_values as values
from hornbook.model.hf.tables import label_names as labels
from hornbook.model.hf.tables import layer_names as layers
from hornbook.model.hf.tables import rope
from hornbook.model.hf.tables.vocabulary_names import ACTIVATIONS, Architecture, Codec, Form, Json, Key, Row

NATIVE = "HornbookFor"
"""How names of classes begin that no table represents: the same files under our own names."""
FAMILIES = ("gpt", "llama", "experts", "encoders", "encoder_decoders", "labels")
"""Files in the order in which their classes are tried."""
CODECS: dict[str, Codec | Callable[..., Codec]] = labels.CODECS | layers.CODECS | rope.CODECS | values.CODECS
"""By the name that tables have for it; what is called takes options."""


def read_toml(name: str) -> Json:
    """The content of a file of this folder."""
    return _with_null(tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8")))


def _with_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_null(each) for key, each in value.items()}
    return None if value == "null" else value


def _read_architectures() -> tuple[Architecture, ...]:
    tables: dict[str, Json] = {}
    for family in FAMILIES:
        for name, given in read_toml(family).items():
            tables[name] = _combined(given, tables)
    return tuple(_architecture(name, table) for name, table in tables.items() if is_class(name))


def is_class(name: str) -> bool:
    """Whether a table is of a class of transformers; the others, in lower case, hold what classes have in common."""
    return name[0].isupper()


def _combined(given: Json, tables: Mapping[str, Json]) -> Json:
    """A table with all that it goes on from; `keys` and `tensors` with a list `ours`, `requires` by dotted key."""
    own: Json = given | {field: _with_lists(given[field]) for field in ("keys", "tensors") if field in given}
    if "requires" in own:
        own["requires"] = dict(leaves(own["requires"]))
    found = _without_head(tables[own.pop("stack")]) if "stack" in own else {}
    for table in (*(tables[name] for name in own.pop("like", ())), own):
        found = _merged(found, table)
    return found


def _with_lists(entries: Mapping[str, Any]) -> Json:
    found = {}
    for theirs, given in entries.items():
        fields = given if isinstance(given, dict) else {"ours": given}
        ours = fields["ours"]
        found[theirs] = fields | {"ours": [ours] if isinstance(ours, str) else ours}
    return found


def _without_head(table: Json) -> Json:
    """The table of a class's stack; keys that said something of the head alone are without effect."""
    ours = {key: [path for path in each["ours"] if not path.startswith("head.")] for key, each in table["keys"].items()}
    tensors = table["tensors"].items()
    return table | {
        "keys": {key: each | {"ours": ours[key]} for key, each in table["keys"].items() if ours[key]},
        "tensors": {theirs: each for theirs, each in tensors if not each["ours"][0].startswith("head.")},
        "requires": {path: value for path, value in table["requires"].items() if not path.startswith("head.")},
        "inert": [*table.get("inert", ()), *(key for key, paths in ours.items() if not paths)],
        "copies": {},
        "unused": [],
    }


def _merged(base: Json, table: Json) -> Json:
    """`base` with the entries of `table`, those of inner tables one by one."""
    old, new = base.get("prefix"), table.get("prefix")
    if old and new is not None:
        base = base | {"tensors": {_renamed(theirs, old, new): each for theirs, each in base["tensors"].items()}}
    inner = {field: base[field] | each for field, each in table.items() if isinstance(base.get(field), dict)}
    return base | table | inner


def _renamed(theirs: str, old: str, new: str) -> str:
    return new + theirs.removeprefix(old) if theirs.startswith(old) else theirs


def _architecture(name: str, table: Json) -> Architecture:
    codecs = ((CODECS[codec], options) for codec, options in table.get("codecs", {}).items())
    made = {
        "name": name,
        "keys": [_key(theirs, **fields) for theirs, fields in table["keys"].items()],
        "rows": [row for theirs, fields in table["tensors"].items() for row in _rows(theirs, **fields)],
        "codecs": [codec if isinstance(codec, Codec) else codec(**options) for codec, options in codecs],
    }
    return Architecture(**{field: each for field, each in table.items() if field != "tensors"} | made)


def _key(theirs: str, *, values: Any = (), **fields: Any) -> Key:
    key = Key(theirs, values=ACTIVATIONS if values == "activations" else dict(values), **fields)
    if key.default not in key.values:
        return key
    return replace(key, values={key.default: key.values[key.default], **key.values})  # the first one is written


def _rows(
    theirs: str, ours: list[str], form: Form = "same", beside: str = "", *, either: bool = False
) -> Iterator[Row]:
    """The rows of one tensor of theirs, or of the weight and the bias of one module; a bias is never transposed."""
    for number, own in enumerate(ours):
        part = 0 if either else number
        if own.endswith((".weight", ".bias")) or theirs.endswith(".weight"):
            yield Row(own, theirs, form, part, beside)
        else:
            yield Row(f"{own}.weight", f"{theirs}.weight", form, part)
            yield Row(f"{own}.bias", f"{theirs}.bias", "same" if form == "transposed" else form, part)


ARCHITECTURES = _read_architectures()
"""All of them, in the order in which they are tried."""
INERT = frozenset(chain.from_iterable(read_toml("inert").values()))
"""Keys of config.json that do not change the logits of any model here, or are dealt with apart."""
