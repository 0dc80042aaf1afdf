"""A run with experts and linear attention: the routers' biases are part of the state that a checkpoint holds."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hornbook.cli.main import main

WORDS = (
    "model.layers=2",
    'model.attention.kind="delta"',
    'model.mlp.kind="experts"',
    "model.mlp.count=4",
    "model.mlp.hidden=16",
    'model.mlp.router.kind="sigmoid"',
    "model.mlp.router.balance_rate=0.0009765625",
)


def test_a_run_that_went_on_from_a_checkpoint_has_the_same_bits(
    tmp_path: Path, tiny_settings: tuple[str, ...], branch: Callable[[Path], list[dict[str, Any]]]
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["train", "--out", str(whole), *tiny_settings, *WORDS]) == 0
    shutil.copytree(whole, cut)
    for step in (8, 12):
        (cut / f"checkpoints/step-{step:08}/model.safetensors").write_bytes(b"damaged")
    assert main(["resume", str(cut)]) == 0
    assert branch(cut) == branch(whole)
    weights, again = (load_file(run / "checkpoints/step-00000012/model.safetensors") for run in (whole, cut))
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    biases = [tensor for name, tensor in weights.items() if name.endswith("router.bias")]
    assert len(biases) == 2
    moves = torch.stack(biases) * 1024
    assert moves.any()
    assert torch.equal(moves, moves.round())
