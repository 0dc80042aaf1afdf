"""Texts for a person: what pydantic found wrong, and which setting was probably meant."""

import difflib
import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic_core import ErrorDetails

from hornbook.settings.schema import Array, Section, Shape, item_settings, settings, shapes_at
from hornbook.settings.sources import COMMAND_LINE, Problem
from hornbook.settings.toml import Path, dotted


@cache
def _table(name: str) -> dict[str, str]:
    """`errors`: kind of a pydantic error -> what is wrong; `synonyms`: names of other trainers -> dotted keys."""
    return tomllib.loads((files("hornbook") / "settings" / f"{name}.toml").read_text(encoding="utf-8"))


def problem_of(item: ErrorDetails, path: Path, origin: str) -> Problem:
    """The problem that one pydantic error describes; `path` is its place without union tags."""
    kind, context = item["type"], {key: _short(value) for key, value in item.get("ctx", {}).items()}
    if kind == "list_type":
        context["form"] = form = _form(shapes_at(tuple(map(str, path))))
        if origin == COMMAND_LINE and isinstance(item["input"], str):
            text = f"cannot read {item['input']!r} as a list"
            return Problem(dotted(path), text, origin, f"write '{dotted(path)}={form}'")
    if kind == "missing":
        return Problem(dotted(path), "is required", origin)
    given: Any = item["input"]
    if kind == "union_tag_invalid":
        given = context["tag"]
    known = _table("errors").get(kind)
    text = (known.format_map(context) if known else item["msg"]).replace("'", '"')
    if kind == "union_tag_invalid":
        text = " or ".join(text.rsplit(", ", 1))
    hint = ""
    if kind in ("literal_error", "union_tag_invalid"):
        close = difflib.get_close_matches(str(given)[:_LONGEST], re.findall(r'"([^"]*)"', text), n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else ""
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(str(path[-1])[:_LONGEST], _names_beside(item["loc"]), n=1)
        hint = f"did you mean {close[0]}?" if close else ""
    if kind not in ("value_error", "too_short", "extra_forbidden") and not isinstance(given, dict):
        text = f"{text}, not {given!r}"
    return Problem(dotted(path), text, origin, hint)


def _names_beside(place: Path) -> list[str]:
    """What an item of a list may say. `place` is pydantic's: with its kind behind its number, if there are several."""
    without_numbers = ".".join(part for part in place[:-1] if isinstance(part, str))
    without_kind = ".".join("*" if isinstance(part, int) else part for part in place[:-1])
    keys = [key.rpartition(".") for key in item_settings()]
    return [name for section, _, name in keys if section in (without_numbers, without_kind)]


def _form(shapes: list[Shape]) -> str:
    """How a list is written, by what its items are."""
    items = shapes[0].items if shapes and isinstance(shapes[0], Array) else None
    if not isinstance(items, Section):
        return '["a", "b"]'
    kind, model = next(iter(items.kinds.items()))
    needed = [name for name, field in model.model_fields.items() if field.is_required()]
    inner = [*([f'kind = "{kind}"'] if kind else []), *(f"{name} = ..." for name in needed)]
    return f"[{{ {', '.join(inner)} }}]"


def _short(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


_LONGEST = 200
"""Characters of a name that are compared with known ones, since time grows with their number and theirs."""
_MIN_SIMILARITY = 0.72
_MAX_GAP = 0.08
"""How much less similar than the best suggestion another one may be."""


def suggest(key: str) -> list[str]:
    """Up to three dotted keys that `key` may have been meant to be, best first."""
    key = key[-_LONGEST:].replace("-", "_")
    last = key.rpartition(".")[2]
    if (meant := _table("synonyms").get(last)) is not None:
        return [meant]
    scores = {name: _similarity(key, name) for name in settings()}
    enough = max(_MIN_SIMILARITY, max(scores.values()) - _MAX_GAP)
    best = sorted((name for name, score in scores.items() if score >= enough), key=lambda name: -scores[name])
    return [_named(name, key) for name in best[:3]]


def _named(name: str, key: str) -> str:
    """The setting's key with the names the user chose in place of `*`, where both have as many parts."""
    parts, given = name.split("."), key.split(".")
    if len(parts) != len(given):
        return name
    return ".".join(theirs if part == "*" else part for part, theirs in zip(parts, given, strict=True))


def _similarity(key: str, name: str) -> float:
    """Similarity of two dotted keys, 0 to 1: mostly that of their last parts, only that if `key` has one part."""
    (head, _, last), (section, _, leaf) = key.rpartition("."), name.rpartition(".")
    similarity = difflib.SequenceMatcher(None, last, leaf).ratio()
    if not head:
        return similarity
    return 0.6 * similarity + 0.4 * difflib.SequenceMatcher(None, head, section).ratio()
