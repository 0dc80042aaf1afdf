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
    """Labels of one document. Places are counted in characters of its text."""

    parts: tuple[Span, ...]
    """What is encoded for itself: a text, two texts, question and context, prompt and answer; in order, apart."""
    spans: tuple[tuple[int, int, float | str], ...] = ()
    """Begin, end, value: tags of words, or the place of an answer."""
    values: tuple[float | str, ...] = ()
    """Of the whole text: the number of its label, its numbers, or 0 and 1 for each label it may have.

    Where the labels are taken from the data, tags and labels stand here by name.
    """
    answers: tuple[str, ...] = ()
    """All right answers to a question, as they were written."""

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
    """Texts as one, a line each, and where they stand in it."""
    ends = list(itertools.accumulate(len(text) + 1 for text in texts))
    parts = tuple((end - 1 - len(text), end - 1) for text, end in zip(texts, ends, strict=True))
    return "\n".join(texts), parts


def edited(text: str, labels: Labelling, edit: Callable[[str], str]) -> tuple[str, Labelling]:
    """The text after an edit, and its labels where they stand now.

    What lies between two places is edited by itself, so that no place is lost.
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
