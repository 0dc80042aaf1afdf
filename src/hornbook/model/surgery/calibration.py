"""What the linear layers of a model read on some text, layer by layer, where each layer may be changed before the next.

The blocks are gone through in order. Within one, layers with the same input (query, key and value; gate and up) are
a stage: its inputs are gathered in a forward pass of the block, then the stage's layers are changed, and the next stage
reads what the changed ones compute (GPTQ: Frantar et al. 2022, arXiv 2210.17323, section 4). So memory holds the
hidden states of the text once, and each block computes once for each of its stages and once more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.block import Stream
from hornbook.model.forward_context import Context
from hornbook.model.layers.linear import Linear
from hornbook.model.layers.products import linear
from hornbook.model.transformer import Transformer

Gather = Callable[[Float[Tensor, "tokens inputs"]], Float64[Tensor, "*statistic"]]
"""From the inputs of one microbatch to a sum over its tokens."""
Act = Callable[[str, Linear, Float64[Tensor, "*statistic"]], None]
"""Changes a layer (name, layer, mean of the statistic over tokens)."""
Report = Callable[[int, int], None]
"""Told how many blocks are done, of how many."""


def second_moments(x: Float[Tensor, "tokens inputs"]) -> Float64[Tensor, "inputs inputs"]:
    """X^T X."""
    return (x.mT @ x).double()


def squares(x: Float[Tensor, "tokens inputs"]) -> Float64[Tensor, " inputs"]:
    """The diagonal of X^T X."""
    return x.double().square().sum(0)


class _Reached(Exception):
    """The first block was called."""


@torch.no_grad()
def calibrate(
    model: Transformer,
    microbatches: Sequence[dict[str, Any]],
    layers: Mapping[str, Linear],
    gather: Gather,
    act: Act,
    report: Report = lambda _done, _of: None,
) -> None:
    """Change the layers of all blocks of a decoder, in the order in which they compute.

    microbatches: arguments of `Transformer.forward`; tokens that `token_mask` leaves out are not gathered.
    Raises UsageError where there is no token, and where inputs are not finite.
    """
    states = [_entrance(model, each) for each in microbatches]
    for number, (key, block) in enumerate(model.blocks.items()):
        report(number, len(model.blocks))
        prefix = f"blocks.{key}."
        left = {name: layer for name, layer in layers.items() if name.startswith(prefix)}
        while left:
            found = _stage(block, states, left, gather)
            if not found:
                break  # nothing on this text reaches the rest
            for name, statistic in found.items():
                act(name, left.pop(name), statistic)
        states = [(block(x, context)[0], context) for x, context in states]


def _entrance(model: Transformer, inputs: dict[str, Any]) -> tuple[Stream, Context]:
    """What the first block is called with."""
    held: list[tuple[Stream, Context]] = []

    def take(_: nn.Module, given: tuple[Stream, Context]) -> None:
        held.append(given)
        raise _Reached

    hook = next(iter(model.blocks.values())).register_forward_pre_hook(take)
    try:
        model(**inputs)
    except _Reached:
        pass
    finally:
        hook.remove()
    x, context = held[0]
    return x, replace(context, keys=None)


def _stage(
    block: nn.Module, states: Sequence[tuple[Stream, Context]], left: Mapping[str, Linear], gather: Gather
) -> dict[str, Tensor]:
    """Mean statistic of each layer of the next stage: the first that is called, and those that read the same tensor."""
    sums: dict[str, Tensor] = {}
    tokens = dict.fromkeys(left, 0)
    for number, (x, context) in enumerate(states):
        for name, read in _read(block, x, context, left, None if number == 0 else sums.keys()):
            taken = read.flatten(0, -2) if context.token_mask is None else read[context.token_mask]
            found = gather(taken.float())
            sums[name] = sums[name] + found if name in sums else found
            tokens[name] += len(taken)
    if any(not tokens[name] for name in sums):
        raise UsageError("there is no text to calibrate on: give a folder with more training text")
    if odd := next((name for name, each in sums.items() if not bool(each.isfinite().all())), None):
        raise UsageError(f"{odd}: its inputs on this text are not finite: the model cannot be calibrated")
    return {name: each / tokens[name] for name, each in sums.items()}


def _read(
    block: nn.Module, x: Stream, context: Context, left: Mapping[str, Linear], names: Any
) -> Iterator[tuple[str, Tensor]]:
    """Inputs of one stage; names: of its layers, or None to find them. What equals the one before is computed once."""
    reads: dict[str, Tensor] = {}

    def look(name: str, former: Any) -> Any:
        def product(given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            first = next(iter(reads.values()), given)
            if name in names if names is not None else given is first:
                reads[name] = given
            return (former or linear)(given, weight, bias)

        return product

    former = {name: layer.product for name, layer in left.items()}
    for name, layer in left.items():
        layer.product = look(name, former[name])
    try:
        block(x, context)
    finally:
        for name, layer in left.items():
            layer.product = former[name]
    yield from reads.items()
