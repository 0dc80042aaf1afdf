"""`hornbook eval RUN --compare RUN2`: two models on the same items."""

import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.model.subject import Subject, corpus_of, open_subject
from hornbook.cli.result import Result
from hornbook.errors import UsageError
from hornbook.progress import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hornbook.data.config.objectives import ObjectiveConfig
    from hornbook.evals.evaluate import Report
    from hornbook.settings.recipe import Recipe
    from hornbook.text.ingest.skipped import SkippedRows


def compare_models(
    target: Path, other: Path, data: list[str] | None, tasks: str, progress: Progress, *, average: bool
) -> Result:
    """Differences by source and task, of rows as long as both models read; of encoder-decoders by task alone."""
    from hornbook.evals.compare import compare
    from hornbook.text.ingest.skipped import SkippedRows

    first, second = (open_subject(each, tasks, average=average) for each in (target, other))
    text = not (first.loaded.config.kind == "encoder_decoder" and first.recipe.eval.tasks)
    objectives = _objectives(first, second) if text else None
    first, second = (
        replace(each, recipe=each.recipe.model_copy(update=_asked(first.recipe, objective)))
        for each, objective in zip((first, second), objectives or (None, None), strict=True)
    )
    sequence = min(first.sequence, second.sequence)
    skipped, again = SkippedRows(), SkippedRows()  # both models read the same files
    reports = [
        _report(each, data, sequence, progress, rows, text=text) for each, rows in ((first, skipped), (second, again))
    ]
    value = {"checkpoint": str(first.folder), "compared": str(second.folder), "sequence": sequence, **compare(*reports)}
    return Result(value | skipped.to_json(), notes=[*_notes(value), *skipped.notes])


def _asked(recipe: "Recipe", objective: "ObjectiveConfig | None") -> dict[str, Any]:
    """What both models are asked: the tasks and, with an objective, the text of the first one's recipe."""
    data = {} if objective is None else {"data": recipe.data.model_copy(update={"objective": objective})}
    return {"eval": recipe.eval, "seed": recipe.seed} | data


def _objectives(first: Subject, second: Subject) -> "tuple[ObjectiveConfig, ObjectiveConfig]":
    """How each model is scored: labels each in its own way, text in that of the first."""
    ours, theirs = (each.recipe.data.objective for each in (first, second))
    if ours.predicts_labels != theirs.predicts_labels:
        names = [str(each.folder) for each in (first, second)]
        labels, text = names if ours.predicts_labels else reversed(names)
        raise UsageError(f"{labels} predicts labels and {text} predicts text: there is nothing that both measure")
    if not ours.predicts_labels:
        return (objective := _objective(first)), objective
    heads = [_labels_of(each) for each in (first, second)]
    if heads[0] != heads[1]:
        shown = " and ".join(textwrap.shorten(", ".join(head), 60) for head in heads)
        raise UsageError(
            f"{first.folder} and {second.folder} predict other labels ({shown}): compare models of the same labels in "
            "the same order"
        )
    return ours, theirs


def _labels_of(subject: Subject) -> list[str]:
    """What a head predicts, by its kind and the names or the number of its labels."""
    head: Any = subject.loaded.config.head
    return [subject.recipe.data.objective.kind, head.kind, *getattr(head, "labels", []), f"{head.outputs} outputs"]


def _objective(subject: Subject) -> "ObjectiveConfig":
    """How text is scored, with documents as they are: causal, but where training was masked or by prefix."""
    from hornbook.data.config.objectives import Causal, Masked, Prefix

    objective, kind = subject.recipe.data.objective, subject.loaded.config.kind
    if kind == "encoder_decoder" or (kind == "encoder" and not isinstance(objective, Masked)):
        raise UsageError(
            f"--compare is of decoders, of encoders with masked text, of models that predict labels, and by --tasks of "
            f"encoder-decoders: {subject.folder} is scored on other rows, whose documents cannot be told apart; see "
            "`hornbook runs compare` for results of runs"
        )
    return objective if isinstance(objective, Prefix | Masked) else Causal()


def _report(
    subject: Subject, data: list[str] | None, sequence: int, progress: Progress, skipped: "SkippedRows", *, text: bool
) -> "Report":
    with corpus_of(data, subject.recipe, subject.loaded.tokenizer_folder, progress, skipped) as corpus:
        evaluator = subject.evaluator(corpus, sequence)
        rows = evaluator.rows() if text else {}
        return evaluator.evaluate(subject.engine, rows, by_document=True, progress=progress)


def _notes(value: dict[str, Any]) -> "Iterator[RenderableType]":
    """A table of the differences, and what was not compared."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    whole = [("all", value["all"])] if len(value["sources"]) > 1 else []
    compared = [*value["sources"].items(), *whole, *value["tasks"].items()]
    if benchmark := value.get("benchmark"):
        compared.append((benchmark["task"], {"score": benchmark["score"]}))
    yield f"{value['checkpoint']} less {value['compared']}: standard errors and 95 % intervals of the differences"
    table = Table("(items)", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for header in ("first", "second", "difference", "95 % interval"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, metrics in compared:
        if "reason" not in metrics:
            most = max(found["items"] for found in metrics.values())
            table.add_row(f"{name} ({most:,})", style="bold")
            for metric, found in metrics.items():
                table.add_row(*_cells(metric, found, most))
    yield table
    yield from (f"{name}: not compared: {each['reason']}" for name, each in compared if "reason" in each)
    yield from (f"{name}: left out: {_left_out(each)}" for name, each in value.get("unpaired", {}).items())


def _cells(metric: str, found: dict[str, Any], most: int) -> tuple[str, ...]:
    items = f" ({found['items']:,})" if found["items"] < most else ""
    return (
        f"  {metric.replace('_', ' ')}{items}",
        f"{found['first']:.4f}",
        f"{found['second']:.4f}",
        f"{found['difference']:+.4f} +-{found['se']:.4f}",
        f"{found['low']:+.4f} to {found['high']:+.4f}",
    )


_UNPAIRED = {
    "first_alone": "that the first model alone scored",
    "second_alone": "that the second model alone scored",
    "other_labels": "of which the models read different numbers of labels, as where one cuts them sooner",
}


def _left_out(counts: dict[str, int]) -> str:
    told = [f"{count:,} documents {_UNPAIRED[why]}" for why, count in counts.items() if count]
    return "; ".join(told)
