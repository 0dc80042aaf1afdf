"""`hornbook eval RUN --compare RUN2`: two models on the same items."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.model.subject import Subject, corpus_of, open_subject
from hornbook.cli.result import Result
from hornbook.progress import Progress

if TYPE_CHECKING:
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
    return Result(value, notes=list(_lines(value)))


def _report(subject: Subject, data: list[str] | None, sequence: int, progress: Progress) -> "Report":
    with corpus_of(data, subject.recipe, subject.folder, progress) as corpus:
        evaluator = subject.evaluator(corpus, sequence)
        return evaluator.evaluate(subject.engine, evaluator.rows(), by_document=True, progress=progress)


def _lines(value: dict[str, Any]) -> Iterator[str]:
    """`notes: bits per byte 1.9134 less 1.9340: -0.0206 +- 0.0031, -0.0267 to -0.0144 (12 items)`."""
    yield f"{value['checkpoint']} less {value['compared']}: difference, its standard error and 95 % interval"
    for name, metrics in [*value["sources"].items(), ("all", value["all"]), *value["tasks"].items()]:
        if "reason" in metrics:
            yield f"{name}: not compared: {metrics['reason']}"
            continue
        for metric, found in metrics.items():
            both = f"{found['first']:.4f} less {found['second']:.4f}"
            change = f"{found['difference']:+.4f} +- {found['se']:.4f}, {found['low']:+.4f} to {found['high']:+.4f}"
            yield f"{name}: {metric.replace('_', ' ')} {both}: {change} ({found['items']:,} items)"
