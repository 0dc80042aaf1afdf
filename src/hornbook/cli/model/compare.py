"""`hornbook eval RUN --compare RUN2`: two models on the same items."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.model.subject import Subject, corpus_of, open_subject
from hornbook.cli.result import Result
from hornbook.errors import UsageError
from hornbook.progress import Progress

if TYPE_CHECKING:
    from hornbook.data.config.objectives import ObjectiveConfig
    from hornbook.evals.evaluate import Report


def compare_models(
    target: Path, other: Path, data: list[str] | None, tasks: str, progress: Progress, *, average: bool
) -> Result:
    """Differences by source and task, of rows as long as both models read; of encoder-decoders by task alone."""
    from hornbook.evals.compare import compare

    first, second = (open_subject(each, tasks, average=average) for each in (target, other))
    asked = {"eval": first.recipe.eval, "seed": first.recipe.seed}
    text = not (first.loaded.config.kind == "encoder_decoder" and first.recipe.eval.tasks)
    if text:
        asked["data"] = first.recipe.data.model_copy(update={"objective": _objective(first)})
    first, second = (replace(each, recipe=each.recipe.model_copy(update=asked)) for each in (first, second))
    sequence = min(first.sequence, second.sequence)
    reports = [_report(each, data, sequence, progress, text=text) for each in (first, second)]
    found = compare(*reports)
    value = {"checkpoint": str(first.folder), "compared": str(second.folder), "sequence": sequence, **found}
    return Result(value, notes=list(_lines(value)))


def _objective(subject: Subject) -> "ObjectiveConfig":
    """How text is scored, with documents as they are: causal, but where training was masked or by prefix."""
    from hornbook.data.config.objectives import Causal, Masked, Prefix

    objective, kind = subject.recipe.data.objective, subject.loaded.config.kind
    if (
        objective.predicts_labels
        or kind == "encoder_decoder"
        or (kind == "encoder" and not isinstance(objective, Masked))
    ):
        raise UsageError(
            f"--compare is of decoders, of encoders with masked text, and by --tasks of encoder-decoders: "
            f"{subject.folder} is scored on other rows, whose documents cannot be told apart; see `hornbook runs "
            "compare` for results of runs"
        )
    return objective if isinstance(objective, Prefix | Masked) else Causal()


def _report(subject: Subject, data: list[str] | None, sequence: int, progress: Progress, *, text: bool) -> "Report":
    with corpus_of(data, subject.recipe, subject.folder, progress) as corpus:
        evaluator = subject.evaluator(corpus, sequence)
        rows = evaluator.rows() if text else {}
        return evaluator.evaluate(subject.engine, rows, by_document=True, progress=progress)


def _lines(value: dict[str, Any]) -> Iterator[str]:
    """`notes: bits per byte 1.9134 less 1.9340: -0.0206 +- 0.0031, -0.0267 to -0.0144 (12 items)`."""
    yield f"{value['checkpoint']} less {value['compared']}: difference, its standard error and 95 % interval"
    for name, metrics in [*value["sources"].items(), ("all", value.get("all", {})), *value["tasks"].items()]:
        if "reason" in metrics:
            yield f"{name}: not compared: {metrics['reason']}"
            continue
        for metric, found in metrics.items():
            both = f"{found['first']:.4f} less {found['second']:.4f}"
            change = f"{found['difference']:+.4f} +- {found['se']:.4f}, {found['low']:+.4f} to {found['high']:+.4f}"
            yield f"{name}: {metric.replace('_', ' ')} {both}: {change} ({found['items']:,} items)"
