"""From files, environment and command line to one frozen `Recipe`, with the origin of every value.

Layers are laid over the defaults in the order default < extends chain < recipe < environment < command
line. The merge walks the schema, so that unions come out right: a layer that names another `kind` starts
from that kind's defaults, a layer that does not name one edits the present one. All problems are
collected and raised at once.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hornbook.errors import UsageError
from hornbook.fields import Config
from hornbook.layers import Given, Layer, Problem, command_line_layer, environment_layer, parse_toml, read_recipe
from hornbook.messages import problem_of
from hornbook.recipe import ALTERNATIVES, Recipe, cross_check
from hornbook.schema import (
    ROOT,
    Leaf,
    Listing,
    Path,
    Section,
    Shape,
    Table,
    defaults,
    dotted,
    field_name,
    plain,
    shape_of,
    suggest,
)


class ConfigError(UsageError):
    """Everything that is wrong with a configuration, one line per problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: problem.key)
        count = len(self.problems)
        lines = [f"{count} problem{'s' if count > 1 else ''} in the configuration"]
        for problem in self.problems:
            words = [problem.key, problem.text, f"({problem.origin})" if problem.origin else ""]
            lines.append("  " + "  ".join(word for word in words if word))
            if problem.hint:
                lines.append(f"      {problem.hint}")
        super().__init__("\n".join(lines))


@dataclass(frozen=True)
class Resolved:
    """A recipe, and for each of its dotted keys where the value came from (`default` if nobody set it)."""

    recipe: Recipe
    origins: dict[str, str]

    def to_toml(self) -> str:
        """The whole recipe as TOML, each value with its origin as a comment; itself a valid recipe."""
        from hornbook.listing import recipe_toml

        return recipe_toml(self.recipe, self.origins)

    def explain(self, key: str) -> str:
        """What is known of one setting: doc, type, range, default, value, origin. Raises UsageError."""
        from hornbook.listing import explain

        return explain(self.recipe, self.origins, key)


def resolve(target: str | None, overrides: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Resolved:
    """The recipe that `target`, the environment and `overrides` make together.

    `target` is the name of a shipped recipe, a TOML file, or a run directory; None starts from the defaults.
    `overrides` are words as on the command line: `--a.b v`, `--a.b=v`, `a.b=v`, `--flag`, `--no-flag`.
    Raises ConfigError with all problems at once.
    """
    layers = read_recipe(target) if target is not None else []
    layers += [environment_layer(environ), command_line_layer(overrides)]
    return Merge().lay(layers).judge()


@dataclass
class Merge:
    """Layers laid over the defaults so far: values as nested dicts, origins by path, problems."""

    tree: dict[str, Any] = field(default_factory=lambda: defaults(Recipe))
    origins: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def lay(self, layers: Sequence[Layer]) -> "Merge":
        """Lay the layers over what is there, the first lowest."""
        for layer in layers:
            self.problems += layer.problems
            self._alternatives(layer.tree)
            self._section(ROOT, self.tree, layer.tree, ())
        return self

    def judge(self) -> Resolved:
        """The validated recipe; raises ConfigError."""
        try:
            recipe = Recipe.model_validate(self.tree)
        except ValidationError as error:
            recipe = None
            for item in error.errors(include_url=False):
                path = _fault_path(item)
                self.problems.append(problem_of(item, path, self._origin(path)))
            rest = self._without_faults(error)
        else:
            rest = recipe
        self._cross_check(rest)
        if self.problems or recipe is None:
            raise ConfigError(self.problems)
        return Resolved(recipe, {dotted(path): self._origin(path) for path, _ in leaves(recipe)})

    def _alternatives(self, layer: dict[str, Any]) -> None:
        """A layer that gives one of two alternative settings and not the other takes the other back."""
        for one, other in ALTERNATIVES:
            for given, dropped in ((one, other), (other, one)):
                origin = _given_at(layer, given)
                if origin is not None and _given_at(layer, dropped) is None:
                    path = tuple(dropped.split("."))
                    _drop(self.tree, path)
                    self.origins[path] = origin

    def _section(self, shape: Section, node: dict[str, Any], layer: dict[str, Any], path: Path) -> None:
        self._kind(shape, node, layer, path)
        model = shape.model(node.get("kind"))
        for word, value in layer.items():
            name = _any_field(shape, word)
            if name is None:
                self._unknown((*path, word), value)
            elif model is None or name == "kind":
                continue
            elif name not in model.model_fields:
                self._other_kind(shape, node, (*path, name), value)
            else:
                below = shape_of(model.model_fields[name].annotation)
                self._lay_value(below, node, name, value, (*path, name))

    def _kind(self, shape: Section, node: dict[str, Any], layer: dict[str, Any], path: Path) -> None:
        """Start from another kind's defaults where the layer names one."""
        given = layer.get("kind")
        if not isinstance(given, Given) or _any_field(shape, "kind") is None:
            return
        kind = _typed(given, Leaf(str))
        if kind != node.get("kind"):
            model = shape.kinds.get(kind) if isinstance(kind, str) else None
            node.clear()
            node.update(defaults(model) if model is not None else {"kind": kind})
            self.origins = {at: origin for at, origin in self.origins.items() if at[: len(path)] != path}
        self.origins[(*path, "kind")] = given.origin

    def _lay_value(self, shape: Shape, node: dict[str, Any], name: str, value: Any, path: Path) -> None:
        if isinstance(shape, Section) and isinstance(value, Given) and isinstance(value.value, str):
            value = {"kind": value}  # `optim.schedule = "wsd"` names the kind
        if isinstance(shape, Section | Table) and isinstance(value, dict):
            below = node.get(name)
            if not isinstance(below, dict):
                below = node[name] = {}
            lay = self._section if isinstance(shape, Section) else self._table
            lay(shape, below, value, path)  # pyright: ignore[reportArgumentType]
            return
        typed = _typed(value, shape)
        self.origins = {at: origin for at, origin in self.origins.items() if at[: len(path)] != path}
        self.origins[path] = first_origin(value)
        node[name] = typed

    def _table(self, shape: Table, node: dict[str, Any], layer: dict[str, Any], path: Path) -> None:
        for name, value in layer.items():
            if isinstance(value, Given) and value.value == "none":
                node.pop(name, None)
            else:
                self._lay_value(shape.values, node, name, value, (*path, name))

    def _unknown(self, path: Path, value: Any) -> None:
        meant = suggest(dotted(path))
        hint = f"did you mean {' or '.join(meant)}?" if meant else ""
        self.problems.append(Problem(dotted(path), "no such setting", first_origin(value), hint))

    def _other_kind(self, shape: Section, node: dict[str, Any], path: Path, value: Any) -> None:
        kinds = [kind for kind, model in shape.kinds.items() if path[-1] in model.model_fields]
        key = dotted((*path[:-1], "kind"))
        text = f'not a setting of kind "{node.get("kind")}", but of {" and ".join(repr_toml(kind) for kind in kinds)}'
        hint = f'{key} = "{kinds[0]}" chooses it'
        self.problems.append(Problem(dotted(path), text, first_origin(value), hint))

    def _origin(self, path: Path) -> str:
        """Origin of the longest known beginning of the path; a default's children are defaults."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return "default"

    def _without_faults(self, error: ValidationError) -> Recipe | None:
        """The recipe with its faulty values set back to defaults, so that sections can still be compared."""
        for item in error.errors(include_url=False, include_input=False, include_context=False):
            _drop(self.tree, _fault_path(item))
        try:
            return Recipe.model_validate(self.tree)
        except ValidationError:
            return None

    def _cross_check(self, recipe: Recipe | None) -> None:
        reported = {problem.key for problem in self.problems}
        for key, text in cross_check(recipe) if recipe is not None else []:
            mentioned = [key, *re.findall(r"[a-z_]+(?:\.[a-z_]+)+", text)]
            if reported.isdisjoint(mentioned):
                origins = [self._origin(tuple(name.split("."))) for name in mentioned]
                self.problems.append(Problem(key, text, next((o for o in origins if o != "default"), "default")))


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """(path, plain value) of every leaf of a config; lists are leaves, empty tables have none."""
    if isinstance(value, Config):
        value = {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*path, name))
    else:
        yield path, value


def repr_toml(text: str) -> str:
    """Text in double quotes."""
    return f'"{text}"'


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


def _typed(value: Any, shape: Shape) -> Any:
    """The value for pydantic: raw text parsed as far as the schema asks, `none` as None."""
    if isinstance(value, dict):
        return {key: _typed(item, shape) for key, item in value.items()}
    given = value.value
    if isinstance(shape, Leaf) and shape.optional and given == "none":
        return None
    if not value.raw:
        return given
    if given[:1] in ('"', "'"):
        parsed = parse_toml(given)
        given = parsed if isinstance(parsed, str) else given
    elif isinstance(shape, Listing):
        parsed = parse_toml(given)
        given = parsed if isinstance(parsed, list) else [given]
    return given


def _fault_path(item: ErrorDetails) -> Path:
    """The path of the setting that a pydantic error is about."""
    path = _strip_tags(item["loc"])
    return (*path, "kind") if item["type"] in ("union_tag_invalid", "union_tag_not_found") else path


def _strip_tags(location: tuple[int | str, ...]) -> Path:
    """The path of a pydantic error without the union tags that pydantic puts into it."""
    path: Path = ()
    shape: Shape | None = ROOT
    for part in location:
        if isinstance(shape, Section) and len(shape.kinds) > 1 and part in shape.kinds:
            shape = Section({"": shape.kinds[str(part)]})
            continue
        path = (*path, part)
        if isinstance(shape, Section):
            field_info = next((m.model_fields[str(part)] for m in shape.kinds.values() if part in m.model_fields), None)
            shape = shape_of(field_info.annotation) if field_info is not None else None
        elif isinstance(shape, Table):
            shape = shape.values
        elif isinstance(shape, Listing):
            shape = shape.items
    return path


def _given_at(layer: dict[str, Any], key: str) -> str | None:
    node: Any = layer
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node.origin if isinstance(node, Given) and node.value != "none" else None


def _drop(tree: dict[str, Any], path: Path) -> None:
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
