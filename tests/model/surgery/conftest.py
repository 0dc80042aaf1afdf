"""Fixtures of surgery's tests: folders of random models of two architectures, and models operated on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.head_config import LMHead
from hornbook.model.config.mlp_config import PlainMLPConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.norm_config import LayerNormConfig
from hornbook.model.config.position_config import LearnedPositionsConfig, RopeConfig
from hornbook.model.hf.hf import read_hf, write_hf
from hornbook.model.surgery.operate import build_operated, fill
from hornbook.model.transformer import Transformer

VOCAB = 96
CONFIGS = {
    "llama": ModelConfig(
        layers=2,
        width=32,
        heads=4,
        attention=FullAttentionConfig(kv_heads=2),
        position=RopeConfig(length=64),
        head=LMHead(tied=False),
    ),
    "gpt2": ModelConfig(
        layers=2,
        width=32,
        heads=4,
        attention=FullAttentionConfig(bias=True, out_bias=True),
        mlp=PlainMLPConfig(),
        norm=LayerNormConfig(),
        position=LearnedPositionsConfig(length=64),
    ),
}


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory, random_model: Callable[..., Transformer]) -> dict[str, Path]:
    """Folders of a random LLaMA and a random GPT-2 of 96 tokens. Read only."""
    folders = {}
    for name, config in CONFIGS.items():
        folders[name] = tmp_path_factory.mktemp("bases") / name
        write_hf(folders[name], random_model(config, VOCAB), config, VOCAB, None)
    return folders


Operated = Callable[..., Transformer]


@pytest.fixture(scope="session")
def operated(bases: dict[str, Path]) -> Operated:
    """`operated("llama", step, ...)`: a new model with first values."""

    def make(base: str, *steps: object, seed: int = 0) -> Transformer:
        config, vocab, stream = read_hf(bases[base])
        return fill(build_operated(config, vocab, steps), stream, None, seed=seed)  # pyright: ignore

    return make


def spoil(model: Any, seed: int = 0, size: float = 0.1) -> Any:
    """Move every trained parameter, so that nothing is zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return model


def ids(rows: int = 2, time: int = 48) -> torch.Tensor:
    """Random tokens: enough rows for the fused product."""
    return torch.randint(0, VOCAB, (rows, time), generator=torch.Generator().manual_seed(5))


def logits(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    assert model.head is not None
    return model.head.logits(model(tokens)[0])
