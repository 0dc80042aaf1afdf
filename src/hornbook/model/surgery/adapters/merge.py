"""Adapters merged into the weights, and taken out again: one matrix does what base and update did together."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.layers.linear import Linear
from hornbook.model.surgery.adapters.lora import LowRank, Magnitude
from hornbook.model.surgery.added import Added


def merged_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, float32 tensor) of every parameter of the plain model that computes what `model` does.

    Rounded and 4-bit weights become the values they encode, LoRA and DoRA are added. UsageError, at once, where the
    model has parts that no plain model has (bottlenecks, soft prompts).
    """
    _refuse_others(model)
    return _merged(model)


def _merged(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            yield f"{name}.weight", merged_weight(module)
            if module.bias is not None:
                yield f"{name}.bias", module.bias.detach()
        elif not isinstance(module, Added):  # what is added is in the weights by now
            yield from ((f"{name}.{each}", p.detach()) for each, p in module.named_parameters(recurse=False))


@torch.no_grad()
def merged_weight(layer: Linear) -> Tensor:
    """The one matrix of a layer, float32."""
    weight = layer.matrix(torch.float32)
    return layer.adapter.merged(weight) if isinstance(layer.adapter, LowRank) else weight


def _refuse_others(model: nn.Module) -> None:
    for name, module in model.named_modules():
        mergeable = isinstance(module, LowRank | Magnitude) or name.endswith(".code")
        if isinstance(module, Added) and not mergeable:
            kind = type(module).__name__
            text = f"{name} ({kind}) cannot be merged into the weights: it is no linear update of a matrix"
            raise UsageError(f"{text}; `hornbook export --to peft` writes the adapter alone")


@torch.no_grad()
def merge(model: nn.Module) -> dict[str, LowRank]:
    """Merge LoRA and DoRA into the weights in place; returns what was taken off, for `unmerge`.

    UsageError where codes replace the weights: `merged_tensors` gives the merged ones.
    """
    _refuse_others(model)
    taken = {}
    for name, layer in model.named_modules():
        if isinstance(layer, Linear) and isinstance(layer.adapter, LowRank):
            if layer.code is not None:
                raise UsageError(f"{name} is kept as codes: merge makes a new model (hornbook export)")
            layer.weight.copy_(layer.adapter.merged(layer.weight))
            taken[name], layer.adapter = layer.adapter, None
    return taken


@torch.no_grad()
def unmerge(model: nn.Module, taken: dict[str, LowRank]) -> None:
    """Undo `merge`: the weights come back up to rounding. UsageError for DoRA, of which they do not."""
    for name, adapter in taken.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, Linear)
        layer.weight.copy_(adapter.unmerged(layer.weight))
        layer.adapter = adapter
