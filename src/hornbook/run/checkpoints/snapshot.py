"""A copy of the state at one step, which is written to disk while training goes on.

The loop waits for the copy in memory only. On a GPU it does not wait at all: the copies are queued on the device before
the next step, and the thread that writes them waits.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hornbook.files.safetensors import read_header
from hornbook.model.storage.safetensors_folder import CODES
from hornbook.model.storage.tensor_slices import TensorSlice, Writer, create_file
from hornbook.model.surgery.folders import AVERAGE, create_operated, fill_operated
from hornbook.parallel.parameter_shard import Shard, of_all_stages
from hornbook.run.checkpoints.state import MOMENTS, ModelSpec, State

Wait = Callable[[], None]


class Buffers:
    """Memory for one copy of everything that this rank saves, allocated once and used by every save."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory: dict[str, Tensor] = {}

    def copy(self, tensor_slices: Mapping[str, TensorSlice], file: str = "") -> dict[str, TensorSlice]:
        """The same slices in memory that training does not touch, once `wait` of `queue` has returned.

        `file` tells apart slices of the same name.
        """
        copies = {name: self._copy(file + name, each.tensor) for name, each in tensor_slices.items()}
        return {name: replace(each, tensor=copies[name]) for name, each in tensor_slices.items()}

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        if name not in self._memory:
            pinned = self._device.type == "cuda"
            self._memory[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        return self._memory[name].copy_(tensor, non_blocking=True)

    def queued(self) -> Wait:
        """A function that returns when the device has finished the copies so far."""
        if self._device.type != "cuda":
            return lambda: None
        event = torch.cuda.Event()
        event.record()
        return event.synchronize


@dataclass(frozen=True)
class Snapshot:
    """The part of a checkpoint that one rank writes."""

    step: int
    tokens: int
    counters: dict[str, Any]
    spec: ModelSpec
    weights: dict[str, TensorSlice]
    moments: dict[str, TensorSlice]
    moment_shapes: dict[str, tuple[int, ...]]
    """Shapes of the whole moments, by name."""
    moment_dtypes: dict[str, str]
    """Dtypes of the moments, by name, as safetensors spells them."""
    average: dict[str, TensorSlice]
    """The average of the weights, by name; of all ranks empty where none is kept."""
    average_shapes: dict[str, tuple[int, ...]]
    """Shapes of the whole parameters that are averaged."""
    wait: Wait
    """Returns when the slices hold their values."""

    def create(self, folder: Path) -> None:
        """Create the files of a Hugging Face directory (or an adapter) and `trainer/`, at full size, without values."""
        spec = self.spec
        create_operated(
            folder,
            spec.config,
            spec.vocab,
            spec.surgery,
            spec.tokenizer,
            spec.base_digest,
            spec.decoder_start,
            spec.dtype,
        )
        (folder / MOMENTS).parent.mkdir()
        create_file(folder / MOMENTS, self.moment_shapes, self.moment_dtypes)
        if self.average_shapes:
            create_file(folder / AVERAGE, self.average_shapes)
        (folder / "trainer" / "state.json").write_text(json.dumps(self.counters, indent=2) + "\n")

    def fill(self, folder: Path) -> None:
        """Write the values of this rank's part of weights and moments."""
        self.wait()
        fill_operated(folder, self.spec.config, self.spec.vocab, self.spec.surgery, self.weights)
        _write(folder / MOMENTS, self.moments)
        if self.average:
            _write(folder / AVERAGE, self.average)


def _write(path: Path, tensor_slices: Mapping[str, TensorSlice]) -> None:
    """Write slices into a file that `create_file` made."""
    entries = read_header(path)
    with Writer() as writer:
        for name, each in tensor_slices.items():
            writer.write(entries[name], replace(each, tensor=each.tensor.cpu()))


def take_snapshot(state: State, buffers: Buffers | None = None) -> Snapshot:
    """The state, copied into `buffers`; without buffers the state itself, which must not change until written."""
    shards, averages, world = state.moments(), state.averages(), state.engine.world
    whole, averaged = of_all_stages(shards, world), of_all_stages(averages, world)
    moments, average = _saved(shards), _saved(averages)
    weights, wait = state.weights(), Buffers(torch.device("cpu")).queued()
    if buffers is not None:
        weights, moments, average = buffers.copy(weights), buffers.copy(moments), buffers.copy(average, AVERAGE)
        wait = buffers.queued()
    return Snapshot(
        step=state.step,
        tokens=state.tokens,
        counters=state.counters(),
        spec=state.spec,
        weights=weights,
        moments=moments,
        moment_shapes={name: shape for name, (shape, _) in whole.items()},
        moment_dtypes={name: CODES[dtype] for name, (_, dtype) in whole.items()},
        average=average,
        average_shapes={name: shape for name, (shape, _) in averaged.items()},
        wait=wait,
    )


def _saved(shards: Mapping[str, Shard]) -> dict[str, TensorSlice]:
    """The slices that this rank saves."""
    return {name: TensorSlice(each.tensor, each.start) for name, each in shards.items() if each.is_primary}
