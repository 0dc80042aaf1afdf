"""Sections of docs/figures.md on evaluation."""

from typing import Any

from benchmarks.report import rows_of, section


def evals_harness(found: dict[str, Any]) -> list[str]:
    """lm-eval's requests, native against exported."""
    rows = [
        (model, task, each["kind"], each["requests"], f"{each['largest_difference']:.1e}", each["different_answers"])
        for model, part in found["models"].items()
        for task, each in part["tasks"].items()
    ]
    columns = ["model", "task", "kind", "requests", "largest difference in nats", "other choices or answers"]
    return section(
        "lm-eval, native and exported",
        f"`python -m benchmarks.evals.harness`: lm-eval {found['lm_eval']} on a trained model by our interface, and on",
        f"its export by lm-eval's own class for transformers {found['transformers']}; five tasks of local text, of",
        f"{found['items']} items each; limit {found['limit']:.0e} a request.",
        *rows_of(columns, rows),
    )


def evals_share(found: dict[str, Any]) -> list[str]:
    """The time that evaluation in the loop takes."""
    rows = [
        (
            f"{each['limit']:.0%}",
            f"{each['share']:.1%}",
            each["evaluations"],
            each["with_tasks"],
            each["training_seconds"],
            each["evaluation_seconds"],
        )
        for each in found["limits"]
    ]
    columns = ["`eval.share`", "evaluations took", "evaluations", "with tasks", "s of steps", "s of an evaluation"]
    return section(
        "Evaluation in the loop",
        f"`python -m benchmarks.evals.share`: four tasks every {found['every']} steps of a small model, before the",
        "last step; the first evaluation is always done.",
        *rows_of(columns, rows),
    )


SECTIONS = (evals_harness, evals_share)
