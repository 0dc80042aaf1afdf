"""Positions equal transformers' for every scaling, slope and bucket; rotations are what the papers say."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from hornbook.model.attention.position import (
    Alibi,
    LearnedPositions,
    RelativeBuckets,
    Rope,
    SinusoidalPositions,
    alibi_slopes,
    relative_buckets,
    rotate,
)
from hornbook.model.attention.rope_scaling import attention_factor, scaled_frequencies
from hornbook.model.config import position_config as config_position

CPU = torch.device("cpu")
SCALINGS = [
    (config_position.LinearScaling(factor=4), {"rope_type": "linear", "factor": 4.0}),
    (
        config_position.YaRN(factor=4, original=2048),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    ),
    (
        config_position.YaRN(factor=40, original=4096, beta_fast=20, beta_slow=2, mscale=0.7, mscale_all_dim=1.0),
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 20,
            "beta_slow": 2,
            "mscale": 0.7,
            "mscale_all_dim": 1.0,
        },
    ),
    (
        config_position.YaRN(factor=0.5, original=64),
        {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 64},
    ),
    (
        config_position.Llama3Scaling(factor=8, original=8192),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    (
        config_position.Llama3Scaling(factor=32, original=512, low=0.5, high=7),
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 0.5,
            "high_freq_factor": 7.0,
            "original_max_position_embeddings": 512,
        },
    ),
]


def theirs(theta: float, head_dim: int, fraction: float, parameters: dict) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=8192,
        rope_parameters={"rope_theta": theta, "partial_rotary_factor": fraction, **parameters},
    )


@pytest.mark.parametrize(("scaling", "parameters"), SCALINGS)
@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize(("head_dim", "fraction"), [(64, 1.0), (128, 0.25), (20, 0.5)])
def test_frequencies_equal_transformers(
    scaling, parameters: dict, theta: float, head_dim: int, fraction: float
) -> None:
    want, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](theirs(theta, head_dim, fraction, parameters), CPU)
    rope = Rope(head_dim, config_position.RopeConfig(theta=theta, fraction=fraction, scaling=scaling))
    got, own_factor = scaled_frequencies(rope.rotary_dim, rope.cfg, CPU)
    assert got.shape == want.shape
    assert float(((got - want) / want).abs().max()) < 5e-7  # some float32 roundings: each is 6e-8 of its value
    assert float((got - want).abs().max()) < 1e-7
    assert own_factor == pytest.approx(factor, rel=1e-7)


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_ntk_equals_transformers_dynamic_at_that_length(factor: float) -> None:
    """Their dynamic scaling at `factor` times the length, with its own factor 1."""
    their_config = theirs(1e4, 64, 1.0, {"rope_type": "dynamic", "factor": 1.0})
    want, _ = ROPE_INIT_FUNCTIONS["dynamic"](their_config, CPU, seq_len=int(8192 * factor))
    cfg = config_position.RopeConfig(scaling=config_position.NTKScaling(factor=factor))
    assert torch.allclose(scaled_frequencies(64, cfg, CPU)[0], want, rtol=5e-7, atol=0)


def test_the_attention_factor_is_in_the_rotation() -> None:
    cfg = config_position.RopeConfig(scaling=config_position.YaRN(factor=16, original=256))
    cos, sin = Rope(8, cfg).rotation(torch.arange(5)[None])
    want = 0.1 * math.log(16) + 1
    assert attention_factor(cfg.scaling) == pytest.approx(want)
    assert torch.allclose((cos**2 + sin**2).sqrt(), torch.tensor(want))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_rotations_turn_pairs_and_see_differences_alone(layout, fraction: float) -> None:
    rope = Rope(16, config_position.RopeConfig(fraction=fraction, layout=layout))
    x = torch.randn(1, 1, 1, 16, dtype=torch.float64)

    def at(position: int, vector: torch.Tensor) -> torch.Tensor:
        cos, sin = rope.rotation(torch.tensor([[position]]))
        return rotate(vector, (cos.double(), sin.double()), layout)

    turned = int(16 * fraction)
    assert torch.equal(at(7, x)[..., turned:], x[..., turned:])
    assert not torch.isclose(at(7, x)[..., :turned], x[..., :turned]).any()
    other = torch.randn_like(x)
    assert torch.allclose((at(9, x) * at(4, other)).sum(), (at(7, x) * at(2, other)).sum(), atol=1e-5)
    # The first pair turns by one radian per position.
    first, second = (0, 1) if layout == "interleaved" else (0, turned // 2)
    unit = torch.zeros(1, 1, 1, 16, dtype=torch.float64)
    unit[..., first] = 1
    assert at(1, unit)[0, 0, 0, [first, second]].tolist() == pytest.approx([math.cos(1), math.sin(1)])


def test_equal_ropes_are_one_key() -> None:
    cfg = config_position.RopeConfig(scaling=config_position.YaRN(factor=4, original=64))
    assert (
        len(
            {
                Rope(8, cfg),
                Rope(8, config_position.RopeConfig(scaling=config_position.YaRN(factor=4, original=64))),
                Rope(4, cfg),
            }
        )
        == 2
    )


def test_learned_positions_skip_their_offset() -> None:
    positions = LearnedPositions(4, config_position.LearnedPositionsConfig(length=6, offset=2))
    torch.nn.init.normal_(positions.weight)
    assert positions.weight.shape == (8, 4)
    assert torch.equal(positions(torch.arange(6)[None])[0], positions.weight[2:])


def test_sinusoidal_positions() -> None:
    got = SinusoidalPositions(6, config_position.SinusoidalPositionsConfig())(torch.tensor([[0, 3]]))[0]
    assert got[0].tolist() == [0, 1, 0, 1, 0, 1]
    angles = [3 / 10_000 ** (2 * i / 6) for i in range(3)]
    want = [value for angle in angles for value in (math.sin(angle), math.cos(angle))]
    assert got[1].tolist() == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 25, 32, 112])
def test_alibi_equals_bloom_up_to_a_constant_per_query(heads: int) -> None:
    length = 9
    bloom = build_alibi_tensor(torch.ones(1, length), heads, torch.float32)  # [heads, 1, keys], slope times position
    assert alibi_slopes(heads) == pytest.approx((bloom[:, 0, 1]).tolist())
    table = Alibi(heads)(length, CPU)
    assert table.shape == (heads, 2 * length - 1)
    for query in range(length):
        own = table[:, length - 1 - query : length]  # keys 0 .. query
        assert torch.allclose(own - own[:, :1], bloom[:, 0, : query + 1], atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(buckets=st.sampled_from([4, 8, 32, 64]), max_distance=st.integers(40, 600), bidirectional=st.booleans())
def test_buckets_equal_t5(buckets: int, max_distance: int, bidirectional: bool) -> None:
    distance = torch.arange(-1000, 1001)
    want = T5Attention._relative_position_bucket(distance, bidirectional, buckets, max_distance)
    got = relative_buckets(distance, buckets, max_distance, bidirectional)
    assert torch.equal(got, want)
    assert int(got.min()) == 0
    assert int(got.max()) == buckets - 1


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_scores_are_a_table_by_distance(bidirectional: bool) -> None:
    part = RelativeBuckets(3, config_position.RelativeBucketsConfig(), bidirectional)
    torch.nn.init.normal_(part.weight)
    table, length = part(200, CPU), 200
    assert table.shape == (3, 399)
    for query, key in [(0, 0), (0, 199), (199, 0), (50, 53), (53, 50)]:
        bucket = int(relative_buckets(torch.tensor(key - query), 32, 128, bidirectional))
        assert torch.equal(table[:, key - query + length - 1], part.weight[bucket])
    table.sum().backward()
    assert part.weight.grad is not None
    assert float(part.weight.grad.sum()) == pytest.approx(3 * 399)
