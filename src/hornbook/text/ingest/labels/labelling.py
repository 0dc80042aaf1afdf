"""The labels of a text: its parts, values of spans of it, values of the whole.

Every kind of labelled row becomes this one thing, so that edits, storage and tokenization have one form of labels.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass

Span = tuple[int, int]
"""Characters [start, end) of a text."""


@dataclass(frozen=True, slots=True)
class Labelling:
    """Labels of one document. Positions are counted in characters of its text."""

    parts: tuple[Span, ...]
    """What is encoded separately: a text, two texts, question and context, prompt and answer; in order, disjoint."""
    spans: tuple[tuple[int, int, float | str], ...] = ()
    """Start, end, value: tags of words, or where an answer is."""
    values: tuple[float | str, ...] = ()
    """Of the whole text: the number of its label, its numbers, or 0 and 1 for each label it may have.

    Where the labels are taken from the data, tags and labels stand here by name.
    """
    answers: tuple[str, ...] = ()
    """All right answers to a question or, where there are several, to a prompt, as written."""

    def to_json(self) -> str:
        """As stored in the documents' column `labels`."""
        keys = {"parts": self.parts, "stretches": self.spans, "values": self.values, "answers": self.answers}
        return json.dumps(keys, ensure_ascii=True)

    @staticmethod
    def from_json(text: str) -> "Labelling":
        """What `to_json` wrote."""
        data = json.loads(text)
        return Labelling(
            tuple((start, end) for start, end in data["parts"]),
            tuple((start, end, value) for start, end, value in data["stretches"]),
            tuple(data["values"]),
            tuple(data["answers"]),
        )


def joined_parts(*texts: str) -> tuple[str, tuple[Span, ...]]:
    """Texts as one, a line each, and the span of each in it."""
    ends = list(itertools.accumulate(len(text) + 1 for text in texts))
    parts = tuple((end - 1 - len(text), end - 1) for text, end in zip(texts, ends, strict=True))
    return "\n".join(texts), parts


def edited(text: str, labels: Labelling, edit: Callable[[str], str]) -> tuple[str, Labelling]:
    """The text after an edit, and its labels at their new positions.

    The text between two positions of labels is edited separately, so that no position is lost.
    """
    changed = edit(text)
    if changed == text:
        return text, labels
    spans = [*labels.parts, *((start, end) for start, end, _ in labels.spans)]
    cuts = sorted({0, len(text), *itertools.chain.from_iterable(spans)})
    pieces = [edit(text[start:end]) for start, end in itertools.pairwise(cuts)]
    now = dict(zip(cuts, itertools.accumulate(map(len, pieces), initial=0), strict=True))
    return "".join(pieces), Labelling(
        tuple((now[start], now[end]) for start, end in labels.parts),
        tuple((now[start], now[end], value) for start, end, value in labels.spans),
        labels.values,
        labels.answers,
    )
