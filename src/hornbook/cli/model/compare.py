"""`hornbook eval RUN --compare RUN2`: two models on the same items."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.model.subject import Subject, corpus_of, open_subject
from hornbook.cli.result import Result
from hornbook.progress import Progress

if TYPE_CHECKING:
    from rich.table import Table

    from hornbook.evals.evaluate import Report


def compare_models(
    target: Path, other: Path, data: list[str] | None, tasks: str, progress: Progress, *, average: bool
) -> Result:
    """Differences by source and task, of rows as long as both models read."""
    from hornbook.evals.compare import compare

    first, second = (open_subject(each, tasks, average=average) for each in (target, other))
    shared = second.recipe.model_copy(
        update={"eval": first.recipe.eval, "seed": first.recipe.seed, "data": first.recipe.data}
    )
    second = Subject(second.folder, second.loaded, second.tokenizer, shared, second.engine)
    sequence = min(first.sequence, second.sequence)
    reports = [_report(each, data, sequence, progress) for each in (first, second)]
    found = compare(*reports)
    value = {"checkpoint": str(first.folder), "compared": str(second.folder), "sequence": sequence, **found}
    return Result(value, notes=[_table(value)])


def _report(subject: Subject, data: list[str] | None, sequence: int, progress: Progress) -> "Report":
    with corpus_of(data, subject.recipe, subject.folder, progress) as corpus:
        evaluator = subject.evaluator(corpus, sequence)
        return evaluator.evaluate(subject.engine, evaluator.rows(), by_document=True, progress=progress)


def _table(value: dict[str, Any]) -> "Table":
    from rich.table import Table

    table = Table(title=f"{value['checkpoint']} less {value['compared']}")
    for column in ("of", "metric", "first", "second", "difference", "standard error", "95 %", "items"):
        table.add_column(column, justify="left" if column in ("of", "metric") else "right")
    parts = [*value["sources"].items(), ("all", value["all"]), *value["tasks"].items()]
    for name, metrics in parts:
        if "reason" in metrics:
            table.add_row(name, metrics["reason"])
            continue
        for metric, found in metrics.items():
            numbers = (f"{found[key]:.4f}" for key in ("first", "second"))
            interval = f"{found['low']:+.4f} to {found['high']:+.4f}"
            shown = (f"{found['difference']:+.4f}", f"{found['se']:.4f}", interval, f"{found['items']:,}")
            table.add_row(name, metric.replace("_", " "), *numbers, *shown)
    return table
