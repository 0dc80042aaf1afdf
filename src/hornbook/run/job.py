"""One start of a run: everything that is decided before the first tensor."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from hornbook.data.corpus import Corpus
from hornbook.data.loader.loader import Loader, build_loader
from hornbook.errors import IntegrityError, UsageError
from hornbook.files.durable import write_atomic
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import process_identity
from hornbook.model.config.model import ModelConfig
from hornbook.model.config.parameter_count import count_parameters, embedding_rows
from hornbook.model.surgery.operate import build_operated
from hornbook.parallel.world import RankInfo
from hornbook.run.horizon import Horizon, horizon
from hornbook.run.launch.pulse import Pulse
from hornbook.run.ledger import LENGTH_SETTINGS, Ledger, Monotone
from hornbook.run.requests import Inbox
from hornbook.run.start.labels import labelled_head
from hornbook.run.start.origin import Origin
from hornbook.run.state import ModelSpec
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved
from hornbook.settings.resume_rules import Change
from hornbook.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Inputs:
    """A complete recipe and what it reads."""

    recipe: Recipe
    """With `data.path` absolute and `model.vocab` filled in."""
    loader: Loader
    tokenizer: Tokenizer
    horizon: Horizon
    parameters: int
    """Numbers in the model, with what surgery adds."""
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
        recipe, tokenizer = self.recipe, self.corpus.root / "tokenizer"
        steps = tuple(recipe.surgery)
        return ModelSpec(recipe.model, self.vocab, tokenizer, steps, decoder_start=self.decoder_start)

    @property
    def decoder_start(self) -> int | None:
        """The first token of the decoder's input in training; None where there is no encoder beside it."""
        start, pad = self.recipe.data.objective.decoder_start, self.tokenizer.special.pad
        if start is None:
            return None
        return self.tokenizer.end_id if start == "end" or pad is None else pad


@dataclass(frozen=True)
class Job:
    """What `train` needs."""

    run: RunDir
    inputs: Inputs
    ledger: Ledger
    inbox: Inbox
    mode: Literal["start", "resume"]
    origin: Origin | None = None
    """The checkpoint that this start takes over."""
    changes: list[Change] = field(default_factory=list)
    """Settings that this resume changes."""
    argv: list[str] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    """Dotted key -> where its value came from."""
    quiet: bool = False
    """Show nothing on stderr; log.txt is written all the same."""
    place: RankInfo = field(default_factory=RankInfo)
    """Which rank of how many this process is."""
    pulse: Pulse = field(default_factory=Pulse)
    """Where this rank says what it is doing."""
    owner: dict[str, Any] = field(default_factory=lambda: process_identity(os.getpid()))
    """The process that a person started: state.json names it."""

    def of_rank(self, place: RankInfo, pulse: Pulse) -> Self:
        """The same job on one rank of several: what is written once, only the first writes."""
        job = replace(self, place=place, pulse=pulse)
        if place.is_rank0:
            return job
        return replace(job, ledger=self.ledger.silent(), inbox=self.inbox.silent(), quiet=True)

    @property
    def recipe(self) -> Recipe:
        """The complete recipe."""
        return self.inputs.recipe

    @property
    def horizon(self) -> Horizon:
        """Length of the run as this start finds it: shortened as the ledger says, unless someone gives another."""
        return self.inputs.horizon if self.mode == "start" else cut_horizon(self.inputs, self.ledger.past, self.changes)

    def write(self, path: Path, text: str) -> None:
        """Replace a small file of the run as a whole; a rank that does not lead leaves it to the one that does."""
        if self.place.is_rank0:
            write_atomic(path, text)

    def write_recipe(self) -> None:
        """Replace recipe.toml: every value in force, with its origin."""
        self.write(self.run.recipe, Resolved(self.recipe, {**self.origins, **self.inputs.derived}).to_toml())


def vocabulary_warning(inputs: Inputs) -> str:
    """What to say of rows of the embedding that no token of the tokenizer uses; empty where they are few."""
    rows, tokens = inputs.vocab, inputs.tokenizer.vocab_size
    if rows <= 1.1 * tokens + 64:
        return ""
    unused = count_parameters(inputs.recipe.model, rows) - count_parameters(inputs.recipe.model, tokens)
    return (
        f"model.vocab is {rows:,} and the tokenizer has {tokens:,} tokens: {unused:,} parameters are never used; "
        "--model.vocab none lets it follow the tokenizer"
    )


def cut_horizon(inputs: Inputs, past: Monotone, changes: Sequence[Change]) -> Horizon:
    """Length of a run that goes on: shortened as its ledger says, unless these changes say anew how long it is."""
    anew = any(change.key in LENGTH_SETTINGS for change in changes)
    return inputs.horizon.cut(() if anew else past.cuts)


def open_inputs(recipe: Recipe) -> Inputs:
    """Open the data a recipe names and fill in what follows from it.

    Raises UsageError if no data is named, the length is not set, the tokenizer is larger than model.vocab, or surgery
    does not fit the model.
    """
    if recipe.data.path is None:
        raise UsageError("missing --data DATA: a folder made by `hornbook tokenize`")
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
    head = labelled_head(recipe.model.head, loader.corpus)
    vocab, derived = _vocabulary(recipe.model, tokenizer.vocab_size)
    model = recipe.model.model_copy(update={"vocab": vocab, "head": head})
    if head != recipe.model.head:
        derived["model.head.labels"] = f"the labels of {loader.corpus.root}"
    built = build_operated(model, vocab, recipe.surgery)
    parameters = sum(parameter.numel() for parameter in built.parameters())
    data = recipe.data.model_copy(update={"path": str(loader.corpus.root.resolve())})
    complete = recipe.model_copy(update={"data": data, "model": model})
    return Inputs(complete, loader, tokenizer, horizon(train, loader.index.epoch_tokens), parameters, derived)


def _vocabulary(model: ModelConfig, size: int) -> tuple[int, dict[str, str]]:
    """Rows of the embedding, and their origin where the tokenizer decides."""
    rows = embedding_rows(model, size)
    if size > rows:
        raise UsageError(
            f"the tokenizer has {size:,} tokens and model.vocab has room for {rows:,}: raise model.vocab, or leave it "
            "out (it then follows the tokenizer)"
        )
    return rows, ({} if model.vocab else {"model.vocab": f"the tokenizer's {size}, rounded up to a multiple of 64"})
