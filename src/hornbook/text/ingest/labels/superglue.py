"""Layouts of SuperGLUE whose questions have candidates: each becomes a pair of texts that is right or wrong.

Wang et al. 2019 (arXiv 1905.00537). Rows are read as the benchmark's own `.jsonl` nests them and as the Hub's tables
have them flat. The question stands in the first text, so that a long passage is cut and not the question.
A candidate is named QUESTION#NUMBER; figures are of questions, or of all candidates (`hornbook.evals.metrics`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hornbook.text.ingest.charsets import UnfitRow
from hornbook.text.ingest.labels.labelling import Labelling, joined_parts

Row = Mapping[str, Any]
_COPA_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
"""Questions of COPA (Roemmele et al. 2011)."""
_PLACEHOLDER = "@placeholder"
_HIGHLIGHT = re.compile(r"\s*@highlight\s*")


Labelled = tuple[str, str, Labelling]
"""Name, text and labels of a candidate."""


def candidates(layout: str, row: Row, origin: str) -> list[Labelled]:
    """The candidates of a row. origin: its path and number. Raises UnfitRow where it lacks a field of the layout."""
    return list(_LAYOUTS[layout](_Fields(row, ""), origin))


def marked_pronoun(row: Row) -> tuple[str, str]:
    """The noun and the text of WSC, whose pronoun stands between `*`, as T5 marks it (Raffel et al. 2019, app. B).

    Raises UnfitRow where the pronoun is not at its place.
    """
    fields = _Fields(row, "")
    target = fields.inner("target") if fields.has("target") else fields  # the Hub's is flat
    noun, pronoun, at = target.text("span1_text"), target.text("span2_text"), target.get("span2_index", int)
    words = fields.text("text").split()
    size = len(pronoun.split())
    found = " ".join(words[at : at + size]) if at >= 0 else ""
    if not pronoun.strip() or pronoun not in found:
        raise UnfitRow(f"not wsc's layout: {pronoun!a} is not at its place: word {at} of the text is {found[:40]!a}")
    return noun, " ".join([*words[:at], found.replace(pronoun, f"*{pronoun}*", 1), *words[at + size :]])


def _labelled(
    name: str, pair: tuple[str, str], start: int, candidate: str, right: bool, answers: tuple[str, ...] = ()
) -> Labelled:
    """A pair of texts as one, with the candidate, which starts there, as its span. answers: all that are right."""
    text, parts = joined_parts(*pair)
    span = (start, start + len(candidate), float(right))
    return name, text, Labelling(parts, (span,), (float(right),), answers)


@dataclass(frozen=True, slots=True)
class _Fields:
    """A row, or an object in it, with typed access to its keys."""

    row: Any
    path: str

    def has(self, key: str) -> bool:
        return isinstance(self.row, Mapping) and key in self.row

    def get(self, key: str, *kinds: type) -> Any:
        where = f"{self.path}{key}"
        if not self.has(key):
            raise UnfitRow(f"missing {where}")
        value = self.row[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise UnfitRow(f"{where} is {ascii(value)[:40]}")
        return value

    def text(self, key: str) -> str:
        return self.get(key, str)

    def right(self, key: str) -> bool:
        value = self.get(key, int, bool)
        if value not in (0, 1):
            raise UnfitRow(f"{self.path}{key} is {value}, neither 0 nor 1")
        return bool(value)

    def inner(self, key: str) -> "_Fields":
        return _Fields(self.get(key, Mapping), f"{self.path}{key}.")

    def each(self, key: str) -> "list[_Fields]":
        items = self.get(key, list, tuple)
        return [_Fields(item, f"{self.path}{key}[{number}].") for number, item in enumerate(items)]


def _copa(row: _Fields, origin: str) -> Iterator[Labelled]:
    question_text = row.text("question")
    if question_text not in _COPA_QUESTIONS:
        raise UnfitRow(f"question is {question_text[:40]!a}, neither 'cause' nor 'effect'")
    premise, right = f"{row.text('premise')} {_COPA_QUESTIONS[question_text]}", int(row.right("label"))
    choices = (row.text("choice1"), row.text("choice2"))
    for number, choice in enumerate(choices):
        start = len(premise) + 1
        yield _labelled(f"{origin}#{number}", (premise, choice), start, choice, number == right, (choices[right],))


def _multirc(row: _Fields, origin: str) -> Iterator[Labelled]:
    if row.has("paragraph"):  # the Hub's: a row is an answer
        index = row.inner("idx")
        passage, question, answer = index.get("paragraph", int), index.get("question", int), index.get("answer", int)
        question_text = row.text("question")
        yield _answer(f"{passage}-{question}", answer, question_text, row.text("answer"), row.text("paragraph"), row)
        return
    passage = row.inner("passage")
    text = passage.text("text")
    for number, question in enumerate(passage.each("questions")):
        question_text = question.text("question")
        for which, answer in enumerate(question.each("answers")):
            yield _answer(f"{origin}-{number}", which, question_text, answer.text("text"), text, answer)


def _answer(question: str, number: int, question_text: str, answer: str, passage: str, row: _Fields) -> Labelled:
    pair = (f"{question_text} {answer}", passage)
    return _labelled(f"{question}#{number}", pair, len(question_text) + 1, answer, row.right("label"))


def _record(row: _Fields, origin: str) -> Iterator[Labelled]:
    if row.has("query"):  # the Hub's: a row is a query, names and answers are lists of texts
        names, answers = row.get("entities", list, tuple), row.get("answers", list, tuple)
        yield from _query(origin, row, row.text("passage"), names, answers)
        return
    passage = row.inner("passage")
    text = passage.text("text")
    spans = [(each.get("start", int), each.get("end", int)) for each in passage.each("entities")]  # ends are inclusive
    odd = next((span for span in spans if not 0 <= span[0] <= span[1] < len(text)), None)
    if odd is not None:
        raise UnfitRow(f"passage.entities: {odd} is not within the {len(text)} characters of the passage")
    names = [text[start : end + 1] for start, end in spans]
    for number, query in enumerate(row.each("qas")):
        answers = [answer.text("text") for answer in query.each("answers")]
        yield from _query(f"{origin}-{number}", query, text, names, answers)


def _query(question: str, row: _Fields, passage: str, names: list[Any], answers: list[Any]) -> Iterator[Labelled]:
    if not answers or not names or not all(isinstance(each, str) for each in [*names, *answers]):
        raise UnfitRow(f"{row.path}answers or entities: none, or no texts")
    before, placeholder, after = row.text("query").partition(_PLACEHOLDER)
    if not placeholder:
        raise UnfitRow(f"{row.path}query has no {_PLACEHOLDER}")
    text = _HIGHLIGHT.sub("\n", passage)
    for number, name in enumerate(dict.fromkeys(names)):
        pair = (before + name + after, text)
        yield _labelled(f"{question}#{number}", pair, len(before), name, name in answers, tuple(answers))


_LAYOUTS: dict[str, Callable[[_Fields, str], Iterator[Labelled]]] = {
    "copa": _copa,
    "multirc": _multirc,
    "record": _record,
}
