"""Tokens that a tokenizer finds in the text before it splits the text into words.

Such tokens come with many published tokenizers (runs of blanks, tags of conversations), and new ones for the terms of a
domain. Of those that begin at one character the longest is taken; those of `normalized: false` are looked for first.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

_STRIPS = ("lstrip", "rstrip", "single_word")


class AddedTokens:
    """Finds the added tokens of a tokenizer.json without a normaliser."""

    def __init__(self, tokens: Sequence[Mapping[str, Any]]) -> None:
        """tokens: entries of `added_tokens`; see `is_plain`."""
        self._ids = {token["content"]: token["id"] for token in tokens}
        stages = ([each["content"] for each in tokens if each["normalized"] == last] for last in (False, True))
        self._stages = [_any_of(names) for names in stages if names]

    def __bool__(self) -> bool:
        return bool(self._ids)

    def cut(self, text: str) -> list[str | int]:
        """The text as what lies between added tokens, and the ids of these."""
        parts: list[str | int] = [text]
        for stage in self._stages:
            parts = [
                found for part in parts for found in ([part] if isinstance(part, int) else self._found(stage, part))
            ]
        return parts

    def _found(self, stage: re.Pattern[str], text: str) -> Iterator[str | int]:
        end = 0
        for match in stage.finditer(text):
            if match.start() > end:
                yield text[end : match.start()]
            yield self._ids[match[0]]
            end = match.end()
        if end < len(text):
            yield text[end:]


def is_plain(token: Mapping[str, Any]) -> bool:
    """Whether an added token is found wherever its text stands, and takes no blanks beside it."""
    return bool(token["content"]) and not any(token[each] for each in _STRIPS)


def _any_of(names: Sequence[str]) -> re.Pattern[str]:
    """The longest name at the first place where one stands.

    As a trie, which decides by one character at a time: alternatives one after the other would be tried at every place.
    """
    return re.compile(_trie(sorted(set(names))))


def _trie(names: Sequence[str]) -> str:
    """A regex of sorted names."""
    ends = names[0] == ""
    groups = groupby(names[ends:], key=lambda name: name[0])
    branches = [re.escape(first) + _trie([name[1:] for name in group]) for first, group in groups]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("?" if ends else "")
