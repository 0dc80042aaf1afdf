"""Values of a model after surgery, as a stream of tensor transforms.

The base's tensors pass; a weight replaced by codes is quantized where it passes, and after a layer's weight come
the first values of what hangs on it, which may depend on that weight, or the values that were stored.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from hornbook.errors import IntegrityError
from hornbook.model.layers.linear import Linear
from hornbook.model.storage.safetensors_folder import name_mismatches
from hornbook.model.surgery.added import Added
from hornbook.model.surgery.quantization.nf4 import Nf4Code

Stream = Iterable[tuple[str, Tensor]]


def added_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that surgery added, by name; under an adapter what it trains of the model itself, too."""
    added = {
        f"{prefix}.{name}": parameter
        for prefix, module in model.named_modules()
        if isinstance(module, Added) and not isinstance(model.get_submodule(prefix.rpartition(".")[0]), Added)
        for name, parameter in module.named_parameters()
    }
    for prefix, module in model.named_modules():
        if getattr(module, "apart", False):
            added |= {name: each for name, each in module.named_parameters(prefix) if name not in added}
    return added


def with_added(
    model: nn.Module,
    base: Stream,
    seed: int,
    stored: Mapping[str, Tensor] | None = None,
    divided: nn.Module | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """The stream that fills every parameter of `model`: the base's, and what surgery added.

    Frozen weights in 4 bits are taken up on the way, and do not appear. seed: of the first values of what was added;
    where `stored` has them, those are used, and must be all. Raises IntegrityError where they are not. divided: the
    part of the model that a rank holds, which takes these weights up; `model` may then be on meta.
    """
    if stored is not None and (problems := name_mismatches(added_parameters(model).keys(), stored.keys())):
        raise IntegrityError("what is stored is not what this surgery adds: " + "; ".join(problems))
    parts, held = dict(model.named_modules()), dict((divided or model).named_modules())
    for name, given in base:
        tensor = given if stored is None else stored.get(name, given)
        layer = parts.get(name.rpartition(".")[0]) if name.endswith(".weight") else None
        if not isinstance(layer, Linear):
            yield name, tensor
            continue
        path = name.removesuffix(".weight")
        code = held.get(f"{path}.code")
        if isinstance(code, Nf4Code):
            code.take(tensor)
            tensor = code(tensor).cpu()
        if not isinstance(layer.code, Nf4Code):
            yield name, tensor
        yield from _hanging(layer, path, tensor, seed, stored)
    for name, part in parts.items():
        owner = parts[name.rpartition(".")[0]] if name else None
        if isinstance(part, Added) and not isinstance(owner, Linear | Added):
            yield from _values(part, name, None, seed, stored)


def _hanging(
    layer: Linear, name: str, weight: Tensor, seed: int, stored: Mapping[str, Tensor] | None
) -> Iterator[tuple[str, Tensor]]:
    """Values of a layer's code and adapter."""
    for slot, part in (("code", layer.code), ("adapter", layer.adapter)):
        if isinstance(part, Added):
            yield from _values(part, f"{name}.{slot}", weight.float(), seed, stored)


def _values(
    part: Added, name: str, weight: Tensor | None, seed: int, stored: Mapping[str, Tensor] | None
) -> Iterator[tuple[str, Tensor]]:
    if stored is None:
        with torch.no_grad():
            yield from ((f"{name}.{each}", value) for each, value in part.first_values(name, seed, weight))
        return
    yield from ((f"{name}.{each}", stored[f"{name}.{each}"]) for each, _ in part.named_parameters())
