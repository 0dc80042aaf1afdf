"""Files of labelled sets, format by format; damaged rows are named by file and line."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hornbook.errors import UsageError
from hornbook.text.config.labels import ClassLabels, LabelsConfig, SpanLabels, TagLabels
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.document import Document, ReadOptions, Rejected
from hornbook.text.ingest.inputs import list_inputs
from hornbook.text.ingest.labels.labelling import Labelling
from hornbook.text.ingest.readers import read_file

CLASSES = ClassLabels(labels=["neg", "pos"])
PAIRS = ClassLabels(labels=["no", "yes"], text="a", pair="b")
TAGS = TagLabels(labels=["O", "B-PER", "I-PER"])


def read(path: Path, config: LabelsConfig) -> list[Document | Rejected]:
    (file,) = list_inputs("s", SourceConfig(paths=[str(path)]), labelled=True)
    return list(read_file(file, ReadOptions(labels=config)))


def only(path: Path, config: LabelsConfig) -> tuple[str, Labelling]:
    (document,) = read(path, config)
    assert isinstance(document, Document), document
    assert document.labels is not None
    return document.text, document.labels


def test_jsonl_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a", "label": 0, "id": "first"}\n\n{"text": "b", "label": "odd"}\n{"te')
    good, blank, bad, half = read(path, CLASSES)
    assert isinstance(good, Document)
    assert (good.id, good.origin) == ("first", f"{path}:1")
    assert isinstance(blank, Rejected)
    assert not blank.damaged
    assert isinstance(bad, Rejected)
    assert (bad.path, bad.line, bad.kind) == (str(path), 3, "unknown label")
    assert isinstance(half, Rejected)
    assert half.line == 4


def test_tsv_has_a_header_and_no_quotation(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text('a\tb\tlabel\n"one\ttwo"\tyes\nshort\tno\n')
    good, bad = read(path, PAIRS)
    assert isinstance(good, Document)
    assert good.text == '"one\ntwo"'
    assert isinstance(bad, Rejected)
    assert (bad.line, bad.kind) == (3, "wrong number of cells")


def test_csv_has_a_header_and_quotation(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text('label,text,id\nneg,"dull, and\nlong",r1\npos,fine,r2\n')
    first, second = read(path, ClassLabels())
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert (first.text, first.id, first.origin) == ("dull, and\nlong", "r1", f"{path}:2")
    assert first.labels is not None
    assert (first.labels.values, second.origin) == (("neg",), f"{path}:4")
    (missing,) = read(path, ClassLabels(label="stars"))
    assert isinstance(missing, Rejected)
    assert missing.reason == "missing label: no column 'stars' (columns: 'label, text, id')"


def test_conll_sentences(tmp_path: Path) -> None:
    path = tmp_path / "x.conll"
    path.write_text("-DOCSTART- -X- O O\n\nAda NNP B-PER\nwrote VB O\n\nalone\nx O\n\nend O")
    first, broken, last = read(path, TAGS)
    assert isinstance(first, Document)
    assert (first.text, first.origin) == ("Ada wrote", f"{path}:3")
    assert isinstance(broken, Rejected)
    assert (broken.line, broken.kind) == (6, "a word without a tag")
    assert isinstance(last, Document)
    assert last.text == "end"


def test_squad_is_read_nested_and_flat(tmp_path: Path) -> None:
    qas = [{"id": "q1", "question": "Where?", "answers": [{"text": "Bern", "answer_start": 3}]}]
    nested = {"data": [{"title": "t", "paragraphs": [{"context": "in Bern", "qas": qas}]}]}
    (tmp_path / "n.json").write_text(json.dumps(nested))
    row = {"question": "Where?", "context": "in Bern", "answers": {"text": ["Bern"], "answer_start": [3]}}
    (tmp_path / "f.jsonl").write_text(json.dumps(row) + "\n")
    assert only(tmp_path / "n.json", SpanLabels()) == only(tmp_path / "f.jsonl", SpanLabels())
    (tmp_path / "odd.json").write_text('{"data": [{"paragraphs": 3}]}')
    (odd,) = read(tmp_path / "odd.json", SpanLabels())
    assert isinstance(odd, Rejected)
    assert odd.kind == "neither rows nor SQuAD's layout"


def test_parquet_and_a_missing_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"tokens": [["Ada"], ["x", "y"]], "tags": [[1], [0]]}), tmp_path / "x.parquet")
    good, bad = read(tmp_path / "x.parquet", TAGS)
    assert isinstance(good, Document)
    assert isinstance(bad, Rejected)
    assert (bad.line, bad.kind) == (2, "words and tags differ in number")
    (missing,) = read(tmp_path / "x.parquet", CLASSES)
    assert isinstance(missing, Rejected)
    assert (missing.rows, missing.kind) == (2, "missing text")


def test_plain_text_has_no_labels(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    (found,) = read(tmp_path / "x.txt", CLASSES)
    assert isinstance(found, Rejected)
    assert found.kind == "no labels in plain text"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.tsv does not exist"):
        list_inputs("s", SourceConfig(paths=[str(tmp_path / "gone.tsv")]), labelled=True)
