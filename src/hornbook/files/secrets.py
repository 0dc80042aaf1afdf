"""Passwords and tokens in text that is about to be kept: known by their shape, hidden before it is written."""

import re
import tomllib
from functools import cache
from pathlib import Path

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
KEYS: tuple[str, ...] = tuple(_TABLE["keys"])
"""Patterns of keys with the prefix of their issuer."""
HIDDEN = "[hidden]"


@cache
def _behind() -> re.Pattern[str]:
    return re.compile("|".join(_TABLE["behind"]))


@cache
def _keys() -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(KEYS)})(?![A-Za-z0-9])")


@cache
def _assigned() -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])((?:{_TABLE['names']})){_TABLE['assigned']}", re.IGNORECASE)


@cache
def _name() -> re.Pattern[str]:
    return re.compile(rf"(?:^|[._-])(?:{_TABLE['names']})$", re.IGNORECASE)


def hide_secrets(text: str) -> str:
    """The text with `[hidden]` in the place of passwords, tokens and keys."""
    text = _keys().sub(HIDDEN, text)
    text = _behind().sub(lambda found: next(filter(None, found.groups())) + HIDDEN, text)
    return _assigned().sub(lambda found: found.group(1) + found.group(2) + HIDDEN, text)


def holds_secret(text: str, name: str = "") -> bool:
    """Whether a value is or contains a password, token or key; `name`: of the setting that has it."""
    if _keys().search(text) or _behind().search(text) or "PRIVATE KEY-----" in text:
        return True
    return bool(name and _name().search(name) and len(text) >= 8 and not text.startswith("env:"))
