"""Merging sources of settings, by the schema.

In a union, a source that names another `kind` starts from that kind's defaults; a source that names none edits the
present kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hornbook.model.config.surgery_config import ADAPTERS
from hornbook.settings.errors import suggest
from hornbook.settings.fields import parse_number
from hornbook.settings.recipe import ALTERNATIVES, Recipe
from hornbook.settings.renamed import present_name, renamed, with_present_names
from hornbook.settings.schema import ROOT, Array, Leaf, Section, Shape, Table, defaults, field_name, shape_of
from hornbook.settings.sources import Given, Problem, Source, parse_toml, split_quoted
from hornbook.settings.toml import Path, dotted

TUNING = dict.fromkeys(("answer", "labels", "seq2seq"), 3) | dict.fromkeys(("dpo", "ipo", "orpo", "kto", "reward"), 1)
"""Objectives of fine-tuning -> passes over the data, where nobody gave the run a length of its own."""
ADAPTED = 1
"""The same of adapters that learn text."""


@dataclass
class Merge:
    """The defaults and the sources added so far: values as nested dicts, origins by path, problems."""

    tree: dict[str, Any] = field(default_factory=lambda: defaults(Recipe))
    origins: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    """What to say of former names, each once, in order."""
    tunes: bool = False
    """Whether a source that makes fine-tuning of a pretraining, and gives no length, has a length of its own: that of
    the recipe that it extends is of a pretraining."""

    def add(self, sources: Sequence[Source]) -> "Merge":
        """Add sources, each of which overrides those before it."""
        for source in sources:
            self.problems += source.problems
            self._alternatives(source.tree)
            pretrained = self.tunes and not _tuning_epochs(self.tree)
            self._section(ROOT, self.tree, source.tree, ())
            if pretrained and (epochs := _tuning_epochs(self.tree)) and not _gives_length(source.tree):
                drop(self.tree, ("train", "tokens"))
                self.tree["train"]["epochs"] = epochs
                self.origins |= dict.fromkeys((("train", "tokens"), ("train", "epochs")), "length of fine-tuning")
        return self

    def _alternatives(self, source: dict[str, Any]) -> None:
        """A source that gives one of two alternative settings and not the other takes the other back."""
        for one, other in ALTERNATIVES:
            for given, dropped in ((one, other), (other, one)):
                origin = _given_at(source, given)
                if origin is not None and _given_at(source, dropped) is None:
                    path = tuple(dropped.split("."))
                    drop(self.tree, path)
                    self.origins[path] = origin

    def _section(self, shape: Section, node: dict[str, Any], source: dict[str, Any], path: Path) -> None:
        self._kind(shape, node, source, path)
        shape = shape.including(node.get("kind"))
        model = shape.model(node.get("kind"))
        for word, value in source.items():
            name = _any_field(shape, word) or self._present_name((*path, word), value, source)
            if name is None:
                self._unknown((*path, word), value)
            elif model is None or (name == "kind" and "" not in shape.kinds):
                continue
            elif name not in model.model_fields:
                self._other_kind(shape, node, (*path, name), value)
            else:
                below = shape_of(model.model_fields[name].annotation)
                self._set_value(below, node, name, value, (*path, name))

    def _kind(self, shape: Section, node: dict[str, Any], source: dict[str, Any], path: Path) -> None:
        """Start from another kind's defaults where the source names one."""
        given = source.get("kind")
        if not isinstance(given, Given) or "" in shape.kinds:
            return
        kind = self._present(_typed(given, Leaf(str)), given, (*path, "kind"))
        if kind != node.get("kind"):
            model = shape.including(kind).kinds.get(kind) if isinstance(kind, str) else None
            node.clear()
            node.update(defaults(model) if model is not None else {"kind": kind})
            self.origins = {at: origin for at, origin in self.origins.items() if at[: len(path)] != path}
        self.origins[(*path, "kind")] = given.origin

    def _set_value(self, shape: Shape, node: dict[str, Any], name: str, value: Any, path: Path) -> None:
        if isinstance(shape, Section) and _names_kind(shape, value) and not (shape.optional and value.value == "none"):
            value = _with_number(shape, value) or {"kind": value}  # `optim.clip = 0.5`, `optim.schedule = "wsd"`
        if isinstance(shape, Section | Table) and isinstance(value, dict):
            below = node.get(name)
            if not isinstance(below, dict):
                below = node[name] = {}
            merge = self._section if isinstance(shape, Section) else self._table
            merge(shape, below, value, path)  # pyright: ignore[reportArgumentType]
            return
        typed = self._present(_typed(value, shape), value, path)
        self.origins = {at: origin for at, origin in self.origins.items() if at[: len(path)] != path}
        self.origins[path] = first_origin(value)
        if isinstance(value, Given):
            self.origins |= {(*path, *at): origin for at, origin in value.inside.items()}
        node[name] = typed

    def _table(self, shape: Table, node: dict[str, Any], source: dict[str, Any], path: Path) -> None:
        for name, value in source.items():
            if isinstance(value, Given) and value.value == "none":
                node.pop(name, None)
            else:
                self._set_value(shape.values, node, name, value, (*path, name))

    def _present_name(self, path: Path, value: Any, source: dict[str, Any]) -> str | None:
        """The present name for a former one, unless the same source gives that too."""
        name = present_name(path)
        if name is None or name in source:
            return None
        self.notes[f"{renamed(path, name)} ({first_origin(value)})"] = None
        return name

    def _present(self, typed: Any, value: Any, path: Path) -> Any:
        """A value with present names for former ones, inside of lists too."""

        def note(at: Path, sentence: str) -> None:
            inside = value.inside if isinstance(value, Given) else {}
            self.notes[f"{sentence} ({inside.get(at[len(path) :], first_origin(value))})"] = None

        return with_present_names(typed, path, note)

    def _unknown(self, path: Path, value: Any) -> None:
        if isinstance(value, dict) and value:
            for name, below in value.items():
                self._unknown((*path, name), below)
            return
        if (name := present_name(path)) is not None:
            text, hint = f"is now {name}, which is given too", "leave out one of the two"
        else:
            meant = suggest(dotted(path))
            text, hint = "no such setting", f"did you mean {' or '.join(meant)}?" if meant else ""
        self.problems.append(Problem(dotted(path), text, first_origin(value), hint))

    def _other_kind(self, shape: Section, node: dict[str, Any], path: Path, value: Any) -> None:
        kinds = [kind for kind, model in shape.kinds.items() if path[-1] in model.model_fields]
        key = dotted((*path[:-1], "kind"))
        owners = '" and "'.join(kinds)
        text = f'not a setting of kind "{node.get("kind")}", but of "{owners}"'
        hint = f'{key} = "{kinds[0]}" chooses it'
        self.problems.append(Problem(dotted(path), text, first_origin(value), hint))

    def origin(self, path: Path) -> str:
        """Origin of the longest known beginning of the path, else of its kind; a default's children are defaults."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return self.origins.get((*path, "kind"), "default")


def first_origin(value: Any) -> str:
    """Origin of a given value, or of the first one below."""
    if isinstance(value, Given):
        return value.origin
    for item in value.values():
        origin = first_origin(item)
        if origin:
            return origin
    return ""


def _any_field(shape: Section, word: str) -> str | None:
    """Name of the field in whichever kind has it."""
    return next((name for model in shape.kinds.values() if (name := field_name(model, word)) is not None), None)


def _names_kind(shape: Section, value: Any) -> bool:
    named = isinstance(value, Given) and (isinstance(value.value, str) or _with_number(shape, value) is not None)
    return named and "" not in shape.kinds


def _with_number(shape: Section, value: Given) -> dict[str, Given] | None:
    """The section that a plain number stands for, of the kind that says which of its settings it is (`number`).

    Where there is such a kind and none is called so, `none` is 0.
    """
    if value.value == "none" and "none" not in shape.kinds:
        value = replace(value, value=0, raw=False)
    number = parse_number(value.value)
    if not isinstance(number, int | float) or isinstance(number, bool):
        return None
    kinds = ((kind, name) for kind, model in shape.kinds.items() if (name := getattr(model, "number", None)))
    return next(({"kind": replace(value, value=kind, raw=False), name: value} for kind, name in kinds), None)


def _typed(value: Any, shape: Shape) -> Any:
    """The value for pydantic: raw text parsed as far as the schema asks, `none` as None."""
    if isinstance(value, dict):
        return {key: _typed(item, shape) for key, item in value.items()}
    given = value.value
    if isinstance(shape, Leaf | Section) and shape.optional and given == "none":
        return None
    if not value.raw:
        return _nones(given, shape)
    return _nones(_listed(given) if isinstance(shape, Array) else _unquoted(given), shape)


def _unquoted(text: str) -> str:
    parsed = parse_toml(text) if text[:1] in ('"', "'") else None
    return parsed if isinstance(parsed, str) else text


def _listed(text: str) -> Any:
    """A list in TOML, in brackets without the quotes, or its items with commas between; what is none of it as it is."""
    parsed = parse_toml(text)
    if isinstance(parsed, list):
        return parsed
    inside = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    items = [word.strip() for word in split_quoted(inside, ",".__eq__)]
    values = [parse_toml(item) if item[:1] in "[{" else _unquoted(item) for item in items if item]
    return text if None in values or inside[:1] == "[" else values


def _nones(value: Any, shape: Shape) -> Any:
    """Inside of lists too `none` is no value, where the schema has it."""
    if isinstance(value, list) and isinstance(shape, Array):
        return [_nones(item, shape.items) for item in value]
    if isinstance(value, dict) and isinstance(shape, Section):
        kind = value.get("kind")
        model = shape.including(kind).model(kind)
        known = model.model_fields if model is not None else {}
        return {
            name: _nones(each, shape_of(known[name].annotation)) if name in known else each
            for name, each in value.items()
        }
    return None if value == "none" and isinstance(shape, Leaf) and shape.optional else value


def _given_at(source: dict[str, Any], key: str) -> str | None:
    node: Any = source
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node.origin if isinstance(node, Given) and node.value != "none" else None


def drop(tree: dict[str, Any], path: Path) -> None:
    """Remove the value at the path, or the list that holds it."""
    node: Any = tree
    for part in path[:-1]:
        below = node.get(part) if isinstance(node, dict) else None
        if not isinstance(below, dict):
            path = path[: path.index(part) + 1] if isinstance(below, list) else path
            break
        node = below
    if isinstance(node, dict):
        node.pop(path[-1], None)


def _tuning_epochs(tree: dict[str, Any]) -> int:
    """Passes over the data of a fine-tuning, 0 of a pretraining."""
    kinds = [each.get("kind") if isinstance(each, dict) else each for each in tree.get("surgery") or ()]
    adapted = ADAPTED if set(kinds) & set(ADAPTERS.split(", ")) else 0
    return TUNING.get(tree["data"]["objective"]["kind"], adapted)


def _gives_length(source: dict[str, Any]) -> bool:
    return any(_given_at(source, f"train.{name}") is not None for name in ("tokens", "epochs"))
