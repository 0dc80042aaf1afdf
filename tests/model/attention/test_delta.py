"""Gated DeltaNet as a layer: parity with transformers, documents, and a cache that equals the full pass."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.attention.delta import DeltaAttention
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.config import model_config as config
from hornbook.model.config import position_config as config_position
from hornbook.model.config.attention_config import DeltaAttentionConfig, FullAttentionConfig
from hornbook.model.forward_context import Context
from hornbook.model.init.init import initialize

WIDTH, TIME = 24, 150
PART = DeltaAttentionConfig(key_heads=2, value_heads=4, key_dim=8, value_dim=10)
CONFIG = config.ModelConfig(layers=2, width=WIDTH, heads=2, attention=PART, position=config_position.NoPositions())


def make(dtype: torch.dtype = torch.float32, seed: int = 0) -> DeltaAttention:
    layer, generator = DeltaAttention(CONFIG, 0), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            center = 1.0 if name == "norm.weight" else 0.0
            parameter.copy_(center + 0.3 * torch.randn(parameter.shape, generator=generator))
    return layer.to(dtype)


def inputs(dtype: torch.dtype = torch.float32, time: int = TIME, seed: int = 5) -> Tensor:
    return torch.randn(2, time, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_equal(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=tolerance * float(other.detach().abs().max()))


def gradients(y: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-3, 3, y.numel(), dtype=y.dtype).sin().view_as(y)
    return list(torch.autograd.grad((y * weights).sum(), tensors))


def their_rows(groups: Sequence[tuple[Tensor, int]], key_heads: int) -> Tensor:
    """Rows of several matrices as transformers interleaves them: by key head, each head's part of every matrix."""
    parts = [matrix.unflatten(0, (key_heads, -1, per_head)).flatten(1, 2) for matrix, per_head in groups]
    return torch.cat(parts, 1).flatten(0, 1)


def test_parity_with_transformers() -> None:
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    theirs = Qwen3NextGatedDeltaNet(
        Qwen3NextConfig(
            hidden_size=WIDTH, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8,
            linear_value_head_dim=10, linear_conv_kernel_dim=4, num_hidden_layers=2, rms_norm_eps=1e-6,
        ),
        layer_idx=0,
    )  # fmt: skip
    ours, x = make(), inputs().requires_grad_()
    with torch.no_grad():
        qkvz = [(ours.query.weight, 8), (ours.key.weight, 8), (ours.value.weight, 10), (ours.gate.weight, 10)]
        theirs.in_proj_qkvz.weight.copy_(their_rows(qkvz, 2))
        theirs.in_proj_ba.weight.copy_(their_rows([(ours.rate.weight, 1), (ours.decay.weight, 1)], 2))
        theirs.conv1d.weight.copy_(ours.convolution.weight[:, None])
        theirs.dt_bias.copy_(ours.decay_bias)
        theirs.A_log.copy_(ours.log_decay)
        theirs.norm.weight.copy_(ours.norm.weight)
        theirs.out_proj.weight.copy_(ours.out.weight)
    y, wanted = ours(x, Context()), theirs(x)
    assert_equal([y], [wanted], 1e-5)
    mine = [x, ours.convolution.weight, ours.decay_bias, ours.log_decay, ours.norm.weight, ours.out.weight]
    other = [x, theirs.conv1d.weight, theirs.dt_bias, theirs.A_log, theirs.norm.weight, theirs.out_proj.weight]
    found = gradients(y, mine)
    found[1] = found[1][:, None]
    assert_equal(found, gradients(wanted, other), 1e-5)
    both = gradients(ours(x, Context()), [each.weight for each in (ours.query, ours.key, ours.value, ours.gate)])
    parts = list(zip(both, (8, 8, 10, 10), strict=True))
    assert_equal([their_rows(parts, 2)], gradients(theirs(x), [theirs.in_proj_qkvz.weight]), 1e-5)


def test_documents_are_alone() -> None:
    layer, x = make(torch.float64), inputs(torch.float64).requires_grad_()
    lengths = ((2, 61, 1, 86), (3, 70, 77, 0))
    y = layer(x, Context(mask=AttentionMask(lengths=lengths)))
    for row, pieces in enumerate(lengths):
        first = 0
        for length in filter(None, pieces):
            alone = layer(x[row : row + 1, first : first + length], Context())
            assert_equal([y[row : row + 1, first : first + length]], [alone], 1e-12)
            first += length
    (slope,) = torch.autograd.grad(y[:, 73:].square().sum(), x)
    assert not slope[1, :73].any()
    assert not slope[0, :64].any()
    assert slope[1, 73:].any(-1).all()


@pytest.mark.parametrize("parts", [(100, 1, 1, 20, 28), (1, 1, 1, 1, 146), (2, 148)])
def test_a_cache_goes_on_as_the_full_pass(parts: tuple[int, ...]) -> None:
    layer, x = make(torch.float64), inputs(torch.float64)
    cache, found, first = KVCache(), [], 0
    for length in parts:
        found.append(layer(x[:, first : first + length], Context(cache=cache)))
        cache.advance(length)
        first += length
    assert_equal([torch.cat(found, 1)], [layer(x, Context())], 1e-12)


def test_a_call_that_fails_leaves_the_cache_as_it_was() -> None:
    layer, x, cache = make(torch.float64), inputs(torch.float64, 20), KVCache()
    layer(x[:, :10], Context(cache=cache))
    cache.advance(10)
    layer(x[:, 10:13], Context(cache=cache))  # another layer fails: nothing is advanced
    y = layer(x[:, 10:], Context(cache=cache))
    assert_equal([y], [layer(x, Context())[:, 10:]], 1e-12)


def test_no_later_token_matters() -> None:
    layer, x = make(torch.float64), inputs(torch.float64)
    other = torch.cat([x[:, :70], inputs(torch.float64, seed=9)[:, 70:]], 1)
    assert torch.equal(layer(other, Context())[:, :70], layer(x, Context())[:, :70])


def test_in_bfloat16() -> None:
    layer, x = make(), inputs(torch.bfloat16)
    y, wanted = layer(x, Context()), layer(x.float(), Context())
    assert y.dtype == torch.bfloat16
    assert float((y - wanted).detach().norm() / wanted.detach().norm()) < 2e-2


def test_what_sees_later_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="earlier tokens only"):
        DeltaAttention(CONFIG.model_copy(update={"kind": "encoder"}), 0)
    for mask in (AttentionMask("bidirectional"), AttentionMask(lengths=((5,),), prefixes=((2,),))):
        with pytest.raises(UsageError, match="earlier tokens only"):
            make()(inputs(time=5)[:1], replace(Context(), mask=mask))
    odd = PART.model_copy(update={"value_heads": 3})
    with pytest.raises(UsageError, match="value_heads: 3 heads"):
        DeltaAttention(CONFIG.model_copy(update={"attention": odd}), 0)


def test_a_hybrid_with_experts_generates_from_its_cache() -> None:
    """Three linear layers and one of softmax attention, as Qwen3-Next, with experts in all."""
    full = config.LayerConfig(attention=FullAttentionConfig(kv_heads=1), position=config_position.RopeConfig())
    cfg = CONFIG.model_copy(
        update={
            "layers": 4,
            "pattern": [config.LayerConfig()] * 3 + [full],
            "mlp": config_mlp.ExpertsConfig(
                count=4, active=2, hidden=16, shared_hidden=8, router=config_mlp.SigmoidRouterConfig()
            ),
        }
    )
    model = build_model(cfg, 40, "cpu")
    initialize(model, cfg, seed=1)
    model.eval()
    roles = parameter_roles(model)
    assert roles["blocks.0.attention.log_decay"] == roles["blocks.0.mlp.router.bias"] == "vector"
    assert roles["blocks.0.mlp.down"] == roles["blocks.0.mlp.router.weight"] == "matrix"
    memory = torch.nn.functional.softplus(model.get_parameter("blocks.0.attention.decay_bias").detach())
    assert 1e-3 <= float(memory.min()) <= float(memory.max()) <= 0.1
    tokens = torch.randint(0, 40, (2, 30), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted, _ = model(tokens)
        cache = KVCache()
        parts = [model(part, cache=cache)[0] for part in tokens.split([12, 1, 1, 16], 1)]
    assert_equal([torch.cat(parts, 1)], [wanted], 1e-5)
