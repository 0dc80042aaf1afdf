"""Evaluation of a model: the validation texts of a corpus source by source, then the tasks of its recipe."""

import functools
import itertools
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import xxhash

from hornbook.data.batch import Batch
from hornbook.data.config.objectives import Replaced
from hornbook.data.corpus import Corpus
from hornbook.data.validation import HeldOut, held_out
from hornbook.evals.labels import LabelScores, LabelTask, RewardTask
from hornbook.evals.loss import DetectionScores, DetectionTask, LossScores, LossTask, Pieces
from hornbook.evals.suites import task_score
from hornbook.evals.task import Scores, Task, TaskContext
from hornbook.evals.tasks.build import build_tasks
from hornbook.files.run_status import coverage
from hornbook.parallel.engine import Engine
from hornbook.progress import Progress, silent
from hornbook.settings.recipe import Recipe
from hornbook.text.config.labels import LabelsConfig, PreferenceLabels
from hornbook.text.config.text import SourceConfig, TextConfig, TokenizerFile
from hornbook.text.ingest.skipped import SkippedRows
from hornbook.text.refinery.pipeline.folder import QUARANTINE
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize
from hornbook.text.tokenizer.tokenizer import Tokenizer

ValidationScores = LossScores | LabelScores


@dataclass(frozen=True)
class Report:
    """The scores of each source and task, and the share of the validation text that they are of."""

    by_source: dict[str, ValidationScores]
    held_out: dict[str, HeldOut]
    tasks: dict[str, Scores] = field(default_factory=dict)
    task_seconds: float = 0.0
    """Time that the tasks took on this rank."""

    @property
    def total(self) -> ValidationScores:
        """The scores of all sources together; they are of one kind."""
        first, *rest = self.by_source.values()
        return functools.reduce(lambda total, part: total + cast(Any, part), rest, first)

    @property
    def objective(self) -> float:
        """The loss by which checkpoints are compared and runs are stopped."""
        total = self.total
        return total.objective if isinstance(total, DetectionScores) else total.loss

    @property
    def coverage(self) -> str:
        """`32,768 of 85,732 tokens`."""
        return coverage(self._read(self.held_out.values()))

    def as_dict(self, *, errors: bool = False) -> dict[str, Any]:
        """Measurements of each source under `sources`, of all together under `all`; `rows` is a hash of their rows.

        Those of tasks are under `tasks`, if there are any; `benchmark` is the score of a task of GLUE or SuperGLUE.
        `errors`: with standard errors of labels, which take seconds.
        """
        rows = xxhash.xxh3_64_hexdigest(" ".join(part.digest for part in self.held_out.values()).encode())
        sources = {
            name: _measurements(score, errors=errors) | self._read([self.held_out[name]])
            for name, score in self.by_source.items()
        }
        tasks = {"tasks": {name: scores.as_dict() for name, scores in self.tasks.items()}} if self.tasks else {}
        everything = _measurements(self.total, errors=errors) | self._read(self.held_out.values())
        score = task_score(self.by_source, self.total)
        benchmark = {} if score is None else {"benchmark": score.as_dict(errors=errors)}
        return {"rows": rows, "sources": sources, "all": everything, **benchmark, **tasks}

    @staticmethod
    def _read(parts: Iterable[HeldOut]) -> dict[str, int]:
        """Tokens of text that were read, and their number in all rows."""
        parts = list(parts)
        return {"read": sum(part.read for part in parts), "of": sum(part.of for part in parts)}


def _measurements(score: ValidationScores, *, errors: bool) -> dict[str, float | int]:
    return score.as_dict() | (score.errors if errors and isinstance(score, LabelScores) else {})


class Evaluator:
    """Evaluates models on the validation texts of a corpus and on the tasks of a recipe."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe, sequence: int) -> None:
        """`sequence`: tokens per row."""
        self._corpus, self._tokenizer, self._recipe, self._sequence = corpus, tokenizer, recipe, sequence
        self._token_bytes = torch.from_numpy(tokenizer.token_bytes()).long()
        self._proceed: Callable[[], bool] = lambda: True

    def rows(self, max_tokens: int | None = None) -> dict[str, HeldOut]:
        """The validation rows of each source, of at most `max_tokens` tokens each (None: all)."""
        return {
            source: held_out(
                self._corpus,
                source,
                sequence=self._sequence,
                max_tokens=max_tokens,
                document_mask=self._recipe.data.document_mask,
                objective=self._recipe.data.objective,
                seed=self._recipe.seed,
            )
            for source in self._corpus.validation
        }

    def evaluate(
        self,
        engine: Engine,
        rows: Mapping[str, HeldOut],
        *,
        with_tasks: bool = True,
        by_document: bool = False,
        proceed: Callable[[], bool] = lambda: True,
        progress: Progress = silent,
    ) -> Report:
        """Scores of the rows of each source and, `with_tasks`, of the tasks of the recipe.

        Rows are disjoint, and each token of them but a document's delimiter is predicted once; each label is scored
        once. `by_document` keeps losses of each document. `proceed` is called before each batch; once it is False, the
        rest is left out. `progress` counts rows.
        """
        done, total = 0, sum(len(part.rows) for part in rows.values())

        def with_progress(part: HeldOut) -> Iterator[Batch]:
            nonlocal done
            batches = part.batches(self._recipe.train.micro_rows)
            for batch in itertools.takewhile(lambda _: proceed(), batches):
                progress("score rows", done, total)
                yield batch
                done += len(batch.samples)

        scores: dict[str, ValidationScores] = {}
        for source, part in rows.items():
            task = self._task(source, part, with_progress(part), by_document=by_document)
            scores[source] = task.score(engine, engine.world)
        started = time.monotonic()
        found = self._score_tasks(engine, proceed, progress) if with_tasks else {}
        return Report(scores, dict(rows), found, time.monotonic() - started)

    def _score_tasks(self, engine: Engine, proceed: Callable[[], bool], progress: Progress) -> dict[str, Scores]:
        self._proceed = proceed
        found: dict[str, Scores] = {}
        for number, task in enumerate(itertools.takewhile(lambda _: proceed(), self.tasks)):
            progress(f"score {task.name}", number, len(self.tasks))
            found[task.name] = task.score(engine, engine.world)
        return found

    def _task(
        self, source: str, part: HeldOut, batches: Iterator[Batch], *, by_document: bool
    ) -> LossTask | LabelTask | RewardTask | DetectionTask:
        if part.labelled and isinstance(self._corpus.labels, PreferenceLabels):
            return RewardTask(source, batches, self._corpus, part.plan)
        if part.labelled:
            return LabelTask(source, batches, self._corpus, part.plan)
        if isinstance(self._recipe.data.objective, Replaced) and not by_document:
            return DetectionTask(source, batches, self._token_bytes, self._recipe.train.loss.detection)
        pieces = Pieces(self._corpus.validation[source], part.plan) if by_document else None
        return LossTask(source, batches, self._token_bytes, pieces)

    def _goes_on(self) -> bool:
        """Whether the evaluation under way does."""
        return self._proceed()

    @functools.cached_property
    def tasks(self) -> list[Task]:
        """The tasks of the recipe. Raises UsageError where one does not fit the model, or its file is not as stated."""
        recipe, tokenizer = self._recipe, self._tokenizer
        pad = tokenizer.special.pad if recipe.data.objective.decoder_start != "end" else None
        context = TaskContext(
            corpus=self._corpus,
            start=tokenizer.end_id if pad is None else pad,
            tokenizer=tokenizer,
            sequence=self._sequence,
            micro_batch=recipe.train.micro_rows,
            seed=recipe.seed,
            model=recipe.model,
            proceed=self._goes_on,
        )
        return build_tasks(recipe.eval.tasks, context)


@contextmanager
def corpus_of_files(
    paths: Sequence[str],
    tokenizer_folder: Path,
    labels: LabelsConfig | None = None,
    progress: Progress | None = None,
    skipped: SkippedRows | None = None,
) -> Iterator[Corpus]:
    """A corpus whose validation split is the whole text of `paths`, one source per path, in a temporary folder.

    The text is read and tokenized as `prepare` and `tokenize` do, but nothing is edited, dropped or held out. `labels`:
    the files are a labelled set. `skipped` counts the rows that cannot be read.
    """
    names = [Path(path).name.partition(".")[0] for path in paths]
    if len(set(names)) < len(names) or not all(re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name) for name in names):
        names = [f"source{i}" for i in range(len(paths))]
    sources = {name: SourceConfig(paths=[path]) for name, path in zip(names, paths, strict=True)}
    tokenizer = TokenizerFile(path=str(tokenizer_folder))
    config = TextConfig(sources=sources, labels=labels, steps=[], tokenizer=tokenizer, validation=0.0)
    with tempfile.TemporaryDirectory(prefix="hornbook-eval-") as scratch:
        prepare(config, Path(scratch), workers=1, progress=progress)
        if skipped is not None:
            skipped.read(Path(scratch, QUARANTINE))
        tokenize(Path(scratch), config, workers=1, progress=progress)
        corpus = Corpus.open(scratch)
        yield Corpus(corpus.root, corpus.index, {"train": {}, "validation": corpus.train})
