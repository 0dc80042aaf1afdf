"""What `hornbook eval` scores: a model with its recipe, and the text."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.shell import importing
from hornbook.errors import IntegrityError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.progress import Progress

if TYPE_CHECKING:
    from hornbook.data.corpus import Corpus
    from hornbook.evals.evaluate import Evaluator
    from hornbook.model.storage.load import Loaded
    from hornbook.parallel.engine import Engine
    from hornbook.settings.recipe import Recipe
    from hornbook.text.config.labels import LabelsConfig
    from hornbook.text.ingest.skipped import SkippedRows
    from hornbook.text.tokenizer.tokenizer import Tokenizer

WINDOW = 1024  # tokens per row for a checkpoint that belongs to no run


@dataclass(frozen=True)
class Subject:
    """A model to score."""

    folder: Path
    loaded: "Loaded"
    tokenizer: "Tokenizer"
    recipe: "Recipe"
    engine: "Engine"

    @property
    def sequence(self) -> int:
        """Tokens of a row."""
        return min(self.recipe.train.sequence, self.loaded.config.position.length)

    def training_corpus(self) -> "Corpus | None":
        """What the run was trained on; None where it belongs to none, or the data is gone or of another tokenizer."""
        from hornbook.data.corpus import open_corpus

        path, replayed = self.recipe.data.path, self.recipe.data.replay.path
        if path is None or not all(Path(each, "tokens", "index.json").is_file() for each in (path, replayed or path)):
            return None
        corpus = open_corpus(self.recipe.data, path)
        return corpus if corpus.tokenizer_digest == self.tokenizer.digest else None

    def evaluator(self, corpus: "Corpus", sequence: int | None = None) -> "Evaluator":
        """For text that was made with the model's tokenizer. Raises IntegrityError or UsageError for other text."""
        from hornbook.evals.evaluate import Evaluator

        if corpus.tokenizer_digest != self.tokenizer.digest:
            raise IntegrityError(
                f"{corpus.root} was tokenized with another tokenizer than {self.folder}: give --data FILES"
            )
        if not corpus.validation:
            raise UsageError(f"{corpus.root} holds no validation tokens: set text.validation, or give --data FILES")
        return Evaluator(corpus, self.tokenizer, self.recipe, sequence or self.sequence)


def open_subject(target: Path, tasks: str = "", *, average: bool = False) -> Subject:
    """The newest checkpoint of a run, a checkpoint or a model, on the best device of this machine."""
    with importing():
        from hornbook.model.config.replaced_config import ReplacedHead
        from hornbook.model.storage.load import load_model
        from hornbook.parallel.config import ParallelConfig
        from hornbook.parallel.parallelize import parallelize
        from hornbook.run.checkpoints.find_checkpoint import checkpoint_path

    folder = checkpoint_path(target)
    loaded = load_model(folder, average=average)
    tokenizer = loaded.require_tokenizer()
    if isinstance(loaded.config.head, ReplacedHead) and loaded.model.generator is None:
        raise UsageError(
            f"{folder} tells replaced tokens, and the generator that replaces them is left out of it: score the run "
            "that it is from, or fine-tune it with `hornbook train --from` and a head of labels"
        )
    recipe = recipe_of(folder, loaded, tasks)
    train = recipe.train.model_copy(update={"device": "auto"})
    engine = parallelize(loaded.model, ParallelConfig(), train, num_tokens=tokenizer.vocab_size)
    return Subject(folder, loaded, tokenizer, recipe, engine)


def recipe_of(folder: Path, loaded: "Loaded", tasks: str = "") -> "Recipe":
    """The recipe of the run that `folder` belongs to, or else defaults with rows of 1,024 tokens; with other `tasks`.

    Of no run, an encoder is scored on masked tokens, an encoder-decoder on spans or, where its tokenizer has no
    sentinels for them, on infilling.
    """
    from hornbook.data.config.data import DataConfig
    from hornbook.data.config.objectives import Causal, Infill, Masked, Span
    from hornbook.run.checkpoints.bound import recipe_in_force
    from hornbook.settings.recipe import Recipe
    from hornbook.settings.resolve import resolve
    from hornbook.settings.training import TrainConfig

    update: dict[str, Any] = {"model": loaded.config}
    run = RunDir(folder.resolve().parent.parent)
    recipe = recipe_in_force(run) if run.recipe.is_file() else None
    if tasks:
        named = tasks if tasks.lstrip().startswith("[") else _kinds(tasks)
        chosen = resolve(None, [f"eval.tasks={named}"], {}).recipe.eval.tasks
        update["eval"] = (recipe or Recipe()).eval.model_copy(update={"tasks": chosen})
    if recipe is not None:
        return recipe.model_copy(update=update)
    pairs = Span() if loaded.require_tokenizer().special.sentinels else Infill()
    objective = {"decoder": Causal(), "encoder": Masked(), "encoder_decoder": pairs}[loaded.config.kind]
    return Recipe(train=TrainConfig(sequence=WINDOW), data=DataConfig(objective=objective)).model_copy(update=update)


def text_of(folder: Path, loaded: "Loaded", data: Path | None) -> "tuple[Recipe, str, int]":
    """(the recipe of a model, its prepared text or `data`, tokens of a row).

    Raises UsageError where there is no text, IntegrityError where it was made with another tokenizer.
    """
    from hornbook.run.job.start.init_from import check_tokenizer
    from hornbook.text.tokenizer.tokenizer import Tokenizer

    recipe = recipe_of(folder, loaded)
    if (path := recipe.data.path if data is None else str(data)) is None:
        raise UsageError(f"{folder} belongs to no run, so there is no text: give --data DATA")
    check_tokenizer(folder, Tokenizer.load(Path(path) / "tokenizer"))
    return recipe, path, min(recipe.train.sequence, loaded.config.position.length)


def _kinds(names: str) -> str:
    """`copy,cloze` as the value of `eval.tasks`."""
    return "[" + ", ".join(f'{{kind = "{name.strip()}"}}' for name in names.split(",")) + "]"


@contextmanager
def corpus_of(
    data: list[str] | None, recipe: "Recipe", folder: Path, progress: Progress, skipped: "SkippedRows"
) -> Iterator["Corpus"]:
    """The text to score: the given files, or else the shards that the run was trained on.

    `skipped` counts rows of files that cannot be read.
    """
    from hornbook.data.corpus import open_corpus
    from hornbook.evals.evaluate import corpus_of_files

    if data:
        with corpus_of_files(data, folder, _labels(recipe), progress, skipped) as corpus:
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
