"""`hornbook eval`: score a run or checkpoint on held-out text."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.model.compare import compare_models
from hornbook.cli.model.harness import evaluate_with_harness
from hornbook.cli.model.subject import corpus_of, open_subject
from hornbook.cli.result import Options, Result, table
from hornbook.cli.shell import Average
from hornbook.errors import UsageError
from hornbook.files.run_status import coverage
from hornbook.progress import Progress, progress_bar

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclass(frozen=True)
class EvalOptions(Options):
    """Options of an evaluation: text, tasks and output."""

    data: Annotated[
        list[str] | None, typer.Option(help="Text to score instead of the run's validation shards; may be repeated.")
    ] = None
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also score gzip and a unigram model on the same text.")
    ] = False
    tasks: Annotated[
        str,
        typer.Option(help="Score these tasks: kinds (`copy,cloze`), or TOML as of `eval.tasks` (`[{kind = ...}]`)."),
    ] = ""
    harness: Annotated[
        str, typer.Option(metavar="TASK,...", help="Run these tasks of lm-eval (extra `eval`), in float32.")
    ] = ""
    include: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --harness: a folder of lm-eval task files (yaml).")
    ] = None
    bos: Annotated[
        bool, typer.Option("--bos", help="With --harness: every prompt begins with the begin-of-text token.")
    ] = False
    compare: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN2", help="Score this model too, on the same items: paired differences with intervals."
        ),
    ] = None
    contamination: Annotated[
        bool,
        typer.Option(help="Look for the tasks' items in the run's own training text, and tell it beside the score."),
    ] = True
    average: Average = False


def evaluate(
    target: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|CHECKPOINT...",
            help="A run (its newest checkpoint is used) or a checkpoint; several are scored one after the other.",
        ),
    ],
    options: EvalOptions,
) -> Result:
    """Score a model on all held-out text: loss and bits per byte by source, and over all sources.

    For the last checkpoint of a run, this is the result that the run ended with. Of several runs on tasks of GLUE or
    SuperGLUE the benchmark's score is told too.
    """
    harness, compare = options.harness, options.compare
    if harness:
        _refuse("--harness", options, "data", "baselines", "tasks", "compare")
    else:
        _refuse("no --harness", options, "include", "bos")
    if compare is not None:
        _refuse("--compare", options, "baselines")
    if len(target) > 1 and (harness or compare is not None):
        raise UsageError("--harness and --compare are of one RUN: leave out the others")
    with progress_bar() as progress:
        progress("load the model", 0, None)
        if harness:
            more = {"bos": options.bos, "average": options.average}
            return evaluate_with_harness(target[0], harness, options.include, progress, **more)
        if compare is not None:
            return compare_models(target[0], compare, options.data, options.tasks, progress, average=options.average)
        models = [_score(each, options, progress) for each in target]
    return _result(models)


def _result(models: list[dict[str, Any]]) -> Result:
    """The metrics of one model, or of several with the scores of suites."""
    from hornbook.evals.suites import suite_scores

    notes = [note for metrics in models for note in _notes(metrics)]
    if len(models) == 1:
        return Result(models[0], notes=notes)
    scores = [model["benchmark"] for model in models if "benchmark" in model]
    suites = suite_scores((each["task"], each["score"], each["score_se"]) for each in scores)
    return Result({"models": models, "suites": suites}, notes=[*notes, *map(_suite_line, suites.items())])


def _notes(metrics: dict[str, Any]) -> "Iterator[RenderableType]":
    from hornbook.evals.task import summary_of
    from hornbook.text.ingest.skipped import skipped_notes

    yield _table(metrics)
    yield from skipped_notes(metrics)
    yield from (f"{name}: {summary_of(values)}" for name, values in metrics.get("tasks", {}).items())
    if "detection_loss" in metrics:
        told = ("objective", "detection_loss", "detection_accuracy", "replaced_share", "replaced_found")
        yield f"replaced tokens, of all sources: {summary_of({name: metrics[name] for name in told})}"
    if score := metrics.get("benchmark"):
        yield f"{score['task']}: {summary_of({name: score[name] for name in ('score', 'score_se')})}"


def _suite_line(suite: tuple[str, dict[str, Any]]) -> str:
    """`glue: score 0.8052 (cola 0.6050, ...)`, or which tasks there is no score without."""
    name, found = suite
    tasks = ", ".join(f"{task} {score:.4f}" for task, score in found["tasks"].items())
    missing = ", ".join(found["missing"])
    score = f"no score without {missing}" if missing else f"score {found['score']:.4f} +- {found['score_se']:.4f}"
    return f"{name}: {score} ({tasks})"


def _refuse(chosen: str, options: EvalOptions, *others: str) -> None:
    """Raise UsageError for options that would change nothing."""
    if given := [f"--{name}" for name in others if getattr(options, name)]:
        raise UsageError(f"with {chosen}, {' and '.join(given)} would change nothing: leave it out")


def _score(target: Path, options: EvalOptions, progress: Progress) -> dict[str, Any]:
    """All metrics: the value of `--json`."""
    from hornbook.evals.baselines import baselines
    from hornbook.evals.contamination import with_contamination
    from hornbook.text.ingest.skipped import SkippedRows

    subject, skipped = open_subject(target, options.tasks, average=options.average), SkippedRows()
    progress("read the text", 0, None)
    with corpus_of(options.data, subject.recipe, subject.loaded.tokenizer_folder, progress, skipped) as corpus:
        evaluator = subject.evaluator(corpus)
        found = evaluator.evaluate(subject.engine, evaluator.rows(), progress=progress)
        if options.contamination and found.tasks and (trained := subject.training_corpus()) is not None:
            found = with_contamination(found, evaluator.tasks, trained, subject.tokenizer, progress)
        report = found.as_dict(errors=True)
        metrics: dict[str, Any] = {"checkpoint": str(subject.folder), **report.pop("all"), **report}
        metrics |= skipped.to_json()
        if options.baselines:
            progress("compute baselines", 0, None)
            metrics["baselines"] = baselines(corpus, subject.tokenizer)
    return metrics


def _table(metrics: dict[str, Any]) -> "Table":
    """By source: loss and bits per byte with the baselines, or the metrics of labels."""
    scores = [*metrics["sources"].items(), *([("all", metrics)] if len(metrics["sources"]) > 1 else [])]
    if "labels" in metrics:
        names = [name for name in scores[0][1] if f"{name}_se" in scores[0][1]]
        header = [*(name.replace("_", " ") for name in names), "labels"]
        rows = [
            (name, *(f"{each[key]:.4f}\n+-{each[f'{key}_se']:.4f}" for key in names), f"{each['labels']:,}")
            for name, each in scores
        ]
    else:
        header = ["loss", "bits per byte", "tokens", "bytes"]
        rows = [(name, *_cells(each)) for name, each in scores]
        for name, bits in metrics.get("baselines", {}).items():
            rows.append((name.replace("_", " "), "", "-" if math.isnan(bits) else f"{bits:.4f}", "", ""))
    made = table(f"{metrics['checkpoint']}, {coverage(metrics)}", ["source"], header)
    for row in rows:
        made.add_row(*row)
    return made


def _cells(score: dict[str, Any]) -> tuple[str, ...]:
    return f"{score['loss']:.4f}", f"{score['bits_per_byte']:.4f}", f"{score['tokens']:,}", f"{score['bytes']:,}"
