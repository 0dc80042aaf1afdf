"""First weights and dropout masks, pinned: a run begins and goes on with the same ones in every version.

Masks are integers and pinned to the bit. Weights go through logarithms, cosines and orthogonalisations, whose last bits
differ between CPUs without and with AVX2 (the checksums by up to 5e-7 of their size), so they are pinned to 1e-5.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from hornbook.model.build_model import build_model
from hornbook.model.config import head_config as config_head
from hornbook.model.config import init_config as config_init
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.config import position_config as config_position
from hornbook.model.config.attention_config import DeltaAttentionConfig, LatentAttentionConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.forward_context import Context
from hornbook.model.init.init import initial_values
from hornbook.model.layers.dropout import AttentionDropout, Dropout, RowDropout, row_keys, site_keys, uniform
from tests.golden import checksum, digest
from tests.model.likenesses import bert_like, gpt2_like

VOCAB = 50
SIZES: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2}
LATENT = LatentAttentionConfig(query_rank=12, kv_rank=8, nope_dim=6, rope_dim=4, value_dim=5)
FAMILIES: dict[str, tuple[ModelConfig, float]] = {
    "llama": (ModelConfig(**SIZES, head=config_head.LMHead(tied=False)), 0.973978904),
    "gpt2": (gpt2_like(length=24), 1.31133351),
    "bert": (bert_like(length=24).model_copy(update={"head": config_head.MaskedHead()}), 2.27417016),
    "t5": (
        ModelConfig(
            kind="encoder_decoder",
            encoder_layers=2,
            position=config_position.RelativeBucketsConfig(),
            init=config_init.T5(),
            **SIZES,
        ),
        -35.645375,
    ),
    "mixtral": (ModelConfig(mlp=config_mlp.ExpertsConfig(count=4, active=2, hidden=24), **SIZES), -2.15207208),
    "deepseek": (ModelConfig(attention=LATENT, **SIZES), -2.75329584),
    "deltanet": (
        ModelConfig(attention=DeltaAttentionConfig(), position=config_position.NoPositions(), **SIZES),
        4.7740645,
    ),
}
"""Configuration, and checksum of its first weights under seed 7."""
SCHEMES: dict[str, tuple[config_init.InitConfig, float, float]] = {
    "normal": (config_init.Normal(), 1.46573148, -3.49739497),
    "scaled_normal": (config_init.ScaledNormal(), 1.31133351, -3.67130735),
    "megatron": (config_init.Megatron(), 0.991740225, -3.53210852),
    "small": (config_init.SmallInit(), 13.5485048, -10.2186688),
    "xavier": (config_init.Xavier(), -6.2628783, 14.2910259),
    "he": (config_init.He(), 20.2191581, -25.01387),
    "t5": (config_init.T5(), 36.2932979, -27.4657155),
    "tfixup": (config_init.TFixup(), -6.75607279, 9.16913483),
    "mup": (config_init.MuP(base_width=8, base_layers=1), 1.17564151, -3.25033971),
    "lsuv": (config_init.LSUV(), 6.57470735, -7.09713081),
}
"""Scheme, and checksums of the first weights of GPT-2's parts, alone and as encoder and decoder, under seed 7."""


def weights(cfg: ModelConfig) -> list[Tensor]:
    """In the order of their names, which is not pinned by itself."""
    values = dict(initial_values(build_model(cfg, VOCAB, "meta"), cfg, seed=7))
    return [values[name] for name in sorted(values)]


@pytest.mark.parametrize("name", FAMILIES)
def test_first_weights_of_families(name: str) -> None:
    cfg, pinned = FAMILIES[name]
    assert checksum(weights(cfg)) == pytest.approx(pinned, rel=1e-5)


@pytest.mark.parametrize("name", SCHEMES)
def test_first_weights_by_scheme(name: str) -> None:
    scheme, *pinned = SCHEMES[name]
    alone = gpt2_like(length=24).model_copy(update={"init": scheme})
    both = alone.model_copy(update={"kind": "encoder_decoder", "encoder_layers": 3})
    assert [checksum(weights(cfg)) for cfg in (alone, both)] == pytest.approx(pinned, rel=1e-5)


KEYS = row_keys(7, 1000, torch.tensor([0, 5, 2**40]))
MASKS = {
    0.1: ("1054415ef734765d", "ca7caf1df5bf0d27", "c1280dcc6626f691"),
    0.5: ("66a9ba9b895a9eb1", "d1ea174096dd6845", "883b2e732746e002"),
}
"""Rate -> digests of what is kept of features, of attention probabilities and of rows."""


@pytest.mark.parametrize("rate", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["kernel", "formula"])
def test_masks(rate: float, dtype: torch.dtype) -> None:
    """By the kernels of the CPU and by the formula that all other devices follow."""
    context = Context(keys=KEYS)
    features = Dropout(rate, layer=3, site=2)(torch.ones(3, 20, 30, dtype=dtype), context) != 0
    drop = AttentionDropout(site_keys(KEYS, 3, 1), rate)
    scores = torch.ones(2, 4, 8, 16, dtype=dtype)
    probabilities = drop(scores, slice(1, 3), range(8, 16), range(16)) != 0
    rows = torch.arange(400)
    whole = RowDropout(rate, layer=3, site=4)(torch.ones(400, 1, 1, dtype=dtype), Context(keys=row_keys(7, 1000, rows)))
    assert (digest([features]), digest([probabilities]), digest([whole != 0])) == MASKS[rate]


def test_uniform_draws() -> None:
    assert digest([uniform(site_keys(KEYS, 1, 0), range(4, 9), range(6), 6)]) == "f35c75d7c98783a6"
