import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hornbook.data.corpus import Corpus, _allow_open_files, check_data_lock
from hornbook.errors import IntegrityError, UsageError
from hornbook.text.tokenizer.shards import describe_shard, writing_shard
from tests.data.conftest import restate


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 4
    path.write_bytes(data)


def test_opens_what_was_written(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [5, 9, 4], "b": [6]}, shards=2, validation={"a": [3]})
    corpus = Corpus.open(raw.path)
    assert list(corpus.train) == ["a", "b"]
    assert list(corpus.validation) == ["a"]
    stream = corpus.train["a"]
    assert (stream.tokens, stream.documents, stream.bytes) == (18, 3, 72)
    assert stream.starts.tolist() == [0, 5, 18]
    written = [token for document in raw.documents["train"]["a"] for token in document]
    assert np.concatenate([shard.data for shard in stream.shards]).tolist() == written
    assert corpus.delimiter_id == corpus.end_id == 0
    seen: list[str] = []
    corpus.verify(seen.append)
    assert seen == [shard.name for stream in corpus.streams for shard in stream.shards]
    lock = corpus.lock()
    assert lock["shards"][seen[0]] == stream.shards[0].digest
    assert Corpus.open(raw.path / "tokens").lock() == lock
    assert stream.shards[1].document(0)["id"] == "tokens/train/a/00001#0"


def test_opens_shards_of_the_text_room(tmp_path: Path) -> None:
    (tmp_path / "tokens/train/a").mkdir(parents=True)
    with writing_shard(tmp_path / "tokens/train/a/00000", "uint32") as shard:
        shard.add([0, 70_000, 5], "x", "file:0", 9)
        shard.add([0, 6], "y", "file:1", 4)
    index = {"dtype": "uint32", "delimiter_id": 0, "end_id": 0, "vocab_size": 80_000, "tokenizer_digest": "t"}
    index |= {"shards": [describe_shard(tmp_path, "train", "a", 0).to_json()]}
    (tmp_path / "tokens/index.json").write_text(json.dumps(index))
    corpus = Corpus.open(tmp_path)
    corpus.verify()
    assert corpus.train["a"].shards[0].data.tolist() == [0, 70_000, 5, 0, 6]
    assert corpus.train["a"].shards[0].document(1) == {"id": "y", "origin": "file:1", "bytes": 4}


def test_missing_data_is_a_usage_error_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not exist: name a folder written by `hornbook tokenize`"):
        Corpus.open(tmp_path / "none")
    with pytest.raises(UsageError, match=r"has no token shards .* run `hornbook tokenize"):
        Corpus.open(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"shards": []}', "\x00"])
def test_a_damaged_index_is_named(make_corpus: Callable, text: str) -> None:
    raw = make_corpus({"a": [5]})
    (raw.path / "tokens/index.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"index.json .*hornbook tokenize"):
        Corpus.open(raw.path)


def test_a_damaged_entry_of_the_index_is_named(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [5]})
    path = raw.path / "tokens/index.json"
    whole = json.loads(path.read_text())
    for change in ({"split": "test"}, {"tokens": "many"}, {"name": None}):
        path.write_text(json.dumps(whole | {"shards": [whole["shards"][0] | change]}))
        with pytest.raises(IntegrityError, match=r"index.json is damaged \(shards.0.(split|tokens|name): "):
            Corpus.open(raw.path)


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_missing_and_truncated_shards_are_named_with_sizes(make_corpus: Callable, ending: str) -> None:
    raw = make_corpus({"a": [5, 6]})
    path = raw.path / f"tokens/train/a/00000{ending}"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match=rf"00000{ending}: expected {size} bytes, found {size - 1}: restore"):
        Corpus.open(raw.path)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(IntegrityError, match=rf"expected {size} bytes, found {size + 3}: restore"):
        Corpus.open(raw.path)
    path.unlink()
    with pytest.raises(IntegrityError, match=rf"00000{ending}: expected {size} bytes, found no file: restore"):
        Corpus.open(raw.path)


def test_a_missing_list_of_documents_is_named(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [5, 6]})
    corpus = Corpus.open(raw.path)
    path = raw.path / "tokens/train/a/00000.docs.parquet"
    shutil.copy(make_corpus({"a": [5]}).path / "tokens/train/a/00000.docs.parquet", path)
    with pytest.raises(IntegrityError, match=r"docs.parquet is damaged \(its digest"):
        corpus.train["a"].shards[0].document(0)
    restate(raw.path)
    corpus = Corpus.open(raw.path)
    with pytest.raises(IntegrityError, match=r"expected id, origin and bytes of 2 documents, found 1 rows"):
        corpus.train["a"].shards[0].document(0)
    path.write_bytes(b"not parquet")
    restate(raw.path)
    corpus = Corpus.open(raw.path)
    with pytest.raises(IntegrityError, match=r"docs.parquet: cannot be read as parquet"):
        corpus.train["a"].shards[0].document(0)
    path.unlink()
    with pytest.raises(IntegrityError, match=r"docs.parquet: expected a file, found none"):
        Corpus.open(raw.path)


def test_ends_that_do_not_reach_the_tokens_are_named(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [5, 6]})
    np.array([5, 10], np.uint64).tofile(raw.path / "tokens/train/a/00000.idx")
    with pytest.raises(IntegrityError, match=r"the last document ends at 10, expected 11"):
        Corpus.open(raw.path)


@pytest.mark.parametrize("ending", [".bin", ".idx", ".docs.parquet"])
def test_verify_finds_one_flipped_bit(make_corpus: Callable, ending: str) -> None:
    raw = make_corpus({"a": [5, 6], "b": [700_000, 3]})
    flip(raw.path / f"tokens/train/b/00000{ending}", 0)
    with pytest.raises(IntegrityError, match=rf"tokens/train/b/00000{ending}"):
        Corpus.open(raw.path).verify()


def test_verify_names_the_damaged_block(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [700_000]})
    flip(raw.path / "tokens/train/a/00000.bin", 2**20 + 7)
    with pytest.raises(IntegrityError, match=r"00000.bin: block 1 "):
        Corpus.open(raw.path).verify()


def test_verify_finds_a_shard_that_was_exchanged_whole(make_corpus: Callable) -> None:
    raw, other = make_corpus({"a": [5, 6]}), make_corpus({"a": [5, 6]}, seed=9)
    for ending in (".bin", ".idx", ".docs.parquet", ".json"):
        shutil.copy(other.path / f"tokens/train/a/00000{ending}", raw.path / f"tokens/train/a/00000{ending}")
    with pytest.raises(IntegrityError, match=r"00000.bin: the index expects digest"):
        Corpus.open(raw.path).verify()


def test_empty_shards_and_sources_open(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [5], "none": []}, shards=3)
    corpus = Corpus.open(raw.path)
    assert corpus.train["a"].tokens == 5
    assert corpus.train["none"].tokens == 0
    corpus.verify()


@pytest.mark.parametrize(("hard", "text"), [(4096, "opened"), (64, "too many open files: raise the limit")])
def test_many_shards_raise_the_limit_of_open_files(make_corpus: Callable, hard: int, text: str) -> None:
    raw = make_corpus({"a": [3] * 60}, shards=60)
    code = (
        "import resource\n"
        "from hornbook.data.corpus import Corpus\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))\n"
        "try:\n"
        f"    corpus = Corpus.open({str(raw.path)!r})\n"
        "    print('opened', corpus.train['a'].tokens)\n"
        "except ValueError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert text in done.stdout


@pytest.mark.parametrize("error", [ValueError, OSError])
def test_a_limit_that_the_system_does_not_raise_is_left(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """macOS names no hard limit and refuses some that are lower."""

    def refuse(*_: object) -> None:
        raise error("not here")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    _allow_open_files(10_000)


LOCK = {"tokenizer": "t", "shards": {"a": "1", "b": "2"}}


@pytest.mark.parametrize(
    ("now", "text"),
    [
        ({"tokenizer": "u", "shards": {"a": "1", "b": "2"}}, "the tokenizer"),
        ({"tokenizer": "t", "shards": {"a": "1"}}, "shard b is gone"),
        ({"tokenizer": "t", "shards": {"a": "1", "b": "2", "c": "3"}}, "shard c is new"),
        ({"tokenizer": "t", "shards": {"a": "1", "b": "9"}}, "shard b"),
    ],
)
def test_changed_data_is_named(tmp_path: Path, now: dict, text: str) -> None:
    path = tmp_path / "data.lock"
    path.write_text(json.dumps(LOCK))
    check_data_lock(path, LOCK)
    with pytest.raises(IntegrityError, match=text):
        check_data_lock(path, now)


def test_a_missing_lock_is_an_integrity_error(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="cannot be read"):
        check_data_lock(tmp_path / "data.lock", LOCK)
