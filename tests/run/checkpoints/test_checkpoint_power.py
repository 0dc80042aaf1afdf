"""Power cuts: the image of a mounted file system is copied, as a disk would be found, and looked at.

What the kernel has not been told to write is not in the copy, so a missing fsync shows here and nowhere else.
"""

import json
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hornbook.files.durable import write_atomic
from hornbook.files.journal import Appender, verify_chain
from hornbook.files.run_directory import RunDir
from hornbook.files.safetensors import read_header
from hornbook.model.storage.tensor_slices import TensorSlice, Writer, create_file
from hornbook.run.checkpoints.checkpoint_store import CheckpointStore
from hornbook.settings.training import CheckpointConfig
from tests import processes

NAMES = ("model.safetensors", "trainer/optimizer.safetensors")
SAVES = 11
IMAGE_BYTES = 24 << 20


class Content:
    """Some megabytes that follow from the step."""

    def __init__(self, step: int) -> None:
        self.step, self.tokens = step, step

    def create(self, folder: Path) -> None:
        (folder / "trainer").mkdir()
        for name in NAMES:
            create_file(folder / name, {"x": (175_000,)})
        (folder / "trainer" / "state.json").write_text(json.dumps({"step": self.step}))

    def fill(self, folder: Path) -> None:
        values = torch.frombuffer(bytearray(random.Random(self.step).randbytes(700_000)), dtype=torch.float32)
        with Writer() as writer:
            for name in NAMES:
                writer.write(read_header(folder / name)["x"], TensorSlice(values, (0,)))

    def read(self, folder: Path) -> None:
        self.step = json.loads((folder / "trainer" / "state.json").read_text())["step"]


def quiet(*words: str | Path) -> bool:
    return subprocess.run([str(word) for word in words], check=False, capture_output=True).returncode == 0


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """(image file, where it is mounted)."""
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    tools = all(shutil.which(name) for name in ("mkfs.ext4", "mount", "umount"))
    if (
        os.geteuid() != 0
        or not tools
        or not quiet("mkfs.ext4", "-q", image)
        or not quiet("mount", "-o", "loop", image, place)
    ):
        pytest.skip("a loop-mounted file system needs root, mkfs.ext4 and a loop device")
    yield image, place
    assert quiet("umount", place)


def unmoved(image: Path) -> bytes:
    """The image as it was at one moment: a disk loses power at once, a copy takes a while."""
    before = image.read_bytes()
    while (after := image.read_bytes()) != before:
        before = after
    return after


def found_after_cut(copy: Path) -> tuple[int, int, bool]:
    """Mount the copy: (step restored or 0, records of the ledger, whether the small file is whole)."""
    place = copy.with_suffix("")
    place.mkdir()
    assert quiet("mount", "-o", "loop", copy, place), "the copy does not mount"
    try:
        run, state = RunDir(place / "run"), Content(0)
        with Appender(run.events, chained=True):
            count = verify_chain(run.events)
        CheckpointStore(run.checkpoints, CheckpointConfig(keep=2)).restore(state)
        return state.step, count, not run.env.exists() or json.loads(run.env.read_text())["step"] >= 0
    finally:
        assert quiet("umount", place)
        copy.unlink()


def test_everything_acknowledged_survives_a_power_cut(
    mounted: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "fsync", processes.fsync)
    image, place = mounted
    run = RunDir(place / "run").create()
    checkpoints = CheckpointStore(run.checkpoints, CheckpointConfig(keep=2))
    cuts: list[tuple[Path, int, int]] = []
    acknowledged = threading.Event()

    def cut(step: int, noted: int) -> None:
        copy = tmp_path / f"cut-{len(cuts)}.img"
        copy.write_bytes(unmoved(image))
        cuts.append((copy, step, noted))

    with Appender(run.events, sync_seconds=0, chained=True) as ledger:
        for step in range(1, SAVES + 1):
            saving = threading.Thread(target=lambda step=step: (checkpoints.save(Content(step)), acknowledged.set()))
            saving.start()
            time.sleep(random.Random(step).uniform(0, 0.03))
            cut(step - 1, step - 1)
            saving.join()
            assert acknowledged.is_set()
            acknowledged.clear()
            ledger.append({"kind": "save", "step": step})
            write_atomic(run.env, json.dumps({"step": step}))
            cut(step, step)
    assert len(cuts) >= 21
    for copy, step, noted in cuts:
        restored, records, whole = found_after_cut(copy)
        assert restored in (step, step + 1)
        assert records >= noted
        assert whole
