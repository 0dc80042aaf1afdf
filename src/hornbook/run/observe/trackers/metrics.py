"""Names under which trackers show the metrics of a run."""

from collections.abc import Iterator, Mapping
from typing import Any

from hornbook.files.run_status import metrics_of, task_metrics

_TAGS = {
    "loss": "loss",
    "gradient_norm": "gradient_norm",
    "lr": "learning_rate",
    "tokens_per_second": "tokens_per_second",
    "noise_scale": "noise_scale",
}


def of_step(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Of a line of metrics.jsonl: `train/loss` and others."""
    for key, name in _TAGS.items():
        if record.get(key) is not None:
            yield f"train/{name}", record[key]


def of_evaluation(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Metrics over all sources, then by source; those over all rows, and tasks, in groups of their own."""
    for scored, group in ((record, "validation"), (record.get("whole") or {}, "validation_all_rows")):
        for name, value in metrics_of(scored.get("all", {})).items():
            yield f"{group}/{name}", value
        for source, score in scored.get("sources", {}).items():
            for name, value in metrics_of(score).items():
                yield f"{group}/{name}/{source}", value
    for task, name, value in task_metrics(record):
        yield f"tasks/{name}/{task}", value
