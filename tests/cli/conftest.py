"""Fixtures of the command line's tests: a tiny checkpoint, and a run that holds it."""

import shutil
from pathlib import Path

import pytest

VOCAB = 320


def write_checkpoint(folder: Path, tokenizer: Path | None) -> Path:
    """A LLaMA of two layers with initial values, and 320 rows of embedding for a tokenizer of 257 ids."""
    from hornbook.model.build_model import build_model
    from hornbook.model.config.attention_config import FullAttentionConfig
    from hornbook.model.config.init_config import ScaledNormal
    from hornbook.model.config.model_config import ModelConfig
    from hornbook.model.config.position_config import RopeConfig
    from hornbook.model.hf.hf import write_hf
    from hornbook.model.init.init import initialize

    config = ModelConfig(
        layers=2,
        width=32,
        heads=4,
        attention=FullAttentionConfig(kv_heads=2),
        position=RopeConfig(length=64),
        init=ScaledNormal(std=0.3),
    )
    model = build_model(config, VOCAB, "cpu")
    initialize(model, config, seed=1)
    write_hf(folder, model, config, VOCAB, tokenizer)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Path) -> Path:
    """A checkpoint folder with a tokenizer. Read only: a test that changes it copies it."""
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "model", tiny_corpus / "tokenizer")


@pytest.fixture(scope="session")
def run_with_checkpoints(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """A run directory with the checkpoints of steps 10 and 20, both `checkpoint`. Read only."""
    from hornbook.files.run_directory import RunDir
    from hornbook.run.checkpoints.checkpoint_store import CheckpointStore
    from hornbook.settings.training import CheckpointConfig

    class Saved:
        def __init__(self, step: int) -> None:
            self.step, self.tokens = step, 100 * step

        def create(self, folder: Path) -> None:
            shutil.copytree(checkpoint, folder, dirs_exist_ok=True)

        def fill(self, folder: Path) -> None:
            """It is all there."""

    run = RunDir(tmp_path_factory.mktemp("runs") / "run").create()
    for step in (10, 20):
        CheckpointStore(run.checkpoints, CheckpointConfig()).save(Saved(step))
    return run.path
