"""What a disk that fails does not say is never taken for "it is not there", on any Python."""

import errno
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import IntegrityError, StorageError, UsageError
from hornbook.files.filesystem import exists, is_file, is_folder, list_folder, require_local, walk_files
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import find_runs, newest_evaluation
from hornbook.model.storage.safetensors_folder import list_tensors
from hornbook.model.storage.tensor_slices import create_file
from hornbook.run.checkpoints.checkpoint_store import CheckpointStore
from hornbook.run.checkpoints.commit import commit, list_checkpoints, read_pointer
from hornbook.run.checkpoints.manifest import Manifest, verify_folder, write_manifest
from hornbook.run.doctor.check_run import check_run
from hornbook.run.doctor.compare_runs import differing_tensors
from hornbook.run.job.control import refuse_if_held
from hornbook.run.job.directory import is_empty
from hornbook.settings.training import CheckpointConfig

Failing = Callable[..., None]


@pytest.fixture(params=[errno.EIO, errno.EACCES, errno.ESTALE], ids=errno.errorcode.get)
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Of a path, let every question to the system end with an error, or those of some calls of `os` only."""

    def fail(path: Path, calls: Sequence[str] = ("stat", "lstat", "scandir", "listdir", "open")) -> None:
        def struck(real: Callable[..., Any]) -> Callable[..., Any]:

            def wrapped(asked: Any = ".", *args: Any, **kwargs: Any) -> Any:
                inside = isinstance(asked, str | os.PathLike) and Path(asked).is_relative_to(path)
                if inside:
                    raise OSError(request.param, os.strerror(request.param), str(asked))
                return real(asked, *args, **kwargs)

            return wrapped

        for name in calls:
            monkeypatch.setattr(os, name, struck(getattr(os, name)))
        if "open" in calls:
            monkeypatch.setattr(io, "open", struck(io.open))

    return fail


def test_absent_is_what_the_system_says_is_absent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "folder").mkdir()
    for name in ("gone", "file/gone", "loop", "nowhere", "\0"):
        assert [ask(tmp_path / name) for ask in (exists, is_file, is_folder)] == [False] * 3, name
    assert [ask(tmp_path / "file") for ask in (exists, is_file, is_folder)] == [True, True, False]
    assert [ask(tmp_path / "folder") for ask in (exists, is_file, is_folder)] == [True, False, True]


@pytest.mark.parametrize("ask", [exists, is_file, is_folder, list_folder, lambda path: list(walk_files(path))])
def test_an_error_is_no_answer(tmp_path: Path, failing: Failing, ask: Callable[[Path], Any]) -> None:
    failing(tmp_path / "there")
    with pytest.raises(OSError, match="there"):
        ask(tmp_path / "there")


def test_folders_are_listed_whole_and_sorted(tmp_path: Path) -> None:
    for name in ("b.json", "a/c.bin", "a/.hidden", "a.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to("a")
    assert [path.name for path in list_folder(tmp_path, "*.json")] == ["a.json", "b.json"]
    assert [path.name for path in list_folder(tmp_path)] == ["a", "a.json", "b.json", "link"]
    found = [path.relative_to(tmp_path).as_posix() for path in walk_files(tmp_path)]
    assert sorted(found) == ["a.json", "a/.hidden", "a/c.bin", "b.json", "link"]


@pytest.mark.parametrize("name", ["", "trainer", "trainer/deep"])
def test_a_folder_that_cannot_be_listed_ends_the_save(tmp_path: Path, failing: Failing, name: str) -> None:
    def write(stage: Path) -> None:
        (stage / "trainer" / "deep").mkdir(parents=True)
        for file in ("weights", "trainer/state.json", "trainer/deep/more"):
            (stage / file).write_text("1")
        failing(stage / name, calls=("scandir", "listdir"))

    with pytest.raises(StorageError, match="step-00000001"):
        commit(tmp_path, write, Manifest(1, 1))


def saved(folder: Path) -> Path:
    """A checkpoint of one tensor and one moment."""
    (folder / "trainer").mkdir(parents=True)
    for name in ("model.safetensors", "trainer/optimizer.safetensors"):
        create_file(folder / name, {"x": (2,)})
    write_manifest(folder, Manifest(1, 1))
    return folder


def begun(path: Path) -> RunDir:
    """A run with a checkpoint, its pointer, an evaluation and a STOP file."""
    run = RunDir(path).create()
    saved(run.checkpoints / "step-00000001")
    (run.checkpoints / "best").write_text("step-00000001\n")
    (run.evals / "step-00000001.json").write_text("{}")
    for file in (run.recipe, run.events, run.metrics, run.data_lock, path / "STOP"):
        file.write_text("")
    return run


QUESTIONS: dict[str, tuple[str, Callable[[RunDir], Any]]] = {
    "is a run here": ("", lambda run: run.exists()),
    "the runs of a folder": ("", lambda run: find_runs(run.path.parent)),
    "may a run begin here": ("", is_empty),
    "is it held": ("STOP", refuse_if_held),
    "its ledger": ("events.jsonl", lambda run: list(read_records(run.events))),
    "its evaluations": ("evals", newest_evaluation),
    "its checkpoints": ("checkpoints", lambda run: list_checkpoints(run.checkpoints)),
    "where to go on": ("checkpoints", lambda run: CheckpointStore(run.checkpoints, CheckpointConfig()).restore(None)),
    "its best": ("checkpoints/best", lambda run: read_pointer(run.checkpoints, "best")),
    "its data": ("data.lock", check_run),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_decision_about_a_run_rests_on_an_error(tmp_path: Path, failing: Failing, question: str) -> None:
    place, ask = QUESTIONS[question]
    run = begun(tmp_path / "run")
    failing(run.path / place)
    with pytest.raises((OSError, StorageError)):
        ask(run)


def test_tensors_that_cannot_be_listed_are_not_equal(tmp_path: Path, failing: Failing) -> None:
    a, b = saved(tmp_path / "a"), saved(tmp_path / "b")
    assert differing_tensors(a, b, "trainer") == ""
    failing(tmp_path / "b" / "trainer")
    with pytest.raises(OSError, match="trainer"):
        differing_tensors(a, b, "trainer")


def test_weights_that_cannot_be_seen_are_not_absent(tmp_path: Path, failing: Failing) -> None:
    folder = saved(tmp_path / "a")
    assert list_tensors(folder)["x"].shape == (2,)
    failing(folder / "model.safetensors")
    with pytest.raises(OSError, match="safetensors"):
        list_tensors(folder)


def test_a_checkpoint_that_cannot_be_read_is_damaged(tmp_path: Path, failing: Failing) -> None:
    folder = saved(tmp_path / "a")
    verify_folder(folder)
    failing(folder)
    with pytest.raises(IntegrityError, match="cannot be read"):
        verify_folder(folder)


@pytest.mark.parametrize(
    ("url", "writes", "remedy"),
    [
        ("s3://b/runs/a", True, "give a, and then copy it with: aws s3 cp --recursive a s3://b/runs/a"),
        (Path("s3://b/runs/a/"), False, "give a, copied first with: aws s3 cp --recursive s3://b/runs/a a"),
        ("s3://b/law.json", True, "aws s3 cp law.json s3://b/law.json"),
        ("gs://b/my run", False, "gcloud storage cp -r 'gs://b/my run' 'my run'"),
        ("https://h/terms.toml", False, "curl -Lo terms.toml https://h/terms.toml"),
        ("hf://o/n", True, "hf upload OWNER/NAME n"),
        ("abfs://c@account/x", False, "the program of that store"),
        ("s3://", True, "give FOLDER,"),
        (Path("file:///a b"), False, "leave out file://, and give the path alone: '/a b'"),
    ],
)
def test_a_url_where_a_local_path_is_needed(url: Path | str, writes: bool, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        require_local(url, name="--x ", writes=writes)
    assert str(caught.value).startswith(f"--x {str(url).partition(':')[0]}://")
    assert remedy in str(caught.value)


def test_local_paths_that_look_like_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("runs/a", "C:/x", "", "./s3:/b", "/s3://b", "2026-11-28T12:00/a", Path("-")):
        assert require_local(path) == str(path)
    Path("s3:").mkdir()
    assert require_local(Path("./s3:/b")) == "s3:/b"
    with pytest.raises(UsageError):
        require_local("s3://b")
