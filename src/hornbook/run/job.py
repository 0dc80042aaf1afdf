"""One start of a run: everything that is decided before the first tensor."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hornbook.data.corpus import Corpus
from hornbook.data.loader import Loader, build_loader
from hornbook.errors import IntegrityError, UsageError
from hornbook.model.config import ModelConfig
from hornbook.parameters import embedding_rows
from hornbook.recipe import Recipe
from hornbook.run.horizon import Horizon, horizon
from hornbook.run.ledger import Ledger
from hornbook.run.requests import Inbox
from hornbook.run.state import ModelSpec
from hornbook.rundir import RunDir
from hornbook.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Origin:
    """A checkpoint that a new run begins from."""

    kind: Literal["import", "fork"]
    """`import` takes the weights; `fork` takes weights, moments and clock."""
    checkpoint: Path

    def record(self) -> dict[str, str]:
        """As the ledger holds it."""
        return {"kind": self.kind, "checkpoint": str(self.checkpoint)}


def origin_of(record: dict[str, Any] | None) -> Origin | None:
    """Inverse of `Origin.record`."""
    return None if record is None else Origin(record["kind"], Path(record["checkpoint"]))


@dataclass(frozen=True)
class Inputs:
    """A complete recipe and what it reads."""

    recipe: Recipe
    """With `data.path` absolute and `model.vocab` filled in."""
    loader: Loader
    tokenizer: Tokenizer
    horizon: Horizon
    derived: dict[str, str] = field(default_factory=dict)
    """Dotted key -> origin of values that were filled in."""

    @property
    def corpus(self) -> Corpus:
        """The token shards."""
        return self.loader.corpus

    @property
    def vocab(self) -> int:
        """Rows of the embedding."""
        assert self.recipe.model.vocab is not None
        return self.recipe.model.vocab

    @property
    def model_spec(self) -> ModelSpec:
        """What checkpoints say about the model."""
        return ModelSpec(self.recipe.model, self.vocab, self.corpus.root / "tokenizer")


@dataclass(frozen=True)
class Job:
    """What `train` needs."""

    run: RunDir
    inputs: Inputs
    ledger: Ledger
    inbox: Inbox
    mode: Literal["start", "resume"]
    origin: Origin | None = None
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Dotted key -> {old, new} of settings changed by this resume."""
    argv: list[str] = field(default_factory=list)

    @property
    def recipe(self) -> Recipe:
        """The complete recipe."""
        return self.inputs.recipe


def open_inputs(recipe: Recipe) -> Inputs:
    """Open the data a recipe names and fill in what follows from it.

    Raises UsageError if no data is named, the length is not set, or the tokenizer is larger than model.vocab.
    """
    if recipe.data.path is None:
        raise UsageError("no data is named: give --data DATA, a folder written by `hornbook tokenize`")
    train = recipe.train
    loader = build_loader(
        recipe.data, recipe.data.path, sequence=train.sequence, micro_batch=train.micro_batch, seed=recipe.seed
    )
    tokenizer = Tokenizer.load(loader.corpus.root / "tokenizer")
    if tokenizer.digest != loader.corpus.tokenizer_digest:
        raise IntegrityError(
            f"{loader.corpus.root / 'tokenizer'} is not the tokenizer that made the token shards: restore it, "
            f"or run `hornbook tokenize {loader.corpus.root}` again"
        )
    vocab, derived = _vocabulary(recipe.model, tokenizer.vocab_size)
    complete = recipe.model_copy(
        update={
            "data": recipe.data.model_copy(update={"path": str(loader.corpus.root.resolve())}),
            "model": recipe.model.model_copy(update={"vocab": vocab}),
        }
    )
    return Inputs(complete, loader, tokenizer, horizon(train, loader.index.epoch_tokens), derived)


def _vocabulary(model: ModelConfig, size: int) -> tuple[int, dict[str, str]]:
    """Rows of the embedding, and their origin where the tokenizer decides."""
    rows = embedding_rows(model, size)
    if size > rows:
        raise UsageError(
            f"the tokenizer has {size:,} tokens and model.vocab has room for {rows:,}: raise model.vocab, or leave it "
            "out (it then follows the tokenizer)"
        )
    return rows, ({} if model.vocab else {"model.vocab": f"the tokenizer's {size}, rounded up to a multiple of 64"})
