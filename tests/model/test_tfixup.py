"""T-Fixup's property (Huang et al. 2020): no norms and no warm-up, 12 layers on each side, Adam at 5e-4."""

import math

import pytest
import torch

from hornbook.model.build_model import build_model
from hornbook.model.config import init_config as config_init
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.config import model_config as config
from hornbook.model.config import position_config as config_position
from hornbook.model.config.norm_config import NoNorm
from hornbook.model.init.init import initialize
from hornbook.model.transformer import Source

VOCAB, ROWS, TIME, WIDTH = 32, 16, 12, 64


def losses(init: config_init.InitConfig, steps: int) -> list[float]:
    """Of an encoder-decoder of the original shape but for norms, that learns to say its source backwards."""
    cfg = config.ModelConfig(
        kind="encoder_decoder",
        layers=12,
        width=WIDTH,
        heads=4,
        norm=NoNorm(),
        block=config.PostNorm(),
        mlp=config_mlp.PlainMLPConfig(hidden=2 * WIDTH, activation="relu"),
        position=config_position.SinusoidalPositionsConfig(),
        embedding=config.EmbeddingConfig(scale=math.sqrt(WIDTH)),
        init=init,
    )
    model = build_model(cfg, VOCAB).to_empty(device="cpu")
    initialize(model, cfg, seed=0)
    assert model.head is not None
    adam, generator = torch.optim.Adam(model.parameters(), lr=5e-4), torch.Generator().manual_seed(0)
    found = []
    for _ in range(steps):
        source = torch.randint(1, VOCAB, (ROWS, TIME), generator=generator)
        targets = source.flip(1)
        tokens = torch.cat([torch.zeros(ROWS, 1, dtype=torch.long), targets[:, :-1]], 1)
        adam.zero_grad()
        hidden, _ = model(tokens, source=Source(source))
        loss = model.head.losses(hidden, targets, torch.ones(ROWS, TIME))["loss"] / (ROWS * TIME)
        loss.backward()
        adam.step()
        found.append(loss.item())
    return found


@pytest.mark.slow
def test_without_norms_and_warm_up_tfixup_learns_and_xavier_does_not() -> None:
    ours, xavier = losses(config_init.TFixup(), 120), losses(config_init.Xavier(), 60)
    uniform = math.log(VOCAB)
    assert ours[0] == pytest.approx(uniform, rel=0.05)
    assert max(ours) < 1.1 * uniform
    assert ours[-1] < 0.75 * uniform
    assert min(xavier) > 10 * uniform
