"""Scores of GLUE and SuperGLUE, as published: of a task the mean of its metrics, of a suite the mean of its tasks.

The tasks and their metrics are in `text/config/benchmarks.toml`. MNLI's score is the mean of matched and mismatched
text. Diagnostic sets (AX) do not count. Scores are shares of one, where papers print percents. Standard errors tell how
far other test sets of that size would be; what another training run would change is not in them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from jaxtyping import Float

from hornbook.evals.items import spread
from hornbook.evals.labels import LabelScores
from hornbook.text.config.benchmarks import benchmarks


@dataclass(frozen=True)
class TaskScore:
    """The score of a task: the mean over parts of the mean over metrics."""

    task: str
    metrics: Sequence[str]
    parts: Sequence[LabelScores]
    """Of each source, where the score is the mean over sources; else of all labels."""

    @property
    def value(self) -> float:
        """A correlation with predictions that are all the same, which is not defined, counts 0: they tell nothing."""
        return mean(_defined(part.metrics[name]) for part in self.parts for name in self.metrics)

    @property
    def items(self) -> int:
        """Documents of all parts."""
        return sum(part.documents for part in self.parts)

    @property
    def error(self) -> float:
        """Standard error, by bootstrap."""
        return spread(self.resampled())

    def resampled(self) -> Float[np.ndarray, " resamples"]:
        """Of samples of the documents of each part by itself, the same ones for every model."""
        samples = [
            part.resampled[name].resampled(seed) for seed, part in enumerate(self.parts) for name in self.metrics
        ]
        return np.mean(np.nan_to_num(samples), 0)

    def as_dict(self, *, errors: bool) -> dict[str, Any]:
        """`task` and `score`, with `errors` its standard error too."""
        return {"task": self.task, "score": self.value} | ({"score_se": self.error} if errors else {})


def _defined(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def task_score(by_source: Mapping[str, object], whole: object) -> TaskScore | None:
    """The score of a benchmark's task of the scores of labels; None where the data has no benchmark's layout."""
    name = getattr(whole.kind, "layout", "") if isinstance(whole, LabelScores) else ""
    if (task := benchmarks().get(name)) is None:
        return None
    parts = by_source.values() if task.sources else [whole]
    found = [part for part in parts if isinstance(part, LabelScores) and part.metrics]
    return TaskScore(name, task.metrics, found) if found else None


def suite_scores(found: Iterable[tuple[str, float, float]]) -> dict[str, dict[str, Any]]:
    """By suite: `tasks`, each the median of its models; `score`, their mean, None while tasks are `missing`.

    found: (task, score, standard error) of models. Suites without a task among them are left out. For `score_se` tasks
    are independent of each other, and a median has the error of the models in the middle, which read the same texts.
    """
    by_task: dict[str, list[tuple[float, float]]] = {}
    for name, score, error in found:
        by_task.setdefault(name, []).append((score, error))
    middle = {name: _median(scores) for name, scores in by_task.items()}
    suites: dict[str, dict[str, Any]] = {}
    for suite in ("glue", "superglue"):
        names = [name for name, task in benchmarks().items() if suite in task.suites]
        tasks = {name: middle[name][0] for name in names if name in middle}
        missing = [name for name in names if name not in middle]
        if tasks:
            error = math.hypot(*(middle[name][1] for name in tasks)) / len(tasks)
            whole = {"score": None} if missing else {"score": mean(tasks.values()), "score_se": error}
            suites[suite] = whole | {"tasks": tasks, "missing": missing}
    return suites


def _median(scores: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of (score, error) the one with the median score, or the means of the two in the middle."""
    ordered = sorted(scores)
    both = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return mean(score for score, _ in both), mean(error for _, error in both)
