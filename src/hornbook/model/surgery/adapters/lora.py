"""Low-rank updates of frozen linear layers, and what they make of the weights: LoRA, rsLoRA, DoRA.

LoRA: y = W x + s B A x, with A [rank, in] and B [out, rank]; s = alpha / rank, in rsLoRA alpha / sqrt(rank). B begins
at zero, so the first step computes what the base computes, bit for bit; A at U(-1/sqrt(in), 1/sqrt(in)), which is
Kaiming's uniform with a = sqrt(5), as in the paper's code.

DoRA: V = W + s B A, y = (m / |V|) V x row by row, where m begins at |W|; |V| is a constant to gradients (section 4.3
of the paper). Written with W x at hand: y = W x + (m / |V| - 1) W x + (m / |V|) s B A x.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.config.surgery_config import Dora, Lora
from hornbook.model.layers.linear import Linear
from hornbook.model.layers.low_rank import Update
from hornbook.model.layers.products import linear
from hornbook.model.surgery.added import Added, Mergeable, keyed_uniform, matching_linears


class LowRank(Mergeable):
    """LoRA's A and B of one layer."""

    cuts: ClassVar = {0: {"a": None, "b": 0}, 1: {"a": 1, "b": None}}
    sums: ClassVar = True

    def __init__(self, layer: Linear, step: Lora) -> None:
        super().__init__()
        outputs, inputs = layer.weight.shape
        self.factor = step.factor
        self.a = nn.Parameter(torch.empty(step.rank, inputs))
        self.b = nn.Parameter(torch.empty(outputs, step.rank))

    def forward(self, layer: Linear, x: Tensor, y: Float[Tensor, "*batch outputs"]) -> Float[Tensor, "*batch outputs"]:
        del layer
        return y + self.update(x)

    @property
    def low_rank(self) -> Update | None:
        """What it adds to the layer's matrix, where that is all it does (`layers.low_rank`)."""
        return Update(self.a, self.b, self.factor)

    def update(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """s B A x."""
        return linear(linear(x, self.a.to(x.dtype)), self.b.to(x.dtype)) * self.factor

    def merged(self, weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, "outputs inputs"]:
        return weight + self.factor * (self.b @ self.a)

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        del weight
        yield "a", keyed_uniform(tuple(self.a.shape), self.a.shape[1] ** -0.5, seed, f"{name}.a")
        yield "b", torch.zeros(self.b.shape)


class Magnitude(Added):
    """`weight` [out]: the lengths of rows."""

    role: ClassVar = "vector"

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs))


class Directional(LowRank):
    """DoRA: LoRA, and the length of each row."""

    cuts: ClassVar = {dim: {**cuts, "magnitude.weight": cuts["b"]} for dim, cuts in LowRank.cuts.items()}

    def __init__(self, layer: Linear, step: Dora) -> None:
        super().__init__(layer, step)
        self.magnitude = Magnitude(layer.weight.shape[0])

    @property
    def low_rank(self) -> None:
        """None: it changes lengths too."""
        return

    def forward(self, layer: Linear, x: Tensor, y: Float[Tensor, "*batch outputs"]) -> Float[Tensor, "*batch outputs"]:
        with torch.no_grad():
            moved = super().merged(layer.matrix(torch.float32))
            lengths = row_lengths(moved) if self.total is None else self.total(moved.square().sum(1)).sqrt()
        scale = (self.magnitude.weight / lengths).to(x.dtype)
        product = y if layer.bias is None or self.total is not None else y - layer.bias.to(y.dtype)
        return y + (scale - 1) * product + scale * self.update(x)

    def merged(self, weight: Tensor) -> Tensor:
        moved = super().merged(weight)
        return moved * (self.magnitude.weight / row_lengths(moved))[:, None]

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        assert weight is not None, "DoRA begins at the rows of the base"
        yield from super().first_values(name, seed, weight)
        yield "magnitude.weight", row_lengths(weight.contiguous())  # rows of other strides are summed in another order


def row_lengths(weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, " outputs"]:
    """L2 norm of each row."""
    return torch.linalg.vector_norm(weight, dim=1)


def add_lora(model: nn.Module, step: Lora) -> None:
    """Hang LoRA or DoRA on the layers the step names. UsageError for a rank larger than a matrix."""
    for name, layer in matching_linears(model, step.targets, f"surgery {step.kind} targets").items():
        outputs, inputs = layer.weight.shape
        if step.rank > min(outputs, inputs):
            raise UsageError(
                f"surgery {step.kind} rank: {name} is {outputs} x {inputs}, so a rank of at most "
                f"{min(outputs, inputs)} means anything; found {step.rank}"
            )
        with torch.device(layer.weight.device):
            layer.adapter = Directional(layer, step) if isinstance(step, Dora) else LowRank(layer, step)


# ---- Merged into the weights


def merged_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, float32 tensor) of every parameter of the plain model that computes what `model` does.

    Rounded and 4-bit weights become the values they encode, LoRA, DoRA and IA3 are merged. UsageError, at once, where
    the model has parts that no plain model has (bottlenecks, soft prompts, prefixes, gated vectors).
    """
    for name, module in model.named_modules():
        mergeable = isinstance(module, Mergeable | Magnitude) or name.endswith(".code")
        if isinstance(module, Added) and not mergeable:
            kind = type(module).__name__
            text = f"{name} ({kind}) cannot be merged into the weights: it is no linear update of a matrix"
            raise UsageError(f"{text}; `hornbook export --to peft` writes the adapter alone")
    return _merged(model)


@torch.no_grad()
def _merged_weight(layer: Linear) -> Tensor:
    weight = layer.matrix(torch.float32)
    return layer.adapter.merged(weight) if isinstance(layer.adapter, Mergeable) else weight


def _merged(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            yield f"{name}.weight", _merged_weight(module)
            if module.bias is not None:
                bias, adapter = module.bias.detach(), module.adapter
                yield f"{name}.bias", adapter.merged_bias(bias).detach() if isinstance(adapter, Mergeable) else bias
        elif not isinstance(module, Added):  # what is added is in the weights by now
            yield from ((f"{name}.{each}", p.detach()) for each, p in module.named_parameters(recurse=False))
