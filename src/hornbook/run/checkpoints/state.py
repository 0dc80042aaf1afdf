"""The rewindable state of a run: weights, moments, and the clock.

On disk it is a Hugging Face directory plus `trainer/`: `optimizer.safetensors` (moments), `state.json` (the clock), and
`average.safetensors` where `train.average` keeps one.
Learning rate and data order are functions of the clock, so this is enough to make the next step the same bit for bit.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hornbook.data.batch import GlobalBatch
from hornbook.data.loader.loader import Loader
from hornbook.errors import IntegrityError
from hornbook.files.safetensors import read_header
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.surgery_config import SurgeryStep, adapter_of
from hornbook.model.hf.hf import view_hf
from hornbook.model.init.init import with_new_head
from hornbook.model.mlp.blend import set_activation
from hornbook.model.storage.safetensors_folder import CODES, Reader
from hornbook.model.storage.tensor_slices import TensorSlice
from hornbook.model.surgery.adapters.adapter_files import base_of, is_adapter
from hornbook.model.surgery.adapters.reading import read_adapter
from hornbook.model.surgery.added_values import added_parameters, with_added
from hornbook.model.surgery.folders import AVERAGE, read_added
from hornbook.model.surgery.operate import build_operated
from hornbook.optim.average import WeightAverage, held_weights
from hornbook.optim.config.optim import AnyOptimizer
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.convert import convert_state, update_size
from hornbook.parallel.engine import Engine
from hornbook.parallel.gradients.noise_scale import NoiseScale
from hornbook.parallel.owners import Owners
from hornbook.parallel.parameter_shard import Shard, check_cover, of_all_stages, state_shards
from hornbook.parallel.world import World
from hornbook.run.guard.guard import Guard
from hornbook.run.layers.layer_statistics import LayerStatistics
from hornbook.run.ledger.interventions import Course
from hornbook.settings.recipe import Recipe

FORMAT = 1
MOMENTS = "trainer/optimizer.safetensors"


@dataclass(frozen=True)
class ModelSpec:
    """The description of the model in a checkpoint."""

    config: ModelConfig
    vocab: int
    """Rows of the embedding."""
    tokenizer: Path | None
    """Folder with tokenizer.json."""
    surgery: tuple[SurgeryStep, ...] = ()
    """The surgery steps of the model."""
    base_digest: str = ""
    """Digest of the frozen base that an adapter belongs to; known on rank 0."""
    decoder_start: int | None = None
    """The first decoder token of an encoder-decoder."""
    dtype: str = "float32"
    """Of the parameters, as torch spells it."""


class State:
    """Weights, moments and clock of one run, in memory."""

    def __init__(
        self,
        engine: Engine,
        optimizer: Optimizer,
        loader: Loader,
        spec: ModelSpec,
        seed: int = 0,
        make_optimizer: Callable[[AnyOptimizer, Owners], Optimizer] | None = None,
    ) -> None:
        """`seed` keys the initial values of parameters that surgery adds; `make_optimizer` makes one with new state."""
        self.engine, self.optimizer, self.loader, self.spec = engine, optimizer, loader, spec
        self.seed, self._make_optimizer = seed, make_optimizer
        self.average: WeightAverage | None = None
        self.saved_course: Course | None = None
        """Of a run that goes on: the settings in force when a checkpoint was saved; None: those of now."""
        self.noise: NoiseScale | None = None
        self.layers: LayerStatistics | None = None
        self.guard: Guard | None = None
        self.step = 0
        """Optimizer steps so far, including refused ones."""
        self.tokens = 0
        """Tokens consumed: the clock of schedules and of the training length."""
        self.skips_in_a_row = 0
        """Refused steps since the last applied one."""
        self.fewer_rows: list[tuple[int, int]] = []
        """(tokens consumed, rows) from which on the micro-batch was smaller, since memory ran out; from the ledger."""
        self._micro_batch = loader.micro_batch
        engine.weights_to_evaluate = self._optimizer_weights

    @property
    def micro_batch(self) -> int:
        """Rows of a microbatch of the next step: a function of the clock and the ledger."""
        found = [rows for tokens, rows in self.fewer_rows if tokens <= self.tokens]
        return min([self._micro_batch, *found])

    def keep_average(self, average: WeightAverage) -> None:
        """Keep an average of the weights, which evaluations may use."""
        self.average = average
        if average.config.evaluate:
            self.engine.weights_to_evaluate = average.in_place

    def _optimizer_weights(self) -> AbstractContextManager[None]:
        """The parameters hold the weights that the optimizer gives for evaluations, inside of this context."""
        values = self.optimizer.evaluation_weights()
        parameters = self.engine.named_parameters
        return held_weights({name: parameters[name] for name in values}, values) if values else nullcontext()

    def forward_backward(self, batch: GlobalBatch) -> dict[str, Tensor]:
        """Gradients of the next step (`Engine.forward_backward`): made again, they have the same bits."""
        self.engine.zero_gradients()
        return self.engine.forward_backward(batch.batches, batch.total_weight, key=(self.seed, self.step))

    def advance(self, batch: GlobalBatch) -> None:
        """Count one step over `batch`, whether its update was applied or refused."""
        self.step += 1
        self.tokens += batch.tokens

    def weights(self) -> dict[str, TensorSlice]:
        """The part of the parameters that this rank saves, by name; of a run with an adapter, of the adapter alone."""
        shards = self.engine.shards
        names = added_parameters(self.engine.model) if adapter_of(self.spec.surgery) else shards
        saved = {name: shards[name] for name in names if shards[name].is_primary}
        others = self.optimizer.evaluation_weights()
        return {
            name: TensorSlice(others.get(name, shard.tensor.detach()), shard.start) for name, shard in saved.items()
        }

    def moments(self) -> dict[str, Shard]:
        """This rank's shards of the optimizer's state, by the names that they have in a checkpoint."""
        return state_shards(self.optimizer, self.engine.owners.shards)

    def averages(self) -> dict[str, Shard]:
        """This rank's shards of the average, by name of the parameter; empty where none is kept."""
        tensors = {} if self.average is None else self.average.tensors
        places = {name: self.engine.shards[name] for name in tensors}
        return {name: Shard(tensors[name], at.shape, at.start, at.is_primary) for name, at in places.items()}

    def read(self, folder: Path, new: frozenset[str] = frozenset()) -> None:
        """Read this rank's part of a checkpoint of any number of ranks. Raises IntegrityError if it does not fit.

        new: gains of norms that the checkpoint does not have; they become 1, with moments of 0.
        """
        counters = read_counters(folder)
        self.follow_saved(counters["step"])
        self._read_saved(folder, new)
        _read_shards(folder / MOMENTS, self.moments(), self.engine.world, new)
        if self.average is not None and (folder / AVERAGE).is_file():
            _read_shards(folder / AVERAGE, self.averages(), self.engine.world, new)
        self.set_counters(counters)

    def follow_saved(self, step: int) -> None:
        """Of a run that goes on: use the optimizer that was in force when the state of a step was saved."""
        if self.saved_course is not None:
            self.follow(self.saved_course.before(step).recipe)

    def set_counters(self, counters: Mapping[str, Any]) -> None:
        """Take on everything that is not a tensor, as `counters` gave it."""
        if self.engine.scaler is not None and "scale" in counters:
            self.engine.scaler.load(counters["scale"])
        if self.noise is not None and "noise" in counters:
            self.noise.load(counters["noise"])
        if self.guard is not None:
            self.guard.load(counters.get("guard"))
        self.engine.clipping.load(counters.get("norms", []))
        self.step, self.tokens = counters["step"], counters["tokens"]
        self.skips_in_a_row = counters["skips_in_a_row"]
        sequence = self.loader.index.sequence
        same_rows = counters["sequence"] == sequence  # a fork may cut the data into other rows
        self.loader.seek(counters["clock"] if same_rows else self.tokens // sequence)

    def tensors(self) -> dict[str, Tensor]:
        """All that this rank holds of weights, moments and average: with `counters` its whole rewindable state."""
        held = {name: shard.tensor.detach() for name, shard in self.engine.shards.items()}
        held |= {f"moments/{name}": shard.tensor for name, shard in self.moments().items()}
        return held | {f"average/{name}": shard.tensor for name, shard in self.averages().items()}

    def follow(self, recipe: Recipe) -> None:
        """Use the optimizer of a recipe from the next step on, with the state converted (`hornbook.optim.swap`)."""
        if recipe.optim == self.optimizer.config:
            return
        made, owners = self.new_optimizer(recipe.optim)
        convert_state(self.optimizer, self.engine.owners.shards, made, owners.shards, self.engine.world)
        if not made.config.averages:  # it goes on from what was evaluated
            for name, values in self.optimizer.evaluation_weights().items():
                self.engine.shards[name].tensor.detach().copy_(values)
        self.optimizer, self.engine.owners = made, owners
        self.engine.penalties.names = made.decaying

    def use_activation(self, before: ModelConfig, after: ModelConfig, share: float) -> None:
        """Blend the activations of two configurations; checkpoints name the new one once its share is 1."""
        set_activation(self.engine.model, before, after, share)
        config = after if share >= 1 else before
        self.spec = replace(self.spec, config=config)

    def probe(self, rows: int) -> float:
        """Mean loss of the next rows of training data, equal on every rank; changes nothing."""
        batch = self.loader.peek(rows)
        weights = batch.weights.double()
        return float((self.engine.evaluate(batch).cpu().double() * weights).sum() / weights.sum().clamp(min=1))

    def new_optimizer(self, config: AnyOptimizer) -> tuple[Optimizer, Owners]:
        """An optimizer whose state is zero, and the whole parameters that it needs. Raises UsageError."""
        assert self._make_optimizer is not None
        owners = Owners(self.engine.shards, self.engine.world)
        return self._make_optimizer(config, owners), owners

    def matched_rate(self, config: AnyOptimizer) -> float | None:
        """The learning rate with which updates of another optimizer keep their size; None: it is not known.

        Every rank calls it.
        """
        made, owners = self.new_optimizer(config)
        convert_state(self.optimizer, self.engine.owners.shards, made, owners.shards, self.engine.world)
        sizes = update_size(self.optimizer, self.engine.owners.shards, self.engine.world)
        matched = update_size(made, owners.shards, self.engine.world)
        return self.optimizer.config.lr * sizes / matched if sizes and matched else None

    def _read_saved(self, folder: Path, new: frozenset[str]) -> None:
        """Read the weights of a checkpoint, and the parameters that surgery added."""
        if not is_adapter(folder):
            self.read_weights(folder, read_added(folder), new=new)
            return
        steps, added = read_adapter(folder, self.spec.config, self.spec.vocab)
        if list(steps) != list(self.spec.surgery):
            raise IntegrityError(f"{folder} was made by other surgery than this run's: {list(steps)}")
        self.read_weights(base_of(folder), added)

    def read_weights(
        self,
        folder: Path,
        added: dict[str, Tensor] | None = None,
        *,
        new_head: bool = False,
        new: frozenset[str] = frozenset(),
    ) -> None:
        """Read only the weights; clock and moments stay. The folder may be any Hugging Face checkpoint we can read.

        added: values of the parameters that surgery added; without them these get initial values. new_head: the head of
        the folder is ignored, and ours gets initial values. new: gains of norms that the folder does not have.
        """
        _, vocab, views = view_hf(folder)
        if vocab != self.spec.vocab:
            raise IntegrityError(f"{folder} has a vocabulary of {vocab}, this run's model one of {self.spec.vocab}")
        ones = ((name, torch.ones(self.engine.shapes[name])) for name in sorted(new))
        stream = itertools.chain(((name, view) for name, view, _ in views), ones)  # a view reads only what is used
        self.fill(with_new_head(stream, self.spec.config, vocab, self.seed) if new_head else stream, added)

    def fill(self, base: Iterable[tuple[str, Tensor]], added: dict[str, Tensor] | None = None) -> None:
        """Set every parameter: from `base`, and those added by surgery from `added` (None: initial values)."""
        spec = self.spec
        whole = build_operated(spec.config, spec.vocab, spec.surgery) if spec.surgery else self.engine.model
        self.engine.load_stream(with_added(whole, base, self.seed, added, self.engine.model))
        if self.average is not None:
            self.average.restart()

    def counters(self) -> dict[str, Any]:
        """The content of `trainer/state.json`: everything that is not a tensor."""
        counters = {
            "format": FORMAT,
            "step": self.step,
            "tokens": self.tokens,
            "clock": self.loader.clock,  # samples consumed; the loader maps it to positions around skipped ranges
            "sequence": self.loader.index.sequence,
            "skips_in_a_row": self.skips_in_a_row,
        }
        if self.noise is not None:
            counters["noise"] = self.noise.state()
        if self.guard is not None:
            counters["guard"] = self.guard.state()
        if norms := self.engine.clipping.state():
            counters["norms"] = norms
        return counters if self.engine.scaler is None else counters | {"scale": self.engine.scaler.state()}


def _read_shards(path: Path, shards: Mapping[str, Shard], world: World, new: frozenset[str] = frozenset()) -> None:
    """Read a file of `trainer/` into shards. Raises IntegrityError if names, shapes or dtypes are others.

    new: parameters that the file has nothing of.
    """
    shards = {name: shard for name, shard in shards.items() if not any(name.startswith(each) for each in new)}
    entries, reader = read_header(path), Reader()
    whole = {name: shape for name, (shape, _) in of_all_stages(shards, world).items()}
    check_cover(whole, {name: each.shape for name, each in entries.items()})
    for name, shard in shards.items():
        if (dtype := CODES[shard.tensor.dtype]) != entries[name].dtype:
            raise IntegrityError(f"{path}: {name} is {entries[name].dtype}, and this run keeps it as {dtype}")
        shard.tensor.copy_(reader.read(name, entries[name])[shard.slices])


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
