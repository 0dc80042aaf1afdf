"""Kernels on disk: whole or not there, of bounded size, wherever a folder can be written."""

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hornbook.kernels import folder as kernel_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every place that the user or the system names lies below `tmp_path`."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HORNBOOK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "home" / "kernels"


def test_what_was_written_is_read(home: Path):
    assert kernel_folder.read("cpu/one") is None
    assert kernel_folder.write("cpu/one", b"code")
    assert kernel_folder.read("cpu/one") == b"code"
    assert kernel_folder.names("cpu") == {"cpu/one"}
    assert [path.name for path in home.rglob("*")] == ["cpu", "one"]  # nothing unfinished


@pytest.mark.parametrize("damage", ["cut", "bit", "empty"])
def test_a_damaged_kernel_is_as_if_it_were_not_there(home: Path, damage: str):
    kernel_folder.write("cpu/one", b"code")
    data = (home / "cpu" / "one").read_bytes()
    broken = {"cut": data[:-1], "bit": data[:-1] + bytes([data[-1] ^ 1]), "empty": b""}[damage]
    (home / "cpu" / "one").write_bytes(broken)
    assert kernel_folder.read("cpu/one") is None
    kernel_folder.write("cpu/one", b"code")
    assert kernel_folder.read("cpu/one") == b"code"


def test_places_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = tmp_path / "temporary" / f"hornbook-{os.getuid()}" / "kernels"
    assert list(kernel_folder.folders()) == [tmp_path / "home" / "kernels", own]
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))  # none of what lies elsewhere is read then
    assert list(kernel_folder.folders()) == [tmp_path / "numba" / "hornbook", own]
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.delenv("HORNBOOK_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert list(kernel_folder.folders()) == [tmp_path / "cache" / "hornbook" / "kernels", own]


def test_a_home_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "home").write_text("a file where a folder should be")
    assert kernel_folder.write("cpu/one", b"code")
    assert kernel_folder.read("cpu/one") == b"code"
    assert (tmp_path / "temporary" / f"hornbook-{os.getuid()}" / "kernels" / "cpu" / "one").exists()


def test_kernels_that_others_could_have_written_are_not_run(tmp_path: Path):
    (tmp_path / "home").write_text("")
    kernel_folder.write("cpu/one", b"code")
    (tmp_path / "temporary" / f"hornbook-{os.getuid()}").chmod(0o777)
    assert kernel_folder.read("cpu/one") is None
    assert kernel_folder.names("cpu") == set()
    assert not kernel_folder.write("cpu/two", b"code")


def test_the_folder_stays_small(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernel_folder, "MOST_BYTES", 100)
    now = time.time()
    (home / "old").mkdir(parents=True)
    for age, name in enumerate(["new", "middle", "oldest"], 1):
        (home / "old" / name).write_bytes(bytes(40))
        os.utime(home / "old" / name, (now - 1e6 * age, now - 1e6 * age))
    (home / "old" / ".tmp-x").write_bytes(b"")
    os.utime(home / "old" / ".tmp-x", (now - 1e6, now - 1e6))
    kernel_folder.write("cpu/one", bytes(10))
    assert {path.name for path in home.rglob("*") if path.is_file()} == {"one", "new"}


def test_use_is_noted(home: Path):
    kernel_folder.write("cpu/one", b"code")
    os.utime(home / "cpu" / "one", (0, 0))
    kernel_folder.read("cpu/one")
    assert time.time() - (home / "cpu" / "one").stat().st_mtime < 3600


def test_several_at_once(home: Path):
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: kernel_folder.write("cpu/one", bytes(10_000)), range(50)))
    assert kernel_folder.read("cpu/one") == bytes(10_000)
    assert [path.name for path in (home / "cpu").iterdir()] == ["one"]
