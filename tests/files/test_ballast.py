"""Ballast holds space that is really there, and a full disk gets it back once."""

import errno
import os
from pathlib import Path

import pytest

from hornbook.errors import StorageError
from hornbook.files.ballast import release, reserve, with_room


@pytest.mark.parametrize("system", [True, False])
def test_its_bytes_are_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: bool) -> None:
    if not system:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    path = tmp_path / "ballast"
    for size in (3_000_000, 5_000, 5_000):
        reserve(path, size)
        found = path.stat()
        assert found.st_size == size
        assert found.st_blocks * 512 >= size
    reserve(path, 0)
    assert not path.exists()
    assert not release(path)


def test_a_disk_without_room_for_it_is_told_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(
        StorageError, match=r"cannot reserve 5,000 bytes \(checkpoint.ballast\).*lower checkpoint.ballast"
    ):
        reserve(tmp_path / "ballast", 5_000)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "there", "tries"),
    [(errno.ENOSPC, True, 2), (errno.EDQUOT, True, 2), (errno.ENOSPC, False, 2), (errno.EIO, True, 1)],
)
def test_a_write_to_a_full_disk_is_tried_again_once(tmp_path: Path, number: int, there: bool, tries: int) -> None:
    """Without ballast too: another thread may have deleted it between the failed write and its repetition."""
    path, calls = tmp_path / "ballast", list[bool]()
    if there:
        reserve(path, 100)

    def write() -> None:
        calls.append(path.exists())
        raise StorageError("no") from OSError(number, "no")

    with pytest.raises(StorageError):
        with_room(path, write)
    assert calls == [there, False][:tries]
