"""datatrove's filters in an environment of their own: one command (JSON) a line in, one answer a line out.

`load PATH`: documents, JSON lines of `text` and, where the words are given, `words`. `judge NAMES OPTIONS WORDS`: the
reason of each document ("" where it stays) under each filter, and the CPU seconds that took; `pipeline NAMES WORDS`:
one reason of each, all filters in a row. WORDS is `stock` for
datatrove's own splitting (spaCy), `given` for the words of the file (where it has none: between blanks) and sentences
by `sentences` below, or `plain` for words between blanks and sentences by a regular expression, which costs least.
"""

import importlib
import json
import re
import sys
import time
import unicodedata
import warnings
from typing import Any

warnings.filterwarnings("ignore")
Document: Any = importlib.import_module("datatrove.data").Document
stock: Any = importlib.import_module("datatrove.utils.text")
FILES = ("gopher_quality_filter", "gopher_repetition_filter", "c4_filters", "fineweb_quality_filter")
modules: list[Any] = [importlib.import_module(f"datatrove.pipeline.filters.{name}") for name in FILES]
quality, repetition, c4, fineweb = modules

FILTERS = {
    "gopher_quality": quality.GopherQualityFilter,
    "gopher_repetition": repetition.GopherRepetitionFilter,
    "fineweb": fineweb.FineWebQualityFilter,
    "c4": c4.C4QualityFilter,
    "mc4": c4.C4ParagraphFilter,
}
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
SPLITTERS = (quality, repetition, fineweb)


def in_word(character: str) -> bool:
    """Letters, numbers, marks, joiners and connecting punctuation."""
    kind = unicodedata.category(character)
    return character.isalnum() or character.isnumeric() or kind == "Pc" or kind[0] == "M" or character in "\u200c\u200d"


def sentences(line: str) -> list[str]:
    """As many items as the line has sentences: hornbook's definition, spelled slowly."""
    count, inside, marked = 0, False, False
    for character in line:
        if in_word(character):
            inside, marked = True, False
        elif inside and character in stock.TERMINAL_PUNCTUATION and not character.isascii():
            count, inside, marked = count + 1, False, False
        elif inside and character in ".!?":
            marked = True
        elif marked and character.isspace():
            count, inside, marked = count + 1, False, False
    return [""] * (count + inside)


class Judge:
    """The documents that were loaded, and what filters say of them."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.words: dict[str, list[str]] = {}

    def load(self, path: str) -> dict[str, Any]:
        """Read the documents."""
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        self.texts = [row["text"] for row in rows]
        self.words = {row["text"]: row["words"] for row in rows if row.get("words") is not None}
        return {"documents": len(rows)}

    def judge(self, names: list[str], options: dict[str, dict[str, Any]], words: str) -> dict[str, Any]:
        """Reasons by filter, and CPU seconds of them all together."""
        self._patch(words)
        filters = _make(names, options)
        begin = time.process_time()
        reasons = {name: [_reason(each, _document(text)) for text in self.texts] for name, each in filters.items()}
        return {"seconds": time.process_time() - begin, "reasons": reasons}

    def pipeline(self, names: list[str], words: str) -> dict[str, Any]:
        """As a pipeline runs: a document falls to the first filter, and filters share the words of a document."""
        self._patch(words)
        filters = list(_make(names, {}).values())
        begin, reasons = time.process_time(), []
        for text in self.texts:
            document = _document(text)
            reasons.append(next(filter(None, (_reason(each, document) for each in filters)), ""))
        return {"seconds": time.process_time() - begin, "reasons": reasons}

    def _patch(self, words: str) -> None:
        split, parts = {
            "stock": (stock.split_into_words, stock.split_into_sentences),
            "given": (lambda text, _: self.words.get(text, text.split()), lambda line, _: sentences(line)),
            "plain": (lambda text, _: text.split(), lambda line, _: SENTENCE_END.split(line)),
        }[words]
        for module in SPLITTERS:
            module.split_into_words = split
        c4.split_into_sentences = parts


def _make(names: list[str], options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    filters = {name: FILTERS[name](**options.get(name, {})) for name in names}
    for each in filters.values():  # loads what is loaded at the first use
        each.filter(_document("A word. Another one, of the two."))
    return filters


def _document(text: str) -> Any:
    return Document(text=text, id="")


def _reason(each: Any, document: Any) -> str:
    try:
        found = each.filter(document)
    except (ZeroDivisionError, ValueError) as error:  # spaCy refuses texts of a million characters
        return f"error: {error}"
    return found[1] if isinstance(found, tuple) else ""


def main() -> None:
    """Answer until the input ends."""
    judge = Judge()
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(judge, command.pop("do"))(**command)), flush=True)


if __name__ == "__main__":
    main()
