"""`hornbook eval`: score a run or checkpoint on held-out text."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.result import Result
from hornbook.cli.shell import Average, Target
from hornbook.errors import IntegrityError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import coverage
from hornbook.progress import Progress, progress_bar

if TYPE_CHECKING:
    from rich.table import Table

    from hornbook.data.corpus import Corpus
    from hornbook.model.storage.load import Loaded
    from hornbook.settings.recipe import Recipe
    from hornbook.text.config.labels import LabelsConfig

WINDOW = 1024  # tokens per row for a checkpoint that belongs to no run


def evaluate(
    target: Target,
    data: Annotated[
        list[str] | None, typer.Option(help="Text to score instead of the run's validation shards; may be repeated.")
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also score gzip and a unigram model on the same text.")
    ] = False,
    average: Average = False,
) -> Result:
    """Score a model on all held-out text: loss and bits per byte by source, and over all sources.

    For the last checkpoint of a run, this is the result that the run ended with.
    """
    from hornbook.evals.task import Metrics

    with progress_bar() as progress:
        progress("load the model", 0, None)
        metrics = _score(target, data, progress, baselines=baselines, average=average)
    tasks = [f"{name}: {Metrics(values).summary}" for name, values in metrics.get("tasks", {}).items()]
    return Result(metrics, notes=[_table(metrics), *tasks])


def _score(
    target: Path, data: list[str] | None, progress: Progress, *, baselines: bool, average: bool
) -> dict[str, Any]:
    """All metrics: the value of `--json`."""
    from hornbook.evals.baselines import baselines as compute_baselines
    from hornbook.evals.evaluate import Evaluator
    from hornbook.model.storage.load import load_model
    from hornbook.parallel.config import ParallelConfig
    from hornbook.parallel.parallelize import parallelize
    from hornbook.run.checkpoints.path import checkpoint_path

    folder = checkpoint_path(target)
    loaded = load_model(folder, average=average)
    if loaded.tokenizer is None:
        raise UsageError(f"{folder} has no tokenizer.json, so text cannot be scored")
    recipe = recipe_of(folder, loaded)
    # The best device of this machine, whatever the training used.
    engine = parallelize(loaded.model, ParallelConfig(), recipe.train.model_copy(update={"device": "auto"}))
    sequence = min(recipe.train.sequence, loaded.config.position.length)
    progress("read the text", 0, None)
    with _corpus(data, recipe, folder, progress) as corpus:
        if corpus.tokenizer_digest != loaded.tokenizer.digest:
            raise IntegrityError(f"{corpus.root} was tokenized with another tokenizer than {folder}: give --data FILES")
        if not corpus.validation:
            raise UsageError(f"{corpus.root} holds no validation tokens: set text.validation, or give --data FILES")
        evaluator = Evaluator(corpus, loaded.tokenizer, recipe, sequence)
        report = evaluator.evaluate(engine, evaluator.rows(), progress=progress).as_dict()
        metrics: dict[str, Any] = {"checkpoint": str(folder), **report.pop("all"), **report}
        if baselines:
            progress("compute baselines", 0, None)
            metrics["baselines"] = compute_baselines(corpus, loaded.tokenizer)
    return metrics


def recipe_of(folder: Path, loaded: "Loaded") -> "Recipe":
    """The recipe of the run that `folder` belongs to, or else defaults with rows of 1,024 tokens.

    Of no run, an encoder is scored on masked tokens, an encoder-decoder on spans or, where its tokenizer has no
    sentinels for them, on infilling.
    """
    from hornbook.data.config.data import DataConfig
    from hornbook.data.config.objectives import Causal, Infill, Masked, Span
    from hornbook.run.config import TrainConfig
    from hornbook.run.start.bound import recipe_in_force
    from hornbook.settings.recipe import Recipe

    run = RunDir(folder.resolve().parent.parent)
    if run.recipe.is_file():
        return recipe_in_force(run)
    assert loaded.tokenizer is not None
    pairs = Span() if loaded.tokenizer.special.sentinels else Infill()
    objective = {"decoder": Causal(), "encoder": Masked(), "encoder_decoder": pairs}[loaded.config.kind]
    return Recipe(train=TrainConfig(sequence=WINDOW), data=DataConfig(objective=objective))


@contextmanager
def _corpus(data: list[str] | None, recipe: "Recipe", folder: Path, progress: Progress) -> Iterator["Corpus"]:
    """The text to score: the given files, or else the shards that the run was trained on."""
    from hornbook.data.corpus import open_corpus
    from hornbook.evals.evaluate import corpus_of_files

    if data:
        with corpus_of_files(data, folder, _labels(recipe), progress) as corpus:
            yield corpus
    elif recipe.data.path is None:
        raise UsageError(f"{folder} belongs to no run, so there is no validation data: give --data FILES")
    else:
        yield open_corpus(recipe.data, recipe.data.path)


def _labels(recipe: "Recipe") -> "LabelsConfig | None":
    """The labels of given files: those of the run's data folder, if that still exists."""
    from hornbook.data.corpus import Corpus

    head, labels = recipe.model.head, recipe.text.labels
    if recipe.data.path is not None and Path(recipe.data.path, "tokens", "index.json").is_file():
        labels = Corpus.open(recipe.data.path).labels
    elif labels is not None and getattr(labels, "labels", None) == []:
        labels = labels.model_copy(update={"labels": getattr(head, "labels", [])})
    return labels


def _table(metrics: dict[str, Any]) -> "Table":
    """By source: loss and bits per byte with the baselines, or the metrics of labels."""
    from rich.table import Table

    scores = [*metrics["sources"].items(), *([("all", metrics)] if len(metrics["sources"]) > 1 else [])]
    if "labels" in metrics:
        names = [name for name, value in scores[0][1].items() if isinstance(value, float)]
        header = ["source", *(name.replace("_", " ") for name in names), "labels"]
        rows = [(name, *(f"{each[key]:.4f}" for key in names), f"{each['labels']:,}") for name, each in scores]
    else:
        header = ["source", "loss", "bits per byte", "tokens", "bytes"]
        rows = [(name, *_cells(each)) for name, each in scores]
        for name, bits in metrics.get("baselines", {}).items():
            rows.append((name.replace("_", " "), "", "-" if math.isnan(bits) else f"{bits:.4f}", "", ""))
    table = Table(title=f"{metrics['checkpoint']}, {coverage(metrics)}")
    for column in header:
        table.add_column(column, justify="left" if column == "source" else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _cells(score: dict[str, Any]) -> tuple[str, ...]:
    return f"{score['loss']:.4f}", f"{score['bits_per_byte']:.4f}", f"{score['tokens']:,}", f"{score['bytes']:,}"
