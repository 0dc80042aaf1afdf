"""Attention modules of every kind inside a model: cached, packed, dropped; latent attention equals DeepSeek's."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.attention.latent import LatentAttention
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.build_model import build_model
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.config import model_config as config
from hornbook.model.config import position_config as config_position
from hornbook.model.config.attention_config import FullAttentionConfig, LatentAttentionConfig
from hornbook.model.forward_context import Context
from hornbook.model.layers.dropout import row_keys
from hornbook.model.transformer import Source

VOCAB, WIDTH, HEADS = 61, 32, 4
LATENT = LatentAttentionConfig(query_rank=12, kv_rank=10, nope_dim=6, rope_dim=4, value_dim=5)
YARN = config_position.YaRN(factor=4, original=16, mscale=0.8, mscale_all_dim=1.1)
KINDS: dict[str, dict[str, Any]] = {
    "window": {"attention": FullAttentionConfig(kv_heads=2, window=7)},
    "scale and softcap": {"attention": FullAttentionConfig(scale=0.3, softcap=1.5)},
    "sinks": {"attention": FullAttentionConfig(kv_heads=1, sinks=True)},
    "clip": {"attention": FullAttentionConfig(clip=0.5)},
    "norm of heads": {"attention": FullAttentionConfig(kv_heads=2, head_dim=12, qk_norm="head")},
    "norm of all": {"attention": FullAttentionConfig(kv_heads=2, qk_norm="full")},
    "biases": {"attention": FullAttentionConfig(bias=True, out_bias=True)},
    "rope of a quarter": {"position": config_position.RopeConfig(fraction=0.25)},
    "neighbours": {"position": config_position.RopeConfig(layout="interleaved", scaling=YARN)},
    "alibi": {"position": config_position.AlibiConfig(), "attention": FullAttentionConfig(kv_heads=2)},
    "relative": {"position": config_position.RelativeBucketsConfig(buckets=8, max_distance=20)},
    "sinusoidal": {"position": config_position.SinusoidalPositionsConfig()},
    "learned": {"position": config_position.LearnedPositionsConfig(length=64, offset=2)},
    "none": {"position": config_position.NoPositions()},
    "latent": {"attention": LATENT, "position": config_position.RopeConfig(layout="interleaved", scaling=YARN)},
    "latent without rank": {"attention": LATENT.model_copy(update={"query_rank": None, "bias": True})},
    "window in turn": {
        "pattern": [
            config.LayerConfig(attention=FullAttentionConfig(window=5)),
            config.LayerConfig(position=config_position.RopeConfig(theta=1e6)),
        ]
    },
}


def build(name: str, **more: Any) -> config.ModelConfig:
    return config.ModelConfig(
        layers=2, width=WIDTH, heads=HEADS, mlp=config_mlp.GLUConfig(hidden=48), **KINDS[name] | more
    )


def tokens(batch: int, time: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (batch, time), generator=torch.Generator().manual_seed(seed))


def close(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> None:
    assert got.shape == want.shape
    assert float((got - want).detach().abs().max() / want.detach().abs().max()) < tolerance


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_cached_equals_uncached(name: str, random_model) -> None:
    """One by one, a few, and more at once than the way for few takes."""
    model, ids = random_model(build(name), VOCAB), tokens(2, 45)
    cache, parts = KVCache(capacity=4), []
    for piece in ids.split([1, 1, 3, 20, 1, 17, 2], dim=1):
        parts.append(model(piece, cache=cache)[0])
    close(torch.cat(parts, 1), model(ids)[0])


@pytest.mark.parametrize("name", KINDS)
def test_packed_equals_documents_alone(name: str, random_model) -> None:
    model, ids = random_model(build(name), VOCAB), tokens(1, 60)
    inputs: list[Tensor] = []
    model.embedding.register_forward_hook(lambda *call: inputs.append(call[2].requires_grad_()) or call[2])
    packed = model(ids, lengths=[(25, 1, 34)])[0]
    close(packed, torch.cat([model(part)[0] for part in ids.split([25, 1, 34], dim=1)], 1))
    reached = torch.autograd.grad(packed[0, 40].sum(), inputs[0])[0][0].abs().sum(-1)
    assert torch.all(reached[:26] == 0)
    assert torch.all(reached[41:] == 0)
    assert reached[40] > 0


@pytest.mark.parametrize("name", ["sinks", "relative", "latent"])
def test_dropped_probabilities_are_equal_in_any_microbatch(name: str, random_model) -> None:
    own = KINDS[name].get("attention", FullAttentionConfig()).model_copy(update={"dropout": 0.4})
    model, ids = random_model(build(name, attention=own), VOCAB), tokens(3, 40)
    keys = row_keys(1, 2, torch.tensor([5, 6, 7]))
    whole, plain = model(ids, keys=keys)[0], model(ids)[0]
    assert torch.allclose(model(ids[1:], keys=keys[1:])[0], whole[1:], atol=1e-6)
    assert not torch.allclose(plain, whole, atol=0.01)
    assert not torch.allclose(model(ids, keys=keys + 1)[0], whole, atol=0.01)
    grads = torch.autograd.grad(whole.sum(), list(model.parameters()), allow_unused=True)
    parts = [
        torch.autograd.grad(
            model(ids[i : i + 1], keys=keys[i : i + 1])[0].sum(), list(model.parameters()), allow_unused=True
        )
        for i in range(3)
    ]
    for grad, *own_grads in zip(grads, *parts, strict=True):
        if grad is not None:
            assert torch.allclose(grad, torch.stack(own_grads).sum(0), atol=1e-4 * float(grad.abs().max()) + 1e-6)


@pytest.mark.parametrize("kind", ["relative", "norm of all", "alibi"])
@torch.no_grad()
def test_an_encoder_decoder_looks_at_its_source(kind: str) -> None:
    """Its keys and values are computed once per generation; packed pairs equal pairs alone."""
    model = build_model(build(kind, kind="encoder_decoder", encoder_layers=1), VOCAB, "cpu").eval()
    for parameter in model.parameters():
        parameter.copy_(0.3 * torch.randn(parameter.shape) + (parameter.dim() == 1))
    source, target = tokens(2, 30, 1), tokens(2, 40)
    whole = model(target, source=Source(source))[0]
    memory, cache, parts = model.encode(Source(source)), KVCache(), []
    for piece in target.split([20, 1, 3, 16], dim=1):
        parts.append(model(piece, memory=memory, cache=cache)[0])
        memory = type(memory)(torch.zeros_like(memory.states), memory.lengths)  # what the cache holds is used
    close(torch.cat(parts, 1), whole)
    packed = model(target, lengths=[(15, 25)] * 2, source=Source(source, lengths=[(20, 10)] * 2))[0]
    pairs = zip(target.split([15, 25], 1), source.split([20, 10], 1), strict=True)
    close(packed, torch.cat([model(own, source=Source(text))[0] for own, text in pairs], 1))


@pytest.mark.parametrize("rank", [12, None])
@pytest.mark.parametrize("scaling", [config_position.NoScaling(), YARN])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_latent_attention_equals_deepseeks(rank: int | None, scaling, layout) -> None:
    rope: dict[str, Any] = {"rope_theta": 10_000.0, "rope_type": "default"}
    if scaling == YARN:
        own = {"factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.8, "mscale_all_dim": 1.1}
        rope |= {"rope_type": "yarn", **own}
    theirs = DeepseekV3Config(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=rank,
        kv_lora_rank=10,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        attention_bias=True,
        rope_interleave=layout == "interleaved",
        rope_parameters=rope,
    )
    theirs._attn_implementation = "eager"
    reference = DeepseekV3Attention(theirs, 0)
    part = LATENT.model_copy(update={"query_rank": rank, "bias": True})
    cfg = config.ModelConfig(
        width=WIDTH, heads=HEADS, attention=part, position=config_position.RopeConfig(layout=layout, scaling=scaling)
    )
    module = LatentAttention(cfg, 0)
    names = {
        "query.": "q_proj.",
        "query_down.": "q_a_proj.",
        "query_norm.": "q_a_layernorm.",
        "query_up.": "q_b_proj.",
        "kv_down.": "kv_a_proj_with_mqa.",
        "kv_norm.": "kv_a_layernorm.",
        "kv_up.": "kv_b_proj.",
        "out.": "o_proj.",
    }
    weights = dict(reference.named_parameters())
    with torch.no_grad():
        for weight in weights.values():
            weight.copy_(0.3 * torch.randn(weight.shape) + (weight.dim() == 1))
        for name, weight in module.named_parameters():
            before, after = name.split(".")
            weight.copy_(weights.pop(names[f"{before}."] + after))
    assert not weights
    x, time = torch.randn(2, 37, WIDTH), 37
    angles = DeepseekV3RotaryEmbedding(theirs)(x, torch.arange(time)[None])
    hidden = torch.full((time, time), -torch.inf).triu(1)[None, None]
    want = reference(x, angles, hidden)[0]
    assert module.rope is not None
    context = Context({module.rope.name: module.rope.rotation(torch.arange(time)[None])}, AttentionMask())
    got = module(x, context)
    close(got, want)
    grad = torch.randn_like(want)
    pairs = zip(module.parameters(), torch.autograd.grad(got, list(module.parameters()), grad), strict=True)
    wanted = dict(
        zip(reference.parameters(), torch.autograd.grad(want, list(reference.parameters()), grad), strict=True)
    )
    for parameter, own_grad in pairs:
        true = next(each for other, each in wanted.items() if torch.equal(other, parameter))
        close(own_grad, true, 3e-5)


def test_a_latent_cache_holds_the_latent_alone() -> None:
    cfg = config.ModelConfig(width=WIDTH, heads=HEADS, attention=LATENT)
    module, cache = LatentAttention(cfg, 0), KVCache(capacity=8)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    assert module.rope is not None
    rotation = {module.rope.name: module.rope.rotation(torch.arange(5)[None])}
    module(torch.randn(1, 5, WIDTH), Context(rotation, AttentionMask(), cache=cache))
    key, value = cache.append(0, torch.zeros(1, 1, 1, 14), torch.zeros(1, 1, 1, 0))
    assert key.shape == (1, 1, 1, 10 + 4)
    assert value.numel() == 0
