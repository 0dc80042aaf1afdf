"""Runners: in which order the microbatches of a step go forward and backward.

The engine knows what a microbatch is made of and where its gradients go. A runner calls the model: one microbatch after
the other here; as stages that send one another the result of `Transformer.forward`, in a pipeline. `model_inputs` is
what it calls the model with.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.errors import UsageError
from hornbook.model.forward_context import Auxiliary
from hornbook.model.heads.replaced import Chosen
from hornbook.model.layers.dropout import row_keys
from hornbook.model.layers.embedding import Mixing
from hornbook.model.layers.transfer import to_device
from hornbook.model.transformer import Source, Transformer
from hornbook.parallel.axes.expert.load_balance import token_masks
from hornbook.parallel.traffic.step_clock import StepClock
from hornbook.parallel.world import World


class Step(Protocol):
    """What the engine offers a runner: the microbatches of this rank for one step, by their numbers from 0."""

    @property
    def num_microbatches(self) -> int:
        """At least one."""
        ...

    def begin(self, number: int) -> None:
        """Called before the first forward pass of a microbatch; the last one begins last."""

    def inputs(self, number: int) -> dict[str, Any]:
        """Arguments of `Transformer.forward`, on this rank's device."""
        ...

    def objective(self, hidden: Tensor | None, auxiliary: Auxiliary, number: int) -> Tensor:
        """The scalar to call `backward` of, once for each stage of a microbatch; without gradient where it adds none.

        hidden: of the last stage; None for those before. auxiliary: of the stage's own blocks; the last one may be
        given those of all (`model.transformer.add_auxiliary`).
        """
        ...

    def end(self) -> None:
        """Called after the backward passes of a microbatch. With `parallel.exact`, its gradients must be alone."""


class Runner(Protocol):
    """Calls the model for all microbatches of a step; afterwards each parameter has its gradient."""

    def run(self, step: Step) -> None:
        """Every microbatch forward and backward."""


Apply = Callable[[dict[str, Any], Callable[[Tensor], tuple[Tensor, ...]]], tuple[Tensor, ...]]
"""From arguments of `Transformer.forward`, and what reads its hidden states, to what that gives."""


def apply_to(model: Transformer) -> Apply:
    """Of a rank that has the whole model."""

    def apply(inputs: dict[str, Any], last: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        hidden, _ = model(**inputs)
        return last(hidden)

    return apply


def refuse_unnamed(world: World, names: Sequence[str]) -> None:
    """UsageError for losses that no part has named before the first step, where other stages would not know them."""
    if world.axis_size(["pipeline"]) > 1:
        text = f"a part of the model gives the loss {names[0]!r}, and its attribute `loss_names` does not name it"
        raise UsageError(f"parallel.pipeline: {text}: stages must know all names before the first step")


class InOrder:
    """One microbatch after the other, each forward and then backward: a single one has activations."""

    def __init__(self, forward: Callable[..., tuple[Tensor, Auxiliary]], clock: StepClock | None = None) -> None:
        """`forward` is called as `Transformer.forward`; `clock` times the passes."""
        self._forward, self._clock = forward, clock or StepClock()

    def run(self, step: Step) -> None:
        for number in range(step.num_microbatches):
            step.begin(number)
            inputs = step.inputs(number)
            with self._clock.phase("forward"):
                hidden, auxiliary = self._forward(**inputs)
                objective = step.objective(hidden, auxiliary, number)
            with self._clock.phase("backward"):
                objective.backward()
            step.end()


def model_inputs(
    model: Transformer, batch: Batch, keys: Tensor | None, device: torch.device, *, masked: bool
) -> dict[str, Any]:
    """Arguments of `Transformer.forward`, on the device; `masked`: the model asks which tokens are not padding."""

    def there(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else to_device(tensor, device)

    mask, source_mask = token_masks(batch) if masked else (None, None)
    found: dict[str, Any] = {"tokens": there(batch.tokens), "positions": there(batch.positions), "keys": keys}
    found |= {"lengths": batch.document_lengths, "prefixes": batch.prefixes, "types": None, "source": None}
    kinds, source = model.entrance.types, batch.source
    if kinds is not None and len(kinds.weight) > 1:
        found["types"] = there(batch.types)
    if source is not None:  # of an encoder-decoder
        inputs = to_device(source.tokens, device), there(source.positions)
        found["source"] = Source(*inputs, source.document_lengths, there(source_mask))
    if model.mtp is not None and torch.is_grad_enabled():  # it is there for its loss alone
        found["ahead"] = True
    if model.generator is not None and batch.detection is not None:
        rows = to_device(batch.weights.flatten().nonzero().squeeze(1), device)
        found["chosen"] = Chosen(rows, to_device(row_keys(0, 0, batch.samples), device) if keys is None else keys)
    if batch.mixed is not None and torch.is_grad_enabled():  # texts that are evaluated are not mixed
        found["mixing"] = Mixing(*(to_device(each, device) for each in (batch.mixed.tokens, batch.mixed.shares)))
    return {**found, "token_mask": there(mask)}
