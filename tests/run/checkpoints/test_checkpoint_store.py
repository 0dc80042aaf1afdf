"""Checkpoints: what is damaged is always found, and the newest good one is always used."""

import errno
import json
import logging
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save, save_file

from hornbook.errors import IntegrityError, StorageError, TakenOverError, UsageError
from hornbook.files.filesystem import open_inside
from hornbook.files.safetensors import read_header as read_tensors
from hornbook.files.safetensors import read_header_inside
from hornbook.model.storage.tensor_slices import TensorSlice, Writer, create_file
from hornbook.run.checkpoints.checkpoint_store import HEADROOM, CheckpointStore
from hornbook.run.checkpoints.find_checkpoint import check_weights, checkpoint_path, newest_verified
from hornbook.run.checkpoints.manifest import MANIFEST, ValidationLoss, read_manifest, verify_folder
from hornbook.run.doctor.compare_runs import list_tensors, same_bytes
from hornbook.settings.training import CheckpointConfig

FILES = ("config.json", "model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json", MANIFEST)


class Weights:
    """A small state of real tensors."""

    def __init__(self, step: int = 0) -> None:
        self.step, self.tokens = step, step * 64
        self.tensor = torch.arange(40, dtype=torch.float32) + step

    def create(self, folder: Path) -> None:
        (folder / "trainer").mkdir()
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        create_file(folder / "model.safetensors", {"w": tuple(self.tensor.shape)})
        create_file(folder / "trainer" / "optimizer.safetensors", {"m": tuple(self.tensor.shape)})
        (folder / "trainer" / "state.json").write_text(json.dumps({"step": self.step}))

    def fill(self, folder: Path) -> None:
        for name, tensor in (("model.safetensors", self.tensor), ("trainer/optimizer.safetensors", self.tensor * 2)):
            (entry,) = read_tensors(folder / name).values()
            with Writer() as writer:
                writer.write(entry, TensorSlice(tensor, (0,)))

    def read(self, folder: Path) -> None:
        self.step = json.loads((folder / "trainer" / "state.json").read_text())["step"]


def make(folder: Path, steps: range = range(1, 4), **config: int | bool) -> CheckpointStore:
    checkpoints = CheckpointStore(folder, CheckpointConfig.model_validate({"keep": 99, **config}))
    for step in steps:
        checkpoints.save(Weights(step))
    return checkpoints


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def restored(checkpoints: CheckpointStore) -> int:
    state = Weights()
    checkpoints.restore(state)
    return state.step


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_each_of_200_flipped_bits_is_found(tmp_path: Path, name: str):
    checkpoints = make(tmp_path, range(1, 2))
    folder = tmp_path / "step-00000001"
    bits = 8 * (folder / name).stat().st_size
    generator = random.Random(name)
    missed = []
    for bit in [generator.randrange(bits) for _ in range(200)]:
        flip(folder / name, bit)
        try:
            checkpoints.verify(folder)
            missed.append(bit)
        except IntegrityError:
            pass
        flip(folder / name, bit)
    checkpoints.verify(folder)
    assert missed == []


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def zero_tail(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-16] + bytes(16))


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def of_another_step(path: Path) -> None:
    folder = next(parent for parent in path.parents if parent.name.startswith("step-"))
    source = folder.with_name("step-00000002") / path.relative_to(folder)
    shutil.copyfile(source, path)


def to_link(path: Path) -> None:
    copy = path.with_name(path.name + ".copy")
    path.rename(copy)
    path.symlink_to(copy.name)


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = (truncate, zero_tail, grow, of_another_step, to_link, to_pipe, Path.unlink)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_damage_is_found_set_aside_and_the_older_checkpoint_used(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
):
    if name == "config.json" and damage is of_another_step:
        pytest.skip("the same bytes in every step")
    if name == MANIFEST and damage is of_another_step:
        name = "trainer/state.json"
    checkpoints = make(tmp_path)
    damage(tmp_path / "step-00000003" / name)
    assert newest_verified(tmp_path) == tmp_path / "step-00000002"
    assert restored(checkpoints) == 2
    (note,) = checkpoints.take_notes()
    assert note.kind == "checkpoint_damaged"
    assert Path(name).name in note.text
    assert "an older checkpoint is used" in note.text
    assert names(tmp_path) == ["damaged-step-00000003", "step-00000001", "step-00000002"]
    checkpoints.save(Weights(3))
    assert restored(checkpoints) == 3
    assert checkpoints.take_notes() == []


def test_swapped_files_are_found(tmp_path: Path):
    checkpoints = make(tmp_path)
    folder = tmp_path / "step-00000003"
    (folder / "model.safetensors").rename(folder / "x")
    (folder / "trainer" / "optimizer.safetensors").rename(folder / "model.safetensors")
    (folder / "x").rename(folder / "trainer" / "optimizer.safetensors")
    assert restored(checkpoints) == 2


def test_every_problem_of_a_checkpoint_is_named(tmp_path: Path):
    make(tmp_path)
    folder = tmp_path / "step-00000003"
    truncate(folder / "model.safetensors")
    (folder / "trainer" / "state.json").unlink()
    with pytest.raises(IntegrityError, match=r"model.safetensors has .* bytes instead of .*state.json is missing"):
        verify_folder(folder)


def test_a_directory_under_the_name_of_another_step_is_found(tmp_path: Path):
    checkpoints = make(tmp_path)
    shutil.rmtree(tmp_path / "step-00000003")
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "step-00000003")
    assert restored(checkpoints) == 2


def test_all_damaged_is_an_error_that_names_all_and_touches_nothing(tmp_path: Path):
    checkpoints = make(tmp_path)
    for step in (1, 2, 3):
        flip(tmp_path / f"step-0000000{step}" / "model.safetensors", 900)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(IntegrityError) as caught:
        restored(checkpoints)
    assert all(f"step-0000000{step}: model.safetensors is damaged" in str(caught.value) for step in (1, 2, 3))
    assert "nothing was deleted" in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("gone", ["trainer/optimizer.safetensors", "trainer/state.json", "model.safetensors"])
def test_a_whole_checkpoint_without_what_a_resume_needs_is_refused(tmp_path: Path, gone: str):
    class Partial(Weights):
        def fill(self, folder: Path) -> None:
            super().fill(folder)
            (folder / gone).unlink()

    checkpoints = make(tmp_path / "c", range(0))
    checkpoints.save(Partial(1))
    with pytest.raises(IntegrityError, match=r"missing: a run cannot go on"):
        restored(checkpoints)


def test_no_checkpoint_at_all_is_not_an_error(tmp_path: Path):
    assert CheckpointStore(tmp_path / "absent", CheckpointConfig()).restore(Weights()) is None
    assert make(tmp_path, range(0)).restore(Weights()) is None


# --- manifests from elsewhere -----------------------------------------------------------------------------------------


def forge(folder: Path, name: str) -> None:
    """A manifest with one more file, rightly hashed."""
    manifest = read_manifest(folder)
    files = {**manifest.files, name: (6, "0" * 32)}
    forged = type(manifest)(manifest.step, manifest.tokens, None, False, files)
    (folder / MANIFEST).write_bytes(manifest_bytes(forged))


def manifest_bytes(manifest: object) -> bytes:
    from hornbook.run.checkpoints import manifest as module

    return module._encode(manifest)  # pyright: ignore


BAD_NAMES = ["../secret", "/etc/hostname", "a/../../secret", "./config.json", "", "trainer//state.json", "x\0y", "."]
BAD_NAMES += ["link", "loop/config.json", "pipe", "trainer"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_leave_the_checkpoint_are_refused_unread(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    make(tmp_path, range(1, 2))
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "step-00000001"
    (folder / "link").symlink_to("../secret")
    (folder / "loop").symlink_to(".")
    os.mkfifo(folder / "pipe")
    forge(folder, name)
    opened: list[str] = []
    real = os.open

    def spy(path: str, *args: int, **kwargs: int) -> int:
        opened.append(str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", spy)
    with pytest.raises(IntegrityError, match=r"not a name inside|not a regular file"):
        verify_folder(folder)
    assert not {"secret", "link", "pipe", "/etc/hostname", "loop"} & set(opened)


def test_a_device_is_not_opened(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("making a device file needs root")
    try:
        os.mknod(tmp_path / "zero", 0o20644, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this system makes no device files here")
    with pytest.raises(IntegrityError, match="not a regular file"):
        open_inside(tmp_path, "zero")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", "[" * 100_000, '{"xxh3_128": 1}', "\0" * 100, '{"files": 3}'],
    ids=["empty", "list", "null", "no keys", "deep", "wrong hash", "zeros", "number"],
)
def test_broken_manifests(tmp_path: Path, text: str):
    make(tmp_path, range(1, 2))
    (tmp_path / "step-00000001" / MANIFEST).write_text(text)
    with pytest.raises(IntegrityError):
        verify_folder(tmp_path / "step-00000001")


def test_a_huge_manifest_is_not_read(tmp_path: Path):
    make(tmp_path, range(1, 2))
    os.truncate(tmp_path / "step-00000001" / MANIFEST, 1 << 40)
    with pytest.raises(IntegrityError, match="larger than"):
        verify_folder(tmp_path / "step-00000001")


def test_a_linked_checkpoint_directory_is_not_listed(tmp_path: Path):
    checkpoints = make(tmp_path)
    (tmp_path / "step-00000009").symlink_to("step-00000001")
    assert restored(checkpoints) == 3
    with pytest.raises(IntegrityError, match="not a directory"):
        verify_folder(tmp_path / "step-00000009")


# --- pickles and headers ----------------------------------------------------------------------------------------------


class Payload:
    """Unpickling it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "model.pt"])
def test_a_pickle_where_weights_should_be_is_refused_and_not_run(tmp_path: Path, name: str):
    trap = tmp_path / "trap"
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    torch.save({"w": Payload(str(trap))}, folder / name)
    with pytest.raises(IntegrityError, match="pickle"):
        checkpoint_path(folder)
    assert not trap.exists()


def header(text: str | bytes, length: int | None = None, data: int = 4) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(data)


GOOD = '"dtype":"F32","shape":[1],"data_offsets":[0,4]'
BAD_HEADERS = {
    "length beyond 2^63": header("{}", 1 << 63),
    "length beyond the file": header("{}", 500),
    "empty": b"",
    "seven bytes": b"1234567",
    "not json": header("{{}"),
    "a list": header("[]"),
    "twice": header(f'{{"a":{{{GOOD}}},"a":{{{GOOD}}}}}'),
    "overlap": header(f'{{"a":{{{GOOD}}},"b":{{{GOOD}}}}}'),
    "gap": header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', data=8),
    "negative": header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}'),
    "negative shape": header('{"a":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}'),
    "shape and offsets": header('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}'),
    "unknown type": header('{"a":{"dtype":"Z9","shape":[1],"data_offsets":[0,4]}}'),
    "cut short": header(f'{{"a":{{{GOOD}}}}}', data=3),
    "too long": header(f'{{"a":{{{GOOD}}}}}', data=5),
    "deep": header("[" * 100_000),
    "no utf-8": header(b'{"\xff":1}'),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_hostile_headers_are_refused(tmp_path: Path, case: str):
    (tmp_path / "model.safetensors").write_bytes(BAD_HEADERS[case])
    with pytest.raises(IntegrityError, match=r"model\.safetensors"):
        check_weights(tmp_path)


def test_headers_agree_with_the_library(tmp_path: Path):
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).to(torch.bfloat16),
        "c": torch.arange(4),
        "empty": torch.zeros(0, 3),
        "flag": torch.tensor([True]),
    }
    raw = save(tensors, {"format": "pt"})
    (tmp_path / "model.safetensors").write_bytes(raw)
    places = read_header_inside(tmp_path, "model.safetensors")
    assert {name: place.shape for name, place in places.items()} == {n: tuple(t.shape) for n, t in tensors.items()}
    for name, place in places.items():
        data = tensors[name].view(torch.uint8).numpy() if tensors[name].numel() else torch.zeros(0).numpy()
        assert raw[place.begin : place.end] == data.tobytes()


def test_tensors_are_compared_by_their_bits(tmp_path: Path):
    for name, value in (("a", 0.0), ("b", -0.0), ("c", 0.0)):
        (tmp_path / name).mkdir()
        save_file({"x": torch.tensor([value, float("nan")])}, tmp_path / name / "m.safetensors")
    a, b, c = (list_tensors(tmp_path / name)["x"] for name in "abc")
    assert same_bytes(a, c)
    assert not same_bytes(a, b)


# --- keeping ----------------------------------------------------------------------------------------------------------


def test_a_run_that_may_go_back_keeps_a_checkpoint_from_long_before(tmp_path: Path):
    """Twenty steps back: one of them or the next, and one that will be it, whatever else goes."""
    checkpoints = CheckpointStore(tmp_path, CheckpointConfig(keep=2), back=20)
    for step in range(1, 48):
        checkpoints.save(Weights(step))
        there = [int(name[-2:]) for name in names(tmp_path)]
        assert len(there) <= 4
        assert there[-1] == step
        assert step < 25 or any(20 <= step - old <= 41 for old in there), there


def test_keep_policy(tmp_path: Path):
    checkpoints = CheckpointStore(tmp_path, CheckpointConfig(keep=2, keep_every=4))
    scores = {step: ValidationLoss(loss, "some") for step, loss in {1: 9.0, 2: 5.0, 3: 7.0, 5: 6.0}.items()}
    for step in range(1, 11):
        checkpoints.save(Weights(step), score=scores.get(step))
    steps = [int(name[-2:]) for name in names(tmp_path)]
    assert steps == [2, 4, 8, 9, 10]
    assert (tmp_path / "latest").read_text() == "step-00000010\n"
    assert (tmp_path / "best").read_text() == "step-00000002\n"
    again = CheckpointStore(tmp_path, CheckpointConfig(keep=1))
    assert restored(again) == 10
    again.save(Weights(11), score=ValidationLoss(4.0, "some"))
    assert (tmp_path / "best").read_text() == "step-00000011\n"
    assert names(tmp_path) == ["step-00000011"]
    again.save(Weights(12), score=ValidationLoss(4.5, "some"))
    assert (tmp_path / "best").read_text() == "step-00000011\n"
    again.save(Weights(13), score=ValidationLoss(9.0, "other rows"))  # not comparable: the best starts anew
    assert (tmp_path / "best").read_text() == "step-00000013\n"
    again.save(Weights(14), score=ValidationLoss(9.5, "other rows"))
    assert (tmp_path / "best").read_text() == "step-00000013\n"


def test_the_newest_that_verifies_is_never_removed(tmp_path: Path):
    make(tmp_path, range(1, 4))
    flip(tmp_path / "step-00000003" / "config.json", 3)
    checkpoints = CheckpointStore(tmp_path, CheckpointConfig(keep=1))
    assert restored(checkpoints) == 2
    assert "step-00000002" in names(tmp_path)


def test_litter_of_dead_writers_is_removed_and_noted(tmp_path: Path):
    checkpoints = make(tmp_path)
    (tmp_path / ".tmp-step-00000004-77").mkdir()
    (tmp_path / ".tmp-step-00000004-77" / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".tmp-latest-77").write_text("x")
    (tmp_path / "step-00000003").rename(tmp_path / "step-00000003.old")
    assert restored(checkpoints) == 3
    assert names(tmp_path) == ["step-00000001", "step-00000002", "step-00000003"]
    assert sorted(Path(note.path).name for note in checkpoints.take_notes()) == [
        ".tmp-latest-77",
        ".tmp-step-00000004-77",
        "step-00000003.old",
    ]


# --- space ------------------------------------------------------------------------------------------------------------


def have_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


def test_too_little_space_is_told_in_bytes_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoints = make(tmp_path, range(1, 2), keep=1)
    needed = int(HEADROOM * read_manifest(tmp_path / "step-00000001").total_bytes)
    have_free(monkeypatch, needed - 1)
    with pytest.raises(StorageError, match=f"needs {needed:,} bytes and {needed - 1:,} are free"):
        checkpoints.save(Weights(2))
    assert names(tmp_path) == ["step-00000001"]
    have_free(monkeypatch, needed)
    checkpoints.save(Weights(2))
    assert names(tmp_path) == ["step-00000002"]


def test_surplus_checkpoints_make_room_but_only_if_that_suffices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoints = make(tmp_path, range(1, 5), keep=4)
    size = read_manifest(tmp_path / "step-00000004").total_bytes
    needed = int(HEADROOM * size)
    have_free(monkeypatch, needed - 3 * size - 1)
    with pytest.raises(StorageError):
        checkpoints.save(Weights(5))
    assert len(names(tmp_path)) == 4
    have_free(monkeypatch, needed - 2 * size)
    checkpoints.save(Weights(5))
    assert names(tmp_path) == ["step-00000003", "step-00000004", "step-00000005"]
    assert [note.kind for note in checkpoints.take_notes()] == ["checkpoint_removed"] * 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)]
    if shutil.which("mount") is None or os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root and the right to mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_older_checkpoints_and_no_litter(small_disk: Path):
    folder = small_disk / "checkpoints"
    checkpoints = make(folder, range(1, 3))
    big = Weights(3)
    big.tensor = torch.zeros(100_000)
    with pytest.raises(StorageError, match=r"[Nn]o space left"):
        checkpoints.save(big)
    assert names(folder) == ["step-00000001", "step-00000002"]
    assert not [name for name in os.listdir(folder) if name.startswith(".tmp-")]
    assert restored(checkpoints) == 2
    checkpoints.save(Weights(3))
    assert restored(checkpoints) == 3


def test_what_goes_wrong_after_the_commit_is_noted_not_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoints = make(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("hornbook.run.checkpoints.checkpoint_store.write_atomic", fail)
    assert checkpoints.save(Weights(4)) == tmp_path / "step-00000004"
    assert [note.kind for note in checkpoints.take_notes()] == ["tidying_failed"]
    assert restored(checkpoints) == 4


# --- what people name -------------------------------------------------------------------------------------------------


def test_runs_steps_pointers_and_folders_name_checkpoints(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = tmp_path / "checkpoints"
    checkpoints = make(folder)
    checkpoints.save(Weights(4), score=ValidationLoss(1.0, "some"))
    checkpoints.save(Weights(5), score=ValidationLoss(2.0, "some"))
    assert checkpoint_path(tmp_path) == folder / "step-00000005"
    assert checkpoint_path(str(folder)) == folder / "step-00000005"
    assert checkpoint_path(tmp_path, 2) == folder / "step-00000002"
    assert checkpoint_path(folder / "best") == folder / "step-00000004"
    assert checkpoint_path(folder / "step-00000001") == folder / "step-00000001"
    flip(folder / "step-00000005" / "model.safetensors", 999)
    with caplog.at_level(logging.WARNING):
        assert checkpoint_path(tmp_path) == folder / "step-00000004"
    assert "model.safetensors is damaged" in caplog.text
    assert "step-00000004 is used" in caplog.text
    with pytest.raises(IntegrityError, match="damaged"):
        checkpoint_path(tmp_path, 5)
    with pytest.raises(UsageError, match=r"no checkpoint of step 9; there are: 1, 2, 3, 4, 5"):
        checkpoint_path(tmp_path, 9)
    with pytest.raises(UsageError, match="one checkpoint"):
        checkpoint_path(folder / "step-00000001", 1)
    assert "damaged-step" not in " ".join(names(folder)), "readers change nothing"


def test_names_that_are_no_checkpoint(tmp_path: Path):
    with pytest.raises(UsageError, match="no such run"):
        checkpoint_path(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="not a run"):
        checkpoint_path(tmp_path / "file")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UsageError, match="no checkpoint yet"):
        checkpoint_path(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(IntegrityError, match="no weights"):
        checkpoint_path(tmp_path / "empty")
    (tmp_path / "best").write_text("../../etc\n")
    with pytest.raises(UsageError, match="not a run"):
        checkpoint_path(tmp_path / "best")


@pytest.mark.parametrize("calls", [1, 2], ids=["before it writes", "while it writes"])
def test_a_run_that_was_taken_over_leaves_checkpoints_as_they_are(tmp_path: Path, calls: int):
    before = make(tmp_path, keep=2)
    assert before.digests["manifest"]
    stage = tmp_path / ".tmp-step-00000004-7"  # of the process that took the run over
    stage.mkdir()
    seen: list[int] = []

    def check_owner() -> None:
        seen.append(1)
        if len(seen) == calls:
            raise TakenOverError("was taken over")

    checkpoints = CheckpointStore(tmp_path, CheckpointConfig(keep=1), check_owner=check_owner)
    there = names(tmp_path)
    with pytest.raises(TakenOverError):
        checkpoints.save(Weights(4))
    assert names(tmp_path) == (there if calls == 1 else [name for name in there if name != stage.name])
