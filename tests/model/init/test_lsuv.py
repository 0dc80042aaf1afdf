"""Layer-sequential unit variance: every layer's outputs have variance 1 on the data it was shown."""

import pytest
import torch
from torch import Tensor, nn

from hornbook.model.build_model import build_model
from hornbook.model.config import init_config as config_init
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.config import model_config as config
from hornbook.model.init.init import initialize, scale_to_unit_variance
from hornbook.model.layers.linear import Linear
from hornbook.model.transformer import Transformer

VOCAB = 64
BASE = config.ModelConfig(layers=3, width=64, heads=4, init=config_init.LSUV())
TOKENS = torch.randint(0, VOCAB, (4, 32), generator=torch.Generator().manual_seed(0))


def made(cfg: config.ModelConfig) -> Transformer:
    model = build_model(cfg, VOCAB).to_empty(device="cpu")
    initialize(model, cfg, seed=1)
    return model.eval()


class Watch(nn.Module):
    """An adapter that notes the variance of what comes by."""

    def __init__(self) -> None:
        super().__init__()
        self.variances: list[float] = []

    def forward(self, layer: Linear, x: Tensor, y: Tensor) -> Tensor:
        del layer, x
        self.variances.append(float(y.var()))
        return y


@torch.no_grad()
def variances(model: Transformer, tokens: Tensor) -> dict[str, float]:
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    for layer in layers.values():
        layer.adapter = Watch()
    model(tokens)
    return {name: layer.adapter.variances[0] for name, layer in layers.items() if isinstance(layer.adapter, Watch)}


@pytest.mark.parametrize("mlp", [config_mlp.GLUConfig(), config_mlp.PlainMLPConfig()], ids=str)
@pytest.mark.parametrize("block", [config.PreNorm(), config.PostNorm(), config.Parallel()], ids=str)
def test_every_layer_gives_unit_variance(mlp: config_mlp.MLPConfig, block: config.BlockConfig) -> None:
    cfg = BASE.model_copy(update={"mlp": mlp, "block": block})
    model = made(cfg)
    before = variances(model, TOKENS)
    assert max(abs(value - 1) for value in before.values()) > 0.3
    model = made(cfg)
    scale_to_unit_variance(model, lambda: model(TOKENS))
    after = variances(model, TOKENS)
    assert len(after) == len(before) >= 18
    for name, value in after.items():
        assert value == pytest.approx(1, abs=1e-4), name


def test_matrices_stay_orthogonal_and_the_rest_stays_as_it_was() -> None:
    model, plain = made(BASE), made(BASE).state_dict()
    scale_to_unit_variance(model, lambda: model(TOKENS))
    for name, value in model.state_dict().items():
        if name.endswith("query.weight"):
            gram = value @ value.T
            torch.testing.assert_close(gram / gram[0, 0], torch.eye(64), rtol=0, atol=1e-4)
        if "embedding" in name or "norm" in name:
            assert torch.equal(value, plain[name])
    assert all(module.adapter is None for module in model.modules() if isinstance(module, Linear))


def test_the_same_data_gives_the_same_bits() -> None:
    first, second = made(BASE), made(BASE)
    for model in (first, second):
        scale_to_unit_variance(model, lambda model=model: model(TOKENS))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_a_layer_that_an_override_silences_stays_silent() -> None:
    init = config_init.LSUV(overrides={"blocks.1.mlp.down": config_init.ConstantValues(value=0.0)})
    model = made(BASE.model_copy(update={"init": init}))
    scale_to_unit_variance(model, lambda: model(TOKENS))
    assert not model.get_parameter("blocks.1.mlp.down.weight").any()
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
