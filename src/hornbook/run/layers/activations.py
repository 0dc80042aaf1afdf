"""What blocks give in one forward pass: RMS of their output, dead MLP units, expert loads, the largest attention logit.

The pass is one of its own, over a few rows, without gradients and dropout: the training step stays what it is, whatever
is compiled, fused or computed again there. Every rank computes the same rows, so counts that several ranks have
several times leave the ratios as they are.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.data.batch import Batch
from hornbook.model.attention.attend import Heads, attend, tables_of
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.config.mlp_config import Activation
from hornbook.model.heads.label_heads import LabelHead
from hornbook.model.heads.replaced import Detector
from hornbook.model.layers.products import linear
from hornbook.model.layers.transfer import fetch, to_device
from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.grouped import GroupedProduct, Weights
from hornbook.model.mlp.mlp import GLU, MLP, Blend, activate
from hornbook.parallel.axes.tensor.divide import portion
from hornbook.parallel.engine import Engine
from hornbook.parallel.world import AXES

QUERIES = 256
"""Queries of each row, and targets in all, spread evenly, whose scores are computed: all would cost too much."""
_SERVED = 16
"""Tokens from which on units of an expert are counted: of fewer, live ones may all be negative by chance."""
_SUMS = 7
"""By block: squares and count of its output, dead and all units of its MLP, choices of its busiest expert, and of one
in the mean, and that mean times the share of experts that no token chose."""


@dataclass(frozen=True)
class BlockOutputs:
    """By block, in the order of `ActivationWatch.blocks`; None where a block has no such part."""

    activation_rms: list[float | None]
    """RMS of the residual stream behind the block."""
    dead_units: list[float | None]
    """Share of the MLP's hidden units whose activation is positive for no token; of experts, of those that serve
    some."""
    expert_load: list[float | None]
    """Tokens of the busiest expert over those of one in the mean."""
    idle_experts: list[float | None]
    """Share of the experts that no token chose."""
    max_logit: list[float | None]
    """Largest attention score before the softmax and before a soft cap."""
    log_z: float | None
    """RMS over the targets of the logarithm of the sum of exponentials of the logits."""


class ActivationWatch:
    """Hooks on the blocks of this rank while they compute some rows."""

    def __init__(self, engine: Engine, blocks: Sequence[str]) -> None:
        """`blocks`: names of all blocks of the model (`encoder.blocks.0`, `blocks.3`), the same on every rank."""
        self._engine, self.blocks = engine, tuple(blocks)
        self.has_logits = engine.world.axis_size(["context"]) == 1
        """Whether attention logits can be read: not where a rank has only some of the keys."""
        self._sums = self._logits = torch.empty(0)

    @torch.no_grad()
    def measure(self, rows: int, peek: Callable[[int], Batch]) -> BlockOutputs:
        """Compute `rows` rows of `peek`; every rank calls it. The host waits for the device."""
        world = self._engine.world
        self._sums = torch.zeros(len(self.blocks), _SUMS, dtype=torch.float64, device=world.device)
        self._logits = torch.full((len(self.blocks),), -torch.inf, dtype=torch.float64, device=world.device)
        with contextlib.ExitStack() as hooks:
            for number, block in self._own_blocks():
                self._watch(hooks, number, block)
            head = log_partition(self._engine, peek(rows), QUERIES)
        sums = torch.cat([self._sums.flatten(), head.double()])
        sums = world.all_reduce_sum(sums, AXES).tolist()
        logits = _max_over_ranks(self._logits, self._engine)
        return self._outputs(sums, logits)

    def _own_blocks(self) -> Iterator[tuple[int, nn.Module]]:
        model = self._engine.model
        for stack, prefix in ((model.encoder, "encoder."), (model, "")):
            for number, block in () if stack is None else stack.blocks.items():
                yield self.blocks.index(f"{prefix}blocks.{number}"), block

    def _watch(self, hooks: contextlib.ExitStack, number: int, block: nn.Module) -> None:
        hooks.callback(block.register_forward_hook(partial(self._see_output, number)).remove)
        mlp = getattr(block, "mlp", None)
        if isinstance(mlp, MLP | GLU):
            hooks.callback(mlp.register_forward_pre_hook(partial(self._see_units, number)).remove)
        if isinstance(mlp, Experts):
            hooks.callback(setattr, mlp, "product", mlp.product)
            mlp.product = partial(self._see_experts, number, mlp.count, mlp.product)
        for each in block.children() if self.has_logits else ():
            if "attend" in vars(each):
                hooks.callback(setattr, each, "attend", vars(each)["attend"])
                vars(each)["attend"] = partial(self._see_logits, number, vars(each)["attend"] or attend)

    def _see_output(self, number: int, _: nn.Module, __: Any, result: tuple[Tensor, Any]) -> None:
        x = result[0].detach()
        self._sums[number, 0] += torch.linalg.vector_norm(x, dtype=torch.float32).double().square()
        self._sums[number, 1] += x.numel()

    def _see_units(self, number: int, mlp: MLP | GLU, inputs: tuple[Tensor, ...]) -> None:
        self._count_units(number, mlp.units(inputs[0]))

    def _count_units(self, number: int, units: Float[Tensor, "*batch hidden"]) -> None:
        alive = (units > 0).flatten(0, -2).any(0)
        self._sums[number, 2] += (~alive).sum()
        self._sums[number, 3] += alive.numel()

    def _see_experts(
        self,
        number: int,
        count: int,
        product: GroupedProduct,
        x: Float[Tensor, "tokens width"],
        experts: Int[Tensor, "tokens active"],
        weights: Float[Tensor, "tokens active"],
        matrices: Weights,
        activation: Activation | Blend = "silu",
    ) -> Float[Tensor, "tokens width"]:
        loads = torch.bincount(experts.flatten(), minlength=count)[:count]
        self._sums[number, 4] += loads.max()
        self._sums[number, 5] += loads.double().mean()
        self._sums[number, 6] += (loads == 0).double().mean() * loads.double().mean()
        world = self._engine.world
        first, end, _ = portion(count, world.axis_size(["expert"]), world.axis_rank(["expert"]))
        for expert in (loads[first:end] >= _SERVED).nonzero().flatten().tolist():  # every rank has the same rows
            chosen = x[(experts == first + expert).any(1)]
            self._count_units(number, activate(linear(chosen, matrices.gate[expert].to(x.dtype)), activation))
        return product(x, experts, weights, matrices, activation)

    def _see_logits(
        self,
        number: int,
        call: Callable[..., Heads],
        query: Heads,
        key: Heads,
        value: Heads,
        mask: AttentionMask,
        **how: Any,
    ) -> Heads:
        found = largest_logit(query, key, mask, how.get("scale"))
        self._logits[number] = torch.maximum(self._logits[number], found.double())
        return call(query, key, value, mask, **how)

    def _outputs(self, sums: list[float], logits: list[float]) -> BlockOutputs:
        rows = [sums[first : first + _SUMS] for first in range(0, len(sums) - 2, _SUMS)]
        return BlockOutputs(
            [_ratio(squares, count, 0.5) for squares, count, *_ in rows],
            [_ratio(dead, units) for _, _, dead, units, *_ in rows],
            [_ratio(busiest, mean) for *_, busiest, mean, _ in rows],
            [_ratio(idle, mean) for *_, mean, idle in rows],
            [None if each == -torch.inf else each for each in logits],
            _ratio(sums[-2], sums[-1], 0.5),
        )


def _ratio(part: float, whole: float, power: float = 1.0) -> float | None:
    return (part / whole) ** power if whole else None


def _max_over_ranks(values: Tensor, engine: Engine) -> list[float]:
    gathered = engine.world.all_gather(values, AXES)
    return fetch(*torch.stack(gathered).amax(0).unbind())


def log_partition(engine: Engine, batch: Batch, most: int) -> Tensor:
    """float32 [2]: over `most` targets at most, sum of (log of the sum of exponentials of the logits)^2, and of 1.

    The model is as it was written, without compilation; nothing changes. Zeros for heads that have no vocabulary, whose
    model is called all the same. A rank that has a part of the rows gives the sums over that part.
    """
    counted = engine.parts.batch(batch).weights.flatten().nonzero().squeeze(1)
    evenly = torch.linspace(0, max(len(counted) - 1, 0), min(most, len(counted))).round().long()
    chosen = to_device(counted[evenly], engine.world.device)
    with engine.evaluation_mode() as model:

        def read(hidden: Tensor) -> tuple[Tensor, ...]:
            head = model.head
            if head is None or isinstance(head, LabelHead | Detector):
                return (torch.zeros(2, device=hidden.device),)
            squares = head.logits(hidden.flatten(0, 1)[chosen][None]).logsumexp(-1).square()
            return (torch.stack([squares.sum(), torch.full_like(squares.sum(), squares.numel())]),)

        return engine.apply(engine.inputs(batch), read)[0]


def largest_logit(query: Heads, key: Heads, mask: AttentionMask, scale: float | None) -> Tensor:
    """float32 scalar: the largest of scale * q k over the pairs that see each other, of `QUERIES` queries of a row.

    query: [rows, heads, queries, dim]; key: [rows, kv_heads, keys, dim].
    """
    tables, (batch, heads, queries, dim) = tables_of(mask, query, key), query.shape
    chosen = torch.linspace(0, queries - 1, min(queries, QUERIES), device=query.device).round().long()
    few, keys = query[:, :, chosen].float(), key.shape[2]
    grouped = few.reshape(batch, key.shape[1], -1, dim)  # the queries of all heads that share a key-value head
    scores = (grouped @ key.float().transpose(-1, -2)).view(batch, heads, len(chosen), keys)
    index = torch.arange(keys, device=query.device)
    starts, ends = (each[:, None, chosen, None] for each in (tables.starts, tables.ends))
    seen = (starts <= index) & (index < ends)
    return scores.masked_fill_(~seen, -torch.inf).amax() * (dim**-0.5 if scale is None else scale)
