"""Damaged, foreign and impossible places, through the command line: what is said, which exit code, nothing lost."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.cli.main import main
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.commit import list_checkpoints
from hornbook.run.checkpoints.manifest import verify_folder
from hornbook.run.doctor.check_run import check_run
from hornbook.run.doctor.compare_runs import compare_runs
from hornbook.run.loop import training_loop as train
from tests.processes import wait_until

NEWEST = "step-00000012"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> Path:
    """A finished run of 12 steps with checkpoints of steps 4, 8 and 12. Read only."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["train", "--out", str(folder), *tiny_settings]) == 0
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


def kinds(run: Path) -> list[str]:
    return [record["kind"] for record in read_records(RunDir(run).events)]


def assert_equal_to(whole: Path, run: Path) -> None:
    comparison = compare_runs(RunDir(whole), RunDir(run))
    assert comparison.equal, comparison
    assert comparison.steps == (12, 12)
    assert check_run(RunDir(run)).ok


# --- damaged checkpoints ----------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeros(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


class Trap:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (self.path,)


def pickle(path: Path) -> None:
    torch.save({"embedding.weight": Trap(path.parents[3] / "trap")}, path)


@pytest.mark.parametrize("damage", [flip, truncate, zeros, Path.unlink, pickle], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["model.safetensors", "trainer/optimizer.safetensors"])
def test_resume_goes_on_from_the_older_checkpoint_and_ends_equal(
    whole: Path, copy: Path, damage: Callable[[Path], None], name: str, capsys: pytest.CaptureFixture[str]
):
    damage(copy / "checkpoints" / NEWEST / name)
    assert main(["resume", str(copy)]) == 0
    told = capsys.readouterr().err
    assert f"{NEWEST}: {name}" in told
    assert "an older checkpoint is used" in told
    assert "checkpoint_damaged" in kinds(copy)
    assert (copy / "checkpoints" / f"damaged-{NEWEST}").is_dir()
    assert not (copy.parent / "trap").exists()
    assert_equal_to(whole, copy)


def test_resume_never_begins_again_when_all_are_damaged(copy: Path, capsys: pytest.CaptureFixture[str]):
    folders = list_checkpoints(copy / "checkpoints")
    for folder in folders:
        flip(folder / "model.safetensors")
    before = {path: path.read_bytes() for path in (copy / "checkpoints").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["resume", str(copy)]) == 3
    said = capsys.readouterr().err
    assert all(f"{folder.name}: model.safetensors is damaged" in said for folder in folders)
    assert {path: path.read_bytes() for path in (copy / "checkpoints").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("verb", ["generate", "eval", "export"])
def test_readers_use_the_older_checkpoint_of_a_run_and_refuse_a_damaged_one(
    copy: Path, verb: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    words = {"generate": ["-p", "a", "--tokens", "2"], "export": ["--to", "hf", "--out", str(copy / "out")]}.get(
        verb, []
    )
    flip(copy / "checkpoints" / NEWEST / "model.safetensors")
    assert main([verb, str(copy / "checkpoints" / NEWEST), *words]) == 3
    assert "model.safetensors is damaged" in capsys.readouterr().err
    assert main([verb, str(copy), *words]) == 0
    assert "step-00000008 is used" in caplog.text
    assert (copy / "checkpoints" / NEWEST).is_dir()


@pytest.mark.parametrize("verb", ["generate", "eval", "export"])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_pickle_is_refused_and_not_run(copy: Path, verb: str, name: str, capsys: pytest.CaptureFixture[str]):
    words = {"generate": ["-p", "a"], "export": ["--to", "hf", "--out", str(copy / "out")]}.get(verb, [])
    folder = shutil.copytree(copy / "checkpoints" / NEWEST, copy.parent / "a" / "b" / "foreign")
    (folder / "MANIFEST.json").unlink()
    (folder / "model.safetensors").unlink()
    pickle(folder / name)
    assert main([verb, str(folder), *words]) == 3
    assert "pickle" in capsys.readouterr().err
    assert not list(copy.parent.rglob("trap"))


# --- two owners -------------------------------------------------------------------------------------------------------


def test_a_second_process_on_a_run_is_refused_and_the_first_goes_on(
    tmp_path: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    words = ["train", "--out", str(run), *tiny_settings, "train.tokens=100M", "checkpoint.every=0"]
    command = [sys.executable, "-m", "hornbook.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        try:
            wait_until(lambda: RunDir(run).metrics.exists() and RunDir(run).metrics.stat().st_size > 0)
            capsys.readouterr()
            assert main(["resume", str(run)]) == 6
            assert f"in use by process {first.pid} on" in capsys.readouterr().err
            assert main(["train", "--out", str(run), *tiny_settings]) == 2
            assert first.poll() is None
            first.send_signal(signal.SIGTERM)
            assert first.wait(120) == 75
        finally:
            first.kill()
    (saved,) = list_checkpoints(run / "checkpoints")
    assert verify_folder(saved).step > 0
    assert check_run(RunDir(run)).ok


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small file system with the given options; a second call changes them."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        again = "remount," if place.is_mount() else ""
        command = ["mount", "-t", "tmpfs", "-o", again + options, "none", str(place)]
        if shutil.which("mount") is None or os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
            pytest.skip("mounting a small file system needs root and the right to mount")
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("lacking", ["bytes", "inodes"])
def test_a_full_disk_ends_the_run_and_loses_nothing(
    whole: Path,
    tiny_settings: tuple[str, ...],
    disk: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    lacking: str,
):
    size = verify_folder(whole / "checkpoints" / NEWEST).total_bytes
    entries, files = len([*whole.rglob("*")]), len([*(whole / "checkpoints" / NEWEST).rglob("*")])
    place = disk(
        f"size={size * 2 // 1024 + 100}k" if lacking == "bytes" else f"size=100m,nr_inodes={entries - files * 3 // 2}"
    )
    capsys.readouterr()
    assert main(["train", "--out", str(place / "run"), *tiny_settings]) == 7
    said = capsys.readouterr().err
    assert "bytes" in said or "No space left" in said
    saved = list_checkpoints(place / "run" / "checkpoints")
    assert saved
    assert all(verify_folder(folder).step for folder in saved)
    assert not list((place / "run").rglob(".tmp-*"))
    disk("size=100m,nr_inodes=1000")
    assert main(["resume", str(place / "run")]) == 0
    assert_equal_to(whole, place / "run")


@pytest.mark.parametrize("ballast", [True, False])
def test_a_run_with_ballast_saves_and_stops_on_a_disk_that_others_fill(
    whole: Path,
    tiny_settings: tuple[str, ...],
    disk: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ballast: bool,
):
    """Somebody else fills the disk behind step 3 of a run that has saved nothing yet."""
    place, really = disk("size=20m"), train.take_step

    def step_on_a_disk_that_fills(*given: Any) -> Any:
        step = really(*given)
        if step.step == 3:
            with contextlib.suppress(OSError), (place / "filler").open("wb", buffering=0) as filler:
                for size in (1 << 16, 1):
                    with contextlib.suppress(OSError):
                        while True:
                            filler.write(bytes(size))
        return step

    monkeypatch.setattr(train, "take_step", step_on_a_disk_that_fills)
    size = verify_folder(whole / "checkpoints" / NEWEST).total_bytes
    words = [f"checkpoint.ballast={3 * size if ballast else 0}"]
    assert main(["train", "--out", str(place / "run"), *tiny_settings, *words]) == (75 if ballast else 7)
    run = RunDir(place / "run")
    saved = [verify_folder(folder).step for folder in list_checkpoints(run.checkpoints)]
    assert bool(saved) == ballast
    if not ballast:
        return
    (stop,) = (record for record in read_records(run.events) if record["kind"] == "stop_requested")
    assert (stop["reason"], stop["step"]) == ("full disk", saved[0])
    assert saved[0] < 12
    assert not run.ballast.exists()
    capsys.readouterr()
    assert main(["resume", str(run.path)]) == 7  # no scheduler starts it again and again
    assert f"cannot reserve {3 * size:,} bytes (checkpoint.ballast)" in capsys.readouterr().err
    (place / "filler").unlink()
    assert main(["resume", str(run.path)]) == 0
    assert_equal_to(whole, run.path)
    assert not run.ballast.exists()


def test_a_read_only_place_is_refused_by_its_name(
    tiny_settings: tuple[str, ...], disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
):
    place = disk("size=10m")
    disk("ro")
    assert main(["train", "--out", str(place / "run"), *tiny_settings]) == 7
    said = capsys.readouterr().err
    assert str(place) in said
    assert "read-only" in said.lower()


def test_a_run_that_became_read_only_is_refused(
    whole: Path, disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
):
    run = shutil.copytree(whole, disk("size=100m") / "run")
    disk("ro")
    assert main(["resume", str(run)]) == 7
    assert str(run) in capsys.readouterr().err
