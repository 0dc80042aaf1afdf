"""Initial values: each logical matrix alone, in any order; overrides; what modules say of their own."""

import hashlib
import math
from typing import ClassVar

import pytest
import torch

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config import head_config as config_head
from hornbook.model.config import init_config as config_init
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.config import model_config as config
from hornbook.model.config import position_config as config_position
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.norm_config import LayerNormConfig, OffsetRMSNormConfig, RMSNormConfig
from hornbook.model.init.init import Own, check_overrides, initial_value, initial_values, initialize
from hornbook.model.layers.norm import RMSNorm
from hornbook.model.transformer import Transformer

LLAMA = config.ModelConfig(
    layers=4, width=128, heads=4, init=config_init.ScaledNormal(std=0.03), head=config_head.LMHead(tied=False)
)
GPT2 = config.ModelConfig(
    layers=3,
    width=128,
    heads=4,
    attention=FullAttentionConfig(bias=True, out_bias=True),
    mlp=config_mlp.PlainMLPConfig(),
    norm=LayerNormConfig(),
    position=config_position.LearnedPositionsConfig(length=256),
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
            assert isinstance(cfg.init, config_init.ScaledNormal)
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


def test_the_bits_of_gpt2s_scheme_are_those_of_the_first_version() -> None:
    """Runs that were started then must come out the same now."""
    name, cfg = "blocks.1.mlp.down.weight", GPT2
    digest = hashlib.blake2b(f"7/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    expected = torch.empty(16, 8).normal_(0.0, 0.02 / math.sqrt(2 * 3), generator=generator)
    assert torch.equal(initial_value(name, "matrix", (16, 8), cfg, seed=7), expected)


def test_experts_are_made_one_by_one() -> None:
    """An expert's values follow from its number, so they are the same beside fewer or more experts."""
    name = "blocks.0.mlp.up"
    eight, two = (initial_value(name, "matrix", (n, 32, 16), LLAMA, seed=1) for n in (8, 2))
    assert torch.equal(eight[:2], two)
    assert not torch.equal(eight[0], eight[1])
    assert torch.equal(eight[5], initial_value(f"{name}.5", "matrix", (32, 16), LLAMA, seed=1))
    cfg = LLAMA.model_copy(update={"init": config_init.Xavier()})
    bound = math.sqrt(6 / (32 + 16))
    assert 0.9 * bound < float(initial_value(name, "matrix", (8, 32, 16), cfg, seed=1).abs().max()) < bound


OVERRIDES: dict[str, config_init.Distribution] = {
    "blocks.*.mlp.down": config_init.ConstantValues(value=0.0),
    "blocks.2.*": config_init.NormalValues(std=0.5),
    "*.query.weight": config_init.OrthogonalValues(),
    "blocks.?.norm1": config_init.ConstantValues(value=0.25),
}


def test_overrides_by_glob_and_the_last_one_holds() -> None:
    cfg = LLAMA.model_copy(update={"init": config_init.ScaledNormal(std=0.03, overrides=OVERRIDES)})
    values, plain = made(cfg).state_dict(), made(LLAMA).state_dict()
    assert not values["blocks.1.mlp.down.weight"].any()
    assert float(values["blocks.2.mlp.down.weight"].std()) == pytest.approx(0.5, rel=0.05)
    assert torch.all(values["blocks.2.norm1.weight"] == 0.25)
    query = values["blocks.2.attention.query.weight"]
    torch.testing.assert_close(query @ query.T, torch.eye(128), rtol=0, atol=1e-5)
    untouched = [name for name in plain if ".mlp." in name and "down" not in name and not name.startswith("blocks.2")]
    assert len(untouched) == 6
    assert all(torch.equal(values[name], plain[name]) for name in untouched)


def test_an_override_may_be_about_one_expert() -> None:
    init = config_init.ScaledNormal(overrides={"blocks.*.mlp.up.1": config_init.ConstantValues(value=3.0)})
    values = initial_value("blocks.0.mlp.up", "matrix", (4, 8, 8), LLAMA.model_copy(update={"init": init}), seed=1)
    assert torch.all(values[1] == 3)
    assert float(values[[0, 2, 3]].abs().max()) < 1


@pytest.mark.parametrize(
    ("glob", "chosen", "message"),
    [
        (
            "blocks.*.mpl.down",
            config_init.NormalValues(std=1),
            r'overrides."blocks.\*.mpl.down" is about no parameter: did',
        ),
        ("encoder.*", config_init.NormalValues(std=1), "about no parameter"),
        ("blocks.0.*", config_init.OrthogonalValues(), "blocks.0.norm1.weight too, a vector: only matrices"),
    ],
)
def test_an_override_that_cannot_be_meant_is_refused(glob: str, chosen: config_init.Distribution, message: str) -> None:
    cfg = LLAMA.model_copy(update={"init": config_init.ScaledNormal(overrides={glob: chosen})})
    with pytest.raises(UsageError, match=message):
        made(cfg)


def test_an_override_of_what_lies_in_experts_is_found() -> None:
    init = config_init.ScaledNormal(overrides={"blocks.0.mlp.up": config_init.OrthogonalValues()})
    check_overrides(config.ModelConfig(init=init), {"blocks.0.mlp.up": (4, 8, 8)})


def test_a_module_may_say_how_its_parameters_begin() -> None:
    class Gate(RMSNorm):
        initial: ClassVar[dict[str, Own]] = {"weight": lambda shape, generator: torch.rand(shape, generator=generator)}

    model = build_model(LLAMA, VOCAB)
    with torch.device("meta"):
        model.norm = Gate(128, RMSNormConfig())
    values = dict(initial_values(model, LLAMA, seed=1))
    again = dict(initial_values(model, LLAMA, seed=1))
    assert 0 < float(values["norm.weight"].min()) < float(values["norm.weight"].max()) < 1
    assert torch.equal(values["norm.weight"], again["norm.weight"])
    assert torch.all(values["blocks.0.norm1.weight"] == 1)


def test_a_norm_that_adds_one_begins_at_zero() -> None:
    cfg = LLAMA.model_copy(update={"norm": OffsetRMSNormConfig()})
    assert not made(cfg).get_parameter("blocks.0.norm1.weight").any()


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
        assert model.embedding is not None
        return float((model(tokens)[0] - model.embedding(tokens)).var())

    assert growth(16, 16) / growth(2, 2) < 4
    assert growth(16, 2) / growth(2, 2) > 8
