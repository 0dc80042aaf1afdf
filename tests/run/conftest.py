"""Fixtures of runs on many processes: a run without interruption, and what is equal to it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.files.journal import verify_chain
from hornbook.files.run_directory import RunDir
from tests.run.launcher import Launcher

Branch = Callable[[Path], list[dict[str, Any]]]
BERT = (
    'model.kind="encoder"',
    'model.block="post"',
    "model.embedding.norm=true",
    "model.embedding.types=2",
    "model.attention.bias=true",
    "model.attention.out_bias=true",
    'model.mlp={kind="mlp", activation="gelu"}',
    'model.norm={kind="layer", eps=1e-12}',
    'model.position={kind="learned", length=64}',
)
"""Settings of an encoder as BERT is; its head and objective are to be added."""


@pytest.fixture(scope="module")
def train_whole(
    launcher: Launcher, tiny_settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """train_whole("key=value", ...) -> the folder of the tiny run, trained without any interruption."""

    def train(*words: str) -> Path:
        folder = tmp_path_factory.mktemp("whole") / "run"
        started = launcher.start(
            ["train", "--out", str(folder), *tiny_settings, *words], folder.with_name("output.txt")
        )
        assert started.wait() == 0, started.text
        return folder

    return train


@pytest.fixture
def same(whole: Path, branch: Branch) -> Callable[[Path], None]:
    """Asserts that a run has the losses and the last bytes of the module's `whole`, a sound ledger, and no litter."""

    def check(folder: Path) -> None:
        assert branch(folder) == branch(whole)
        assert last_tensors(folder) == last_tensors(whole)
        verify_chain(RunDir(folder).events)
        assert not list(folder.rglob(".tmp-*"))

    return check


def last_tensors(folder: Path) -> dict[str, bytes]:
    """Files of weights and moments of the last step of the tiny run."""
    checkpoint = RunDir(folder).checkpoints / "step-00000012"
    return {str(path.relative_to(checkpoint)): path.read_bytes() for path in sorted(checkpoint.rglob("*.safetensors"))}
