"""BPE-dropout in tokenize: training text alone, the same bytes for any workers and kills, else refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from hornbook.data.corpus import Corpus
from hornbook.errors import UsageError
from hornbook.files.artifact import read_json
from hornbook.text.config.dates import Since
from hornbook.text.config.labels import ClassLabels
from hornbook.text.config.text import BPE, DropEmptyConfig, SourceConfig, TextConfig, TokenizerFile, Unigram, WordPiece
from hornbook.text.refinery.pipeline import plan as planning
from hornbook.text.refinery.pipeline.folder import config_key
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.bpe.tables import Dropout
from hornbook.text.tokenizer.tokenize import tokenize
from hornbook.text.tokenizer.tokenizer import Tokenizer
from hornbook.text.tokenizer.train import train_wordpiece
from tests.text.kills import killed_at_rename

Tree = Callable[[Path], dict[str, bytes]]
Write = Callable[[Path, list[Any]], Path]
Make = Callable[..., list[str]]
PLAIN = TextConfig(tokenizer=BPE(vocab=300), validation=0.2)
DROPPED = PLAIN.model_copy(update={"bpe_dropout": 0.3, "bpe_dropout_seed": 5})


@pytest.fixture
def make_data(
    tmp_path: Path, write_rows: Write, make_texts: Make, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """A prepared folder: the same texts as two sources, in several shards, and a source held out by time too."""
    monkeypatch.setattr(planning, "_MIN_TASK_BYTES", 1000)
    for number in range(3):
        write_rows(tmp_path / "raw" / f"{number}.jsonl", [{"text": text} for text in make_texts(25, seed=number)])
    dated = [{"text": text, "date": f"20{20 + at % 2}"} for at, text in enumerate(make_texts(30, seed=9))]
    write_rows(tmp_path / "dated.jsonl", dated)
    sources = {name: SourceConfig(paths=[str(tmp_path / "raw")]) for name in ("one", "two")}
    sources["dated"] = SourceConfig(paths=[str(tmp_path / "dated.jsonl")], later=Since(date="2021"))

    def make(name: str) -> Path:
        prepare(TextConfig(sources=sources, steps=[DropEmptyConfig()]), tmp_path / name, workers=1)
        return tmp_path / name

    return make


def tokens_of(data: Path, split: str) -> dict[str, list[list[int]]]:
    """Of each source the tokens of its documents, in order."""
    streams = getattr(Corpus.open(data), split)
    return {
        name: [ids.tolist() for shard in stream.shards for ids in np.split(shard.data, shard.ends[:-1].astype(int))]
        for name, stream in streams.items()
    }


def test_training_documents_alone_are_encoded_with_dropout(make_data: Callable[[str], Path]):
    plain, data = make_data("plain"), make_data("data")
    tokenize(plain, PLAIN, workers=1)
    report = tokenize(data, DROPPED, workers=1)
    assert "training documents are encoded with BPE-dropout 0.3: more and smaller tokens" in report.notes
    assert (plain / "tokenizer/tokenizer.json").read_bytes() == (data / "tokenizer/tokenizer.json").read_bytes()
    held_out = tokens_of(data, "validation")
    assert set(held_out) == {"one", "two", "dated", "dated@later"}
    assert held_out == tokens_of(plain, "validation")
    tokenizer, train, whole = Tokenizer.load(data / "tokenizer"), tokens_of(data, "train"), tokens_of(plain, "train")
    for source in ("one", "two"):
        assert [tokenizer.decode(ids) for ids in train[source]] == [tokenizer.decode(ids) for ids in whole[source]]
        assert sum(map(len, train[source])) > 1.2 * sum(map(len, whole[source]))
        texts = [tokenizer.decode(ids[1:]) for ids in train[source]]
        expected = tokenizer.encode_arrays(texts, Dropout(0.3, 5).draws(source, texts, [True] * len(texts)))
        assert train[source] == [ids.tolist() for ids in expected]
    both = set(map(tokenizer.decode, train["one"])) & set(map(tokenizer.decode, train["two"]))
    assert len(both) > 20
    assert not {tuple(ids) for ids in train["one"] if len(ids) > 20} & {tuple(ids) for ids in train["two"]}


def test_any_number_of_workers_and_kills_write_the_same_bytes(make_data: Callable[[str], Path], read_tree: Tree):
    whole, data = make_data("whole"), make_data("data")
    tokenize(whole, DROPPED, workers=2)
    for rename in (3, 9, 14, 20):
        with killed_at_rename(rename):
            tokenize(data, DROPPED, workers=1)
    tokenize(data, DROPPED, workers=1)
    assert read_tree(data) == read_tree(whole)


def test_another_probability_or_seed_is_another_folder(make_data: Callable[[str], Path]):
    data = make_data("data")
    tokenize(data, DROPPED, workers=1)
    before = tokens_of(data, "train")
    assert read_json(data / "tokens" / "index.json")["bpe_dropout"] == {"probability": 0.3, "seed": 5}
    for name, value in (("bpe_dropout", 0.0), ("bpe_dropout", 0.2), ("bpe_dropout_seed", 6)):
        other = DROPPED.model_copy(update={name: value})
        with pytest.raises(UsageError, match="--overwrite"):
            tokenize(data, other)
        assert config_key(other) == config_key(PLAIN)
    tokenize(data, DROPPED.model_copy(update={"bpe_dropout_seed": 6}), overwrite=True, workers=1)
    assert tokens_of(data, "train") != before
    tokenize(data, DROPPED, overwrite=True, workers=1)
    assert tokens_of(data, "train") == before


def test_a_seed_without_dropout_changes_nothing(make_data: Callable[[str], Path]):
    data = make_data("data")
    tokenize(data, PLAIN, workers=1)
    tokenize(data, PLAIN.model_copy(update={"bpe_dropout_seed": 6}))
    assert "bpe_dropout" not in read_json(data / "tokens" / "index.json")
    assert not any("bpe_dropout" in key for key in PLAIN.model_dump())


@pytest.mark.parametrize("kind", [WordPiece(), Unigram()])
def test_kinds_without_merges_are_refused_by_the_key(kind: WordPiece | Unigram):
    with pytest.raises(ValidationError, match=rf"bpe_dropout leaves out merges, and a {kind.kind} tokenizer has none"):
        TextConfig(tokenizer=kind, bpe_dropout=0.1)


@pytest.mark.parametrize("probability", [-0.1, 1.0, 2])
def test_probabilities_that_leave_no_word(probability: float):
    with pytest.raises(ValidationError, match="bpe_dropout"):
        TextConfig(bpe_dropout=probability)


def test_labels_are_refused():
    with pytest.raises(ValidationError, match=r"with text\.labels, leave out bpe_dropout"):
        TextConfig(labels=ClassLabels(labels=["no", "yes"]), bpe_dropout=0.1)


def test_a_file_without_merges_is_refused_before_anything_is_written(
    make_data: Callable[[str], Path], read_tree: Tree, tmp_path: Path
):
    data = make_data("data")
    tokenize(data, PLAIN, workers=1)
    before = read_tree(data)
    texts = [row["text"] for row in pq.read_table(data / "documents" / "one" / "00000.parquet").to_pylist()]
    (tmp_path / "given.json").write_text(train_wordpiece(WordPiece(vocab=300), [texts]).definition)
    given = TokenizerFile(path=str(tmp_path / "given.json"))
    with pytest.raises(UsageError, match=r"given\.json: text\.bpe_dropout leaves out merges of byte-level BPE"):
        tokenize(data, DROPPED.model_copy(update={"tokenizer": given}), overwrite=True)
    assert read_tree(data) == before
    (tmp_path / "ours.json").write_text((data / "tokenizer" / "tokenizer.json").read_text())
    ours = TokenizerFile(path=str(tmp_path / "ours.json"))
    tokenize(data, DROPPED.model_copy(update={"tokenizer": ours}), overwrite=True, workers=1)
    assert json.loads((data / "tokens" / "index.json").read_text())["bpe_dropout"]["probability"] == 0.3
