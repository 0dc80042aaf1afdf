"""LLaMA-Adapter (Zhang et al. 2023, arXiv 2303.16199): the upper layers of a frozen model look at trained vectors too.

In each of them every query q also attends to vectors A [length, width] that pass the layer's own projections:

    y = out(attention(q, K, V) + tanh(g) softmax(q (Wk A)^T scale) Wv A)

with a gate g for each head that begins at 0, so the first step computes what the base computes. The keys have no
positions. Version 2 (Gao et al. 2023, arXiv 2304.15010, section 3.1) trains the norms and, of linear layers, a scale
and a bias: s (W x + b) + c with s = 1 and c = 0 at first.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.attention.attention import FullAttention
from hornbook.model.config.surgery_config import LlamaAdapter, LlamaAdapterV2
from hornbook.model.layers.linear import Linear
from hornbook.model.layers.products import matmul
from hornbook.model.surgery.added import Added, keyed_normal, matching_linears

Heads = Float[Tensor, "batch heads time head_dim"]


class Gate(Added):
    """`weight` [heads]."""

    role: ClassVar = "vector"

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads))


class GatedVectors(Added):
    """`weight` [length, width]: what a layer looks at beside its row, and how much of it counts."""

    role: ClassVar = "position"

    def __init__(self, length: int, width: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, width))
        self.gate = Gate(heads)

    def forward(self, layer: FullAttention, query: Heads) -> Heads:
        """What the heads of a layer find there."""
        vectors = self.weight.to(query.dtype)[None]
        key = layer.unturned(layer.key, layer.key_norm, vectors)
        value = layer.unturned(layer.value, None, vectors)
        grouped = query.unflatten(1, (key.shape[1], -1))  # [batch, kv_heads, group, time, head_dim]
        scale = query.shape[-1] ** -0.5 if layer.cfg.scale is None else layer.cfg.scale
        scores = matmul(grouped, key[:, :, None].transpose(-1, -2)) * scale
        found = matmul(scores.float().softmax(-1).to(query.dtype), value[:, :, None]).flatten(1, 2)
        return found * self.gate.weight.tanh().to(query.dtype)[:, None, None]

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        del weight
        yield "weight", keyed_normal(tuple(self.weight.shape), 1.0, seed, f"{name}.weight")
        yield "gate.weight", torch.zeros(self.gate.weight.shape)


class ScaleAndBias(Added):
    """`scale` and `shift` [outputs] of what a layer gives."""

    role: ClassVar = "vector"

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.empty(outputs)) for _ in range(2))

    def forward(self, layer: Linear, x: Tensor, y: Float[Tensor, "*batch outputs"]) -> Float[Tensor, "*batch outputs"]:
        del layer, x
        return y * self.scale.to(y.dtype) + self.shift.to(y.dtype)

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        del name, seed, weight
        yield "scale", torch.ones(self.scale.shape)
        yield "shift", torch.zeros(self.shift.shape)


def add_gated(model: nn.Module, step: LlamaAdapter) -> None:
    """Give the upper layers vectors to look at; version 2 also frees norms and hangs scales on linear layers.

    UsageError where no layer is left above those without vectors, or one has no queries of its own.
    """
    blocks = dict(model.get_submodule("blocks").named_children())
    if step.below >= len(blocks):
        raise UsageError(f"surgery {step.kind} below: {step.below} leaves none of {len(blocks)} layers: take fewer")
    if isinstance(step, LlamaAdapterV2):
        _free_norms(model)
        for layer in matching_linears(model, step.targets, f"surgery {step.kind} targets").values():
            with torch.device(layer.weight.device):
                layer.adapter = ScaleAndBias(layer.weight.shape[0])
    for number, block in list(blocks.items())[step.below :]:
        attention = block.attention
        if type(attention) is not FullAttention:
            raise UsageError(
                f"surgery {step.kind}: blocks.{number}.attention is no attention of kind full, whose queries look at "
                f"the vectors: take lora, or a larger {step.kind}.below"
            )
        with torch.device(attention.key.weight.device):
            heads = attention.query.weight.shape[0] // attention.head_dim
            attention.gated = GatedVectors(step.length, attention.key.weight.shape[1], heads)


def _free_norms(model: nn.Module) -> None:
    """Norms are trained, and lie with the adapter; a norm of the head is part of the head."""
    for name, module in model.named_modules():
        if not name.startswith("head.") and getattr(module, "role", None) == "norm":
            module.apart = True  # pyright: ignore[reportArgumentType]
            module.requires_grad_(True)
