"""Scores of GLUE and SuperGLUE, as published: of a task the mean of its metrics, of a suite the mean of its tasks.

The tasks and their metrics are in `text/config/benchmarks.toml`. MNLI's score is the mean of matched and mismatched
text. Diagnostic sets (AX) do not count. Scores are shares of one, where papers print percents.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from statistics import mean, median
from typing import Any

from hornbook.evals.labels import LabelScores
from hornbook.text.config.benchmarks import benchmarks


def task_score(by_source: Mapping[str, object], whole: object) -> dict[str, Any]:
    """`task` and `score` of the scores of labels; nothing where the data has no benchmark's layout."""
    name = getattr(whole.kind, "layout", "") if isinstance(whole, LabelScores) else ""
    if (task := benchmarks().get(name)) is None:
        return {}
    parts = by_source.values() if task.sources else [whole]
    found = [_mean(part.metrics, task.metrics) for part in parts if isinstance(part, LabelScores) and part.metrics]
    return {"benchmark": {"task": name, "score": mean(found)}} if found else {}


def _mean(metrics: Mapping[str, float], names: Sequence[str]) -> float:
    """A correlation with predictions that are all the same, which is not defined, counts 0: they tell nothing apart."""
    return mean(0.0 if isnan(metrics[name]) else metrics[name] for name in names)


def suite_scores(found: Iterable[tuple[str, float]]) -> dict[str, dict[str, Any]]:
    """By suite: `tasks`, each the median of its models; `score`, their mean, None while tasks are `missing`.

    found: (task, score) of models. Suites without a task among them are left out.
    """
    by_task: dict[str, list[float]] = {}
    for name, score in found:
        by_task.setdefault(name, []).append(score)
    suites: dict[str, dict[str, Any]] = {}
    for suite in ("glue", "superglue"):
        names = [name for name, task in benchmarks().items() if suite in task.suites]
        tasks = {name: median(by_task[name]) for name in names if name in by_task}
        missing = [name for name in names if name not in by_task]
        if tasks:
            suites[suite] = {"score": None if missing else mean(tasks.values()), "tasks": tasks, "missing": missing}
    return suites
