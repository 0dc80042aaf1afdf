"""Tasks of GLUE and SuperGLUE: rows as the Hub has them and as their files were published give the same labels."""

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from hornbook.text.config.benchmarks import benchmarks
from hornbook.text.config.labels import CANDIDATES, ClassLabels, NumberLabels, is_paired
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.charsets import UnfitRow
from hornbook.text.ingest.document import Document, ReadOptions, Rejected
from hornbook.text.ingest.inputs import list_inputs
from hornbook.text.ingest.labels.rows import label_row
from hornbook.text.ingest.readers import read_file

WSC_WORDS = "Mark told Pete many lies about himself, which he believed."
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[float, ...]]] = {
    "sst2": ({"sentence": "a", "label": 1}, {"sentence": "a", "label": "1"}, (1.0,)),
    "mrpc": (
        {"sentence1": "a", "sentence2": "b", "label": 0},
        {"#1 String": "a", "#2 String": "b", "Quality": "0"},
        (0,),
    ),
    "qqp": (
        {"question1": "a", "question2": "b", "label": 1},
        {"question1": "a", "question2": "b", "is_duplicate": "1"},
        (1,),
    ),
    "mnli": (
        {"premise": "a", "hypothesis": "b", "label": 2},
        {"sentence1": "a", "sentence2": "b", "gold_label": "contradiction", "label1": "neutral"},
        (2,),
    ),
    "qnli": (
        {"question": "a", "sentence": "b", "label": 0},
        {"question": "a", "sentence": "b", "label": "entailment"},
        (0,),
    ),
    "rte": (
        {"sentence1": "a", "sentence2": "b", "label": 1},
        {"premise": "a", "hypothesis": "b", "label": "not_entailment"},
        (1,),
    ),
    "wnli": (
        {"sentence1": "a", "sentence2": "b", "label": 1},
        {"sentence1": "a", "sentence2": "b", "label": "1"},
        (1,),
    ),
    "boolq": ({"question": "a", "passage": "b", "label": 1}, {"question": "a", "passage": "b", "label": True}, (1,)),
    "cb": (
        {"premise": "a", "hypothesis": "b", "label": 1},
        {"premise": "a", "hypothesis": "b", "label": "contradiction"},
        (1,),
    ),
    "wsc": (
        {"text": WSC_WORDS, "span1_text": "Mark", "span2_text": "he", "span2_index": 8, "label": 0},
        {"text": WSC_WORDS, "target": {"span1_text": "Mark", "span2_text": "he", "span2_index": 8}, "label": False},
        (0,),
    ),
}


@pytest.mark.parametrize("layout", ROWS)
def test_both_forms_give_the_same_labels(layout: Any) -> None:
    hub, published, values = ROWS[layout]
    config = ClassLabels(layout=layout)
    assert config.labels == list(benchmarks()[layout].labels)
    text, labels = label_row(config, hub)
    assert label_row(config, published) == (text, labels)
    assert labels.values == values
    assert len(labels.parts) == (2 if is_paired(config) else 1)
    if layout != "wsc":
        assert text.split("\n") == ["a", "b"][: len(labels.parts)]


def test_wsc_marks_the_pronoun_and_finds_it_misplaced() -> None:
    row = ROWS["wsc"][0]
    assert label_row(ClassLabels(layout="wsc"), row)[0] == f"Mark\n{WSC_WORDS.replace(' he ', ' *he* ')}"
    with pytest.raises(UnfitRow, match=r"'he' is not at its place: word 3 of the text is 'many'"):
        label_row(ClassLabels(layout="wsc"), row | {"span2_index": 3})
    with pytest.raises(UnfitRow, match="'' is not at its place"):
        label_row(ClassLabels(layout="wsc"), row | {"span2_text": ""})


def test_numbers_of_stsb() -> None:
    config = NumberLabels(layout="stsb")
    assert is_paired(config)
    for key, value in (("label", 2.5), ("score", "2.500")):
        assert label_row(config, {"sentence1": "a", "sentence2": "b", key: value})[1].values == (2.5,)


def test_cola_has_no_header(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("gj04\t1\t\tOur friends won't buy this.\ngj04\t0\t*\tThey drank the pub.\ngj04\t1\tx\n")
    (file,) = list_inputs("s", SourceConfig(paths=[str(path)]), labelled=True)
    first, second, bad = read_file(file, ReadOptions(labels=ClassLabels(layout="cola")))
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert [each.labels.values for each in (first, second) if each.labels] == [(1.0,), (0.0,)]
    assert first.text == "Our friends won't buy this."
    assert isinstance(bad, Rejected)
    assert bad.kind == "wrong number of cells"


def test_a_file_of_cola_with_a_header_is_read_by_it(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("sentence\tlabel\tidx\nOur friends won't buy this.\t1\t0\n")
    (file,) = list_inputs("s", SourceConfig(paths=[str(path)]), labelled=True)
    (only,) = read_file(file, ReadOptions(labels=ClassLabels(layout="cola")))
    assert isinstance(only, Document)
    assert only.text == "Our friends won't buy this."


def test_a_row_of_another_task_is_named() -> None:
    reason = (
        r"not mrpc's layout: it has sentence1, sentence2, label or #1 String, #2 String, Quality, and the keys are 'x'"
    )
    with pytest.raises(UnfitRow, match=reason):
        label_row(ClassLabels(layout="mrpc"), {"x": 1})


def test_layouts_are_those_of_the_table() -> None:
    fields = {**dict.fromkeys(get_args(ClassLabels.model_fields["layout"].annotation), ClassLabels)}
    fields |= dict.fromkeys(get_args(NumberLabels.model_fields["layout"].annotation), NumberLabels)
    assert set(fields) - {"rows"} == set(benchmarks())
    assert {name for name, task in benchmarks().items() if not task.fields} == {*CANDIDATES, "wic", "wsc"}
    with pytest.raises(ValidationError, match="layout 'mnli' has 3 labels, in the order of entailment, neutral"):
        ClassLabels(layout="mnli", labels=["a", "b"])
    with pytest.raises(ValidationError, match="layout 'stsb' has fields of its own"):
        NumberLabels(layout="stsb", text="x")
