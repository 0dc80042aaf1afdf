"""What of a folder serves training alone."""

from pathlib import Path

import torch

from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig, ParallelMTP
from hornbook.model.hf.hf import write_hf
from hornbook.model.init.init import initialize
from hornbook.model.surgery.folders import left_out, left_out_bytes, read_merged


def test_blocks_of_multi_token_prediction_have_bytes_of_their_own(tmp_path: Path) -> None:
    config = ModelConfig(layers=1, width=16, heads=2, mtp=ParallelMTP(depth=2))
    model = build_model(config, 64, "cpu")
    initialize(model, config, 1)
    write_hf(tmp_path / "model", model, config, 64, None)
    (file,) = (tmp_path / "model").glob("model*.safetensors")
    assert left_out(tmp_path / "model") == {"mtp_blocks": 2}
    kept = sum(4 * tensor.numel() for _, tensor in read_merged(tmp_path / "model")[2])
    whole = sum(4 * each.numel() for each in model.parameters())
    assert left_out_bytes(file) == whole - kept > 0
    assert model.mtp is not None
    assert left_out_bytes(file) == 4 * sum(map(torch.Tensor.numel, model.mtp.parameters()))
