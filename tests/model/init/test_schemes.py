"""Every scheme against its formula, against torch.nn.init and against transformers' T5."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hornbook.model.build_model import build_model
from hornbook.model.config import init_config as config_init
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.config import model_config as config
from hornbook.model.config import position_config as config_position
from hornbook.model.config.attention_config import DeltaAttentionConfig, FullAttentionConfig, LatentAttentionConfig
from hornbook.model.config.norm_config import OffsetRMSNormConfig
from hornbook.model.init.init import initial_value, initial_values, name_seed, truncated_std
from hornbook.model.init.schemes import Matrix, distribution

D, HEADS, K, HIDDEN, L, VOCAB = 256, 4, 32, 512, 6, 512
SHAPES = {
    "embedding.weight": ("embedding", (VOCAB, D)),
    "positions.weight": ("position", (256, D)),
    "head.weight": ("head", (VOCAB, D)),
    "blocks.3.attention.query.weight": ("matrix", (HEADS * K, D)),
    "blocks.3.attention.value.weight": ("matrix", (HEADS * K, D)),
    "blocks.3.attention.out.weight": ("matrix", (D, HEADS * K)),
    "blocks.3.mlp.up.weight": ("matrix", (HIDDEN, D)),
    "blocks.3.mlp.down.weight": ("matrix", (D, HIDDEN)),
}
BRANCH = 1 / math.sqrt(2 * L)
FIXUP = 0.67 * L**-0.25
SMALL = math.sqrt(2 / (5 * D))


def glorot(*sizes: int) -> float:
    return math.sqrt(2 / sum(sizes))


# Scheme, and standard deviations in the order of SHAPES.
EXPECTED: list[tuple[config_init.InitConfig, list[float]]] = [
    (config_init.Normal(std=0.03), [0.03] * 8),
    (
        config_init.ScaledNormal(std=0.03, position_std=0.015),
        [0.03, 0.015, 0.03, 0.03, 0.03, 0.03 * BRANCH, 0.03, 0.03 * BRANCH],
    ),
    (config_init.Megatron(std=0.03), [0.03] * 5 + [0.03 * BRANCH, 0.03, 0.03 * BRANCH]),
    (config_init.SmallInit(), [SMALL] * 5 + [2 / (L * math.sqrt(D)), SMALL, 2 / (L * math.sqrt(D))]),
    (config_init.Xavier(), [D**-0.5] * 3 + [glorot(D, HEADS * K)] * 3 + [glorot(D, HIDDEN)] * 2),
    (config_init.He(), [D**-0.5] * 3 + [(2 / n) ** 0.5 for n in (D, D, HEADS * K, D, HIDDEN)]),
    (config_init.T5(), [1.0] * 3 + [(D * K) ** -0.5, D**-0.5, (HEADS * K) ** -0.5, D**-0.5, HIDDEN**-0.5]),
    (
        config_init.TFixup(),
        [FIXUP * D**-0.5, FIXUP * D**-0.5, D**-0.5, glorot(D, HEADS * K)]
        + [FIXUP * glorot(D, HEADS * K)] * 2
        + [FIXUP * glorot(D, HIDDEN)] * 2,
    ),
    (config_init.MuP(base_width=64, std=0.03), [0.03] * 3 + [0.015, 0.015, 0.015 * BRANCH, 0.015, 0.015 * BRANCH]),
    (config_init.MuP(base_width=64, base_layers=2, std=0.03), [0.03] * 3 + [0.015] * 5),
    # An orthonormal matrix [n, m] has n m entries whose squares sum to the smaller of the two.
    (config_init.LSUV(std=0.03), [0.03] * 3 + [D**-0.5] * 3 + [HIDDEN**-0.5] * 2),
]


def model(scheme: config_init.InitConfig, **more) -> config.ModelConfig:
    attention = FullAttentionConfig(head_dim=K, scale=1.0)
    return config.ModelConfig(layers=L, width=D, heads=HEADS, attention=attention, init=scheme, **more)


def drawn(scheme: config_init.InitConfig, name: str, **more) -> Tensor:
    role, shape = SHAPES[name]
    return initial_value(name, role, shape, model(scheme, **more), seed=1)


@pytest.mark.parametrize(("scheme", "expected"), EXPECTED, ids=lambda each: getattr(each, "kind", ""))
def test_every_matrix_has_the_deviation_of_its_formula(scheme: config_init.InitConfig, expected: list[float]) -> None:
    for name, std in zip(SHAPES, expected, strict=True):
        values = drawn(scheme, name)
        assert float(values.std()) == pytest.approx(std, rel=0.01), name
        assert abs(float(values.mean())) < 5 * std / math.sqrt(values.numel()), name


def test_a_cut_distribution_ends_where_it_is_cut_and_has_the_stated_deviation() -> None:
    assert truncated_std(2.0) == pytest.approx(0.8796, abs=5e-5)
    for cut in (1.0, 2.0, 3.0):
        values = drawn(config_init.Megatron(std=0.05, cut=cut), "blocks.3.mlp.up.weight")
        edge = cut * 0.05 / truncated_std(cut)
        assert 0.98 * edge < float(values.abs().max()) <= edge * (1 + 1e-6)
        assert float(values.std()) == pytest.approx(0.05, rel=0.01)


def test_xavier_and_he_are_torchs_of_each_logical_matrix() -> None:
    torchs = [
        (config_init.Xavier(gain=0.7), lambda t, g: nn.init.xavier_uniform_(t, 0.7, generator=g)),
        (config_init.He(), lambda t, g: nn.init.kaiming_normal_(t, nonlinearity="relu", generator=g)),
    ]
    for scheme, fill in torchs:
        for name in ("blocks.3.attention.out.weight", "blocks.3.mlp.up.weight"):
            ours = drawn(scheme, name)
            theirs = fill(torch.empty(ours.shape), torch.Generator().manual_seed(name_seed(1, name)))
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


def test_orthonormal_matrices() -> None:
    wide = drawn(config_init.LSUV(), "blocks.3.mlp.down.weight")
    torch.testing.assert_close(wide @ wide.T, torch.eye(D), rtol=0, atol=1e-5)
    tall = drawn(config_init.LSUV(), "blocks.3.mlp.up.weight")
    torch.testing.assert_close(tall.T @ tall, torch.eye(D), rtol=0, atol=1e-5)


def std_of(name: str, shape: tuple[int, ...], cfg: config.ModelConfig, role: str = "matrix") -> float:
    chosen = distribution(Matrix(name, role, shape, cfg))
    assert isinstance(chosen, config_init.NormalValues | config_init.UniformValues)
    return chosen.std if isinstance(chosen, config_init.NormalValues) else chosen.bound / math.sqrt(3)


def test_tfixup_of_an_encoder_decoder_is_the_papers() -> None:
    """Section 3.2: 0.67 L^-1/4 in the encoder, (9 L)^-1/4 in the decoder, on values, outputs and MLPs."""
    cfg = model(config_init.TFixup(), kind="encoder_decoder", encoder_layers=8)
    plain, encoder, decoder = glorot(D, D), 0.67 * 8**-0.25, (9 * L) ** -0.25
    expected = {
        "encoder.blocks.7.attention.query": plain,
        "encoder.blocks.7.attention.value": plain * encoder,
        "encoder.blocks.7.attention.out": plain * encoder,
        "encoder.blocks.7.mlp.up": plain * encoder,
        "blocks.5.attention.key": plain,
        "blocks.5.attention.value": plain * decoder,
        "blocks.5.cross.query": plain,
        "blocks.5.cross.value": plain * decoder,
        "blocks.5.cross.out": plain * decoder,
        "blocks.5.mlp.down": plain * decoder,
    }
    for name, std in expected.items():
        assert std_of(f"{name}.weight", (D, D), cfg) == pytest.approx(std), name
    assert std_of("embedding.weight", (VOCAB, D), cfg, "embedding") == pytest.approx(decoder * D**-0.5)


def test_branches_are_counted_in_the_matrixs_own_stack() -> None:
    cfg = model(config_init.ScaledNormal(std=1.0), kind="encoder_decoder", encoder_layers=2)
    counts = {"encoder.blocks.1.mlp.down": 4, "blocks.5.mlp.down": 18, "blocks.5.cross.out": 18}
    for name, branches in counts.items():
        assert std_of(f"{name}.weight", (D, D), cfg) == pytest.approx(branches**-0.5)


def test_the_vocabulary_head_is_not_what_is_scaled() -> None:
    """A slip of teaching material: GPT-2 scales what writes to the residual stream, not what has `vocab` outputs."""
    cfg = model(config_init.ScaledNormal(std=0.02))
    assert std_of("head.weight", (VOCAB, D), cfg, "head") == 0.02
    assert std_of("blocks.0.attention.out.weight", (VOCAB, D), cfg) < 0.006


T5_NAMES = {
    "shared": "embedding.weight",
    "SelfAttention.q": "blocks.0.attention.query.weight",
    "SelfAttention.k": "blocks.0.attention.key.weight",
    "SelfAttention.v": "blocks.0.attention.value.weight",
    "SelfAttention.o": "blocks.0.attention.out.weight",
    "EncDecAttention.q": "blocks.0.cross.query.weight",
    "EncDecAttention.o": "blocks.0.cross.out.weight",
    "relative_attention_bias": "bias.weight",
    "wi_0": "blocks.0.mlp.gate.weight",
    "wi_1": "blocks.0.mlp.up.weight",
    "wo": "blocks.0.mlp.down.weight",
}


def t5_parameters() -> Iterator[tuple[str, Tensor]]:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "d_model": 192,
        "d_kv": 32,
        "d_ff": 384,
        "num_heads": 4,
        "num_layers": 1,
        "vocab_size": 256,
    }
    sizes |= {"feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 256}
    cfg = T5Config(**sizes)
    for name, parameter in T5ForConditionalGeneration(cfg).named_parameters():
        for part, ours in T5_NAMES.items():
            if f"{part}.weight" in name:
                yield ours, parameter.detach()


def test_t5_begins_as_transformers_t5() -> None:
    attention = FullAttentionConfig(head_dim=32, scale=1.0)
    cfg = config.ModelConfig(
        kind="encoder_decoder", layers=1, width=192, heads=4, attention=attention, init=config_init.T5()
    )
    roles = {"embedding.weight": "embedding", "bias.weight": "position"}
    seen = set()
    for ours, theirs in t5_parameters():
        std = std_of(ours, tuple(theirs.shape), cfg, roles.get(ours, "matrix"))
        assert abs(float(theirs.std()) / std - 1) < 5 / math.sqrt(2 * theirs.numel()), ours
        seen.add(ours)
    assert seen == set(T5_NAMES.values())


def test_t5s_query_leaves_the_scale_to_attention_where_it_has_one() -> None:
    """The scores begin alike: a query of deviation d^-1/2 with the factor k^-1/2, or of (d k)^-1/2 with none."""
    cfg = config.ModelConfig(width=D, heads=HEADS, init=config_init.T5())
    assert std_of("blocks.0.attention.query.weight", (D, D), cfg) == pytest.approx(D**-0.5)


KINDS = {
    "encoder": config.ModelConfig(kind="encoder", embedding=config.EmbeddingConfig(types=2, norm=True, width=16)),
    "encoder_decoder": config.ModelConfig(kind="encoder_decoder", position=config_position.RelativeBucketsConfig()),
    "experts": config.ModelConfig(
        mlp=config_mlp.ExpertsConfig(router=config_mlp.SigmoidRouterConfig(), hidden=16, shared_hidden=16)
    ),
    "latent": config.ModelConfig(attention=LatentAttentionConfig(query_rank=16, kv_rank=8, rope_dim=4)),
    "delta": config.ModelConfig(attention=DeltaAttentionConfig()),
    "sinks": config.ModelConfig(attention=FullAttentionConfig(sinks=True, qk_norm="head"), norm=OffsetRMSNormConfig()),
}
INITS: list[config_init.InitConfig] = [scheme for scheme, _ in EXPECTED]


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_of_every_kind_of_model_begins_under_every_scheme(kind: str) -> None:
    sizes = {"layers": 2, "width": 32, "heads": 4}
    for init in INITS:
        cfg = KINDS[kind].model_copy(update=sizes | {"init": init})
        whole = build_model(cfg, 64)
        found = dict(initial_values(whole, cfg, seed=1))
        assert {name: value.shape for name, value in found.items()} == {
            name: parameter.shape for name, parameter in whole.named_parameters()
        }
        for name, value in found.items():
            assert value.dtype == torch.float32, name
            assert bool(torch.isfinite(value).all()), name
            assert value.dim() < 2 or bool(value.any()), name


def test_whatever_kind_of_branch_writes_to_the_stream_is_scaled() -> None:
    for kind in KINDS.values():
        cfg = kind.model_copy(update={"layers": 8, "width": 32, "heads": 4, "init": config_init.ScaledNormal(std=1.0)})
        shapes = {name: tuple(parameter.shape) for name, parameter in build_model(cfg, 64).named_parameters()}
        scaled = {name for name, shape in shapes.items() if Matrix(name, "matrix", shape, cfg).writes_to_stream}
        for block in {name.rsplit(".attention.", 1)[0] for name in shapes if ".attention." in name}:
            assert f"{block}.attention.out.weight" in scaled
            assert scaled & {f"{block}.mlp.down.weight", f"{block}.mlp.down"}
