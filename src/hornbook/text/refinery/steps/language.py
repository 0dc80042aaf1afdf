"""The language of a document: lingua's judgement, or only the script of its letters."""

import importlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from hornbook.errors import UsageError
from hornbook.files.extras import install_command
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.step import Columns, Decision

Judgement = tuple[str, float]


@lru_cache(maxsize=65536)
def _script(letter: str) -> str:
    """Script of a letter, which is the first word of its Unicode name; "" for other characters."""
    if not letter.isalpha():
        return ""
    name = unicodedata.name(letter, "").partition(" ")[0].lower()
    return {"cjk": "han", "hiragana": "kana", "katakana": "kana", "katakana-hiragana": "kana"}.get(name, name)


def script_of(text: str) -> Judgement:
    """(script of most letters, their share); ("", 0) without letters."""
    counts = Counter(_script(letter) for letter in text)
    counts.pop("", None)
    if not counts:
        return "", 0.0
    best = min(counts, key=lambda name: (-counts[name], name))
    return best, counts[best] / counts.total()


def _lingua(among: Sequence[str]) -> Callable[[str], Judgement]:
    """lingua's detector. Raises UsageError where it is not installed or does not know a language."""
    try:
        lingua = importlib.import_module("lingua")
    except ImportError as error:
        remedy = f'{install_command("lang")}, or take detector = "script"'
        raise UsageError(f"step `language` needs lingua, which is not installed: {remedy}") from error
    known = {language.iso_code_639_1.name.lower(): language for language in lingua.Language.all()}
    if wrong := sorted(set(among) - set(known)):
        raise UsageError(f"lingua does not know {', '.join(wrong)}: it knows {', '.join(sorted(known))}")
    builder = lingua.LanguageDetectorBuilder
    chosen = builder.from_languages(*(known[each] for each in among)) if among else builder.from_all_languages()
    detector = chosen.build()

    def judge(text: str) -> Judgement:
        values = detector.compute_language_confidence_values(text)
        if not values or values[0].value <= 0:
            return "", 0.0
        return values[0].language.iso_code_639_1.name.lower(), values[0].value

    return judge


class Language(Decision):
    """Keeps documents in the chosen languages."""

    reasons = ("language",)
    columns = {"language": "str", "confidence": "float64", "script": "str"}  # noqa: RUF012 - read only
    fixed = ("sample",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.needs = (f"{self.name}.language", f"{self.name}.confidence")
        self._judge = script_of if config.detector == "script" else _lingua(config.among)

    def measure(self, documents: Sequence[Document]) -> Columns:
        texts = [self._part(document.text) for document in documents]
        judged = [self._judge(text) for text in texts]
        return {
            "language": np.array([language for language, _ in judged], dtype=object),
            "confidence": np.array([confidence for _, confidence in judged], dtype=np.float64),
            "script": np.array([script_of(text)[0] for text in texts], dtype=object),
        }

    def _part(self, text: str) -> str:
        if len(text) <= self.config.sample:
            return text
        half, middle = self.config.sample // 2, len(text) // 2
        return f"{text[:half]}\n{text[middle : middle + half]}"

    def decide(self, columns: Columns) -> np.ndarray:
        """1 for documents in other languages, or whose language is uncertain."""
        languages = columns[f"{self.name}.language"]
        if not self.config.keep:
            return np.zeros(len(languages), dtype=np.uint8)
        wanted = np.array([str(each) in self.config.keep for each in languages], dtype=bool)
        return (~wanted | (columns[f"{self.name}.confidence"] < self.config.min_confidence)).astype(np.uint8)
