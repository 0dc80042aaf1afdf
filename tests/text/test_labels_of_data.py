"""A labelled folder knows its labels: counted when it is prepared, the same for any number of workers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hornbook.data.corpus import Corpus
from hornbook.errors import IntegrityError
from hornbook.text.config.labels import ClassLabels, LabelsConfig, TagLabels
from hornbook.text.config.text import BPE, SourceConfig, TextConfig
from hornbook.text.refinery.pipeline import plan as planning
from hornbook.text.refinery.pipeline.folder import read_text_config
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize

Tree = Callable[[Path], dict[str, bytes]]
NAMES = ("pos", "neg", "so so")


def config_of(folder: Path, labels: LabelsConfig, rows: list[dict[str, Any]]) -> TextConfig:
    folder.mkdir(exist_ok=True)
    for part in range(3):
        lines = [json.dumps(row) + "\n" for row in rows[part::3]]
        (folder / f"{part}.jsonl").write_text("".join(lines))
    sources = {"set": SourceConfig(paths=[str(folder)])}
    return TextConfig(sources=sources, labels=labels, tokenizer=BPE(vocab=300), validation=0.2)


def reviews(count: int = 60) -> list[dict[str, Any]]:
    return [{"text": f"text {number}", "label": NAMES[number % 3], "id": f"r{number}"} for number in range(count)]


def stored(data: Path) -> dict[str, int]:
    """Id of a document -> the number that its first token carries."""
    found: dict[str, int] = {}
    for shard in Corpus.open(data).shards:
        assert shard.labels is not None
        firsts = [0, *shard.ends.tolist()[:-1]]
        ids = [shard.document(number)["id"] for number in range(shard.documents)]
        found |= dict(zip(ids, shard.labels[firsts, 0].astype(int).tolist(), strict=True))
    return found


def test_labels_are_those_of_the_rows(tmp_path: Path, read_tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_MIN_TASK_BYTES", 500)
    config = config_of(tmp_path / "raw", ClassLabels(), reviews())
    for workers in (1, 3):
        funnel = prepare(config, tmp_path / f"data{workers}", workers=workers)
        tokenize(tmp_path / f"data{workers}", config, workers=workers)
        assert funnel.labels == {"neg": 20, "pos": 20, "so so": 20}
    assert read_tree(tmp_path / "data1") == read_tree(tmp_path / "data3")
    assert prepare(config, tmp_path / "data1").labels == funnel.labels  # a second time, from the folder
    labels = Corpus.open(tmp_path / "data1").labels
    assert labels == read_text_config(tmp_path / "data1").labels == ClassLabels(labels=["neg", "pos", "so so"])
    numbers = stored(tmp_path / "data1")
    assert {name: labels.labels[number] for name, number in numbers.items()} == {
        row["id"]: row["label"] for row in reviews()
    }


def test_a_list_gives_the_same_tokens_and_labels(tmp_path: Path) -> None:
    for name, labels in (("open", ClassLabels()), ("listed", ClassLabels(labels=["neg", "pos", "so so"]))):
        config = config_of(tmp_path / "raw", labels, reviews())
        assert prepare(config, tmp_path / name, workers=1).labels == {"neg": 20, "pos": 20, "so so": 20}
        tokenize(tmp_path / name, config, workers=1)
    assert Corpus.open(tmp_path / "open").fingerprint == Corpus.open(tmp_path / "listed").fingerprint


def test_several_labels_and_tags_are_taken_from_the_rows_too(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": [NAMES[n % 3], "all"][: 1 + n % 2], "id": f"r{n}"} for n in range(12)]
    config = config_of(tmp_path / "several", ClassLabels(multiple=True), [*rows, {"text": "none", "label": []}])
    assert prepare(config, tmp_path / "a", workers=1).labels == {"all": 6, "neg": 4, "pos": 4, "so so": 4}
    tokenize(tmp_path / "a", config, workers=1)
    shards = [shard for shard in Corpus.open(tmp_path / "a").shards if shard.labels is not None]
    per_text = np.concatenate([np.nan_to_num(shard.labels).sum(1) for shard in shards if shard.labels is not None])
    assert sorted(per_text[per_text > 0].tolist()) == [1.0] * 6 + [2.0] * 6
    rows = [{"tokens": [f"Ada{n}", "wrote"], "tags": ["B-PER", "O"]} for n in range(12)]
    config = config_of(tmp_path / "tags", TagLabels(), rows)
    assert prepare(config, tmp_path / "b", workers=1).labels == {"B-PER": 12, "O": 12}
    tokenize(tmp_path / "b", config, workers=1)
    (values,) = {
        tuple(np.unique(shard.labels[~np.isnan(shard.labels)]))
        for shard in Corpus.open(tmp_path / "b").shards
        if shard.labels is not None
    }
    assert values == (0.0, 1.0)


def test_a_list_that_lacks_the_labels_of_the_rows_is_named_with_the_way_out(tmp_path: Path) -> None:
    config = config_of(tmp_path / "raw", ClassLabels(labels=["code", "docstring"]), reviews())
    with pytest.raises(IntegrityError) as caught:
        prepare(config, tmp_path / "data", workers=1)
    text = str(caught.value)
    assert "unknown label: 'pos'; text.labels.labels are code, docstring" in text
    assert text.endswith("leave text.labels.labels out, and the labels are those of the rows")
    prepare(config.model_copy(update={"labels": ClassLabels()}), tmp_path / "data", workers=1)  # the folder is free


def test_a_label_in_another_column_is_named_with_the_option(tmp_path: Path) -> None:
    config = config_of(tmp_path / "raw", ClassLabels(label="stars"), reviews())
    with pytest.raises(IntegrityError, match=r"missing label: no key 'stars' .*\n.*: --text\.labels\.label NAME"):
        prepare(config, tmp_path / "data", workers=1)
