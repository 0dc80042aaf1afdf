"""Paths to input files: folders, globs, URLs, and everything a path can be instead."""

import os
from pathlib import Path

import fsspec
import pytest

from hornbook.errors import UsageError
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.inputs import InputFile, format_of, list_inputs, passed_over


def listed(*paths: str | Path) -> list[InputFile]:
    return list_inputs("s", SourceConfig(paths=[str(path) for path in paths]))


def names(files: list[InputFile], root: Path) -> list[str]:
    return [os.path.relpath(file.path, root) for file in files]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.md", "sub/c.py", "sub/deep/d.jsonl", "e.jsonl.gz", "f.JSONL.ZST", "g.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    for name in (".hidden.txt", ".git/config.txt", "image.png", "g.parquet.gz", "sub/.x/y.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.txt", ("text", None)),
        ("a.MD.gz", ("text", "gzip")),
        ("a.jsonl.zst", ("jsonl", "zstd")),
        ("a.parquet", ("parquet", None)),
        ("a.parquet.gz", None),
        ("a.gz", None),
        ("a", None),
        (".txt", None),
    ],
)
def test_the_ending_names_the_format(name: str, expected: tuple[str, str | None] | None):
    assert format_of(name) == expected


def test_a_folder_is_walked_in_order_without_hidden_names(library: Path):
    expected = ["a.md", "b.txt", "e.jsonl.gz", "f.JSONL.ZST", "g.parquet", "sub/c.py", "sub/deep/d.jsonl"]
    assert names(listed(library), library) == expected


def test_globs_name_files_and_folders(library: Path):
    assert names(listed(library / "*.md", library / "s*"), library) == ["a.md", "sub/c.py", "sub/deep/d.jsonl"]
    assert names(listed(library / "**" / "*.jsonl"), library) == ["sub/deep/d.jsonl"]


def test_a_file_named_twice_is_read_once(library: Path):
    assert names(listed(library / "b.txt", library, library / "*.txt"), library).count("b.txt") == 1


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", "missing does not exist"),
        ("missing/*.txt", "no file matches"),
        ("empty", "empty holds no file that can be read"),
        ("image.png", "cannot tell what .*image.png is by its ending"),
        ("pipe.txt", "pipe.txt is not a regular file"),
        ("loop.txt", "cannot read .*loop.txt"),
    ],
)
def test_a_named_path_that_is_no_text_is_an_error_that_names_it(library: Path, path: str, message: str):
    (library / "empty").mkdir()
    os.mkfifo(library / "pipe.txt")
    (library / "loop.txt").symlink_to("loop.txt")
    with pytest.raises(UsageError, match=message):
        listed(library / path)


def test_odd_things_in_a_folder_are_rows_not_errors(tmp_path: Path):
    (tmp_path / "good.txt").write_text("x")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "broken.txt").symlink_to("nowhere.txt")
    (tmp_path / "self.txt").symlink_to("self.txt")
    found = {Path(file.path).name: file.problem for file in listed(tmp_path)}
    assert found["good.txt"] == ""
    assert found["pipe.txt"] == "not a regular file"
    assert found["broken.txt"].startswith("cannot read")
    assert found["self.txt"].startswith("cannot read")


def test_a_folder_linked_into_itself_is_walked_once(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("x")
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    (tmp_path / "other").symlink_to(tmp_path / "sub")
    assert names(listed(tmp_path), tmp_path) == ["other/a.txt", "sub/a.txt"]


def test_without_permission_the_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Root may read all, so the refusal of the system is made here."""
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "b.txt").write_text("x")
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = {Path(file.path).name: file.problem for file in listed(tmp_path)}
    assert found == {"a.txt": "", "closed": "cannot read: Permission denied"}
    with pytest.raises(UsageError, match="closed: Permission denied"):
        listed(tmp_path / "closed")


def test_the_stamp_changes_with_the_file(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    os.utime(path, ns=(1, 1))
    first = listed(path)[0].stamp
    os.utime(path, ns=(1, 2))
    assert listed(path)[0].stamp != first


def test_a_file_name_may_be_any_bytes(tmp_path: Path):
    with open(os.fsencode(tmp_path) + b"/bad\xff.txt", "wb") as file:
        file.write(b"x")
    (found,) = listed(tmp_path)
    assert found.name.encode().endswith(b"bad\\udcff.txt")


def test_urls_through_fsspec(library: Path):
    memory = fsspec.filesystem("memory")
    memory.pipe({"/corpus/b.txt": b"two", "/corpus/a/x.jsonl": b"{}", "/corpus/.h/y.txt": b"", "/corpus/n.png": b""})
    try:
        assert [file.path for file in listed("memory://corpus")] == [
            "memory:///corpus/a/x.jsonl",
            "memory:///corpus/b.txt",
        ]
        assert [file.size for file in listed("memory://corpus/*.txt")] == [3]
        assert [file.path for file in listed("memory://corpus/b.txt")] == ["memory:///corpus/b.txt"]
        for url, message in [
            ("memory://corpus/none.txt", "does not exist"),
            ("memory://corpus/n.png", "by its ending"),
            ("nosuchthing://x", "cannot read nosuchthing://x: Protocol not known"),
        ]:
            with pytest.raises(UsageError, match=message):
                listed(url)
    finally:
        memory.rm("/corpus", recursive=True)
    files = listed(f"file://{library}")
    assert [file.path.removeprefix(f"file://{library}/") for file in files] == names(listed(library), library)


def left_out(path: Path) -> dict[str, int]:
    config = SourceConfig(paths=[str(path)])
    return dict(passed_over(config, list_inputs("s", config)))


def test_what_is_passed_over_is_counted_by_its_ending(library: Path):
    (library / "a.epub").touch()
    (library / "b.EPUB").touch()
    (library / "notes.json").touch()
    (library / "Makefile").touch()
    expected = {"hidden": 3, ".epub": 2, ".png": 1, ".json": 1, ".gz": 1, "without an ending": 1}
    assert left_out(library) == expected
    assert left_out(library / "b.txt") == {}


def test_a_folder_of_json_alone_is_read(tmp_path: Path):
    """As Dolma's; beside other files .json are settings of programs."""
    (tmp_path / "a.json.gz").touch()
    assert names(listed(tmp_path), tmp_path) == ["a.json.gz"]
    (tmp_path / "b.txt").touch()
    assert names(listed(tmp_path), tmp_path) == ["b.txt"]


@pytest.mark.parametrize("name", ["a.ndjson.gz", "a.feather", "a.jsonlines", "a.markdown"])
def test_other_endings_of_known_formats(tmp_path: Path, name: str):
    (tmp_path / name).touch()
    assert names(listed(tmp_path), tmp_path) == [name]


@pytest.mark.parametrize(
    ("files", "read", "left"),
    [
        (("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"), 1, {"split test": 1}),
        (
            ("train-00000-of-00001-0123456789abcdef.parquet", "validation-00000-of-00001.parquet"),
            1,
            {"split validation": 1},
        ),
        (("c4-train.00000-of-01024.json.gz", "c4-validation.00000-of-00008.json.gz"), 1, {"split validation": 1}),
        (("wikitext-train.arrow", "wikitext-test.arrow", "cache-0123456789abcdef.arrow"), 1, None),
        (("data-00000-of-00001.arrow", "cache-0123456789abcdef_00001_of_00002.arrow"), 1, {"cache of datasets": 1}),
        (("dataset_dict.json", "train/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow"), 1, None),
        (("train.jsonl", "test.jsonl", "dev.jsonl"), 1, {"split test": 1, "split dev": 1}),
        (("test-00000-of-00001.parquet", "validation-00000-of-00001.parquet"), 2, {}),
        (("latest.parquet", "train.parquet", "test_of_steel.parquet"), 3, {}),
    ],
)
def test_of_a_published_set_the_train_split_is_read(
    tmp_path: Path, files: tuple[str, ...], read: int, left: dict[str, int] | None
):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert len(listed(tmp_path)) == read
    assert left is None or left_out(tmp_path) == left
    assert len(listed(*(tmp_path / name for name in files if "." in name and "dict" not in name))) >= read


def test_the_query_of_an_address_is_no_ending_and_in_no_id():
    memory = fsspec.filesystem("memory")
    assert memory is not None
    file = InputFile("s", "https://a.b/c.jsonl?token=secret", 1, "", "jsonl", None)
    assert file.name == "https://a.b/c.jsonl"
    assert InputFile("s", "a?b.txt", 1, "", "text", None).name == "a?b.txt"
