"""The waist of evaluation: a task scores a model, whatever it is about, and returns its measurements.

`LossTask` (loss.py) and `LabelTask` (labels.py) score the validation texts of a source; tasks of other packages are
named in `eval.tasks`. `evaluate.py` runs them, for `hornbook eval` and during training.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.data.corpus import Corpus
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.layers.transfer import start_fetch
from hornbook.model.transformer import Transformer
from hornbook.parallel.world import DATA, World
from hornbook.text.tokenizer.tokenizer import Tokenizer


class TokenModel(Protocol):
    """A model of tokens. Every rank makes the same calls in the same order; nothing of the model changes."""

    def evaluate(self, batch: Batch) -> Float[Tensor, "rows sequence"]:
        """Negative log-likelihood of each target in nats, float32."""
        ...


class LabelModel(Protocol):
    """A model whose head gives labels."""

    def outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses [rows, sequence] and outputs of the head [rows, sequence, outputs], float32."""
        ...


class Model(TokenModel, LabelModel, Protocol):
    """All that a task may ask of a model."""

    def predictions(self, batch: Batch) -> tuple[Tensor, ...]:
        """Losses as of `evaluate`, and 1 where the likeliest token is the target: float32 [rows, sequence].

        Rows may have any length up to the model's.
        """
        ...

    def evaluation_mode(self) -> AbstractContextManager[Transformer]:
        """The model itself, without dropout and gradients, for tasks that decode; of a pipeline no rank has it all."""
        ...

    def logits(self, tokens: Int64[Tensor, "rows sequence"]) -> Float[Tensor, "rows sequence vocab"]:
        """Logits of plain causal rows, float32."""
        ...


class Scores(Protocol):
    """The measurements of a task."""

    @property
    def summary(self) -> str:
        """The measurements as a line for people."""
        ...

    def as_dict(self) -> Mapping[str, float | int | str]:
        """The measurements by name, as `eval --json` prints them."""
        ...


@dataclass(frozen=True)
class Metrics:
    """Measurements that are plain numbers, for tasks that need no more."""

    values: Mapping[str, float | int]

    @property
    def summary(self) -> str:
        """`accuracy 0.7500, items 40`."""
        return summary_of(self.values)

    def as_dict(self) -> dict[str, float | int]:
        """The values."""
        return dict(self.values)


def summary_of(values: Mapping[str, float | int | str]) -> str:
    """Measurements as a line for people: `accuracy 0.7500 +- 0.0685, items 40`; of texts signatures alone."""

    def shown(name: str, value: float | int | str) -> str:
        if isinstance(value, str):
            return f"{name.replace('_', ' ')} {value}"
        text = f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
        error = values.get(f"{name}_se")
        return f"{name.replace('_', ' ')} {text}" + (f" +- {error:.4f}" if isinstance(error, float) else "")

    names = [name for name in values if not (name.endswith("_se") and name.removesuffix("_se") in values)]
    names = [name for name in names if not isinstance(values[name], str) or name.endswith("_signature")]
    return ", ".join(shown(name, values[name]) for name in names)


class Task(Protocol):
    """Something a model is measured by."""

    @property
    def name(self) -> str:
        """Name of the measurements: of validation texts the source."""
        ...

    def score(self, model: Model, world: World) -> Scores:
        """The measurements of the model, equal on every rank of `world`."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelContext:
    """What a model is asked in: its tokens, and how many of them at once."""

    tokenizer: Tokenizer
    sequence: int
    """Longest row that the model reads."""
    micro_batch: int
    """Rows of that length that go through the model together."""
    seed: int
    model: ModelConfig
    proceed: Callable[[], bool]
    """Call it before each batch, on every rank: where it is False the evaluation is dropped, so return soon."""


@dataclass(frozen=True, kw_only=True)
class TaskContext(ModelContext):
    """The data and settings that a task of `eval.tasks` is built from."""

    corpus: Corpus
    start: int
    """First token that the decoder of an encoder-decoder reads."""


def score_batches(
    world: World,
    batches: Iterable[Batch],
    columns: int,
    compute: Callable[[Batch], Sequence[Tensor]],
    score: Callable[..., Float[np.ndarray, "n columns"]],
) -> Float[np.ndarray, "n columns+1"]:
    """The rows of numbers of each batch, after the number of the batch; equal on every rank.

    compute: calls the model with a batch; may return before the device has computed the tensors.
    score: called with the batch and these tensors on the host; returns the rows.
    Results are fetched one batch late, so that a GPU computes a batch while the host scores the one before.
    Ranks take turns. They go through the model together, so one that has no batch left computes another's, uncounted.
    """
    kept, first, remaining = [np.empty((0, columns + 1))], 0, iter(batches)

    def rows_of(batch: Batch, number: int, results: Callable[[], list[Tensor]]) -> np.ndarray:
        return np.insert(score(batch, *results()), 0, number, axis=1)

    pending: Callable[[], np.ndarray] | None = None
    while turn := list(itertools.islice(remaining, world.data_size)):
        has_batch = world.data_rank < len(turn)
        batch = turn[world.data_rank if has_batch else 0]
        results = start_fetch(compute(batch))
        if pending is not None:
            kept.append(pending())
        pending = partial(rows_of, batch, first + world.data_rank, results) if has_batch else None
        first += len(turn)
    if pending is not None:
        kept.append(pending())
    rows = _gather(np.concatenate(kept), world)
    return rows[np.argsort(rows[:, 0], kind="stable")]


def _gather(rows: np.ndarray, world: World) -> np.ndarray:
    """The rows of all ranks, which have any number of them."""
    sizes = [int(size) for size in world.all_gather(torch.tensor(len(rows), device=world.device), DATA)]
    padded = torch.zeros(max(sizes), rows.shape[1], dtype=torch.float64)
    padded[: len(rows)] = torch.from_numpy(rows)
    parts = world.all_gather(padded.to(world.device), DATA)
    return np.concatenate([part[:size].cpu().numpy() for part, size in zip(parts, sizes, strict=True)])
