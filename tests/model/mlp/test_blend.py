"""Another activation in the MLPs: at the ends of a blend no bit is that of a sum, and between them it is one."""

import pytest
import torch
from torch import Tensor

from hornbook.model.build_model import build_model
from hornbook.model.config.mlp_config import ExpertsConfig, GLUConfig, PlainMLPConfig
from hornbook.model.config.model_config import LayerConfig, ModelConfig
from hornbook.model.init.init import initialize
from hornbook.model.mlp.blend import set_activation
from hornbook.model.mlp.mlp import Blend, activate
from hornbook.model.transformer import Transformer

TOKENS = torch.arange(24).view(2, 12) % 11


def config(kind: str, activation: str, **settings: object) -> ModelConfig:
    mlp = {"mlp": PlainMLPConfig, "glu": GLUConfig, "experts": ExpertsConfig}[kind].model_validate(
        {"activation": activation}
    )
    return ModelConfig.model_validate({"layers": 2, "width": 16, "heads": 2, "mlp": mlp, **settings})


def made(cfg: ModelConfig) -> Transformer:
    model = build_model(cfg, 64, "cpu")
    initialize(model, cfg, seed=1)
    return model.eval()


def hidden(model: Transformer) -> Tensor:
    with torch.no_grad():
        return model(TOKENS)[0]


@pytest.mark.parametrize("kind", ["mlp", "glu", "experts"])
def test_the_ends_are_the_two_activations_to_the_bit(kind: str) -> None:
    before, after = config(kind, "silu"), config(kind, "relu")
    model = made(before)
    at_first = hidden(model)
    set_activation(model, before, after, 0.5)
    between = hidden(model)
    assert not torch.equal(between, at_first)
    set_activation(model, before, after, 0.0)
    assert torch.equal(hidden(model), at_first)
    set_activation(model, before, after, 1.0)
    assert torch.equal(hidden(model), hidden(made(after)))


def test_between_them_is_a_weighted_sum_with_its_gradient() -> None:
    x = torch.linspace(-3, 3, 50, dtype=torch.float64, requires_grad=True)
    blend = Blend("gelu", "relu", torch.tensor(0.25))
    y = activate(x, blend)
    expected = 0.75 * activate(x, "gelu") + 0.25 * activate(x, "relu")
    torch.testing.assert_close(y, expected)
    grads = [torch.autograd.grad(each.sum(), x, retain_graph=True)[0] for each in (y, expected)]
    torch.testing.assert_close(*grads)


def test_a_layer_with_an_mlp_of_its_own_keeps_it() -> None:
    first = [LayerConfig(mlp=GLUConfig(activation="gelu"))]
    before, after = (config("glu", name, first=first) for name in ("silu", "relu"))
    model = made(before)
    set_activation(model, before, after, 1.0)
    assert [block.mlp.activation for block in model.blocks.values()] == ["gelu", "relu"]  # pyright: ignore


def test_blocks_of_multi_token_prediction_follow() -> None:
    before, after = (config("glu", name, mtp={"kind": "sequential"}) for name in ("silu", "relu"))
    model = made(before)
    set_activation(model, before, after, 1.0)
    assert [block.mlp.activation for block in model.all_blocks()] == ["relu"] * 3  # pyright: ignore


def test_the_share_moves_in_place() -> None:
    """Compiled code keeps its tensor, so that it is not compiled again at every step."""
    before, after = config("glu", "silu"), config("glu", "relu")
    model = made(before)
    set_activation(model, before, after, 0.25)
    kept = [block.mlp.activation for block in model.blocks.values()]
    set_activation(model, before, after, 0.5)
    assert all(block.mlp.activation is blend for block, blend in zip(model.blocks.values(), kept, strict=True))
    assert all(blend.share == 0.5 for blend in kept)  # pyright: ignore
