"""Feed-forward layers, experts and blocks of a hornbook model as plain formulas, for transformers."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hornbook.model.hf.remote.layers import ACTIVATIONS, Delta, Full, Latent, Part, Seen, apply, make_norm


class Feed(nn.Module):
    """An MLP, with a gate or without."""

    def __init__(self, width: int, hidden: int, part: Part, gated: bool) -> None:
        super().__init__()
        self.activate, bias = ACTIVATIONS[part["activation"]], part.get("bias", False)
        self.gate = nn.Linear(width, hidden, bias) if gated else None
        self.up, self.down = nn.Linear(width, hidden, bias), nn.Linear(hidden, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activate(self.up(x)) if self.gate is None else self.activate(self.gate(x)) * self.up(x))


class RemoteRouter(nn.Module):
    def __init__(self, width: int, part: Part) -> None:
        super().__init__()
        self.part, self.cfg = part, part["router"]
        self.weight = nn.Parameter(torch.empty(part["count"], width))
        self.bias = nn.Parameter(torch.empty(part["count"])) if self.cfg["kind"] == "sigmoid" else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(Weights, numbers) of the experts of each token [tokens, active]."""
        logits = F.linear(x.float(), self.weight.float())
        if self.bias is None:
            weights, chosen = logits.softmax(-1).topk(self.part["active"], -1)
            summed = weights.sum(-1, keepdim=True) if self.cfg.get("renormalize") else 1.0
            return weights / summed, chosen
        scores, groups = logits.sigmoid(), self.cfg["groups"]
        choice = scores + self.bias
        if groups > 1:
            grouped = choice.unflatten(-1, (groups, -1))
            best = grouped.topk(min(2, grouped.shape[-1]), -1).values.sum(-1).topk(self.cfg["groups_active"], -1)[1]
            closed = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(-1, best, False)
            choice = grouped.masked_fill(closed[..., None], -torch.inf).flatten(-2)
        chosen = choice.topk(self.part["active"], -1)[1]
        weights = scores.gather(-1, chosen)
        summed = weights.sum(-1, keepdim=True) + 1e-20 if self.cfg["renormalize"] else 1.0
        return weights / summed * self.cfg["scale"], chosen


class RemoteExperts(nn.Module):
    def __init__(self, width: int, hidden: int, part: Part) -> None:
        super().__init__()
        self.router, self.activate, count = RemoteRouter(width, part), ACTIVATIONS[part["activation"]], part["count"]
        self.gate, self.up = (nn.Parameter(torch.empty(count, hidden, width)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(count, width, hidden))
        shared = part["shared_hidden"]
        self.shared = Feed(width, shared, {"activation": part["activation"]}, gated=True) if shared else None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat)
        y = torch.zeros_like(flat)
        for number in chosen.unique().tolist():
            tokens, slot = (chosen == number).nonzero(as_tuple=True)
            read = flat[tokens]
            made = self.activate(F.linear(read, self.gate[number])) * F.linear(read, self.up[number])
            made = F.linear(made, self.down[number]) * weights[tokens, slot, None]
            y = y.index_add(0, tokens, made.to(y.dtype))
        return y.view_as(x) if self.shared is None else y.view_as(x) + self.shared(x)


ATTENTIONS = {"full": Full, "latent": Latent, "delta": Delta}


class RemoteBlock(nn.Module):
    def __init__(self, cfg: Part, before: Part, cross: bool) -> None:
        super().__init__()
        block, width, mlp = cfg["block"], cfg["width"], cfg["mlp"]
        self.kind, self.multiplier, norm = block["kind"], block.get("multiplier", 1.0), cfg["norm"]
        hidden = mlp["hidden"] or (4 * width if mlp["kind"] == "mlp" else -(-8 * width // 3 // 64) * 64)
        self.attention = ATTENTIONS[cfg["attention"]["kind"]](cfg)
        experts = mlp["kind"] == "experts"
        self.mlp = RemoteExperts(width, hidden, mlp) if experts else Feed(width, hidden, mlp, mlp["kind"] == "glu")
        if self.kind == "parallel":
            self.norm1 = make_norm(norm, width)
            self.norm2 = None if block["shared_norm"] else make_norm(norm, width)
            return
        names = {"pre": ("",), "post": ("sum_",), "output": ("out_",), "sandwich": ("", "out_")}[self.kind]
        self.cross = Full(cfg, across=True) if cross else None
        for place, part in (("norm1", before), ("norm2", norm), *([("cross_norm", norm)] if cross else [])):
            for name in names:
                self.add_module(place_of(name, place), make_norm(part, width))

    def forward(self, x: Tensor, seen: Seen) -> Tensor:
        if self.kind == "parallel":
            first = apply(self.norm1, x)
            return x + self.attention(first, seen) + self.mlp(first if self.norm2 is None else self.norm2(x))
        x = self.sublayer(x, lambda h: self.attention(h, seen), "norm1")
        if self.cross is not None:
            across = self.cross
            x = self.sublayer(x, lambda h: across(h, seen), "cross_norm")
        return self.sublayer(x, self.mlp, "norm2")

    def sublayer(self, x: Tensor, act: Any, place: str) -> Tensor:
        before, out, total = (getattr(self, place_of(name, place), None) for name in ("", "out_", "sum_"))
        return apply(total, x + self.multiplier * apply(out, act(apply(before, x))))


def place_of(name: str, place: str) -> str:
    """`out_`, `cross_norm` -> `cross_out_norm`."""
    return f"cross_{name}norm" if place == "cross_norm" else f"{name}{place}"
