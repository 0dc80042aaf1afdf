"""torch.compile of a model: what is compiled, where the code is kept, and the model without it.

A block's code is made for one shape and is the same for all layers and all batches of documents: what differs between
them comes in tensors (`hornbook.model.attention.key_tables`). Batches of fewer rows are filled up, so that a
run compiles for training, for evaluation, and no more.
"""

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from hornbook.data.batch import Batch, fill_rows
from hornbook.kernels import folder as kernel_folder
from hornbook.kernels.torch_versions import compile_options, limit_kept_memory
from hornbook.model.transformer import Transformer
from hornbook.settings.training import TrainConfig

BACKEND = "inductor"
MOST_SHAPES = 32
"""Versions of one piece of code; beyond it torch would go on uncompiled."""


class Part(NamedTuple):
    """What calls of a module look up, in its compiled form and as it was written."""

    module: nn.Module
    name: str
    compiled: Any
    plain: Any


class CompiledParts:
    """The compiled parts of a model; none of a model that is not compiled."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self.keeps_memory = False
        """CUDA graphs: each replay writes its results, gradients too, into the memory of the one before."""
        self._rows = 0
        """Rows of the largest microbatch so far, for which the model is compiled."""

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add_module(self, module: nn.Module, **options: Any) -> None:
        """Compile calls of a module, in place: modules of one class share their code."""
        module.compile(**_settings(options))
        self._parts.append(Part(module, "_compiled_call_impl", module._compiled_call_impl, None))

    def add_method(self, module: nn.Module, name: str, **options: Any) -> None:
        """Compile a method when it is first called."""
        plain = getattr(module, name)
        self._parts.append(Part(module, name, torch.compile(plain, **_settings(options)), plain))
        setattr(module, name, self._parts[-1].compiled)

    def filled(self, batch: Batch) -> Batch:
        """Where there are any, the batch with as many rows as the largest had; those added count nothing."""
        if not self:
            return batch
        self._rows = max(self._rows, len(batch.tokens))
        return fill_rows(batch, self._rows)

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """The model as it was written, for text of any length: each would be compiled anew."""
        for part in self._parts:
            setattr(part.module, part.name, part.plain)
        try:
            yield
        finally:
            for part in self._parts:
                setattr(part.module, part.name, part.compiled)


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    with warnings.catch_warnings():  # torch's compiler imports a part of torch that torch itself has deprecated
        warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
        importlib.import_module("torch.utils.mkldnn")
    return {"backend": BACKEND, "dynamic": False, **compile_options(recompile_limit=MOST_SHAPES), **options}


def compile_model(model: Transformer, train: TrainConfig, device: torch.device, budget: float = 1.0) -> CompiledParts:
    """Replace the blocks of a model, or its stacks, and on a GPU the loss by their compiled forms.

    budget: share of what a block would keep for backward that it may keep; for all graphs compiled from here on.
    """
    keep_code()
    limit_kept_memory(budget)
    parts, head = CompiledParts(), model.token_head
    parts.keeps_memory = train.cuda_graphs and device.type == "cuda"
    options = {"mode": "reduce-overhead"} if parts.keeps_memory else {}
    for stack in model.stacks():
        stack.compiled = True
        if train.compile_scope == "stack":
            parts.add_method(stack, "run_blocks", **options)
        else:
            for block in stack.blocks.values():
                parts.add_module(block, **options)
    for block in () if model.mtp is None else model.mtp.blocks.values():
        parts.add_module(block, **options)
    if head is not None and device.type != "cpu":  # a CPU has a kernel of our own
        few = head.before is not None  # its losses are of the tokens that count, another number each time
        parts.add_method(head, "loss_and_grad_", dynamic=None if few else False)
    return parts


def keep_code() -> None:
    """Keep compiled code beside hornbook's own kernels, where a restart finds it; $TORCHINDUCTOR_CACHE_DIR wins."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(next(kernel_folder.folders()).with_name("compiled"))
