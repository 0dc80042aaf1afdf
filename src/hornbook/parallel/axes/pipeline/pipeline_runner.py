"""The runner of a pipeline: computes this rank's passes in the order of the schedule, and passes their results on."""

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from hornbook.model.forward_context import Auxiliary
from hornbook.model.transformer import Transformer
from hornbook.parallel.axes.pipeline.messages import Key, Messages
from hornbook.parallel.axes.pipeline.pass_orders import Action, Order, rank_order
from hornbook.parallel.axes.pipeline.split_backward import WeightGradients, gradients_of_inputs
from hornbook.parallel.axes.pipeline.stages import Layout, StageModel
from hornbook.parallel.runner import Step
from hornbook.parallel.traffic.step_clock import StepClock
from hornbook.parallel.world import World

if TYPE_CHECKING:
    from hornbook.parallel.fully_sharded import ShardedStages

AHEAD = 3
"""Passes whose receives are posted: the present one and those behind it."""
MOST_DIMS = 4
"""Of a result of evaluation."""
Call = Callable[[Sequence[Tensor], dict[str, Any]], tuple[tuple[Tensor, ...], Auxiliary]]
"""As of `StageModel`."""
Last = Callable[[Tensor], tuple[Tensor, ...]]
"""What is made of the hidden states of the last stage."""


class PipelineRunner:
    """A `hornbook.parallel.runner.Runner` of the stages that a rank holds."""

    def __init__(
        self,
        model: Transformer,
        world: World,
        layout: Layout,
        clock: StepClock,
        sharded: "ShardedStages | None" = None,
    ) -> None:
        """sharded: where the data ranks of a stage share its weights, gradients or moments."""
        self.layout, self.model, self.clock, self.world = layout, model, clock, world
        self.stages = {stage: StageModel(model, layout, stage) for stage in layout.own}
        self.calls: dict[int, Call] = {**self.stages}
        """What computes each stage."""
        self.sharded = sharded
        if sharded is not None:
            self.calls = {stage: sharded.call_through_hooks(each, stage) for stage, each in self.stages.items()}
        self.messages = Messages(world, layout, clock)
        self.executed = Order()
        """Passes of the newest step, in the order in which they were computed."""

    def run(self, step: Step) -> None:
        layout, self.executed = self.layout, Order()
        order = rank_order(layout.schedule, layout.rank, layout.ranks, layout.chunks, step.num_microbatches)
        passes = _Passes(self, step)
        try:
            for number, action in enumerate(order):
                passes.expect(order[number : number + AHEAD])
                passes.compute(action)
                self.executed.append(action)
            self.messages.end()
        finally:
            self.messages.drop()

    def shapes(self, stage: int, inputs: dict[str, Any]) -> list[torch.Size]:
        """Of what a stage gets from the one before."""
        found = []
        for name in self.layout.received(stage):
            inside = name == "memory" or self.layout.bounds[stage] < self.layout.encoder
            tokens = inputs["source"].tokens if inside else inputs["tokens"]
            found.append(torch.Size((*tokens.shape, self.layout.width)))
        return found

    @torch.no_grad()
    def apply(self, inputs: dict[str, Any], last: Last) -> tuple[Tensor, ...]:
        """Forward through all stages; what `last` makes of the hidden states, on every rank of the pipeline."""
        found: tuple[Tensor, ...] | None = None
        for stage, call in self.calls.items():
            key = Key("F", stage, 0)
            if stage:
                self.messages.expect(key, self.shapes(stage, inputs), self.model.compute_dtype)
            sent, _ = call(self.messages.take(key) if stage else (), inputs)
            if stage + 1 < self.layout.stages:
                self.messages.send(Key("F", stage + 1, 0), sent)
            else:
                found = last(sent[0])
        self.messages.end()
        return self._share(found)

    def _share(self, found: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
        """The tensors of the rank of the last stage, on every rank of the pipeline."""
        source, group = self.layout.rank_of(self.layout.stages - 1), self.world.group(["pipeline"])
        device, mine = self.world.device, found or ()
        count = torch.tensor(len(mine), device=device)
        dist.broadcast(count, group_src=source, group=group)
        shared = []
        for number in range(int(count)):
            own = mine[number] if mine else None
            shared.append(_broadcast(own, device, source, group))
        return tuple(shared)


def _broadcast(own: Tensor | None, device: torch.device, source: int, group: dist.ProcessGroup | None) -> Tensor:
    head = torch.zeros(MOST_DIMS + 2, dtype=torch.int64)
    if own is not None:
        head[: own.dim() + 2] = torch.tensor([own.dtype == torch.float64, own.dim(), *own.shape])
    head = head.to(device)
    dist.broadcast(head, group_src=source, group=group)
    wide, dims, *shape = head.tolist()
    dtype = torch.float64 if wide else torch.float32
    tensor = torch.empty(shape[:dims], dtype=dtype, device=device) if own is None else own.to(dtype).contiguous()
    dist.broadcast(tensor, group_src=source, group=group)
    return tensor


class _Passes:
    """The passes of one step: what is kept between them."""

    def __init__(self, runner: PipelineRunner, step: Step) -> None:
        self._runner, self._step, self._messages, self._clock = runner, step, runner.messages, runner.clock
        self._inputs: dict[int, dict[str, Any]] = {}
        self._received: dict[tuple[int, int], list[Tensor]] = {}
        self._roots: dict[tuple[int, int], list[Tensor]] = {}
        """Of (stage, microbatch): what was sent, then its part of the objective, where it has gradients."""
        self._sent: dict[tuple[int, int], int] = {}
        self._weights: dict[tuple[int, int], WeightGradients] = {}
        self._left: dict[int, int] = {}
        """Stages of this rank that a microbatch has not passed backward."""

    def _begun(self, number: int) -> dict[str, Any]:
        """Inputs of a microbatch."""
        if number not in self._inputs:
            self._step.begin(number)
            self._inputs[number] = self._step.inputs(number)
            self._left[number] = len(self._runner.stages)
        return self._inputs[number]

    def expect(self, order: Sequence[Action]) -> None:
        """Post the receives of these passes, up to one of which nothing is known yet."""
        for kind, stage, number in order:
            dtype = self._runner.model.compute_dtype
            if kind == "F" and stage:
                self._messages.expect(Key("F", stage, number), self._runner.shapes(stage, self._begun(number)), dtype)
            elif kind in "BI" and stage + 1 < self._runner.layout.stages:
                if (stage, number) not in self._roots:
                    return
                roots = self._roots[stage, number][: self._sent[stage, number]]
                self._messages.expect(Key("I", stage, number), [each.shape for each in roots], dtype)

    def compute(self, action: Action) -> None:
        """Compute a pass and pass its result on."""
        kind, stage, number = action
        if kind == "F":
            self._forward(stage, number)
        elif kind == "W":
            self._backward_of_weights(stage, number)
        else:
            self._backward(kind, stage, number)
        if kind in "BW":
            self._finish(number)

    def _forward(self, stage: int, number: int) -> None:
        inputs = self._begun(number)
        received = self._messages.take(Key("F", stage, number)) if stage else []
        received = [each.requires_grad_() for each in received]
        with self._clock.phase("forward"):
            sent, auxiliary = self._runner.calls[stage](received, inputs)
            last = stage + 1 == self._runner.layout.stages
            objective = self._step.objective(sent[0] if last else None, auxiliary, number)
        sent = () if last else sent
        at = stage, number
        self._received[at], self._sent[at] = received, len(sent)
        self._roots[at] = [*sent, *([objective] if objective.requires_grad else [])]
        if not last:
            self._messages.send(Key("F", stage + 1, number), sent)

    def _backward(self, kind: Literal["B", "I"], stage: int, number: int) -> None:
        at = stage, number
        gradients = self._messages.take(Key("I", stage, number)) if self._sent.pop(at) else []
        roots, received = self._roots.pop(at), self._received.pop(at)
        gradients += [torch.ones_like(each) for each in roots[len(gradients) :]]
        with self._clock.phase("backward"):
            if kind == "I" and stage:
                found, self._weights[at] = gradients_of_inputs(roots, gradients, received)
            else:  # nobody waits for the gradients of tokens: the first stage computes all at once
                pairs = [pair for pair in zip(roots, gradients, strict=True) if pair[0].requires_grad]
                if pairs:  # a first stage may be frozen
                    torch.autograd.backward([root for root, _ in pairs], [gradient for _, gradient in pairs])
                found = [torch.zeros_like(each) if each.grad is None else each.grad for each in received]
        if stage:
            self._messages.send(Key("I", stage - 1, number), found)

    def _backward_of_weights(self, stage: int, number: int) -> None:
        rest, sharded = self._weights.pop((stage, number), None), self._runner.sharded
        if rest is None:
            return
        gathered = contextlib.nullcontext() if sharded is None else sharded.gathered(self._runner.stages[stage])
        with self._clock.phase("backward"), gathered:
            rest.compute()

    def _finish(self, number: int) -> None:
        """A microbatch has passed a stage backward, its weights' gradients included."""
        self._left[number] -= 1
        if not self._left[number]:
            del self._inputs[number], self._left[number]
            self._step.end()
            if self._runner.sharded is not None:
                self._runner.sharded.end_microbatch()
