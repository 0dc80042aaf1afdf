"""Files of terms: groups of people, and attributes that may stand near them."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hornbook.errors import UsageError

MOST_COLUMNS = 500
"""Counts that are kept of each document: one for each group, and one for each group with each attribute."""
_NAME = re.compile(r"\w[\w -]*")
_TABLES = ("groups", "attributes")


@dataclass(frozen=True, slots=True)
class MentionTerms:
    """What a file says."""

    path: Path
    groups: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, tuple[str, ...]]


def read_terms(path: Path) -> MentionTerms:
    """Read and check a file. Raises UsageError that names file and key."""
    tree = _parsed(path)
    if wrong := sorted(set(tree) - set(_TABLES)):
        raise UsageError(f"{path}: {wrong[0]!r} is not known: there are two tables, `groups` and `attributes`")
    groups, attributes = (_lists(path, table, tree.get(table)) for table in _TABLES)
    if len(groups) < 2:
        raise UsageError(f"{path}: groups has one entry: what stands near a group is compared to another, so add one")
    if (count := len(groups) * (1 + len(attributes))) > MOST_COLUMNS:
        raise UsageError(
            f"{path}: {len(groups)} groups with {len(attributes)} attributes are {count} counts a document: "
            f"{MOST_COLUMNS} is most, so divide them among files, for steps with names of their own"
        )
    return MentionTerms(path, groups, attributes)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name a file, or en, de, fr or es for ours") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UsageError(f"{path} is not {kind} ({error}): it has tables `groups` and `attributes`") from error
    if not isinstance(tree, dict):
        raise UsageError(f"{path} holds a {type(tree).__name__}: an object with `groups` and `attributes` is expected")
    return tree


def _lists(path: Path, table: str, value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not value:
        found = "is missing" if value is None else "is empty" if value == {} else f"is a {type(value).__name__}"
        raise UsageError(f'{path}: {table} {found}: write a table of lists, such as NAME = ["term", "two words"]')
    return {name: _terms(path, f"{table}.{name}", name, entry) for name, entry in value.items()}


def _terms(path: Path, key: str, name: str, value: Any) -> tuple[str, ...]:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{path}: {key}: names are of letters, digits, blanks, `_` and `-`")
    if not isinstance(value, list) or not value:
        found = "is empty" if value == [] else f"is a {type(value).__name__}"
        raise UsageError(f'{path}: {key} {found}: write a list of terms, such as ["nurse", "nurses"]')
    if odd := next((each for each in value if not isinstance(each, str)), None):
        raise UsageError(f"{path}: {key} holds {odd!r}: terms are strings")
    return tuple(value)
