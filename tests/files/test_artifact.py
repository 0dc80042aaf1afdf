"""Tasks are done once; JSON files and digests."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hornbook.files.artifact import digest_file, digest_of, finished, once, read_json, write_json


@dataclass
class Job:
    """A task that writes one file."""

    folder: Path
    text: str = "a"
    count: int = 0

    @property
    def manifest(self) -> Path:
        return self.folder / "work" / "job.json"

    def key(self) -> str:
        return digest_of(self.text)

    def work(self) -> dict[str, Any]:
        assert not self.manifest.exists()  # it must not vouch for files that are being written
        self.count += 1
        (self.folder / "out").write_text(self.text)
        return {"bytes": len(self.text)}

    def do(self) -> dict[str, Any]:
        return once(self, self.work, lambda facts: (self.folder / "out").stat().st_size == facts["bytes"])


def test_a_task_is_done_once(tmp_path: Path):
    job = Job(tmp_path)
    assert (job.do(), job.do(), Job(tmp_path).do(), job.count) == ({"bytes": 1}, {"bytes": 1}, {"bytes": 1}, 1)
    assert read_json(job.manifest) == {"key": job.key(), "bytes": 1}
    assert finished(job.manifest, job.key()) == {"bytes": 1}
    assert finished(job.manifest, "another") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda job: setattr(job, "text", "b"),
        lambda job: job.manifest.unlink(),
        lambda job: job.manifest.write_text('{"key": '),
        lambda job: job.manifest.write_text("[]"),
        lambda job: (job.folder / "out").write_text(""),
    ],
)
def test_a_task_of_another_key_or_without_its_files_is_done_again(tmp_path: Path, change: Callable[[Job], object]):
    job = Job(tmp_path)
    job.do()
    change(job)
    assert (job.do(), job.do(), job.count) == ({"bytes": 1}, {"bytes": 1}, 2)
    assert (tmp_path / "out").read_text() == job.text


def test_a_task_that_fails_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    job = Job(tmp_path)
    job.do()
    job.text = "b"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            job.do()
    job.text = "a"
    assert (job.do(), job.count) == ({"bytes": 1}, 3)


def test_json_files_and_digests(tmp_path: Path):
    write_json(tmp_path / "a.json", {"b": 1, "a": [2]})
    assert read_json(tmp_path / "a.json") == {"a": [2], "b": 1}
    (tmp_path / "a.json").write_text('{"b": ')
    assert read_json(tmp_path / "a.json") is None
    assert read_json(tmp_path / "none.json") is None
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 1, "b": 3})
    (tmp_path / "x").write_bytes(b"x" * 3_000_000)
    (tmp_path / "y").write_bytes(b"x" * 2_999_999 + b"y")
    assert digest_file(tmp_path / "x") != digest_file(tmp_path / "y")
