"""Which values may differ among the ranks of an axis, and which are the same: a type check of a step of any layout.

One rank takes a step on fake tensors under a process group that is none (`hornbook.run.diagnose.simulate`). Beside each
storage lies another of the same size that says of each value whether it varies along the axis. Batches vary along axes
of data, shards along those that divide them, and what is made of them with them; a collective makes what it sums or
gathers the same again. What a rank does otherwise than its neighbour along the axis varies too: the operations of both
are recorded, with all their arguments that are no tensors.

A gradient that varies along an axis which does not divide its parameter was not summed; a sum of what is the same on
all ranks counts it twice. The types are two of the three of Megatron's and torch's type checkers: a part of a sum and
one of several values are both `varying`.
"""

from dataclasses import fields, replace
from difflib import SequenceMatcher
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from hornbook.parallel.engine import Engine
from hornbook.parallel.world import AXES, DATA, TOKENS, Axis, World, axis_sizes
from hornbook.run.diagnose import simulate
from hornbook.run.diagnose.step_tracker import StepTracker, _group_of, axes_of
from hornbook.settings.recipe import Recipe

MOVES = ("cat", "stack", "clone", "copy_", "split_with_sizes_copy", "chunk_cat", "all_gather_copy_in")
"""Operations that only move values: what is true of each of them moves along."""
FEW = 16
"""Values that a rank may sum though they are the same: sums of nothing, and of what is counted."""
Key = tuple[str, str]


class Varying(StepTracker):
    """A mode that follows what varies along `axis`; `others` are the operations of a neighbour along it."""

    def __init__(self, world: World, axis: Axis, recipe: Recipe, others: list[Key] | None) -> None:
        super().__init__(world)
        self.world, self.axis, self.keys, self.problems = world, axis, list[Key](), list[str]()
        boundary = [*TOKENS, "tensor"] if recipe.parallel.sequence else TOKENS
        self._received, self._others = axis in boundary, others
        self._held, self._marks = list[Any](), dict[int, Tensor]()
        self._views = set[tuple[Any, ...]]()
        """Parts of a tensor, each of which its rank has chosen."""
        self._same = set[int]()

    def compare(self, own: list[Key]) -> None:
        """Find out which operations of this rank its neighbour does too; `own` are of a step before."""
        assert self._others is not None
        if len(own) == len(self._others):
            self._same = {
                number for number, pair in enumerate(zip(own, self._others, strict=True)) if pair[0] == pair[1]
            }
            return
        blocks = SequenceMatcher(None, own, self._others, autojunk=False).get_matching_blocks()
        self._same = {number for each in blocks for number in range(each.a, each.a + each.size)}

    def mark(self, tensor: Tensor) -> Tensor:
        """uint8, like the tensor: 1 where a value varies."""
        with _disable_current_modes():
            storage = tensor.untyped_storage()
            reach = (each * (size - 1) for each, size in zip(tensor.stride(), tensor.shape, strict=True))
            least = tensor.storage_offset() + sum(reach) + 1 if tensor.numel() else 0
            flat = self._marks.get(storage._cdata)
            if flat is None or len(flat) < least:
                self._held.append(storage)
                grown = torch.zeros(least, dtype=torch.uint8)
                if flat is not None:
                    grown[: len(flat)] = flat
                self._marks[storage._cdata] = flat = grown
            return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def varies(self, tensor: Tensor) -> bool:
        """Whether any value does."""
        return _place(tensor) in self._views or bool(self.mark(tensor).any())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = [each for each in _tensors((args, kwargs)) if not isinstance(each, FakeTensor)]
        said = [each for each in tree_leaves((args, kwargs)) if not isinstance(each, Tensor | torch.ScriptObject)]
        with _disable_current_modes():
            values = [each.tolist() for each in known if each.numel() <= 4096 and not each.is_meta]
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "prim" or any(issubclass(each, DTensor) for each in types):
            return result
        shapes = [(tuple(each.shape), each.storage_offset()) for each in _tensors((args, kwargs, result))]
        self.keys.append((func.name(), f"{said} {shapes} {values}"))
        with _disable_current_modes():
            group = next((found for each in reversed(args) if (found := _group_of(each)) is not None), None)
            if func.namespace in ("c10d", "_c10d_functional") and group is not None:
                ranks = torch.distributed.get_process_group_ranks(group)
                self._cross(func._schema.name.split("::")[1], args, axes_of(self.world, ranks), len(ranks))
            else:
                self._follow(func, args, kwargs, result, len(self.keys) - 1 in self._same or self._others is None)
        return result

    def _follow(self, func: Any, args: Any, kwargs: Any, result: Any, same: bool) -> None:
        """An operation of this rank alone."""
        name, given = func._schema.name.split("::")[1], _tensors((args, kwargs))
        written = [each for spec, each in zip(func._schema.arguments, args, strict=False) if _is_written(spec)]
        written += [kwargs[spec.name] for spec in func._schema.arguments if spec.name in kwargs and _is_written(spec)]
        made = [*_tensors(result), *_tensors(written)]
        if name.startswith("_foreach_") and same:
            for number, target in enumerate(_tensors(args[0]) if written else _tensors(result)):
                lists = [_tensors(each) for each in args if isinstance(each, list | tuple)]
                mine = [each[number] for each in lists if len(each) > number]
                self.mark(target).fill_(max(self.varies(each) for each in mine))
            return
        chosen = any(_place(each) in self._views for each in given)
        if name in MOVES and same and not chosen:
            plain = {name: each for name, each in kwargs.items() if name in ("dim", "out")}
            moved = func(*tree_map(self._marked, args), **tree_map(self._marked, plain))
            for target, source in zip(_tensors(result), _tensors(moved), strict=True):
                self.mark(target).copy_(source)
            return
        storages = {each.untyped_storage()._cdata for each in given}
        if not written and made and all(each.untyped_storage()._cdata in storages for each in made):  # views
            if chosen or not same:
                self._views.update(map(_place, made))
            return
        given = [] if name in ("zero_", "fill_") else given
        for target in made:
            alike = not chosen and all(each.shape in (target.shape, ()) for each in given)
            marks = [self.mark(each) if alike else torch.tensor(self.varies(each)) for each in given]
            differs = torch.tensor(not same or _place(target) in self._views, dtype=torch.uint8)
            self.mark(target).copy_(sum(marks, differs).clamp(max=1))

    def _marked(self, each: Any) -> Any:
        return self.mark(each) if isinstance(each, Tensor) else each

    def _cross(self, name: str, args: Any, axes: tuple[Axis, ...], ranks: int) -> None:
        """A collective over `axes`."""
        along, first = self.axis in axes, _tensors(args[0])
        if "allreduce" in name:
            for each in first if along else ():
                if not self.varies(each) and each.numel() > FEW and each.is_floating_point():
                    self.problems.append(f"a sum over {axes} of {tuple(each.shape)}, which are the same on all ranks")
                self.mark(each).zero_()
        elif "allgather" in name:
            source = torch.cat([self.mark(each).flatten() for each in _tensors(args[1])])
            for each in first:
                times = each.numel() // max(len(source), 1)
                self.mark(each).copy_(source.repeat(times).view(each.shape) * (not along))
        elif "reduce_scatter" in name:
            parts = torch.cat([self.mark(each).flatten() for each in _tensors(args[1])]).view(ranks, -1)
            self.mark(first[0]).copy_(parts[0].view(first[0].shape).clamp(min=int(along)))
        elif "alltoall" in name:
            self.mark(first[0]).fill_(max(along, *(self.varies(each) for each in _tensors(args[1]))))
        elif "broadcast" in name:
            for each in first if along else ():
                self.mark(each).zero_()
        elif name == "send":
            self._received = self._received if "pipeline" in axes else any(map(self.varies, first))
        elif name == "recv_":
            for each in first:
                self.mark(each).fill_(along or self._received)


def _is_written(spec: Any) -> bool:
    return spec.alias_info is not None and spec.alias_info.is_write


def _tensors(found: Any) -> list[Tensor]:
    return [each for each in tree_leaves(found) if isinstance(each, Tensor) and not isinstance(each, DTensor)]


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def check(recipe: Recipe, vocab: int, axis: Axis) -> list[str]:
    """What is wrong along one axis; nothing where each value is what it should be."""
    sizes = axis_sizes(recipe.parallel)
    neighbour = prod(sizes.get(each, 1) for each in AXES[AXES.index(axis) + 1 :])
    others, own = (_step(recipe, vocab, rank, axis, None).keys for rank in (neighbour, 0))
    return _step(recipe, vocab, 0, axis, (own, others)).problems


def _step(recipe: Recipe, vocab: int, rank: int, axis: Axis, keys: tuple[list[Key], list[Key]] | None) -> Varying:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with simulate.fake_world(recipe, rank) as world:
        mode = Varying(world, axis, recipe, keys and keys[1])
        engine = simulate.engine_of(recipe, vocab, replace(world, memory=simulate._both(fake, mode)))
        mode.keys.clear()
        if keys is not None:
            mode.compare(keys[0])
        with simulate._foreseen(), mode.resizing(), simulate._balanced(), fake, mode:
            _take(engine, recipe, mode)
        return mode


def _take(engine: Engine, recipe: Recipe, mode: Varying) -> None:
    for shard in engine.shards.values():
        mode.mark(shard.tensor).fill_(mode.axis in shard.axes)
    batches = [simulate._batch(recipe, number) for number in range(2 * recipe.parallel.pipeline.stages)]
    for each in (getattr(batch, field.name) for batch in batches for field in fields(batch)):
        if isinstance(each, Tensor):
            mode.mark(each).fill_(mode.axis in DATA)
    engine.zero_gradients()
    losses = engine.forward_backward(batches, float(recipe.train.batch_tokens), key=(recipe.seed, 0))
    told = {**losses, "norm": engine.clip_gradients(0.0)}
    mode.problems += [f"{name} varies along {mode.axis}" for name, each in told.items() if mode.varies(each)]
    for name, shard in engine.shards.items():
        gradient = shard.tensor.grad
        if gradient is not None and mode.axis not in shard.axes and mode.varies(gradient):
            mode.problems.append(f"the gradient of {name} varies along {mode.axis}")
