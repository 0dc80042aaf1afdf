"""The schema of settings, read from the pydantic models.

It has the shape of every node, and the table of all dotted keys of all kinds.
"""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hornbook.settings.fields import Config, Duration, field_docs, outside_part
from hornbook.settings.recipe import Recipe
from hornbook.settings.toml import Path

REQUIRED: Any = PydanticUndefined
"""The default of a setting that must be given."""


@dataclass(frozen=True)
class Section:
    """A config class, or several told apart by `kind` (the only key is "" where there is no `kind`)."""

    kinds: dict[str, type[Config]]
    optional: bool = False
    """Whether it may be absent, written `none`."""

    def model(self, kind: Any) -> type[Config] | None:
        """The class of a kind; if there is no choice, the only class."""
        if "" in self.kinds:
            return self.kinds[""]
        return self.kinds.get(kind) if isinstance(kind, str) else None

    def including(self, kind: Any) -> "Section":
        """This section with the user's part whose import path `kind` is, if it is one."""
        try:
            found = outside_part(kind)
        except ValueError:  # validation says what is wrong with it
            found = None
        return self if found is None else Section({**self.kinds, kind: found}, self.optional)


@dataclass(frozen=True)
class Table:
    """A dict whose names the user chooses."""

    values: "Shape"


@dataclass(frozen=True)
class Array:
    """A list; a source replaces it as a whole."""

    items: "Shape"


@dataclass(frozen=True)
class Leaf:
    """A value."""

    annotation: Any
    optional: bool = False


Shape = Section | Table | Array | Leaf


def kind_of(model: type[Config]) -> str:
    """The value of `kind` that names this class; "" if it has none, or a choice of several as any other setting."""
    field = model.model_fields.get("kind")
    names = get_args(field.annotation) if field is not None else ()
    return names[0] if len(names) == 1 else ""


def shape_of(annotation: Any) -> Shape:
    """The shape of a type annotation of a config field."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        members = [member for member in arguments if member is not type(None)]
        shapes = [shape_of(member) for member in members]
        if all(isinstance(shape, Section) for shape in shapes):
            kinds = {kind: model for shape in shapes for kind, model in shape.kinds.items()}  # pyright: ignore
            return Section(kinds, len(members) < len(arguments))
        assert all(isinstance(shape, Leaf) for shape in shapes), f"a field mixes sections and values: {annotation}"
        kinds = [shape.annotation for shape in shapes]  # pyright: ignore
        return Leaf(kinds[0] if len(kinds) == 1 else _one_choice(kinds) or annotation, len(members) < len(arguments))
    if origin is dict:
        return Table(shape_of(arguments[1]))
    if origin is list:
        return Array(shape_of(arguments[0]))
    if isinstance(annotation, type) and issubclass(annotation, Config) and annotation is not Duration:
        return Section({kind_of(annotation): annotation})
    return Leaf(annotation)


def _one_choice(members: list[Any]) -> Any:
    """Several choices of values as one; None where a member is no choice."""
    choices = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    return Literal[tuple(choices)] if all(get_origin(member) is Literal for member in members) else None


ROOT = Section({"": Recipe})


def field_name(model: type[Config], word: str) -> str | None:
    """The field a person means by `word` (`-` and `_` are equal), None if there is none."""
    name = word.replace("-", "_")
    return name if name in model.model_fields else None


def shapes_at(path: tuple[str | int, ...], shape: Shape = ROOT) -> list[Shape]:
    """All shapes the dotted path may have, one per kind on the way that knows it; empty if none does."""
    if not path:
        return [shape]
    if isinstance(shape, Table):
        return shapes_at(path[1:], shape.values)
    if not isinstance(shape, Section):
        return []
    found = []
    for model in shape.kinds.values():
        name = field_name(model, str(path[0]))
        if name is not None:
            found += shapes_at(path[1:], shape_of(model.model_fields[name].annotation))
    return found


def defaults(model: type[Config]) -> dict[str, Any]:
    """Default values of a class as nested dicts; fields without a default are left out."""
    values = {}
    for name, field in model.model_fields.items():
        if not field.is_required():
            values[name] = plain(field.get_default(call_default_factory=True))
    return values


def plain(value: Any) -> Any:
    """A config value as nested dicts, lists and scalars; durations as the text that is read back."""
    if isinstance(value, Duration):
        return value.model_dump()
    if isinstance(value, Config):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_briefly(item) for item in value]
    return value


def _briefly(value: Any) -> Any:
    """As `plain`, without what is at its default: an item of a list is read where it stands, all on one line."""
    if not isinstance(value, Config) or isinstance(value, Duration):
        return plain(value)
    kept = {}
    for name, field in type(value).model_fields.items():
        given = getattr(value, name)
        if name == "kind" or field.is_required() or given != field.get_default(call_default_factory=True):
            kept[name] = _briefly(given)
    return kept


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """(path, plain value) of every leaf of a config; lists are leaves, empty tables have none."""
    if isinstance(value, Config):
        value = {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*path, name))
    else:
        yield path, value


@dataclass(frozen=True)
class Setting:
    """One leaf of the schema, in one of the kinds that have it."""

    key: str
    doc: str
    type: str
    range: str
    default: Any
    where: str
    """Condition under which the setting exists, such as `optim.schedule.kind = "wsd"`; "" if always."""


@cache
def settings() -> dict[str, list[Setting]]:
    """Every dotted key with its variants over all kinds; `*` stands for a name the user chooses."""
    table: dict[str, list[Setting]] = {}
    for setting in _walk(ROOT, "", defaults(Recipe), ""):
        variants = table.setdefault(setting.key, [])
        if setting not in variants:  # several kinds have the same section below them
            variants.append(setting)
    return table


@cache
def item_settings() -> dict[str, list[Setting]]:
    """What an item of a list may say, under the list's key and the item's kind: `text.steps.near_dedup.keep`."""
    table: dict[str, list[Setting]] = {}
    for key in settings():
        for shape in shapes_at(tuple(key.split("."))):
            if isinstance(shape, Array) and isinstance(shape.items, Section):
                for kind, model in shape.items.kinds.items():
                    for setting in _walk(Section({"": model}), f"{key}.{kind or '*'}.", None, ""):
                        variants = table.setdefault(setting.key, [])
                        if setting not in variants:  # several kinds have the same list
                            variants.append(setting)
    return table


def _walk(shape: Section, prefix: str, present: Any, where: str) -> Iterator[Setting]:
    if len(shape.kinds) > 1:
        yield _kind_setting(shape, prefix, present, where)
    for kind, model in shape.kinds.items():
        condition = where if len(shape.kinds) == 1 else f'{prefix}kind = "{kind}"'
        values = present if isinstance(present, dict) and present.get("kind", "") == kind else defaults(model)
        docs = field_docs(model)
        for name, field in model.model_fields.items():
            if name == "kind" and len(shape.kinds) > 1:
                continue
            yield from _walk_field(field, prefix + name, values.get(name, REQUIRED), condition, docs.get(name, ""))


def _kind_setting(shape: Section, prefix: str, present: Any, where: str) -> Setting:
    chosen = present["kind"] if isinstance(present, dict) else REQUIRED
    doc = "; ".join(f"{kind}: {_first_line(model)}" for kind, model in shape.kinds.items())
    return Setting(f"{prefix}kind", doc, " | ".join(f'"{kind}"' for kind in shape.kinds), "", chosen, where)


def _first_line(model: type[Config]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0].rstrip(".") if model.__doc__ else ""


def _walk_field(field: FieldInfo, key: str, default: Any, where: str, doc: str) -> Iterator[Setting]:
    shape = shape_of(field.annotation)
    if isinstance(shape, Section):
        yield from _walk(shape, f"{key}.", default, where)
    elif isinstance(shape, Table) and isinstance(shape.values, Section):
        yield from _walk(shape.values, f"{key}.*.", None, where)
    else:
        name = f"{key}.*" if isinstance(shape, Table) else key
        shown = REQUIRED if isinstance(shape, Table) else default
        yield Setting(name, doc, type_text(shape), range_text(field), shown, where)


def type_text(shape: Shape) -> str:
    """A type in words: `integer`, `"bf16" | "fp32"`, `list of string`."""
    if isinstance(shape, Array):
        return f"list of {type_text(shape.items)}"
    if isinstance(shape, Table):
        return f"table of {type_text(shape.values)}"
    if isinstance(shape, Section):
        return "table" if "" in shape.kinds else "table with kind " + " | ".join(f'"{kind}"' for kind in shape.kinds)
    text = _leaf_text(shape.annotation)
    return f"{text} | none" if shape.optional else text


def _leaf_text(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(f'"{choice}"' for choice in inner)
    if origin is tuple:
        return f"[{', '.join(map(_leaf_text, inner))}]"
    if origin is Annotated:
        return _leaf_text(inner[0])
    if origin is Union:
        return " | ".join(map(_leaf_text, inner))
    return {bool: "true | false", int: "integer", float: "number", str: "string", Duration: "duration"}[annotation]


def range_text(field: FieldInfo) -> str:
    """The limits of a field, such as `> 0, <= 1`."""
    limits = []
    for item in field.metadata:
        for kind, sign, name in ((Ge, ">=", "ge"), (Gt, ">", "gt"), (Le, "<=", "le"), (Lt, "<", "lt")):
            if isinstance(item, kind):
                limits.append(f"{sign} {getattr(item, name)}")
        if isinstance(item, MinLen):
            limits.append(f"at least {item.min_length}")
    return ", ".join(limits)
