"""Starting points from other models: what is copied where, and that what should compute the same does."""

import pytest
import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.config import model_config as config
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.norm_config import LayerNormConfig
from hornbook.model.surgery.grow import Order, layer_sources, preserves, regrow, resized, upcycle, upcycled
from hornbook.model.transformer import Source, Transformer

VOCAB = 48
BASE = ModelConfig(layers=2, width=32, heads=2, mlp=config_mlp.GLUConfig(hidden=40))
TOKENS = torch.arange(2 * 12).view(2, 12) % VOCAB


def random_parameters(cfg: ModelConfig) -> dict[str, Tensor]:
    """Of a model in which nothing is at a value that hides a mistake."""
    generator = torch.Generator().manual_seed(0)
    shapes = {name: each.shape for name, each in build_model(cfg, VOCAB).named_parameters()}
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def filled(cfg: ModelConfig, tensors: dict[str, Tensor]) -> Transformer:
    model = build_model(cfg, VOCAB, "cpu").eval()
    parameters = dict(model.named_parameters())
    assert tensors.keys() == parameters.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
    return model


@torch.no_grad()
def outputs(model: Transformer) -> Tensor:
    source = None if model.encoder is None else Source(TOKENS.flip(1))
    return model(TOKENS, source=source)[0]


def grown(cfg: ModelConfig, layers: int, order: Order = "stack", *, identity: bool = True, encoder: int | None = None):
    old = random_parameters(cfg)
    new = resized(cfg, layers, encoder, order)
    return old, new, dict(regrow(old.items(), cfg, new, order, identity=identity))


def test_which_layer_comes_from_where() -> None:
    assert layer_sources(3, 6, "stack") == [0, 1, 2, 0, 1, 2]
    assert layer_sources(3, 6, "spread") == [0, 0, 1, 1, 2, 2]
    assert layer_sources(2, 5, "spread") == [0, 0, 0, 1, 1]
    assert layer_sources(12, 6) == [0, 2, 4, 7, 9, 11]
    assert layer_sources(12, 1) == [0]
    assert layer_sources(4, 4, "spread") == layer_sources(4, 4) == [0, 1, 2, 3]


SHAPES = {
    "pre": BASE,
    "parallel": BASE.model_copy(update={"block": config.Parallel(), "norm": LayerNormConfig()}),
    "output": BASE.model_copy(update={"block": config.OutputNorm(), "norm": LayerNormConfig()}),
    "sandwich": BASE.model_copy(update={"block": config.SandwichNorm()}),
    "biases": BASE.model_copy(
        update={
            "mlp": config_mlp.PlainMLPConfig(hidden=40),
            "attention": FullAttentionConfig(bias=True, out_bias=True),
        }
    ),
    "experts": BASE.model_copy(
        update={"mlp": config_mlp.ExpertsConfig(count=4, active=2, hidden=24, shared_hidden=16)}
    ),
    "encoder_decoder": BASE.model_copy(update={"kind": "encoder_decoder", "encoder_layers": 3}),
}


@pytest.mark.parametrize("order", ["stack", "spread"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_model_grown_by_identities_computes_the_same_bits(name: str, order: Order) -> None:
    cfg = SHAPES[name]
    encoder = 5 if cfg.kind == "encoder_decoder" else None
    old, new, tensors = grown(cfg, 5, order, encoder=encoder)
    assert torch.equal(outputs(filled(cfg, old)), outputs(filled(new, tensors)))
    _, new, copies = grown(cfg, 5, order, identity=False, encoder=encoder)
    assert not torch.equal(outputs(filled(cfg, old)), outputs(filled(new, copies)))


def test_layers_that_add_nothing_yet_still_learn() -> None:
    _, new, tensors = grown(BASE, 4)
    model = filled(new, tensors).train()
    model(TOKENS)[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.3.") and name.endswith(("out.weight", "down.weight")):
            assert parameter.grad is not None
            assert bool(parameter.grad.any()), name


def test_copies_and_layers_left_out() -> None:
    old, _, tensors = grown(BASE, 4, "spread", identity=False)
    assert torch.equal(tensors["blocks.3.mlp.up.weight"], old["blocks.1.mlp.up.weight"])
    assert torch.equal(tensors["blocks.1.attention.out.weight"], old["blocks.0.attention.out.weight"])
    deep = BASE.model_copy(update={"layers": 5})
    old, new, tensors = grown(deep, 3)
    filled(new, tensors)
    assert torch.equal(tensors["blocks.1.mlp.up.weight"], old["blocks.2.mlp.up.weight"])
    assert torch.equal(tensors["blocks.2.mlp.up.weight"], old["blocks.4.mlp.up.weight"])
    assert torch.equal(tensors["embedding.weight"], old["embedding.weight"])


def test_a_layer_is_never_made_from_one_of_another_kind() -> None:
    window = config.LayerConfig(attention=FullAttentionConfig(window=4))
    cfg = BASE.model_copy(update={"pattern": [window, config.LayerConfig()]})
    _, new, tensors = grown(cfg, 4)
    filled(new, tensors)
    with pytest.raises(UsageError, match="layer 1 would be a copy of layer 0, but their attention is not the same"):
        resized(cfg, 4, None, "spread")
    with pytest.raises(UsageError, match=r"model\.pattern its 2 layers do not tile the 3"):
        resized(cfg, 3)
    with pytest.raises(UsageError, match="no encoder beside it"):
        resized(BASE, 4, 4)
    post = BASE.model_copy(update={"block": config.PostNorm()})
    with pytest.raises(UsageError, match="no layer is the identity"):
        grown(post, 4)
    grown(post, 4, identity=False)


ROUTERS = [
    config_mlp.SoftmaxRouterConfig(),
    config_mlp.SigmoidRouterConfig(),
    config_mlp.SoftmaxRouterConfig(renormalize=False),
    config_mlp.SigmoidRouterConfig(scale=2.5),
    config_mlp.SwitchRouterConfig(),
]


@pytest.mark.parametrize("router", ROUTERS, ids=str)
def test_experts_that_are_copies_compute_what_the_dense_model_does(router: config_mlp.RouterConfig) -> None:
    """Exactly where `preserves` says so: the other routers' weights do not sum to 1."""
    active = 1 if isinstance(router, config_mlp.SwitchRouterConfig) else 2
    experts = config_mlp.ExpertsConfig(count=4, active=active, router=router)
    old, new = random_parameters(BASE), upcycled(BASE, experts)
    tensors = dict(upcycle(old.items(), new, VOCAB, seed=1))
    dense, mixed = outputs(filled(BASE, old)), outputs(filled(new, tensors))
    close = torch.allclose(dense, mixed, rtol=1e-5, atol=1e-5)
    assert close == preserves(experts) == (router in ROUTERS[:2])


def test_experts_are_copies_and_routers_are_new() -> None:
    old, new = random_parameters(BASE), upcycled(BASE, config_mlp.ExpertsConfig(count=4, active=2))
    tensors = dict(upcycle(old.items(), new, VOCAB, seed=1))
    for expert in range(4):
        assert torch.equal(tensors["blocks.1.mlp.down"][expert], old["blocks.1.mlp.down.weight"])
    first, second = (tensors[f"blocks.{i}.mlp.router.weight"] for i in range(2))
    assert float(first.std()) == pytest.approx(0.02, rel=0.2)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("changes", "experts", "message"),
    [
        ({"mlp": config_mlp.PlainMLPConfig()}, config_mlp.ExpertsConfig(), "gated linear units"),
        ({"mlp": config_mlp.GLUConfig(bias=True)}, config_mlp.ExpertsConfig(), "without biases"),
        (
            {"first": [config.LayerConfig(mlp=config_mlp.GLUConfig(hidden=8))]},
            config_mlp.ExpertsConfig(),
            "several kinds",
        ),
        ({}, config_mlp.ExpertsConfig(shared_hidden=8), "nothing to be a copy of"),
    ],
)
def test_what_experts_cannot_be_copies_of(changes: dict, experts: config_mlp.ExpertsConfig, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        upcycled(BASE.model_copy(update=changes), experts)
