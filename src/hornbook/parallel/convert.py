"""The state of one optimizer as the state of another on all ranks, however either is divided over them."""

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from hornbook.optim.config.rule import StateTensor, UpdateRule
from hornbook.optim.optimizer import Optimizer
from hornbook.optim.swap import convert, direction
from hornbook.parallel.gradients.gradient_norm import sum_of_shards
from hornbook.parallel.owners import SHARING
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.world import World, others

Declared = dict[str, tuple[StateTensor, Tensor]]


def convert_state(
    old: Optimizer,
    old_shards: Mapping[str, ParameterShard],
    new: Optimizer,
    new_shards: Mapping[str, ParameterShard],
    world: World,
) -> None:
    """Fill the state of `new`, which is zero, from that of `old`; every rank calls it.

    The shards are those that each updates. Where ranks share parameters, the state of one parameter after the other is
    made whole on every rank, converted there, and cut again.
    """
    before, after = _by_parameter(old), _by_parameter(new)
    for name, (rule, tensors) in after.items():
        old_rule, found = before[name]
        if world.axis_size(SHARING) == 1:
            convert(old_rule, _values(found), rule, _values(tensors))
            continue
        whole = {key: _gather(*each, old_shards[name], world) for key, each in found.items()}
        shape = new_shards[name].shape
        made = {key: tensor.new_zeros(declared.shape(shape)) for key, (declared, tensor) in tensors.items()}
        convert(old_rule, whole, rule, made)
        for key, (declared, tensor) in tensors.items():
            if tensor.numel() and not declared.is_parameter:  # the weights stay
                tensor.copy_(made[key][_region(declared, new_shards[name], tensor)])


def update_size(optimizer: Optimizer, shards: Mapping[str, ParameterShard], world: World) -> float:
    """Root of the sum of squares of the next update (`optim.swap.direction`), over all parameters of all ranks.

    The shards are those that it updates. 0.0 where it is not known for some rule.
    """
    pairs, unknown = list[tuple[ParameterShard, Tensor]](), False
    for name, (rule, tensors) in _by_parameter(optimizer).items():
        update = direction(rule, _values(tensors))
        if update is None:
            unknown = True
        else:
            pairs.append((shards[name], update))
    if world.all_reduce_max([unknown])[0]:  # ranks of other stages may have other rules
        return 0.0
    return float(sum_of_shards(pairs, world, _squares).sqrt())


def _squares(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([each.double().square().sum() for each in tensors]).sum()


def _by_parameter(optimizer: Optimizer) -> dict[str, tuple[UpdateRule, Declared]]:
    """Parameter -> its rule and its state."""
    rules = optimizer.rules()
    found: dict[str, tuple[UpdateRule, Declared]] = {name: (rule, {}) for name, rule in rules.items()}
    for name, declared, tensor in optimizer.state():
        found[name][1][declared.name] = declared, tensor
    return found


def _values(tensors: Declared) -> dict[str, Tensor]:
    return {name: tensor for name, (_, tensor) in tensors.items()}


def _gather(declared: StateTensor, tensor: Tensor, shard: ParameterShard, world: World) -> Tensor:
    """The whole state tensor on every rank: the first of those that hold a value gives it, bit for bit."""
    whole = tensor.new_zeros(declared.shape(shard.shape))
    first = all(shard.start[dim] == 0 and shard.tensor.shape[dim] for dim in declared.dropped_dims(len(shard.shape)))
    same = others(SHARING, shard.axes)  # whose ranks hold the same
    first = first and shard.copy == 0 and world.axis_rank(same) == 0
    if first and prod(shard.tensor.shape) and tensor.numel():
        whole[_region(declared, shard, tensor)] = tensor
    # A sum of bytes of which all but one are zero.
    raw = whole.reshape(-1).view(torch.uint8)
    world.all_reduce_sum(raw, SHARING)
    return raw.view(whole.dtype).view(whole.shape)


def _region(declared: StateTensor, shard: ParameterShard, tensor: Tensor) -> tuple[slice, ...]:
    start = declared.shape(shard.start) if declared.extent not in ("left", "right") else (0,) * tensor.dim()
    return tuple(slice(first, first + size) for first, size in zip(start, tensor.shape, strict=True))
