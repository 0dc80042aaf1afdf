"""Resolve files, environment and command line to one frozen `Recipe`, with the origin of every value.

Later sources override earlier ones: defaults, chain of `extends`, recipe, environment, command line. All problems are
collected and raised at once.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hornbook.errors import UsageError
from hornbook.model.config.mup import derived_factors, differs, with_value
from hornbook.settings.errors import problem_of
from hornbook.settings.merge import Merge, drop
from hornbook.settings.recipe import Recipe, cross_check
from hornbook.settings.recipe_files import read_recipe
from hornbook.settings.renamed import present_path
from hornbook.settings.schema import ROOT, Array, Section, Shape, Table, leaves, plain, shape_of, shapes_at
from hornbook.settings.sources import Problem, Source, command_line_source, environment_source, split_key
from hornbook.settings.toml import Path, dotted

_log = logging.getLogger(__name__)


class ConfigError(UsageError):
    """All problems of a configuration, one line each."""

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
    """A recipe, and the origin of each value by dotted key (`default` if no source gives it)."""

    recipe: Recipe
    origins: dict[str, str]

    def to_toml(self) -> str:
        """The whole recipe as TOML, each value with its origin as a comment; itself a valid recipe."""
        from hornbook.settings.show import recipe_toml

        return recipe_toml(self.recipe, self.origins)


def resolve(target: str | None, overrides: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Resolved:
    """The recipe that `target`, the environment and `overrides` give together.

    `target` is the name of a shipped recipe, a TOML file, or a run directory; None starts from the defaults.
    `overrides` are words as on the command line: `--a.b v`, `--a.b=v`, `a.b=v`, `--flag`, `--no-flag`.
    Raises ConfigError with all problems at once.
    """
    sources = read_recipe(target) if target is not None else []
    sources += [environment_source(environ), command_line_source(overrides)]
    merge = Merge(tunes=True).add(sources)
    for note in merge.notes:
        _say(note)
    return _judge(merge)


def override(resolved: Resolved, sources: Sequence[Source]) -> Resolved:
    """A complete recipe with further sources of settings on top. Raises ConfigError with all problems at once."""
    origins: dict[Path, str] = {split_key(key): origin for key, origin in resolved.origins.items()}
    return _judge(Merge(plain(resolved.recipe), origins).add(sources))


@cache
def _say(note: str) -> None:
    """Log a line, once in a process: the recipe of a run is read several times."""
    _log.warning("%s", note)


def _judge(merge: Merge) -> Resolved:
    """The validated recipe; raises ConfigError."""
    recipe = comparable = None
    faults: set[Path] = set()
    try:
        recipe = comparable = Recipe.model_validate(merge.tree)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            path = _fault_path(item)
            merge.problems.append(problem_of(item, path, merge.origin(path)))
            faults.add(path[:-1] if path[-1] == "kind" else path)  # for a wrong `kind`, its whole section
        comparable = _without(merge, faults)
    if comparable is not None:
        merge.problems += _cross_problems(merge, comparable, {dotted(path) for path in faults})
        merge.problems += _unknown_swaps(merge, comparable)
    if merge.problems or recipe is None:
        raise ConfigError(merge.problems)
    return _with_factors(merge, recipe)


def _with_factors(merge: Merge, recipe: Recipe) -> Resolved:
    """The recipe with the factors that `model.init` implies. Raises ConfigError if a setting contradicts them."""
    origins = {dotted(path): merge.origin(path) for path, _ in leaves(recipe)}
    for below, wanted in derived_factors(recipe.model).items():
        path, given = ("model", *below), _value(recipe, ("model", *below))
        key = dotted(path)
        if merge.origin(path) == "default":
            recipe, origins[key] = with_value(recipe, path, wanted), f"model.init.kind = {recipe.model.init.kind}"
        elif differs(given, wanted):
            text = f"is {given}, but model.init.kind {recipe.model.init.kind} makes it {wanted:g}: leave it out"
            merge.problems.append(Problem(key, text, merge.origin(path)))
    if merge.problems:
        raise ConfigError(merge.problems)
    return Resolved(recipe, origins)


def _value(recipe: Recipe, path: Path) -> Any:
    node: Any = recipe
    for part in path:
        node = node[part] if isinstance(part, int) else getattr(node, part)
    return node


def _without(merge: Merge, faults: set[Path]) -> Recipe | None:
    """The recipe with defaults for the faulty settings, so that the others can still be cross-checked."""
    for path in faults:
        drop(merge.tree, path)
    try:
        return Recipe.model_validate(merge.tree)
    except ValidationError:
        return None


def _cross_problems(merge: Merge, recipe: Recipe, faulty: set[str]) -> list[Problem]:
    """Problems between sections, except those that name a faulty setting or one below it."""
    problems = []
    for key, text in cross_check(recipe):
        mentioned = [key, *re.findall(r"[a-z_]+(?:\.[a-z_]+)+", text)]
        if not any(name == fault or name.startswith(f"{fault}.") for name in mentioned for fault in faulty):
            origins = [merge.origin(tuple(name.split("."))) for name in mentioned]
            problems.append(Problem(key, text, next((o for o in origins if o != "default"), "default")))
    return problems


def _unknown_swaps(merge: Merge, recipe: Recipe) -> Iterator[Problem]:
    """Changes in `guard.swaps` that no recipe could take: the guard passes over those that this run does not have."""
    for word in recipe.guard.swaps:
        key, equals, _ = word.partition("=")
        path = present_path(split_key(key))
        if not equals:
            yield Problem(
                "guard.swaps", f"{word!r} is no change", merge.origin(("guard", "swaps")), f"write '{key}=VALUE'"
            )
        elif not shapes_at(path) and not _has(recipe, path):
            yield Problem("guard.swaps", f"{key!r} is no setting", merge.origin(("guard", "swaps")))


def _has(recipe: Recipe, path: Path) -> bool:
    """Whether this recipe has such a setting; a user's own part may."""
    try:
        _value(recipe, path)
    except (AttributeError, TypeError):
        return False
    return True


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
        elif isinstance(shape, Array):
            shape = shape.items
    return path
