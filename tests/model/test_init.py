"""Initial values: the table of the docstring, each tensor alone, in any order."""

import math

import pytest
import torch

from hornbook.model import config
from hornbook.model.build import build_model, parameter_roles
from hornbook.model.init import check_ranges, initial_value, initialize
from hornbook.model.transformer import Transformer

LLAMA = config.ModelConfig(
    layers=4, width=128, heads=4, init=config.ScaledNormal(std=0.03), head=config.HeadConfig(tied=False)
)
GPT2 = config.ModelConfig(
    layers=3,
    width=128,
    heads=4,
    attention=config.FullAttention(bias=True, out_bias=True),
    mlp=config.MLP(),
    norm=config.LayerNorm(),
    position=config.LearnedPositions(length=256),
)
VOCAB = 512


def made(cfg: config.ModelConfig, seed: int = 1) -> Transformer:
    model = build_model(cfg, VOCAB).to_empty(device="cpu")
    initialize(model, cfg, seed)
    return model


@pytest.mark.parametrize("cfg", [LLAMA, GPT2])
def test_statistics_of_every_parameter(cfg: config.ModelConfig) -> None:
    roles = parameter_roles(model := made(cfg))
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        if name.endswith(".bias"):
            assert torch.all(value == 0), name
        elif roles[name] == "norm":
            assert torch.all(value == 1), name
        else:
            std = cfg.init.position_std if roles[name] == "position" else cfg.init.std
            if name.endswith(("out.weight", "down.weight")):
                std /= math.sqrt(2 * cfg.layers)
            # Five deviations of the estimate from n values.
            assert abs(float(value.std()) / std - 1) < 5 / math.sqrt(2 * value.numel()), name
            assert abs(float(value.mean())) < 5 * std / math.sqrt(value.numel()), name


def test_a_value_depends_on_seed_and_name_alone() -> None:
    deep, shallow = made(LLAMA), made(LLAMA.model_copy(update={"layers": 2}))
    name = "blocks.1.attention.query.weight"
    assert torch.equal(deep.get_parameter(name), shallow.get_parameter(name))
    alone = initial_value(name, "matrix", (128, 128), LLAMA, seed=1)
    assert torch.equal(deep.get_parameter(name), alone)
    assert not torch.equal(made(LLAMA, seed=2).get_parameter(name), alone)
    assert not torch.equal(deep.get_parameter(name.replace(".1.", ".0.")), alone)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    made(LLAMA)
    assert torch.equal(torch.get_rng_state(), before)


@torch.no_grad()
def test_the_residual_stream_keeps_its_size_with_depth() -> None:
    """What 16 layers add to the stream against what 2 add: eight times and more if unscaled, a few times if scaled.

    (Layers are not independent: what one adds, the next one sees.)
    """

    def growth(layers: int, scaled_for: int) -> float:
        model, tokens = build_model(LLAMA.model_copy(update={"layers": layers}), VOCAB, "cpu"), torch.arange(128)[None]
        initialize(model, LLAMA.model_copy(update={"layers": scaled_for}), seed=1)
        model.norm = None
        return float((model(tokens)[0] - model.embedding(tokens)).var())

    assert growth(16, 16) / growth(2, 2) < 4
    assert growth(16, 2) / growth(2, 2) > 8


def test_ranges() -> None:
    model = made(GPT2)
    assert check_ranges(model) == []
    with torch.no_grad():
        model.get_parameter("blocks.0.mlp.up.weight").fill_(float("nan"))
        model.get_parameter("blocks.1.attention.query.weight").zero_()
        model.get_parameter("blocks.1.mlp.up.weight").normal_(std=30)
        model.get_parameter("blocks.2.norm1.weight").fill_(1e6)
    warnings = check_ranges(model)
    assert len(warnings) == 4
    assert "blocks.0.mlp.up.weight has values that are not finite" in warnings[0]
    assert "blocks.1.attention.query.weight is all zero" in warnings[1]
