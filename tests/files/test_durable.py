"""Files and folders appear as a whole: a kill at every system call leaves the old one or the new one."""

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import StorageError
from hornbook.files.durable import clean_folder, create_atomic, write_atomic, writing, writing_folder

OPERATIONS = ("open", "write", "fsync", "rename", "replace", "link", "mkdir", "unlink", "rmdir", "stat", "listdir")
OPERATIONS += ("scandir", "close")
NEW = {"a.txt": b"new" * 1000, "inner/b.txt": b"new too"}
Act = Callable[[Path, Callable[[], None]], object]


def small(folder: Path, _: Callable[[], None]) -> None:
    write_atomic(folder / "x", b"new" * 1000)


def created(folder: Path, _: Callable[[], None]) -> None:
    create_atomic(folder / "x", "new" * 1000)


def streamed(folder: Path, step: Callable[[], None]) -> None:
    with writing(folder / "x") as file:
        for _ in range(1000):
            file.write(b"new")
        step()


def filled(folder: Path, step: Callable[[], None]) -> None:
    with writing_folder(folder / "x") as stage:
        for name, data in NEW.items():
            (stage / name).parent.mkdir(exist_ok=True)
            (stage / name).write_bytes(data)
            step()


ACTS: dict[str, Act] = {"small": small, "created": created, "streamed": streamed, "folder": filled}


def content(path: Path) -> object:
    """What is at a path: None, bytes, or the files of a folder by name."""
    if path.is_dir():
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return path.read_bytes() if path.exists() else None


def is_killed(act: Act, folder: Path, when: int) -> bool:
    """Do it in a fork that is killed before its `when`-th operation; False where there are fewer."""
    pid = os.fork()
    if pid == 0:
        try:
            act_until(act, folder, when)
        finally:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def act_until(act: Act, folder: Path, when: int) -> None:
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count == when:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            step()
            return real(*args, **kwargs)

        return operation

    for name in OPERATIONS:
        setattr(os, name, counted(getattr(os, name)))
    act(folder, step)
    os._exit(0)


@pytest.mark.parametrize(
    ("kind", "replaces"), [(kind, replaces) for kind in ACTS for replaces in (False, True)[: 1 + (kind != "created")]]
)
def test_a_kill_at_any_operation_leaves_the_old_whole_or_the_new_whole(tmp_path: Path, kind: str, replaces: bool):
    old: object = None
    new = NEW if kind == "folder" else b"new" * 1000
    seen, when, killed = set[bool](), 0, True
    while killed:
        when += 1
        folder = tmp_path / str(when)
        folder.mkdir()
        if replaces and kind == "folder":
            (folder / "x").mkdir()
            (folder / "x" / "a.txt").write_bytes(b"old")
        elif replaces:
            (folder / "x").write_bytes(b"old")
        old = content(folder / "x")
        killed = is_killed(ACTS[kind], folder, when)
        left = content(folder / "x")
        if replaces and kind == "folder" and left is None:
            assert content(folder / "x.old") == old
        clean_folder(folder, "x")
        assert content(folder / "x") in (old, new)
        assert sorted(os.listdir(folder)) in ([], ["x"])
        seen.add(content(folder / "x") == new)
        ACTS[kind](folder, lambda: None)
        assert (content(folder / "x"), os.listdir(folder)) == (new, ["x"])
    assert seen == {False, True}
    assert when > 5


@pytest.mark.parametrize("kind", ACTS)
def test_bytes_are_on_disk_before_the_name_is_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """What a power cut after any operation may leave, as far as the order of system calls decides it."""
    calls: list[tuple[str, int]] = []
    real = {name: getattr(os, name) for name in ("fsync", "rename", "replace", "link")}

    def fsync(file: int) -> None:
        calls.append(("fsync", os.fstat(file).st_ino))
        real["fsync"](file)

    def renamed(name: str) -> Callable[..., None]:
        def operation(*args: Any) -> None:
            calls.append(("name", os.stat(args[0]).st_ino))
            real[name](*args)

        return operation

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("rename", "replace", "link"):
        monkeypatch.setattr(os, name, renamed(name))
    ACTS[kind](tmp_path, lambda: None)
    path = tmp_path / "x"
    inside = {each.stat().st_ino for each in [path, *path.rglob("*")]}
    (at,) = [number for number, (call, _) in enumerate(calls) if call == "name"]
    assert {inode for _, inode in calls[: at + 1]} == inside
    assert [call for call, _ in calls[:at]] == ["fsync"] * len(inside)
    assert calls[at + 1 :] == [("fsync", tmp_path.stat().st_ino)]


@pytest.mark.parametrize("name", ["mkdir", "fsync", "rename"])
def test_a_folder_that_cannot_be_published_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    filled(tmp_path, lambda: None)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "x")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises(StorageError, match=r"cannot write .*x: Input/output error; the device reports errors"):
            filled(tmp_path, lambda: None)
    clean_folder(tmp_path, "x")
    assert (content(tmp_path / "x"), os.listdir(tmp_path)) == (NEW, ["x"])


def test_an_error_in_the_block_is_passed_on_and_nothing_is_left(tmp_path: Path):
    def broken(folder: Path) -> None:
        with writing_folder(folder / "x") as stage:
            (stage / "a").write_bytes(b"new")
            (folder / "missing").read_bytes()

    with pytest.raises(FileNotFoundError):
        broken(tmp_path)
    assert os.listdir(tmp_path) == []


def test_litter_of_killed_writers_goes_and_that_of_others_stays(tmp_path: Path):
    for name in (".tmp-x-123", ".tmp-x-2-123", ".tmp-y-123"):
        (tmp_path / name).mkdir()
    filled(tmp_path, lambda: None)
    assert sorted(os.listdir(tmp_path)) == [".tmp-x-2-123", ".tmp-y-123", "x"]


def test_a_file_appears_when_the_block_ends(tmp_path: Path):
    path = tmp_path / "sub" / "a.bin"
    with writing(path) as file:
        file.write(b"data")
        assert not path.exists()
    assert path.read_bytes() == b"data"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.bin"]


def fail_while_writing(path: Path) -> None:
    with writing(path) as file:
        file.write(b"new")
        raise RuntimeError


def test_after_an_error_the_old_file_stays_and_no_litter(tmp_path: Path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError):
        fail_while_writing(path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_closed_disk_is_a_storage_error_that_names_the_path(tmp_path: Path, code: int):
    with pytest.raises(StorageError, match=r"a\.bin"), writing(tmp_path / "a.bin"):
        raise OSError(code, os.strerror(code))


def test_write_atomic_replaces_or_leaves_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "state.json"
    write_atomic(path, "old")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
            with pytest.raises(StorageError, match="No space left"):
                write_atomic(path, "new")
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["state.json"]
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("known", [True, False])
def test_a_full_sync_reaches_the_disk_where_the_system_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
):
    """macOS: fsync does not; file systems that do not know the full sync get an fsync."""
    full, plain = [], []

    def control(descriptor: int, command: int) -> None:
        assert command == 51
        full.append(descriptor)
        if not known:
            raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", plain.append)
    write_atomic(tmp_path / "a", "text")
    assert len(full) == 2, "the file and its folder"
    assert len(plain) == (0 if known else 2)


def test_a_full_sync_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def control(descriptor: int, command: int) -> None:
        raise OSError(errno.EIO, f"Input/output error of {descriptor} {command}")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    with pytest.raises(StorageError):
        write_atomic(tmp_path / "a", "text")
    assert os.listdir(tmp_path) == []
