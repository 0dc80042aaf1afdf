"""Thresholds of several rules over measured documents: what stays, how much of it is good, and what other values do."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, Self

import numpy as np

from hornbook.errors import UsageError
from hornbook.text.config.rules import FineWebConfig, GopherQualityConfig, GopherRepetitionConfig
from hornbook.text.config.step import StepConfig
from hornbook.text.refinery.quality.rules import Rule, Rules
from hornbook.text.refinery.scores.curve import Point, point
from hornbook.text.refinery.scores.measured_corpus import MeasuredCorpus, measured_corpus

RULES: dict[str, type[StepConfig]] = {
    each.model_fields["kind"].default: each for each in (GopherQualityConfig, GopherRepetitionConfig, FineWebConfig)
}
"""Kinds of steps whose thresholds can be moved together."""


class Trial(NamedTuple):
    """Documents kept with one threshold at another value."""

    key: str
    """The threshold; "" for the values as they are."""
    kept: np.ndarray
    """bool [rows]."""
    point: Point
    good: float | None
    """Share of the kept documents that is good, of those judged."""


class Group(NamedTuple):
    """The documents of a source, or of a language."""

    name: str
    documents: int
    kept: float
    """Share of the documents."""
    text: float
    """Share of their bytes that is in those kept."""


class BrokenRule(NamedTuple):
    """A rule that documents break, whatever other rules say of them."""

    key: str
    reason: str
    documents: int
    bad: float | None
    """Share of them that is bad, of those judged."""


class Neighbour(NamedTuple):
    """A document near a threshold."""

    is_kept: bool
    value: float
    id: str
    text: str
    """Its beginning; "" where prepare has not stored it."""


class MovedThresholds:
    """The rules of some steps, whose thresholds are those of their configurations, over a corpus."""

    def __init__(self, corpus: MeasuredCorpus, steps: Sequence[Rules]) -> None:
        self.corpus, self.steps = corpus, steps
        self._columns, self._good = corpus.signals.columns, corpus.good
        self._kept = [step.decide(self._columns) == 0 for step in steps]
        self.is_judged = not np.isnan(corpus.good).all()
        self.now = self._trial("", self._without(None), 0.0)

    @classmethod
    def of(cls, path: str, thresholds: Mapping[str, Mapping[str, float]]) -> Self:
        """Thresholds by kind of step, over the documents of a path (`measured_corpus`). Raises UsageError.

        The folder's own steps get these thresholds, so words are those that were counted there.
        """
        corpus, steps = measured_corpus(path, [*thresholds]), list[Rules]()
        for kind, values in thresholds.items():
            own = next((each for each in corpus.steps if getattr(each, "kind", "") == kind), RULES[kind]())
            steps.append(own.model_copy(update={"name": "", **values}).build())
            if not set(steps[-1].needs) <= corpus.signals.columns.keys():
                remedy = f"add a step of that kind and prepare again, or name {path}/documents"
                raise UsageError(f"nothing in {path} measured what {kind} compares; {remedy}")
        return cls(corpus, steps)

    def _without(self, step: Rules | None) -> np.ndarray:
        """The documents that all steps keep, or all but one."""
        masks = (mask for each, mask in zip(self.steps, self._kept, strict=True) if each is not step)
        return reduce(np.logical_and, masks, np.ones(len(self._good), bool))

    def _trial(self, key: str, kept: np.ndarray, value: float) -> Trial:
        return Trial(key, kept, point(self.corpus.signals, kept, value), self._share_good(kept))

    def _share_good(self, mask: np.ndarray) -> float | None:
        """The share of good documents among the judged ones of a mask; None where none is judged."""
        judged = self._good[mask & ~np.isnan(self._good)]
        return float(judged.mean()) if len(judged) else None

    def _share_bad(self, mask: np.ndarray) -> float | None:
        good = self._share_good(mask)
        return None if good is None else 1 - good

    def shares(self) -> dict[str, float | None]:
        """Return the shares of documents and text that are kept, and precision and recall where some are judged."""
        now, dropped = self.now.point, ~self.now.kept
        whole = max(int(self.corpus.signals.bytes.sum()), 1)
        shares: dict[str, float | None] = {"documents kept": now.share, "text kept": now.bytes / whole}
        if now.words is not None:
            shares["different words that are still there"] = now.words.vocabulary
        if not self.is_judged:
            return shares
        bad, good = (dropped[self._good == value] for value in (0, 1))
        return {
            **shares,
            "precision: dropped documents that are bad": self._share_bad(dropped),
            "recall: bad documents that are dropped": float(bad.mean()) if len(bad) else None,
            "good documents that are dropped": float(good.mean()) if len(good) else None,
        }

    def groups(self) -> list[Group]:
        """Return the kept share of each source, and of each language where it was measured."""
        sizes, kept = self.corpus.signals.bytes, self.now.kept
        return [
            Group(name, int(mask.sum()), float(kept[mask].mean()), sizes[mask & kept].sum() / max(sizes[mask].sum(), 1))
            for names, numbers in self.corpus.signals.groups
            for name, mask in ((name, numbers == number) for number, name in enumerate(names))
            if mask.any()
        ]

    def _owner(self, key: str) -> tuple[Rules, Rule]:
        """The step and the rule of a threshold."""
        return next((step, rule) for step in self.steps for rule in step.rules if rule.key == key)

    def _kept_at(self, key: str) -> Callable[[Any], np.ndarray]:
        step, _ = self._owner(key)
        others, kept_at = self._without(step), step.sweep(self._columns, key)
        return lambda value: others & kept_at(value)

    def move(self, key: str, values: Iterable[float]) -> list[Trial]:
        """One threshold at each of these values, the others as they are."""
        kept_at = self._kept_at(key)
        return [self._trial(key, kept_at(value), value) for value in values]

    def lines(self, trials: Sequence[Trial]) -> dict[str, list[float | None]]:
        """Shares of each trial by name: documents, those of each source, words, and how many of those kept are good."""
        points = [each.point for each in trials]
        names = [name for name in points[0].groups if name.startswith("source")]
        lines: dict[str, list[float | None]] = {"documents kept": [each.share for each in points]}
        lines |= {f"kept of {name}": [each.groups[name] for each in points] for name in names if len(names) > 1}
        if self.now.point.words is not None:
            lines["different words"] = [each.words and each.words.vocabulary for each in points]
        return lines | ({"good ones of those kept": [each.good for each in trials]} if self.is_judged else {})

    def each_moved(self, values: Mapping[str, Iterable[float]]) -> list[Trial]:
        """Every threshold moved alone to its values: each set of kept documents once, the smallest first."""
        trials = {self.now.kept.tobytes(): self.now}
        for key, some in values.items():
            trials = {each.kept.tobytes(): each for each in self.move(key, some) if each.kept.any()} | trials
        return sorted(trials.values(), key=lambda each: each.point.share)

    def broken(self) -> list[BrokenRule]:
        """The rules that some document breaks, in the order of the steps."""
        masks = [
            (rule, rule.breaks(rule.values(step.measured(self._columns)), getattr(step.config, rule.key)))
            for step in self.steps
            for rule in step.rules
            if getattr(step.config, rule.key) is not None
        ]
        broken = [(rule, mask) for rule, mask in masks if mask.any()]
        return [BrokenRule(rule.key, rule.reason, int(mask.sum()), self._share_bad(mask)) for rule, mask in broken]

    def near(self, key: str, count: int, characters: int) -> list[Neighbour]:
        """The documents nearest to a threshold on both of its sides, of those that all other rules keep."""
        step, rule = self._owner(key)
        threshold, values = getattr(step.config, key), rule.values(step.measured(self._columns))
        reach = self._kept_at(key)(np.inf if key.startswith("max_") else -np.inf)
        places = list[tuple[bool, int]]()
        for is_kept in (False, True):
            rows = np.flatnonzero(reach & (rule.breaks(values, threshold) != is_kept))
            nearest = rows[np.argsort(np.abs(values[rows] - threshold), kind="stable")][:count]
            places += [(is_kept, row) for row in nearest.tolist()]
        texts = self.corpus.texts([row for _, row in places], characters)
        return [
            Neighbour(is_kept, float(values[row]), str(self._columns["id"][row]), text)
            for (is_kept, row), text in zip(places, texts, strict=True)
        ]

    def quality(self, trial: Trial) -> float:
        """The share of the kept documents that is good; where none is judged, of all different words that they have."""
        if self.is_judged:
            return trial.good or 0.0
        return trial.point.words.vocabulary if trial.point.words else 0.0

    def front(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials that no other one beats: more is kept and more of it is good; or less, with more words."""
        side = 1 if self.is_judged else -1
        places = [(side * each.point.share, self.quality(each)) for each in trials]
        beaten = [any(a >= x and b >= y and (a, b) != (x, y) for a, b in places) for x, y in places]
        return [each for each, is_beaten in zip(trials, beaten, strict=True) if not is_beaten]
