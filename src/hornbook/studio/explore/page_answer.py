"""What the page needs of explorers, as JSON: the list, a question's controls, an answer with its commands."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hornbook.studio.explore.explorer import Explorer, controls, explorer_names, load_explorer
from hornbook.studio.explore.views import Answer, Facts, Table, View


def list_explorers() -> list[dict[str, str]]:
    """Name, title, question and folder of every explorer."""
    names = explorer_names()
    found = [(load_explorer(name), module.split(".")[-2]) for name, module in names.items()]
    return [{"name": each.name, "title": each.title, "asks": each.asks, "folder": folder} for each, folder in found]


@cache
def read_words() -> dict[str, str]:
    """Term -> meaning: the table of docs/words.md."""
    rows = Path(__file__).with_name("words.txt").read_text(encoding="utf-8").splitlines()
    return {term: meaning for term, _, meaning in (row.strip("| ").partition(" | ") for row in rows)}


def words_of(text: str) -> dict[str, str]:
    """The terms that a text uses, in singular or plural, with their meanings; of "pipeline schedule" and "schedule" the
    first alone."""
    used = [term for term in read_words() if re.search(rf"\b{re.escape(term)}(e?s)?\b", text, re.IGNORECASE)]
    return {term: read_words()[term] for term in used if not any(each.endswith(f" {term}") for each in used)}


def describe(explorer: Explorer) -> dict[str, Any]:
    """All of a page that no answer changes."""
    shown = controls(explorer)
    text = " ".join([explorer.title, explorer.asks, explorer.lead, *(f"{each.label}: {each.help}" for each in shown)])
    return {
        "name": explorer.name,
        "title": explorer.title,
        "asks": explorer.asks,
        "lead": explorer.lead,
        "controls": [each.model_dump(mode="json") for each in shown],
        "words": words_of(text),
        "presets": [{"name": each.name, "values": each.values, "source": each.source} for each in explorer.presets],
        "places": explorer.places(),
        "loads": explorer.loads,
        "has_further": explorer.further is not None,
        "measures": explorer.measure is not None,
    }


def replied(name: str, part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to the page: an explorer's answer, or its `further` part. Raises UsageError."""
    explorer = load_explorer(name)
    return {"answer": answered_further(explorer, values)} if part == "further" else answered(explorer, values)


def answered(explorer: Explorer, values: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a question as texts or values. Raises UsageError."""
    question = explorer.ask(values)
    return described_answer(explorer, question, explorer.answer(question))


def described_answer(explorer: Explorer, question: Any, answer: Answer) -> dict[str, Any]:
    """An answer with its question, as a command and as settings of a recipe."""
    return {
        "question": question.model_dump(mode="json"),
        "answer": with_texts(answer),
        "command": explorer.command(question),
        "toml": explorer.toml(question),
    }


def answered_further(explorer: Explorer, values: Mapping[str, Any]) -> dict[str, Any]:
    """The views that take longer; {} for an explorer without them. Raises UsageError."""
    return {} if explorer.further is None else with_texts(explorer.further(explorer.ask(values)))


def with_texts(answer: Answer) -> dict[str, Any]:
    """The views, their numbers also as people read them: page and terminal write them alike."""
    return {name: _with_texts(view) for name, view in answer.views().items()}


def _with_texts(view: View) -> dict[str, Any]:
    found = view.model_dump(mode="json")
    match view:
        case Facts():
            return found | {"texts": [each.text for each in view.facts]}
        case Table():
            columns = [
                {"name": name, "unit": unit or "", "number": unit is not None} for name, unit in view.columns.items()
            ]
            return found | {"columns": columns, "texts": view.texts}
        case _:
            return found
