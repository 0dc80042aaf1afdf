"""SuperGLUE's layouts with candidates: files as published, nested and flat, and what is wrong with damaged ones.

The rows have the field names of the public files (super.gluebenchmark.com) and of the Hub's tables; the texts are ours.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from hornbook.text.config.labels import ClassLabels
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.document import Document, ReadOptions, Rejected
from hornbook.text.ingest.inputs import list_inputs
from hornbook.text.ingest.readers import read_file

COPA: dict[str, Any] = {
    "premise": "The ice melted.",
    "choice1": "The sun came out.",
    "choice2": "Night fell.",
    "question": "cause",
    "label": 0,
    "idx": 7,
}
WIC: dict[str, Any] = {
    "word": "bank",
    "sentence1": "They sat on the bank of the river.",
    "sentence2": "The bank was closed.",
    "idx": 3,
    "label": False,
    "start1": 16,
    "start2": 4,
    "end1": 20,
    "end2": 8,
    "version": 1.1,
}
MULTIRC: dict[str, Any] = {
    "idx": 4,
    "version": 1.1,
    "passage": {
        "text": "Ada wrote to Bo. Bo was glad.",
        "questions": [
            {
                "question": "Who was glad?",
                "answers": [{"text": "Bo", "idx": 0, "label": 1}, {"text": "Ada", "idx": 1, "label": 0}],
                "idx": 0,
            },
            {"question": "Who wrote?", "answers": [{"text": "Ada", "idx": 2, "label": 1}], "idx": 1},
        ],
    },
}
PASSAGE = "Ada met Bo in Bern\n@highlight\nBo had come from Rome"
RECORD: dict[str, Any] = {
    "source": "Daily mail",
    "passage": {
        "text": PASSAGE,
        "entities": [
            {"start": PASSAGE.index(name), "end": PASSAGE.index(name) + len(name) - 1} for name in ("Ada", "Bo")
        ]
        + [{"start": PASSAGE.rindex("Bo"), "end": PASSAGE.rindex("Bo") + 1}],
    },
    "qas": [
        {
            "query": "In Bern @placeholder was met by Ada",
            "answers": [{"start": 8, "end": 9, "text": "Bo"}, {"start": 30, "end": 31, "text": "Bo"}],
            "idx": 0,
        }
    ],
    "idx": 2,
}


def read(path: Path, layout: Any) -> list[Document | Rejected]:
    (file,) = list_inputs("s", SourceConfig(paths=[str(path)]), labelled=True)
    return list(read_file(file, ReadOptions(id_field="idx", labels=ClassLabels(labels=["no", "yes"], layout=layout))))


def pairs(rows: list[Document | Rejected]) -> list[tuple[str, str, str, tuple[float, ...], tuple[str, ...]]]:
    """(first text, second text, candidate, label, right answers)."""
    found = []
    for row in rows:
        assert isinstance(row, Document), row
        assert row.labels is not None
        first, second = (row.text[begin:end] for begin, end in row.labels.parts)
        candidate = "".join(row.text[begin:end] for begin, end, _ in row.labels.spans)
        found.append((first, second, candidate, row.labels.values, row.labels.answers))
    return found


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(path: Path, *rows: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def names(rows: list[Document | Rejected]) -> list[str]:
    return [row.id for row in rows if isinstance(row, Document)]


def test_copa(tmp_path: Path):
    path = lines(tmp_path / "val.jsonl", COPA, COPA | {"question": "effect", "label": 1})
    found = read(path, "copa")
    cause, effect = "The ice melted. What was the cause of this?", "The ice melted. What happened as a result?"
    assert pairs(found) == [
        (cause, "The sun came out.", "The sun came out.", (1.0,), ("The sun came out.",)),
        (cause, "Night fell.", "Night fell.", (0.0,), ("The sun came out.",)),
        (effect, "The sun came out.", "The sun came out.", (0.0,), ("Night fell.",)),
        (effect, "Night fell.", "Night fell.", (1.0,), ("Night fell.",)),
    ]
    assert names(found) == [f"{path}:{row}#{number}" for row in (1, 2) for number in (0, 1)]
    assert pairs(read(table(tmp_path / "val.parquet", COPA), "copa")) == pairs(found)[:2]


def test_wic(tmp_path: Path):
    (document,) = read(lines(tmp_path / "val.jsonl", WIC), "wic")
    ((first, second, _, values, _),) = pairs([document])
    assert first == "bank: They sat on the bank of the river."
    assert (second, values, document.source) == ("The bank was closed.", (0.0,), "s")
    assert names([document]) == ["3"]
    assert pairs(read(table(tmp_path / "val.parquet", WIC | {"label": 1}), "wic"))[0][3] == (1.0,)


def test_multirc_nested_and_flat(tmp_path: Path):
    nested = read(lines(tmp_path / "val.jsonl", MULTIRC), "multirc")
    passage = MULTIRC["passage"]["text"]
    assert pairs(nested) == [
        ("Who was glad? Bo", passage, "Bo", (1.0,), ()),
        ("Who was glad? Ada", passage, "Ada", (0.0,), ()),
        ("Who wrote? Ada", passage, "Ada", (1.0,), ()),
    ]
    flat = [
        {
            "paragraph": passage,
            "question": asked,
            "answer": answer,
            "idx": dict(zip(KEYS, idx, strict=True)),
            "label": label,
        }
        for asked, answer, idx, label in (
            ("Who was glad?", "Bo", (4, 0, 0), 1),
            ("Who was glad?", "Ada", (4, 0, 1), 0),
            ("Who wrote?", "Ada", (4, 1, 2), 1),
        )
    ]
    for path in (lines(tmp_path / "flat.jsonl", *flat), table(tmp_path / "flat.parquet", *flat)):
        found = read(path, "multirc")
        assert pairs(found) == pairs(nested)
        assert names(found) == ["4-0#0", "4-0#1", "4-1#2"]
    assert [name.partition("#")[0] for name in names(nested)] == [f"{tmp_path / 'val.jsonl'}:1-{n}" for n in (0, 0, 1)]


KEYS = ("paragraph", "question", "answer")


def test_record_nested_and_flat(tmp_path: Path):
    nested = read(lines(tmp_path / "val.jsonl", RECORD), "record")
    text = "Ada met Bo in Bern\nBo had come from Rome"
    assert pairs(nested) == [
        ("In Bern Ada was met by Ada", text, "Ada", (0.0,), ("Bo", "Bo")),
        ("In Bern Bo was met by Ada", text, "Bo", (1.0,), ("Bo", "Bo")),
    ]
    flat = {
        "passage": PASSAGE,
        "query": "In Bern @placeholder was met by Ada",
        "entities": ["Ada", "Bo"],
        "entity_spans": {"text": ["Ada", "Bo"], "start": [0, 8], "end": [3, 10]},
        "answers": ["Bo", "Bo"],
        "idx": {"passage": 2, "query": 0},
    }
    assert pairs(read(table(tmp_path / "val.parquet", flat), "record")) == pairs(nested)


def without(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


@pytest.mark.parametrize(
    ("layout", "row", "reason"),
    [
        ("copa", without(COPA, "label"), "not copa's layout: missing label"),
        ("copa", COPA | {"label": 2}, "not copa's layout: label is 2, neither 0 nor 1"),
        ("copa", COPA | {"question": "why"}, "not copa's layout: question is 'why', neither 'cause' nor 'effect'"),
        ("copa", COPA | {"choice2": 5}, "not copa's layout: choice2 is 5"),
        ("wic", without(WIC, "word"), "missing text: no key 'word'"),
        ("multirc", COPA, "not multirc's layout: missing passage"),
        ("multirc", {"passage": {"text": "t", "questions": [3]}}, "missing passage.questions[0].question"),
        (
            "multirc",
            {"passage": {"text": "t", "questions": [{"question": "q", "answers": [{"text": "a"}]}]}},
            "missing passage.questions[0].answers[0].label",
        ),
        (
            "record",
            RECORD | {"qas": [{"query": "no blank", "answers": [{"text": "Bo"}]}]},
            "qas[0].query has no @placeh",
        ),
        ("record", RECORD | {"qas": [{"query": "@placeholder", "answers": []}]}, "qas[0].answers or entities: none"),
        (
            "record",
            RECORD | {"passage": {"text": "short", "entities": [{"start": 3, "end": 5}]}},
            "(3, 5) is not within the 5 characters of the passage",
        ),
    ],
)
def test_a_row_of_another_layout_is_named_whole(tmp_path: Path, layout: str, row: dict[str, Any], reason: str):
    path = lines(tmp_path / "x.jsonl", row)
    (bad,) = read(path, layout)
    assert isinstance(bad, Rejected)
    assert reason in bad.reason
    assert (bad.path, bad.line, bad.rows) == (str(path), 1, 1)


def test_layouts_have_two_labels_and_fields_of_their_own():
    with pytest.raises(ValidationError, match=r"layout 'copa' has 2 labels, in the order of no, yes"):
        ClassLabels(labels=["a", "b", "c"], layout="copa")
    with pytest.raises(ValidationError, match=r"layout 'wic' has fields of its own"):
        ClassLabels(labels=["a", "b"], layout="wic", pair="sentence2")
    assert "layout" not in ClassLabels(labels=["a", "b"]).model_dump()
