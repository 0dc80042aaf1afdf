"""The rewindable state of a run: weights, moments, and the clock.

On disk it is a Hugging Face directory plus `trainer/`: `optimizer.safetensors` (moments) and `state.json` (the
clock). Learning rate and data order are functions of the clock, so nothing else is needed for the next step
to be the same bit for bit.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hornbook.data.batch import GlobalBatch
from hornbook.data.loader import Loader
from hornbook.errors import IntegrityError
from hornbook.model.config import ModelConfig
from hornbook.model.hf import read_hf, write_hf
from hornbook.optim.moments import load_moments, read_moments
from hornbook.parallel.engine import Engine

FORMAT = 1


@dataclass(frozen=True)
class ModelSpec:
    """What a checkpoint says about its model."""

    config: ModelConfig
    vocab: int
    """Rows of the embedding."""
    tokenizer: Path | None
    """Folder with tokenizer.json."""


class State:
    """Weights, moments and clock of one run, in memory."""

    def __init__(self, engine: Engine, optimizer: torch.optim.Optimizer, loader: Loader, spec: ModelSpec) -> None:
        self.engine, self.optimizer, self.loader, self.spec = engine, optimizer, loader, spec
        self.step = 0
        """Optimizer steps done, refused ones included."""
        self.tokens = 0
        """Tokens consumed: the clock of schedules and horizon."""
        self.skips_in_a_row = 0
        """Refused steps since the last good one."""

    @property
    def clock(self) -> int:
        """Samples consumed; the loader maps it to positions around skipped windows."""
        return self.loader.clock

    def advance(self, batch: GlobalBatch) -> None:
        """Count one step over `batch`, whether its update was applied or refused."""
        self.step += 1
        self.tokens += batch.tokens

    def write(self, folder: Path) -> None:
        """Write a Hugging Face directory and `trainer/` into the existing folder."""
        spec = self.spec
        write_hf(folder, dict(self.engine.export_stream()), spec.config, spec.vocab, spec.tokenizer)
        trainer = folder / "trainer"
        trainer.mkdir()
        moments = {name: tensor.cpu() for name, tensor in read_moments(self.optimizer).items()}
        save_file(moments, trainer / "optimizer.safetensors")
        (trainer / "state.json").write_text(json.dumps(self._counters(), indent=2) + "\n")

    def read(self, folder: Path) -> None:
        """Take everything from a folder that `write` filled. Raises IntegrityError if it does not fit."""
        counters = read_counters(folder)
        self.read_weights(folder)
        try:
            load_moments(self.optimizer, load_file(folder / "trainer" / "optimizer.safetensors"))
        except (OSError, SafetensorError) as error:
            raise IntegrityError(f"{folder}: trainer/optimizer.safetensors cannot be read: {error}") from error
        self.step, self.tokens = counters["step"], counters["tokens"]
        self.skips_in_a_row = counters["skips_in_a_row"]
        sequence = self.loader.index.sequence
        same_rows = counters["sequence"] == sequence  # a fork may cut the data into other rows
        self.loader.seek(counters["clock"] if same_rows else self.tokens // sequence)

    def read_weights(self, folder: Path) -> None:
        """Take only the weights; clock and moments stay. The folder may be any Hugging Face checkpoint we can read."""
        config, vocab, stream = read_hf(folder)
        if vocab != self.spec.vocab:
            raise IntegrityError(f"{folder} has a vocabulary of {vocab}, this run's model one of {self.spec.vocab}")
        del config  # the tensors themselves are compared, name by name and shape by shape
        self.engine.load_stream(stream)

    def _counters(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "step": self.step,
            "tokens": self.tokens,
            "clock": self.clock,
            "sequence": self.loader.index.sequence,
            "skips_in_a_row": self.skips_in_a_row,
        }


def read_counters(folder: Path) -> dict[str, Any]:
    """`trainer/state.json` of a checkpoint: step, tokens, clock, sequence, skips_in_a_row."""
    path = folder / "trainer" / "state.json"
    try:
        counters = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}; resuming needs it (weights alone: --from)") from error
    if counters.get("format") != FORMAT:
        raise IntegrityError(f"{path} has format {counters.get('format')}, this version reads {FORMAT}")
    return counters
