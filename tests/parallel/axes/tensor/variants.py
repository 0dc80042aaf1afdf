"""Decoders that between them have every part that tensor parallelism divides, or keeps whole."""

from typing import Any

VOCAB = 97
"""Odd, so that ranks have unequal parts of it."""
EXPERTS = {"kind": "experts", "count": 5, "active": 2, "hidden": 21, "shared_hidden": 10, "z_loss": 0.01}
LATENT = {"kind": "latent", "query_rank": 24, "kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "value_dim": 8, "bias": True}
FULL = {"kind": "full", "dropout": 0.1}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"attention": FULL | {"kv_heads": 2}},
    "capped": {
        "attention": FULL | {"kv_heads": 2, "qk_norm": "head", "sinks": True, "softcap": 5.0, "window": 7},
        "block": {"kind": "sandwich"},
        "norm": {"kind": "rms_offset"},
        "position": {"kind": "learned", "length": 64},
        "head": {"kind": "lm", "tied": True, "softcap": 3.0},
    },
    "olmo": {
        "attention": FULL | {"qk_norm": "full", "clip": 4.0, "kv_heads": 2},
        "block": {"kind": "output"},
        "position": {"kind": "alibi", "length": 64},
        "embedding": {"norm": True},
    },
    "neox": {
        "attention": FULL | {"bias": True, "out_bias": True},
        "block": {"kind": "parallel"},
        "mlp": {"kind": "mlp", "bias": True, "hidden": 131},
        "norm": {"kind": "layer"},
        "head": {"kind": "lm", "tied": False, "bias": True},
        "embedding": {"width": 20, "types": 2},
    },
    "experts": {"mlp": EXPERTS | {"capacity": 1.5, "router": {"kind": "sigmoid", "balance_rate": 0.02}}},
    "mixed": {
        "attention": LATENT,
        "mlp": EXPERTS | {"router": {"kind": "switch"}, "active": 1},
        "pattern": [{}, {"attention": {"kind": "delta", "value_dim": 16}, "mlp": {"kind": "glu", "hidden": 50}}],
        "stochastic_depth": 0.2,
    },
    "direct": {"attention": LATENT | {"query_rank": None, "dropout": 0.1}},
}


def variant(name: str) -> dict[str, Any]:
    """Settings of a model of two layers, four heads and width 64, for `Run.sizes`."""
    return {"heads": 4, "vocab": VOCAB, **VARIANTS[name]}
