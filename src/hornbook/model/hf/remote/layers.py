"""Layers of a hornbook model as plain formulas, for transformers (`models` says more).

Parameters have hornbook's names; a part is the table that the key `hornbook` of config.json has of it.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Part = dict[str, Any]
ACTIVATIONS: dict[str, Any] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "tanh": torch.tanh,
}


# ---- Norms and positions


class Norm(nn.Module):
    def __init__(self, part: Part, width: int) -> None:
        super().__init__()
        self.kind, self.eps = part["kind"], part["eps"]
        self.weight = nn.Parameter(torch.empty(width))
        shifted = self.kind == "batch" or (self.kind == "layer" and part["bias"])
        self.bias = nn.Parameter(torch.empty(width)) if shifted else None

    def forward(self, x: Tensor) -> Tensor:
        wide, shift = x.float(), None if self.bias is None else self.bias.float()
        if self.kind == "layer":
            return F.layer_norm(wide, self.weight.shape, self.weight.float(), shift, self.eps).to(x.dtype)
        if self.kind == "batch":
            variance, mean = torch.var_mean(wide, dim=tuple(range(x.dim() - 1)), correction=0)
            return ((wide - mean) * (variance + self.eps).rsqrt() * self.weight + shift).to(x.dtype)
        factor = self.weight.float() + (self.kind == "rms_offset")
        return F.rms_norm(wide, factor.shape, factor, self.eps).to(x.dtype)


def make_norm(part: Part, width: int) -> Norm | None:
    return None if part["kind"] == "none" else Norm(part, width)


def rms(width: int, eps: float) -> Norm:
    return Norm({"kind": "rms", "eps": eps}, width)


def apply(layer: nn.Module | None, x: Tensor) -> Tensor:
    return x if layer is None else layer(x)


def mscale(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def frequencies(position: Part, dim: int, device: Any) -> tuple[Tensor, float]:
    """Angle per position of each pair of dims, and the factor of cosines and sines."""
    scaling, theta = position["scaling"], float(position["theta"])
    kind, factor = scaling["kind"], float(scaling.get("factor") or 1)
    if kind == "ntk":
        theta *= factor ** (dim / (dim - 2))
    plain = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        turns = scaling["original"] * plain / (2 * math.pi)
        kept = ((turns - scaling["low"]) / (scaling["high"] - scaling["low"])).clamp(0, 1)
        return (1 - kept) * plain / factor + kept * plain, 1.0
    if kind != "yarn":
        return plain, 1.0
    first, last = (
        dim * math.log(scaling["original"] / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (scaling["beta_fast"], scaling["beta_slow"])
    )
    low, high = max(math.floor(first), 0), min(math.ceil(last), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32, device=device) - low) / (high - low or 0.001)).clamp(0, 1)
    grown, weights = scaling["attention_factor"], (scaling["mscale"], scaling["mscale_all_dim"])
    if grown is None:
        grown = mscale(factor, weights[0]) / mscale(factor, weights[1]) if all(weights) else mscale(factor)
    return plain / factor * ramp + plain * (1 - ramp), grown


def rotate(x: Tensor, position: Part, places: Tensor) -> Tensor:
    """Turn pairs of the first dims of x [batch, heads, time, dim]."""
    if position["kind"] != "rope":
        return x
    dim = int(x.shape[-1] * position["fraction"])
    speeds, grown = frequencies(position, dim, x.device)
    angles = (places.float()[..., None] * speeds)[:, None]
    cos, sin, rotary, rest = angles.cos() * grown, angles.sin() * grown, x[..., :dim], x[..., dim:]
    halves = position["layout"] == "half"
    first, second = rotary.chunk(2, -1) if halves else rotary.unflatten(-1, (-1, 2)).unbind(-1)
    pair = first * cos - second * sin, second * cos + first * sin
    rotary = torch.cat(pair, -1) if halves else torch.stack(pair, -1).flatten(-2)
    return torch.cat((rotary.to(x.dtype), rest), -1)


class RemotePositions(nn.Module):
    """Vectors of positions: learned, or sines and cosines."""

    def __init__(self, position: Part, width: int) -> None:
        super().__init__()
        self.width, self.offset = width, position.get("offset", 0)
        learned = position["kind"] == "learned"
        self.weight = nn.Parameter(torch.empty(self.offset + position["length"], width)) if learned else None

    def forward(self, places: Tensor) -> Tensor:
        if self.weight is not None:
            return F.embedding(places + self.offset, self.weight)
        pairs = torch.arange(0, self.width, 2, dtype=torch.float32, device=places.device)
        angles = places.float()[..., None] * torch.exp(pairs * (-math.log(10_000.0) / self.width))
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


class Distances(nn.Module):
    """Scores by distance: T5's buckets, or ALiBi."""

    def __init__(self, cfg: Part) -> None:
        super().__init__()
        self.position, self.heads, self.both_ways = cfg["position"], cfg["heads"], cfg["kind"] == "encoder"
        learned = self.position["kind"] == "relative"
        self.weight = nn.Parameter(torch.empty(self.position["buckets"], self.heads)) if learned else None

    def forward(self, distance: Tensor) -> Tensor:
        """[heads, queries, keys] of key position minus query position."""
        if self.weight is None:
            whole = 2 ** (self.heads.bit_length() - 1)
            slopes = [2 ** (-8 * (k + 1) / whole) for k in range(whole)]
            slopes += [2 ** (-4 * (2 * k + 1) / whole) for k in range(self.heads - whole)]
            return -torch.tensor(slopes, device=distance.device)[:, None, None] * distance.abs()
        count = len(self.weight) // 2 if self.both_ways else len(self.weight)
        away = distance.abs() if self.both_ways else (-distance).clamp(min=0)
        single, longest = count // 2, self.position["max_distance"]
        far = torch.log(away.clamp(min=1).float() / single) / math.log(longest / single) * (count - single)
        bucket = torch.where(away < single, away, (single + far.long()).clamp(max=count - 1))
        bucket = bucket + (distance > 0) * count if self.both_ways else bucket
        return F.embedding(bucket, self.weight).permute(2, 0, 1)


# ---- Layers


class Seen:
    """Facts of one pass about its tokens: positions, masks, scores by distance, and the encoder's output."""

    def __init__(self, mask: Tensor, both_ways: bool, bias: Distances | None, memory: Any = None) -> None:
        index = torch.arange(mask.shape[1], device=mask.device)
        self.mask, self.both_ways, self.distance = mask, both_ways, index - index[:, None]
        self.places = (mask.long().cumsum(-1) - 1).clamp(min=0)
        self.bias, self.memory = None if bias is None else bias(self.distance), memory

    def allowed(self, window: int | None) -> Tensor:
        far = self.distance.abs() if self.both_ways else -self.distance
        most = len(self.distance) if window is None else window // 2 if self.both_ways else window - 1
        return ((far <= most) & (far >= 0)) & self.mask.bool()[:, None, None]


def attend(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, scale: float, **more: Any) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * scale
    if more.get("softcap") is not None:
        scores = more["softcap"] * torch.tanh(scores / more["softcap"])
    scores = scores.float() if more.get("bias") is None else scores.float() + more["bias"]
    scores = scores.masked_fill(~allowed, torch.finfo(torch.float32).min)
    if more.get("sinks") is not None:
        scores = torch.cat([scores, more["sinks"].float()[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    weights = scores.softmax(-1)[..., : key.shape[2]].to(value.dtype)
    return (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2).flatten(2)


class Full(nn.Module):
    def __init__(self, cfg: Part, across: bool = False) -> None:
        super().__init__()
        part, width, heads = cfg["attention"], cfg["width"], cfg["heads"]
        self.part, self.position, self.across = part, cfg["position"], across
        self.dim, keys = part["head_dim"] or width // heads, part["kv_heads"] or heads
        self.query = nn.Linear(width, heads * self.dim, part["bias"])
        self.key = nn.Linear(width, keys * self.dim, part["bias"])
        self.value = nn.Linear(width, keys * self.dim, part["bias"])
        self.out = nn.Linear(heads * self.dim, width, part["out_bias"])
        eps, kind = cfg["norm"].get("eps", 1e-6), part["qk_norm"]
        self.query_norm, self.key_norm = (
            None if kind == "none" else rms(self.dim if kind == "head" else count * self.dim, eps)
            for count in (heads, keys)
        )
        self.sinks = nn.Parameter(torch.empty(heads)) if part["sinks"] else None

    def heads(self, layer: nn.Module, norm: nn.Module | None, x: Tensor) -> Tensor:
        x, kind, most = layer(x), self.part["qk_norm"], self.part["clip"]
        x = apply(norm, x) if kind == "full" else x
        x = (x if most is None else x.clamp(-most, most)).unflatten(-1, (-1, self.dim)).transpose(1, 2)
        return apply(norm, x) if kind == "head" else x

    def forward(self, x: Tensor, seen: Seen) -> Tensor:
        source, allowed = (seen.memory[0], seen.memory[1].bool()[:, None, None]) if self.across else (x, None)
        query = self.heads(self.query, self.query_norm, x)
        key, value = self.heads(self.key, self.key_norm, source), self.heads(self.value, None, source)
        if allowed is None:
            query, key = (rotate(each, self.position, seen.places) for each in (query, key))
            allowed = seen.allowed(self.part["window"])
        options = {"softcap": self.part["softcap"], "sinks": self.sinks, "bias": None if self.across else seen.bias}
        return self.out(attend(query, key, value, allowed, self.part["scale"] or self.dim**-0.5, **options))


class Latent(nn.Module):
    def __init__(self, cfg: Part) -> None:
        super().__init__()
        part, width, heads = cfg["attention"], cfg["width"], cfg["heads"]
        self.part, self.position, rank = part, cfg["position"], part["query_rank"]
        queries = heads * (part["nope_dim"] + part["rope_dim"])
        if rank is None:
            self.query = nn.Linear(width, queries, bias=False)
        else:
            self.query_down, self.query_norm = nn.Linear(width, rank, part["bias"]), rms(rank, 1e-6)
            self.query_up = nn.Linear(rank, queries, bias=False)
        self.kv_down = nn.Linear(width, part["kv_rank"] + part["rope_dim"], part["bias"])
        self.kv_norm = rms(part["kv_rank"], 1e-6)
        self.kv_up = nn.Linear(part["kv_rank"], heads * (part["nope_dim"] + part["value_dim"]), bias=False)
        self.out = nn.Linear(heads * part["value_dim"], width, part["bias"])
        self.scale, scaling = (part["nope_dim"] + part["rope_dim"]) ** -0.5, self.position.get("scaling") or {}
        if scaling.get("mscale_all_dim"):
            self.scale *= mscale(scaling["factor"], scaling["mscale_all_dim"]) ** 2

    def forward(self, x: Tensor, seen: Seen) -> Tensor:
        nope, rotary = self.part["nope_dim"], self.part["rope_dim"]
        plain = self.part["query_rank"] is None
        query = self.query(x) if plain else self.query_up(self.query_norm(self.query_down(x)))
        query, rotary_query = query.unflatten(-1, (-1, nope + rotary)).transpose(1, 2).split([nope, rotary], -1)
        latent, shared = self.kv_down(x).split([self.part["kv_rank"], rotary], -1)
        up = self.kv_up(self.kv_norm(latent)).unflatten(-1, (-1, nope + self.part["value_dim"])).transpose(1, 2)
        key, value = up.split([nope, self.part["value_dim"]], -1)
        rotary_query, shared = (rotate(each, self.position, seen.places) for each in (rotary_query, shared[:, None]))
        query = torch.cat([query, rotary_query], -1)
        key = torch.cat([key, shared.expand(-1, key.shape[1], -1, -1)], -1)
        return self.out(attend(query, key, value, seen.allowed(None), self.scale, bias=seen.bias))


class Convolution(nn.Module):
    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, size))


class Delta(nn.Module):
    """Gated DeltaNet, token by token."""

    def __init__(self, cfg: Part) -> None:
        super().__init__()
        part, width, heads = cfg["attention"], cfg["width"], cfg["heads"]
        self.counts = part["key_heads"] or heads, part["value_heads"] or heads
        self.dims = part["key_dim"] or width // heads, part["value_dim"] or width // heads
        keys, values = (count * dim for count, dim in zip(self.counts, self.dims, strict=True))
        self.query, self.key = nn.Linear(width, keys, bias=False), nn.Linear(width, keys, bias=False)
        self.value, self.gate = nn.Linear(width, values, bias=False), nn.Linear(width, values, bias=False)
        self.rate, self.decay = (nn.Linear(width, self.counts[1], bias=False) for _ in range(2))
        self.convolution = Convolution(2 * keys + values, part["convolution"])
        self.log_decay, self.decay_bias = (nn.Parameter(torch.empty(self.counts[1])) for _ in range(2))
        self.norm = rms(self.dims[1], cfg["norm"].get("eps", 1e-6))
        self.out = nn.Linear(values, width, bias=False)

    def forward(self, x: Tensor, seen: Seen) -> Tensor:
        x = x * seen.mask[..., None].to(x.dtype)  # padding before a text leaves the state at 0
        mixed, taps = torch.cat([self.query(x), self.key(x), self.value(x)], -1), self.convolution.weight
        padded = F.pad(mixed.transpose(1, 2), (taps.shape[1] - 1, 0))
        mixed = F.silu(F.conv1d(padded, taps[:, None].to(x.dtype), groups=len(taps))).transpose(1, 2).float()
        keys = self.counts[0] * self.dims[0]
        query, key, value = mixed.split([keys, keys, mixed.shape[-1] - 2 * keys], -1)
        shared = self.counts[1] // self.counts[0]
        query, key = (each.unflatten(-1, (self.counts[0], -1)) for each in (query, key))
        query, key = (each * (each.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for each in (query, key))
        query, key = query.repeat_interleave(shared, 2) * self.dims[0] ** -0.5, key.repeat_interleave(shared, 2)
        value, rate = value.unflatten(-1, (self.counts[1], -1)), self.rate(x).float().sigmoid()
        kept = (-self.log_decay.float().exp() * F.softplus(self.decay(x).float() + self.decay_bias)).exp()
        state, found = value.new_zeros(len(x), self.counts[1], *self.dims), []
        for t in range(x.shape[1]):
            state = state * kept[:, t, :, None, None]
            told = (key[:, t, :, None] @ state).squeeze(-2)
            state = state + key[:, t, :, :, None] * (rate[:, t, :, None] * (value[:, t] - told))[..., None, :]
            found.append((query[:, t, :, None] @ state).squeeze(-2))
        y = self.norm(torch.stack(found, 1)) * F.silu(self.gate(x).float().unflatten(-1, (self.counts[1], -1)))
        return self.out(y.flatten(2).to(x.dtype))
