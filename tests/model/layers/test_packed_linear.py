"""Packed weights: the same numbers up to rounding, a row's bits whatever is beside it, gradients as without them."""

import pytest
import torch
from torch import Tensor

from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.config.attention_config import FullAttentionConfig, LatentAttentionConfig
from hornbook.model.config.head_config import LMHead
from hornbook.model.config.mlp_config import GLUConfig, PlainMLPConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import RopeConfig
from hornbook.model.config.surgery_config import Lora
from hornbook.model.layers.linear import Linear
from hornbook.model.layers.packed_linear import pack, packed_bytes
from hornbook.model.layers.products import PackedProduct, is_packable
from hornbook.model.surgery.operate import operate
from hornbook.model.transformer import Transformer

pytestmark = pytest.mark.skipif(not is_packable(torch.empty(1)), reason="this CPU packs nothing")

VOCAB = 60
SHAPE = {"layers": 2, "width": 32, "heads": 4, "position": RopeConfig(length=64)}
LATENT = LatentAttentionConfig(query_rank=12, kv_rank=10, nope_dim=6, rope_dim=4, value_dim=6)
CONFIGS = {
    "grouped": ModelConfig(**SHAPE, attention=FullAttentionConfig(kv_heads=2, qk_norm="head"), mlp=GLUConfig()),
    "biased": ModelConfig(
        **SHAPE,
        attention=FullAttentionConfig(bias=True, out_bias=True),
        mlp=PlainMLPConfig(bias=True),
        head=LMHead(tied=False, bias=True),
    ),
    "latent": ModelConfig(**SHAPE, attention=LATENT),
}
TOKENS = torch.randint(0, VOCAB, (3, 20), generator=torch.Generator().manual_seed(0))


def logits(model: Transformer) -> Tensor:
    """Of texts that are read in one pass, and of one more token that the cache is read for."""
    assert model.head is not None
    cache = KVCache()
    first, _ = model(TOKENS[:, :-1], cache=cache)
    last, _ = model(TOKENS[:, -1:], cache=cache)
    return model.head.logits(torch.cat([first, last], 1))


@pytest.mark.parametrize("kind", [*CONFIGS, "adapted"])
def test_a_packed_model_computes_the_same(kind: str, random_model) -> None:
    model = random_model(CONFIGS.get(kind, CONFIGS["grouped"]), VOCAB, 3)
    if kind == "adapted":
        operate(model, [Lora(rank=2)])
        generator = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            if "adapter" in name:
                parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    with torch.no_grad():
        expected, hidden = logits(model), model(TOKENS)[0]
    assert packed_bytes(model) >= 4 * sum(each.numel() for each in model.blocks.parameters() if each.dim() == 2) * 0.9
    pack(model)
    assert any(isinstance(each, Linear) and each.product_beside is not None for each in model.modules())
    with torch.no_grad():
        found = logits(model)
    assert not torch.equal(found, expected)
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    with torch.enable_grad():
        assert torch.equal(model(TOKENS)[0], hidden)


def test_a_row_of_a_packed_product_has_the_same_bits_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(96, 64, generator=generator), torch.randn(33, 64, generator=generator)
    product = PackedProduct(weight)
    with torch.no_grad():
        together = product(x, weight, None)
        for count in (1, 2, 3, 8, 17):
            assert torch.equal(product(x[:count], weight, None), together[:count])
        strided = x.repeat(1, 2)[:, ::2]
        assert torch.equal(product(strided, weight, None), product(strided.contiguous(), weight, None))
        assert torch.equal(product(x.double(), weight.double(), None), x.double() @ weight.double().T)
