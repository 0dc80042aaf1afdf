"""Gated DeltaNet: attention as a recurrence whose state does not grow (Yang et al. 2024, arXiv 2412.06464).

As Qwen3-Next has it, for every token x_t:

    q, k, v = silu(convolution(W_q x)), ... (causal, over the last few tokens of the document, each channel alone)   (1)
    q = q / (|q| sqrt(key_dim)),    k = k / |k|                                                                     (2)
    b = sigmoid(W_b x),    g = -exp(a) softplus(W_g x + c)                                                          (3)
    o = gated delta rule of q, k, v, g, b (`delta_rule.py`)                                        (4)
    y = W_out (norm(o) * silu(W_z x)), the norm over each head                                                      (5)

Each key head serves value_heads / key_heads value heads, neighbours. Order is known from the recurrence: nothing is
rotated. State and convolution begin anew with every document; a cache holds the state and the convolution's last
inputs, whatever came before. (2) to (5) but the products are float32.
"""

import math
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Generator, Tensor, nn

from hornbook.errors import UsageError
from hornbook.kernels.torch_versions import uncompiled
from hornbook.model.attention.delta_rule import chunked_delta_rule, recurrent_delta_rule
from hornbook.model.attention.mask import DocumentLengths
from hornbook.model.config import init_config as config_init
from hornbook.model.config import model_config as config
from hornbook.model.config.attention_config import DeltaAttentionConfig
from hornbook.model.config.norm_config import RMSNormConfig
from hornbook.model.forward_context import Context
from hornbook.model.layers.linear import Linear, fused_linear
from hornbook.model.layers.norm import RMSNorm, widened
from hornbook.model.layers.transfer import to_device

FEW_TOKENS = 8
"""Up to this number of tokens after a cache are computed one by one: a part of a chunk costs as much as a full one."""
LEAST_SQUARE = 1e-6
"""Added to a squared length before dividing by the length."""


class CausalConvolution(nn.Module):
    """SiLU of a sum over the last `size` tokens, each channel alone; `weight` [channels, size], the oldest first."""

    role: ClassVar = "vector"

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, size))
        self.initial = {"weight": config_init.UniformValues(bound=size**-0.5)}

    def forward(
        self, x: Float[Tensor, "batch time channels"], tail: Tensor | None, starts: Bool[Tensor, "batch time"] | None
    ) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "batch last channels"]]:
        """x after `tail`, the last size - 1 inputs before it (None: nothing); and the tail for the next call."""
        size, time = self.weight.shape[1], x.shape[1]
        tail = x.new_zeros(len(x), size - 1, x.shape[2]) if tail is None else tail
        inputs, weight = torch.cat([tail, x], 1), self.weight.to(x.dtype)
        positions = None if starts is None else _document_positions(starts)
        y = x * weight[:, -1]
        for back in range(1, size):
            earlier = inputs[:, size - 1 - back :][:, :time]
            if positions is not None:
                earlier = earlier * (positions >= back)[..., None]
            y = torch.addcmul(y, earlier, weight[:, -1 - back])
        return F.silu(y), inputs[:, time:]


class DeltaAttention(nn.Module):
    """Equations (1) to (5); `log_decay` is a, `decay_bias` is c, one of each per value head."""

    role: ClassVar = "vector"

    def __init__(self, cfg: config.ModelConfig, layer: int) -> None:
        super().__init__()
        part, width = cfg.attention, cfg.width
        assert isinstance(part, DeltaAttentionConfig)
        for key, text in part.problems(cfg):
            raise UsageError(f"model.{key}: {text}")
        self.layer = layer
        self.key_heads, self.value_heads = part.key_heads or cfg.heads, part.value_heads or cfg.heads
        self.key_dim, self.value_dim = part.key_dim or width // cfg.heads, part.value_dim or width // cfg.heads
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        self.query, self.key = Linear(width, keys, bias=False), Linear(width, keys, bias=False)
        self.value, self.gate = Linear(width, values, bias=False), Linear(width, values, bias=False)
        self.rate, self.decay = (Linear(width, self.value_heads, bias=False) for _ in range(2))
        self.convolution = CausalConvolution(2 * keys + values, part.convolution)
        self.log_decay = nn.Parameter(torch.empty(self.value_heads))
        self.decay_bias = nn.Parameter(torch.empty(self.value_heads))
        self.norm = RMSNorm(self.value_dim, RMSNormConfig(eps=getattr(cfg.norm, "eps", 1e-6)))
        self.out = Linear(values, width, bias=False)
        self.initial = {"log_decay": _initial_log_decay, "decay_bias": _initial_decay_bias}

    def forward(self, x: Float[Tensor, "batch time width"], context: Context) -> Float[Tensor, "batch time width"]:
        mask, cache = context.mask, context.cache
        if mask.kind != "causal" or mask.prefixes is not None:
            raise UsageError('model.attention of kind "delta" sees earlier tokens only: use "full" for prefixes')
        starts = None if mask.lengths is None else to_device(_starts(mask.lengths), x.device)
        mixed, gate, rate, decay = self._project(x)
        held = None if cache is None else cache.recall(self.layer)
        tail, state = (None, None) if held is None else held
        mixed, tail = self.convolution(mixed, tail, starts)
        query, key, value = self._heads(mixed)
        log = -widened(self.log_decay).exp() * F.softplus(widened(decay) + self.decay_bias)
        rule = recurrent_delta_rule if cache is not None and x.shape[1] <= FEW_TOKENS else chunked_delta_rule
        rates = log.transpose(1, 2), widened(rate).sigmoid().transpose(1, 2)
        y, state = rule(query, key, value, *rates, starts=starts, state=state)
        if cache is not None:
            cache.remember(self.layer, x.shape[1], (tail, state))
        y = self.norm(y.transpose(1, 2)) * F.silu(widened(gate).unflatten(-1, (-1, self.value_dim)))
        return self.out(y.flatten(2).to(x.dtype))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the convolution reads, the output's gate, and what rate and decay are made of."""
        layers = [self.query, self.key, self.value, self.gate, self.rate, self.decay]
        keys, _, values, gates, rates, decays = (layer.weight.shape[0] for layer in layers)
        mixed, gate, rate, decay = fused_linear(x, layers).split([2 * keys + values, gates, rates, decays], -1)
        return mixed, gate, rate, decay

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, value_heads, time, dim], normalised, float32 at least."""
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        query, key, value = widened(mixed).split([keys, keys, values], -1)
        shared = self.value_heads // self.key_heads
        query, key = (
            _unit(each.unflatten(-1, (self.key_heads, -1))).repeat_interleave(shared, 2).transpose(1, 2)
            for each in (query, key)
        )
        return query * self.key_dim**-0.5, key, value.unflatten(-1, (self.value_heads, -1)).transpose(1, 2)


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + LEAST_SQUARE).rsqrt()


@uncompiled
def _starts(lengths: DocumentLengths) -> Bool[Tensor, "batch time"]:
    return _cached_starts(lengths)


@lru_cache(maxsize=16)  # all layers of a forward pass ask for the same
def _cached_starts(lengths: DocumentLengths) -> Bool[Tensor, "batch time"]:
    found = torch.zeros(len(lengths), sum(lengths[0]), dtype=torch.bool)
    for row, pieces in zip(found, lengths, strict=True):
        ends = torch.tensor(pieces).cumsum(0)
        row[ends[ends < len(row)]] = True
        row[0] = True
    return found


def _document_positions(starts: Bool[Tensor, "batch time"]) -> Tensor:
    """Index of each token in its document; a large number where the document began before this row."""
    index = torch.arange(starts.shape[1], device=starts.device)
    return index - torch.where(starts, index, -(2**20)).cummax(1).values


def _initial_log_decay(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """log of U(1, 16), as Mamba 2 (arXiv 2405.21060)."""
    return torch.empty(shape).uniform_(1.0, 16.0, generator=generator).log()


def _initial_decay_bias(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """softplus of it is log-uniform in [0.001, 0.1], as in Mamba: memories from one token to a thousand."""
    step = torch.empty(shape).uniform_(math.log(1e-3), math.log(1e-1), generator=generator).exp()
    return step + torch.log(-torch.expm1(-step))
