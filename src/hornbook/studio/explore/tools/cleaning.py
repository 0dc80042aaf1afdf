"""Cleaning and coverage: what thresholds of published rules drop, of which sources, and how much of it rightly."""

from collections.abc import Mapping
from typing import Any, Literal
from zlib import crc32

import numpy as np
from pydantic import Field

from hornbook.errors import UsageError
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe
from hornbook.studio.explore.explorer import Preset, control, explorer, slider
from hornbook.studio.explore.recipes import small_recipe
from hornbook.studio.explore.views import (
    Answer,
    Columns,
    Curves,
    Fact,
    Facts,
    Line,
    Mark,
    Passage,
    Passages,
    Table,
    fact,
)
from hornbook.text.refinery.scores.measured_corpus import PLAIN
from hornbook.text.refinery.scores.moved_thresholds import RULES, MovedThresholds

SHOWN, CHARACTERS, VALUES = 3, 300, 21
"""Documents next to a threshold, on each side; characters of each; values of a threshold that are tried."""
HELD, TEXT, PROXY_SECONDS = 8, 100_000, 40.0
"""One of so many documents is scored and not learned; characters of a document; of two small models."""
Kind = Literal["gopher_quality", "gopher_repetition", "fineweb"]
Key = Literal[
    "min_words", "min_alphabetic_words", "min_stop_words", "max_duplicate_lines", "max_duplicate_5_grams",
    "min_terminal_lines", "max_short_lines", "max_duplicate_characters", "max_newlines",
]  # fmt: skip


class CleaningQuestion(Config):
    """Documents, and the thresholds of rules."""

    data: str = Field(default="", max_length=1000)
    """A folder of `hornbook prepare`, or files of at most 32 MiB. Empty: Python's library, half of it damaged."""
    rules: tuple[Kind, ...] = ("gopher_quality", "gopher_repetition")
    """Published sets of rules. Rules without a slider have the thresholds of their papers."""
    moved: Key = "min_alphabetic_words"
    """The threshold that is moved below, while the others stay."""
    min_words: int = slider(50, 0, 300)
    """Fewest words of a document (Gopher)."""
    min_alphabetic_words: float = slider(0.8, 0, 1)
    """Least share of words with a letter (Gopher)."""
    min_stop_words: int = slider(2, 0, 8)
    """Fewest different words among the, be, to, of, and, that, have, with (Gopher)."""
    max_duplicate_lines: float = slider(0.3, 0, 1)
    """Largest share of lines that occurred before (Gopher)."""
    max_duplicate_5_grams: float = slider(0.15, 0, 1)
    """Largest share of characters in runs of five words that occurred before (Gopher)."""
    min_terminal_lines: float = slider(0.12, 0, 1)
    """Least share of lines that end a sentence (FineWeb)."""
    max_short_lines: float = slider(0.67, 0, 1)
    """Largest share of lines of at most 30 characters (FineWeb)."""
    max_duplicate_characters: float = slider(0.01, 0, 1)
    """Largest share of characters in lines that occurred before (FineWeb)."""
    max_newlines: float = slider(0.3, 0, 2)
    """Most line ends for each word (FineWeb)."""


def _keys(kind: str) -> list[str]:
    return [key for key in RULES[kind].model_fields if key in CleaningQuestion.model_fields]


def _rules(question: CleaningQuestion) -> MovedThresholds:
    if not question.rules:
        raise UsageError(f"choose a set of rules: {', '.join(RULES)}")
    kind = next(kind for kind in RULES if question.moved in _keys(kind))
    if kind not in question.rules:
        raise UsageError(f"moved = {question.moved} is a threshold of {kind}: add {kind} to the rules, or move another")
    return MovedThresholds.of(question.data, _thresholds(question))


def _thresholds(question: CleaningQuestion) -> dict[str, dict[str, float]]:
    return {kind: {key: getattr(question, key) for key in _keys(kind)} for kind in question.rules}


def _values(key: str) -> list[float]:
    """Values over the whole slider."""
    bounds = control(key, CleaningQuestion.model_fields[key])
    return np.linspace(bounds.low or 0.0, bounds.high or 1.0, VALUES).tolist()


def _moved(rules: MovedThresholds, question: CleaningQuestion) -> Curves:
    key, values = question.moved, _values(question.moved)
    curves = [Line(name=name, x=values, y=y) for name, y in rules.lines(rules.move(key, values)).items()]
    mark = Mark(x=getattr(question, key), name="your value")
    return Curves(title=f"If only {key} changes", curves=curves, x=key, x_unit="", y_unit="share", marks=[mark])


def _front(rules: MovedThresholds, question: CleaningQuestion) -> Curves:
    trials = rules.each_moved({key: _values(key) for kind in question.rules for key in _keys(kind)})
    lines = {"one threshold moved": trials, "no other is better in both": rules.front(trials), "yours": [rules.now]}
    curves = [
        Line(
            name=name,
            x=[each.point.share for each in some],
            y=[rules.quality(each) for each in some],
            points=True,
            labels=[f"{each.key} = {each.point.value:.3g}" if each.key else "yours" for each in some],
        )
        for name, some in lines.items()
    ]
    what = "share of them that is good" if rules.is_judged else "share of all different words that they have"
    note = f"Across: the documents kept. Upwards: the {what}. A point is another value of one threshold."
    return Curves(title="Kept and good", note=note, curves=curves, x="documents kept", x_unit="share", y_unit="share")


def _further(question: CleaningQuestion) -> Answer:
    rules, key = _rules(question), question.moved
    passages = [
        Passage(
            name=f"{'kept' if each.is_kept else 'dropped'}, {key} is {each.value:.3g}: {each.id}",
            text=each.text or "(prepare keeps the text of few dropped documents)",
        )
        for each in rules.near(key, SHOWN, CHARACTERS)
    ]
    note = f"The documents nearest to {key} = {getattr(question, key):g}, of those that all other rules keep."
    shown = Passages(title="Just dropped and just kept", note=note, passages=passages)
    return Answer(front=_front(rules, question), documents=shown)


def _measure(question: CleaningQuestion) -> Answer:
    """Train two small models for a minute, and score both on documents that neither has seen."""
    from hornbook.studio.explore.real import proxies

    rules = _rules(question)
    kept, good, texts = rules.now.kept, rules.corpus.good, rules.corpus.texts(range(len(rules.now.kept)), TEXT)
    if sum(map(bool, texts)) < 0.9 * len(texts):
        raise UsageError(
            f"{question.data} has few texts of dropped documents: give --data the files that it was made of"
        )
    ids, encoded = rules.corpus.signals.columns["id"].tolist(), [each.encode() for each in texts]
    # The example's planted copies go where their original does.
    names = ids if question.data else [each.partition("#")[0] for each in ids]
    is_held = np.array([crc32(each.encode()) % HELD == 0 for each in names])

    def joined(mask: np.ndarray) -> bytes:
        return b"\n\n".join(encoded[row] for row in np.flatnonzero(mask))

    masks = {"good": good == 1, "bad": good == 0} if rules.is_judged else {"kept": kept, "dropped": ~kept}
    learned = {"all documents": joined(~is_held), "what your rules keep": joined(kept & ~is_held)}
    scored = {name: text for name, mask in masks.items() if (text := joined(mask & is_held))}
    if not learned["what your rules keep"] or not scored:
        raise UsageError("these rules leave nothing to learn, or nothing to score: choose others, or more documents")
    steps, found = proxies(small_recipe(), learned, scored, PROXY_SECONDS)
    rows = [
        [name, len(text), *(found[name][each].mean() / np.log(2) for each in scored)] for name, text in learned.items()
    ]
    facts = list[Fact]()
    for name in scored:
        less = (found["all documents"][name] - found["what your rules keep"][name]) / np.log(2)
        facts += [fact(f"fewer bits per byte of {name} documents", less.mean())]
        facts += [fact("... plus or minus", 2 * less.std(ddof=1) / np.sqrt(len(less)))]
    columns: Columns = {"learned": None, "bytes": "bytes", **{f"bits per byte, {name}": "" for name in scored}}
    note = (
        f"A model of 0.1 million values, {steps} steps each, scored on one of {HELD} documents, which it did not learn."
    )
    range_note = "By two standard errors over the same passages. Other seeds, and larger models, may say otherwise."
    return Answer(
        losses=Table(title="Loss of small models", note=note, columns=columns, rows=rows),
        difference=Facts(title="What your rules gain", note=range_note, facts=facts),
    )


def _settings(question: CleaningQuestion) -> dict[str, Any]:
    rules = [{"kind": kind, **values} for kind, values in _thresholds(question).items()]
    return {"text.steps": [*({"kind": each.kind} for each in PLAIN), *rules]}


def _load(recipe: Recipe) -> Mapping[str, Any]:
    """The thresholds of a run's recipe, where it has such rules."""
    steps = {each.label: each for each in recipe.text.steps if each.label in RULES}
    values = {key: getattr(step, key) for kind, step in steps.items() for key in _keys(kind)}
    return {key: value for key, value in values.items() if value is not None} | (
        {"rules": tuple(steps)} if steps else {}
    )


@explorer(
    "Cleaning and coverage",
    asks="What do the rules of cleaning drop, of which sources, and was it bad?",
    code=(
        "text.refinery.quality.rules:Rules",
        "text.refinery.scores.moved_thresholds:MovedThresholds",
        "text.refinery.scores.measured_corpus:measured_corpus",
    ),
    presets=(
        Preset("Gopher", {}, "Rae et al. 2021, arXiv 2112.11446"),
        Preset("FineWeb loses the code", {"rules": "fineweb", "moved": "min_terminal_lines"}, "arXiv 2406.17557"),
        Preset("Lists and tables stay", {"min_words": 20, "min_stop_words": 1, "max_duplicate_lines": 0.5}),
    ),
    settings=_settings,
    load=_load,
    further=_further,
    measure=_measure,
)
def cleaning(question: CleaningQuestion) -> Answer:
    """Text from the web is cleaned by rules: a document goes if it is too short, repeats itself, or has few sentences.
    Every rule also drops good documents, and the stricter it is the more of them. Code, lists and poems break rules
    that were made for prose, so a source can vanish, and its words with it. Here the rules judge the numbers that
    `hornbook prepare` measures for each document, so a threshold moves at once. The example is the library of your
    Python, where each document has a copy with a planted fault, so it is known what should be dropped."""
    rules = _rules(question)
    facts = [fact("documents", len(rules.now.kept), "count")]
    facts += [fact(name, share, "share") for name, share in rules.shares().items()]
    judges = "Nobody has judged a document: `hornbook prepare review FOLDER` asks you about some."
    if rules.is_judged:
        judges = "" if question.data else "The example's bad documents are those with a planted fault."
    groups: Columns = {"group": None, "documents": "count", "kept": "share", "text kept": "share"}
    broken: Columns = {"threshold": None, "rule": None, "documents": "count"}
    broken = {**broken, "of them bad": "share"} if rules.is_judged else broken
    rows = [each[: len(broken)] for each in rules.broken()]
    lost = "A source that loses far more than the others will be missing from what a model learns."
    several = "A document may break several rules, so the numbers add up to more than what is dropped."
    return Answer(
        summary=Facts(title="What the rules leave", note=judges, facts=facts),
        groups=Table(title="By source and by language (or script)", note=lost, columns=groups, rows=rules.groups()),
        broken=Table(title="Documents that break each rule", note=several, columns=broken, rows=rows),
        moved=_moved(rules, question),
    )
