"""Memory by category (`log.memory_every`) and a snapshot of one step (`log.memory_snapshot`); both off by default.

What is kept for backward is counted while a step runs, by autograd's hooks: every distinct memory once, parameters not,
from when it is packed until backward lets go of it. The hooks keep every tensor as it is, so no bit changes.
"""

import contextlib
import json
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hornbook.files.durable import write_atomic
from hornbook.files.journal import Appender
from hornbook.kernels.torch_versions import record_memory, write_memory_record
from hornbook.model.layers.saved_tensors import Hooks, Rebuilding
from hornbook.model.transformer import Transformer
from hornbook.parallel.engine import Engine
from hornbook.parallel.runner import Runner
from hornbook.parallel.runner import Step as RunnerStep
from hornbook.run.checkpoints.state import State
from hornbook.run.job.job import Job
from hornbook.run.ledger.step_report import Step, is_due
from hornbook.run.machine.process_memory import memory_of

LONGEST = 1000
"""Rows of a snapshot's table at most: those of the most bytes."""


class Saved(NamedTuple):
    """A tensor that is kept for backward."""

    module: str
    """The innermost module that was running; "" for the engine's own products."""
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    """Of its memory."""


class _Held:
    """A packed tensor; autograd drops it when backward has passed."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def address(tensor: Tensor) -> int:
    """Where the memory of a tensor begins."""
    return tensor.untyped_storage().data_ptr()


class SavedWatch:
    """Counts what autograd keeps during a step."""

    def __init__(self, model: nn.Module, place: Callable[[Tensor], int] = address) -> None:
        """place: tells one memory from another; 0 of what is not to be counted."""
        self._names = {id(module): name for name, module in model.named_modules()}
        self._place = place
        self._parameters = {place(each) for each in model.parameters()}
        self._live: dict[int, tuple[int, Saved]] = {}
        self._running: list[str] = []
        self._total = self._listed = 0
        """Bytes kept now, and those in `table`."""
        self.peak = 0
        """Bytes kept at once, at most."""
        self.table: list[Saved] = []
        """What was kept when a backward pass began with the most."""

    @property
    def hooks(self) -> Hooks:
        """For `saved_tensors_hooks`."""
        return self._pack, self._unpack

    def _pack(self, tensor: Tensor) -> _Held:
        # Detached: a node would hold its own output, and a pass that does not release the node (I of a pipeline) both.
        held, address = _Held(tensor.detach()), self._place(tensor)
        if address and address not in self._parameters:
            count, saved = self._live.get(address, (0, None))
            if saved is None:
                size, where = tensor.untyped_storage().nbytes(), self._running[-1] if self._running else ""
                saved = Saved(where, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), size)
                self._total += size
                self.peak = max(self.peak, self._total)
            self._live[address] = count + 1, saved
            weakref.finalize(held, self._release, address)
        return held

    def _release(self, address: int) -> None:
        count, saved = self._live.pop(address)
        if count > 1:
            self._live[address] = count - 1, saved
        else:
            self._total -= saved.bytes

    def _unpack(self, held: _Held) -> Tensor:
        if self._total > self._listed:  # the first one of a backward pass finds everything there
            self.table, self._listed = [saved for _, saved in self._live.values()], self._total
        return held.tensor

    @contextlib.contextmanager
    def watching(self, model: Transformer) -> Iterator[None]:
        """Count within; what `saving` of a stack leaves is counted too."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*self.hooks))
            for each in model.stacks():
                if each.saving is Rebuilding:
                    stack.callback(setattr, each, "saving", Rebuilding)
                    each.saving = partial(Rebuilding, self.hooks)
            for module in model.modules():
                for handle in (
                    module.register_forward_pre_hook(self._enter),
                    module.register_forward_hook(self._leave, always_call=True),
                ):
                    stack.callback(handle.remove)
            yield

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._running.append(self._names.get(id(module), ""))

    def _leave(self, *_: Any) -> None:
        self._running.pop()


class _Watched:
    """A runner whose next step is watched."""

    def __init__(self, inner: Runner, engine: Engine, watch: SavedWatch) -> None:
        self.inner, self._engine, self._watch = inner, engine, watch

    def run(self, step: RunnerStep) -> None:
        with self._watch.watching(self._engine.model):
            self.inner.run(step)


class MemoryLog:
    """Watches a step every `log.memory_every` steps and the one of the snapshot; writes what it found after it."""

    def __init__(self, job: Job, state: State, appender: Appender | None) -> None:
        """`appender` of memory.jsonl; on ranks other than 0 there is no observer of this kind."""
        self._job, self._state, self._appender = job, state, appender
        self._runner: _Watched | None = None
        self._watch: SavedWatch | None = None

    def __call__(self, step: Step) -> None:
        log, engine, watch = self._job.recipe.log, self._state.engine, self._watch
        if watch is not None and self._runner is not None:
            engine.runner, self._runner, self._watch = self._runner.inner, None, None
            if self._appender is not None and is_due(step.step, log.memory_every):
                at = {"attempt": step.attempt, "step": step.step, "tokens": step.tokens}
                self._appender.append(at | memory_by_category(self._state, watch.peak))
            if step.step == log.memory_snapshot:
                write_snapshot(self._job.run.path / f"memory-{step.step:08d}", watch.table, engine.world.device)
        following = step.step + 1
        if is_due(following, log.memory_every) or following == log.memory_snapshot:
            self._watch = SavedWatch(engine.model)
            engine.runner = self._runner = _Watched(engine.runner, engine, self._watch)
            if engine.world.device.type == "cuda" and following == log.memory_snapshot:
                record_memory(True)


def memory_by_category(state: State, activations: int) -> dict[str, int]:
    """Bytes on this rank after a step: what each category holds, and what the process does.

    `activations` were kept at once during the step, and are gone. `other` is what the process holds beside the
    categories: code, libraries, data, and freed memory that is kept for the next step.
    """
    model = state.engine.model
    found = {
        "parameters": _bytes(model.parameters()),
        "gradients": _bytes(each.grad for each in model.parameters() if each.grad is not None),
        "optimizer": _bytes(tensor for _, _, tensor in state.optimizer.state()),
        "buffers": _bytes(model.buffers()),
    }
    held = memory_of(state.engine.world.device)
    other = max(held.used - sum(found.values()), 0)
    return found | {"activations": activations, "other": other, "used": held.used, "peak": held.peak}


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Of all distinct memory."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(storages.values())


def write_snapshot(path: Path, table: list[Saved], device: torch.device) -> None:
    """The table as PATH.json; of a GPU also torch's own snapshot (https://pytorch.org/memory_viz), as PATH.pickle."""
    table = sorted(table, key=lambda each: -each.bytes)
    rows, rest = [each._asdict() for each in table[:LONGEST]], sum(each.bytes for each in table[LONGEST:])
    record = {"bytes": sum(each.bytes for each in table), "saved": rows, "rest": rest}
    write_atomic(path.with_suffix(".json"), json.dumps(record, indent=1) + "\n")
    if device.type == "cuda":
        write_memory_record(str(path.with_suffix(".pickle")))
        record_memory(False)
