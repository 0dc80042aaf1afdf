"""tokenize: shards hold the documents, splits do not share a cluster, workers and kills change no byte."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from hornbook.data.corpus import Corpus
from hornbook.errors import IntegrityError, InUseError, UsageError
from hornbook.files.artifact import digest_of, read_json
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock
from hornbook.text.config.text import BPE, SourceConfig, TextConfig, TokenizerFile, Unigram, WordPiece
from hornbook.text.refinery.pipeline import plan as planning
from hornbook.text.refinery.pipeline.folder import read_manifest
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.splits import is_validation
from hornbook.text.tokenizer.bpe.train import train_bpe
from hornbook.text.tokenizer.shards import verify_shard
from hornbook.text.tokenizer.tokenize import tokenize
from hornbook.text.tokenizer.tokenizer import Tokenizer
from tests.text.kills import Killed, killed_at_rename

Tree = Callable[[Path], dict[str, bytes]]
Write = Callable[[Path, list[Any]], Path]
Make = Callable[..., list[str]]
CONFIG = TextConfig(tokenizer=BPE(vocab=300), validation=0.2)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, write_rows: Write, make_texts: Make) -> Path:
    """A prepared folder of two sources in several shards. Read only."""
    folder = tmp_path_factory.mktemp("prepared")
    for number in range(4):
        texts = make_texts(40, seed=number)
        write_rows(folder / "raw" / "web" / f"{number}.jsonl", [{"text": text} for text in texts])
    write_rows(folder / "raw" / "notes.jsonl", [{"text": text} for text in make_texts(40, seed=9)])
    sources = {
        name: SourceConfig(paths=[str(folder / "raw" / path)])
        for name, path in (("web", "web"), ("notes", "notes.jsonl"))
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_MIN_TASK_BYTES", 1000)
        prepare(TextConfig(sources=sources), folder / "data", workers=1)
    return folder / "data"


@pytest.fixture
def make_data(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Copies of `prepared`, by name."""
    monkeypatch.setattr(planning, "_MIN_TASK_BYTES", 1000)
    return lambda name: shutil.copytree(prepared, tmp_path / name)


@pytest.fixture
def data(make_data: Callable[[str], Path]) -> Path:
    return make_data("data")


def documents_of(data: Path, source: str) -> list[dict[str, Any]]:
    paths = sorted((data / "documents" / source).glob("*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def test_every_document_is_stored_once_in_its_split(data: Path):
    report = tokenize(data, CONFIG)
    tokenizer, corpus = Tokenizer.load(data / "tokenizer"), Corpus.open(data)
    corpus.verify()
    assert (corpus.delimiter_id, corpus.end_id, corpus.vocab_size) == (0, 0, tokenizer.vocab_size)
    for source in ("web", "notes"):
        for split, streams in (("train", corpus.train), ("validation", corpus.validation)):
            expected = [
                row
                for row in documents_of(data, source)
                if is_validation(row["cluster"], 0.2) == (split == "validation")
            ]
            shards = streams[source].shards
            assert sum(shard.documents for shard in shards) == len(expected) > 0
            found = [
                (ids.tolist(), shard.document(number))
                for shard in shards
                for number, ids in enumerate(np.split(shard.data, shard.ends[:-1].astype(int)))
            ]
            for (ids, named), row in zip(found, expected, strict=True):
                assert ids == [0, *tokenizer.encode(row["text"])]
                assert named == {"id": row["id"], "origin": row["origin"], "bytes": row["bytes"]}
                assert tokenizer.decode(ids[1:]) == row["text"]
            share = report.shares[source, split]
            assert (share.documents, share.tokens) == (len(expected), sum(len(ids) for ids, _ in found))
            assert share.bytes == sum(row["bytes"] for row in expected)
    assert report.total("train").tokens + report.total("validation").tokens == report.total().tokens
    assert report.total().bytes_per_token == report.total().bytes / report.total().tokens


def test_any_number_of_workers_writes_the_same_bytes(make_data: Callable[[str], Path], read_tree: Tree):
    trees = []
    for workers in (1, 3):
        data = make_data(f"data{workers}")
        tokenize(data, CONFIG, workers=workers)
        trees.append(read_tree(data))
    assert len([name for name in trees[0] if name.endswith(".bin")]) > 6
    assert trees[0] == trees[1]


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_stopped_at_every_rename_it_goes_on_to_the_same_bytes(
    make_data: Callable[[str], Path], read_tree: Tree, monkeypatch: pytest.MonkeyPatch, stride: int
):
    real = os.replace
    calls = 0

    def count(*names: Any) -> None:
        nonlocal calls
        calls += 1
        real(*names)

    whole, data = make_data("whole"), make_data("data")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", count)
        tokenize(whole, CONFIG, workers=1)
    expected, points = read_tree(whole), calls
    assert points > 40
    for point in range(1, points, stride):
        with killed_at_rename(point):
            tokenize(data, CONFIG, workers=1)
        assert not (data / "tokens" / "index.json").exists()
        tokenize(data, CONFIG, workers=1)
        assert read_tree(data) == expected, f"killed at rename {point}"
        (data / "tokens" / "index.json").unlink()


@pytest.mark.parametrize("other", [False, True])
def test_a_tokenizer_that_is_gone_or_another_after_a_failed_run_is_made_again(
    make_data: Callable[[str], Path], read_tree: Tree, other: bool
):
    whole, data, strange = make_data("whole"), make_data("data"), make_data("strange")
    tokenize(whole, CONFIG, workers=1)
    with killed_at_rename(12):
        tokenize(data, CONFIG, workers=1)
    assert (data / "work" / "tokenizer.json").exists()
    shutil.rmtree(data / "tokenizer")
    if other:
        tokenize(strange, CONFIG.model_copy(update={"tokenizer": BPE(vocab=290)}), workers=1)
        shutil.copytree(strange / "tokenizer", data / "tokenizer")
    tokenize(data, CONFIG, workers=1)
    assert read_tree(data) == read_tree(whole)


def test_a_damaged_shard_of_a_killed_run_is_written_again(
    make_data: Callable[[str], Path], read_tree: Tree, monkeypatch: pytest.MonkeyPatch
):
    whole, data = make_data("whole"), make_data("data")
    tokenize(whole, CONFIG, workers=1)
    real = os.replace

    def stop(source: Any, target: Any) -> None:
        if str(target).endswith("index.json"):
            raise Killed
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", stop)
        with pytest.raises(Killed):
            tokenize(data, CONFIG, workers=1)
    shard = data / "tokens" / "train" / "web" / "00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    tokenize(data, CONFIG, workers=1)
    verify_shard(shard.with_suffix(""))
    assert read_tree(data) == read_tree(whole)


def test_a_second_time_nothing_is_done_and_the_report_is_the_same(data: Path, read_tree: Tree):
    first = tokenize(data, CONFIG)
    before = read_tree(data)
    second = tokenize(data, CONFIG, workers=2)
    assert (second.shares, second.notes, second.vocab) == (first.shares, first.notes, first.vocab)
    assert read_tree(data) == before


def test_other_settings_are_refused_until_overwritten(data: Path):
    tokenize(data, CONFIG)
    shards = {path for path in (data / "tokens").rglob("*") if path.is_file()}
    for other in (
        CONFIG.model_copy(update={"validation": 0.0}),
        CONFIG.model_copy(update={"tokenizer": BPE(vocab=280)}),
    ):
        with pytest.raises(UsageError, match="--overwrite"):
            tokenize(data, other)
    report = tokenize(data, CONFIG.model_copy(update={"validation": 0.0}), overwrite=True)
    assert report.total("validation").documents == 0
    assert not any(path.exists() for path in shards if "validation" in path.parts)
    Corpus.open(data).verify()


@pytest.mark.parametrize(
    ("kind", "delimiters"), [(WordPiece(vocab=300), ("[CLS]", "[SEP]")), (Unigram(vocab=450), ("</s>", "</s>"))]
)
def test_the_other_kinds_fill_shards_with_documents_and_delimiters(
    make_data: Callable[[str], Path], read_tree: Tree, kind: WordPiece | Unigram, delimiters: tuple[str, str]
):
    config = TextConfig(tokenizer=kind, validation=0.2)
    data, other = make_data("data"), make_data("other")
    report = tokenize(data, config, workers=1)
    assert report.trained
    tokenize(other, config, workers=2)
    assert read_tree(data) == read_tree(other)
    tokenizer, corpus = Tokenizer.load(data / "tokenizer"), Corpus.open(data)
    assert (tokenizer.begin, tokenizer.end) == delimiters
    shards = [shard for stream in corpus.train.values() for shard in stream.shards]
    found = [ids.tolist() for shard in shards for ids in np.split(shard.data, shard.ends[:-1].astype(int))]
    texts = {row["text"] for source in ("web", "notes") for row in documents_of(data, source)}
    expected = [ids.tolist() for ids in tokenizer.encode_arrays(sorted(texts))]
    assert all(ids in expected for ids in found)
    if kind.kind == "unigram":
        assert {tokenizer.decode(ids[1:]) for ids in found} < texts


def test_only_what_changes_the_tokenizer_makes_other_tokens(data: Path):
    """Folders of before there were objectives stay what they are; objectives that need no token change nothing."""
    tokenize(data, CONFIG)
    documents = {
        path: digest for path, digest in (read_manifest(data) or {})["outputs"].items() if "documents/" in path
    }
    old = {"kind": "bpe", "vocab": 300, "train_bytes": 256_000_000}
    assert read_json(data / "tokens" / "index.json")["key"] == digest_of([1, old, 0.2, documents])
    more = CONFIG.model_copy(update={"tokenizer": BPE(vocab=300, objectives=["causal", "prefix"], sentinels=7)})
    tokenize(data, more)
    with pytest.raises(UsageError, match="--overwrite"):
        tokenize(data, CONFIG.model_copy(update={"tokenizer": BPE(vocab=300, objectives=["masked"])}))


def test_a_given_tokenizer_is_copied_with_its_settings(data: Path, tmp_path: Path):
    given = tmp_path / "given"
    given.mkdir()
    (given / "tokenizer.json").write_text(train_bpe(BPE(vocab=270), [["some other text"] * 9]).definition)
    (given / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>", "chat_template": "kept"}')
    config = TextConfig(tokenizer=TokenizerFile(path=str(given)), validation=0.2)
    report = tokenize(data, config)
    assert not report.trained
    assert (data / "tokenizer" / "tokenizer.json").read_bytes() == (given / "tokenizer.json").read_bytes()
    assert json.loads((data / "tokenizer" / "tokenizer_config.json").read_text())["chat_template"] == "kept"
    assert Corpus.open(data).tokenizer_digest == Tokenizer.load(given).digest
    with pytest.raises(UsageError, match="does not exist"):
        tokenize(data, TextConfig(tokenizer=TokenizerFile(path=str(tmp_path / "nowhere"))))


def test_begin_and_end_are_both_stored_where_they_differ(data: Path, tmp_path: Path):
    definition = json.loads(train_bpe(BPE(vocab=270), [["text"] * 9]).definition)
    end = {**definition["added_tokens"][0]}
    definition["added_tokens"] = [{**end, "content": "<s>"}, {**end, "id": 270, "content": "</s>"}]
    definition["model"]["vocab"] = {
        token.replace("<|endoftext|>", "<s>"): n for token, n in definition["model"]["vocab"].items()
    }
    definition["added_tokens"][1]["id"] = len(definition["model"]["vocab"])
    (tmp_path / "t.json").write_text(json.dumps(definition))
    tokenize(data, TextConfig(tokenizer=TokenizerFile(path=str(tmp_path / "t.json"))))
    corpus = Corpus.open(data)
    assert corpus.delimiter_id != corpus.end_id
    for shard in corpus.train["web"].shards:
        starts = np.concatenate([[0], shard.ends[:-1]]).astype(int)
        assert (shard.data[starts] == corpus.delimiter_id).all()
        assert (shard.data[shard.ends.astype(int) - 1] == corpus.end_id).all()
        assert np.isin(shard.data, [corpus.delimiter_id, corpus.end_id]).sum() == 2 * shard.documents


def test_a_vocabulary_beyond_65536_is_stored_wider(data: Path, tmp_path: Path):
    definition = json.loads(train_bpe(BPE(vocab=270), [["text"] * 9]).definition)
    size = len(definition["model"]["vocab"])
    definition["model"]["vocab"].update({f"unused{n}": n for n in range(size, 65_537)})
    (tmp_path / "t.json").write_text(json.dumps(definition))
    tokenize(data, TextConfig(tokenizer=TokenizerFile(path=str(tmp_path / "t.json"))))
    corpus = Corpus.open(data)
    assert (corpus.vocab_size, corpus.index["dtype"]) == (65_537, "uint32")
    corpus.verify()


def test_a_tiny_corpus_says_what_is_empty(tmp_path: Path, write_rows: Write):
    path = write_rows(tmp_path / "a.jsonl", [{"text": "one"}])
    empty = write_rows(tmp_path / "b.jsonl", [{"text": ""}])
    sources = {"a": SourceConfig(paths=[str(path)]), "b": SourceConfig(paths=[str(empty)])}
    prepare(TextConfig(sources=sources), tmp_path / "data")
    report = tokenize(tmp_path / "data", TextConfig(tokenizer=BPE(vocab=1000)))
    assert report.total().documents == 1
    assert "source 'a' has no validation documents" in report.notes
    assert "source 'b' has no train documents" in report.notes
    assert any("vocabulary is 257, not 1000" in note for note in report.notes)
    Corpus.open(tmp_path / "data").verify()
    assert "validation documents" not in str(
        tokenize(tmp_path / "data", TextConfig(validation=0.0), overwrite=True).notes
    )


def test_unknown_letters_are_counted(data: Path, tmp_path: Path):
    from tokenizers import AddedToken, models, pre_tokenizers
    from tokenizers import Tokenizer as Raw

    raw = Raw(models.WordLevel({"<eos>": 0, "<unk>": 1, "the": 2}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.add_special_tokens([AddedToken("<eos>", special=True), AddedToken("<unk>", special=True)])
    raw.save(str(tmp_path / "t.json"))
    report = tokenize(data, TextConfig(tokenizer=TokenizerFile(path=str(tmp_path / "t.json"))))
    texts = [row["text"] for source in ("web", "notes") for row in documents_of(data, source)]
    unknown = sum(word != "the" for text in texts for word in text.split())
    assert f"{unknown} tokens stand for text" in str(report.notes)


def test_damaged_documents_are_noticed(data: Path):
    shard = data / "documents" / "web" / "00001.parquet"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    with pytest.raises(IntegrityError, match=r"web/00001\.parquet"):
        tokenize(data, CONFIG.model_copy(update={"tokenizer": BPE(vocab=257, train_bytes=1)}))
    shard.unlink()
    with pytest.raises(IntegrityError, match=r"web/00001\.parquet"):
        tokenize(data, CONFIG)


def test_a_folder_that_is_not_prepared(tmp_path: Path):
    with pytest.raises(UsageError, match="is not prepared"):
        tokenize(tmp_path / "nothing", CONFIG)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "unfinished.json").write_text("{}")
    with pytest.raises(UsageError, match="is not finished"):
        tokenize(tmp_path, CONFIG)


def test_two_in_one_folder_the_second_is_refused(data: Path):
    with RunLock(RunDir(data)), pytest.raises(InUseError):
        tokenize(data, CONFIG)


def test_duplicates_never_straddle_the_splits(tmp_path: Path, write_rows: Write, make_texts: Make):
    from hornbook.text.config.text import NormalizeConfig

    texts = make_texts(60) * 3
    path = write_rows(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    prepare(TextConfig(sources={"a": SourceConfig(paths=[str(path)])}, steps=[NormalizeConfig()]), tmp_path / "data")
    tokenize(tmp_path / "data", CONFIG)
    corpus = Corpus.open(tmp_path / "data")
    sides = []
    for stream in (corpus.train["a"], corpus.validation["a"]):
        parts = [np.split(shard.data, shard.ends[:-1].astype(int)) for shard in stream.shards]
        sides.append({part.tobytes() for group in parts for part in group})
    assert sides[0]
    assert sides[1]
    assert sides[0].isdisjoint(sides[1])
