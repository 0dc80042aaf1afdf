"""Moving several thresholds over measured documents: equal to preparing the same files with them."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from hornbook.errors import UsageError
from hornbook.text.config.text import SourceConfig, TextConfig
from hornbook.text.ingest.corpora.damaged import DAMAGED, FAULTS, plant_damage
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.refinery.report.reviews import judge, read_examples
from hornbook.text.refinery.scores import measured_corpus
from hornbook.text.refinery.scores.moved_thresholds import RULES, MovedThresholds

THRESHOLDS: dict[str, dict[str, float]] = {
    "gopher_quality": {"min_words": 12, "min_alphabetic_words": 0.6, "min_stop_words": 1},
    "gopher_repetition": {"max_duplicate_lines": 0.4, "max_duplicate_5_grams": 0.5},
    "fineweb": {"min_terminal_lines": 0.05, "max_duplicate_characters": 0.5, "max_newlines": 1.0},
}


def write_documents(path: Path) -> None:
    """Rows of words, some of them repeated, without letters or without stop words."""
    draw, rows = random.Random(0), list[str]()
    words = ["the", "of", "and", "river", "stone", "a", "house.", "7", "*", "green", "walks.", "to"]
    for number in range(150):
        lines = [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(draw.randint(1, 8))]
        lines = [draw.choice(lines[:2]) if draw.random() < number / 300 else line for line in lines]
        rows.append(json.dumps({"id": str(number), "text": "\n".join(lines)}))
    path.write_text("\n".join(rows) + "\n")


def prepared(files: Path, out: Path, thresholds: Mapping[str, Any]) -> set[str]:
    """Ids of the documents that prepare keeps."""
    rules = [RULES[kind](**values) for kind, values in thresholds.items()]
    sources = {"web": SourceConfig(paths=[str(files)])}
    prepare(TextConfig.model_validate({"sources": sources, "steps": [*measured_corpus.PLAIN, *rules]}), out, workers=1)
    return {each for path in (out / "documents").rglob("*.parquet") for each in pq.read_table(path)["id"].to_pylist()}


def kept(moved: MovedThresholds) -> set[str]:
    return set(moved.corpus.signals.columns["id"][moved.now.kept].tolist())


def test_equal_to_preparing_with_these_thresholds(tmp_path: Path) -> None:
    files = tmp_path / "web.jsonl"
    write_documents(files)
    wanted = prepared(files, tmp_path / "wanted", THRESHOLDS)
    assert 10 < len(wanted) < 140
    assert kept(MovedThresholds.of(str(files), THRESHOLDS)) == wanted
    others = {"gopher_quality": {"min_words": 30}, "fineweb": {}}
    prepared(files, tmp_path / "others", others)
    moved = MovedThresholds.of(str(tmp_path / "others"), THRESHOLDS)
    assert kept(moved) == wanted
    for trial in moved.move("min_words", [0, 20, 40]):
        changed = {**THRESHOLDS, "gopher_quality": {**THRESHOLDS["gopher_quality"], "min_words": trial.point.value}}
        again = MovedThresholds.of(str(files), changed)
        assert set(moved.corpus.signals.columns["id"][trial.kept].tolist()) == kept(again)
        assert trial.point.bytes == again.now.point.bytes


def test_files_are_measured_again_when_they_change(tmp_path: Path) -> None:
    path = tmp_path / "web.jsonl"
    write_documents(path)
    first = measured_corpus.measured_corpus(str(path), ["fineweb"])
    assert measured_corpus.measured_corpus(str(path), ["gopher_quality"]) is first
    path.write_text("\n".join(path.read_text().splitlines()[:100]))
    assert len(measured_corpus.measured_corpus(str(path), ["fineweb"]).good) < len(first.good)


def test_judged_documents_give_precision_and_recall(tmp_path: Path) -> None:
    files, out = tmp_path / "web.jsonl", tmp_path / "prepared"
    write_documents(files)
    prepared(files, out, THRESHOLDS)
    assert not MovedThresholds.of(str(out), THRESHOLDS).is_judged
    bad = dict[str, bool]()
    for number, example in enumerate(read_examples(out)):
        if example.reason == "exact duplicate":  # of these the kept one is no worse
            judge(out, example, right=True)
            continue
        judge(out, example, right=number % 3 > 0)
        bad[example.id] = (number % 3 > 0) == (example.reason != "kept")
    moved = MovedThresholds.of(str(out), THRESHOLDS)
    assert moved.is_judged  # the corpus in memory is read again where judgements are new
    dropped = [each for each in bad if each not in kept(moved)]
    shares = moved.shares()
    right = [bad[each] for each in dropped]
    assert shares["precision: dropped documents that are bad"] == pytest.approx(sum(right) / len(right))
    assert shares["recall: bad documents that are dropped"] == pytest.approx(sum(right) / sum(bad.values()))
    good = [each for each in bad if not bad[each]]
    assert shares["good documents that are dropped"] == pytest.approx(
        len([each for each in dropped if not bad[each]]) / len(good)
    )
    assert moved.quality(moved.now) == pytest.approx(1 - np.mean([bad[each] for each in bad if each in kept(moved)]))


def test_the_front_is_of_those_that_none_beats(tmp_path: Path) -> None:
    files = tmp_path / "web.jsonl"
    write_documents(files)
    moved = MovedThresholds.of(str(files), THRESHOLDS)
    trials = moved.each_moved({"min_words": [0, 10, 30], "min_stop_words": [0, 2, 3], "max_newlines": [0.1, 0.5]})
    assert [each.point.share for each in trials] == sorted(each.point.share for each in trials)
    front = moved.front(trials)
    for trial in trials:  # nobody has judged them: fewer documents with more words are better
        better = [
            each
            for each in trials
            if each.point.share <= trial.point.share
            and moved.quality(each) >= moved.quality(trial)
            and (each.point.share, moved.quality(each)) != (trial.point.share, moved.quality(trial))
        ]
        assert any(each is trial for each in front) == (not better)


def test_documents_next_to_a_threshold(tmp_path: Path) -> None:
    path = tmp_path / "web.jsonl"
    texts = [" ".join(f"word{each}" for each in range(count)) for count in (3, 8, 9, 10, 11, 40)]
    path.write_text("".join(json.dumps({"id": f"d{len(text.split())}", "text": text}) + "\n" for text in texts))
    loose = {"min_words": 10, "min_alphabetic_words": 0.0, "min_stop_words": 0}
    near = MovedThresholds.of(str(path), {"gopher_quality": loose}).near("min_words", 2, 11)
    assert [(each.is_kept, each.value, each.id) for each in near] == [
        (False, 9, "d9"),
        (False, 8, "d8"),
        (True, 10, "d10"),
        (True, 11, "d11"),
    ]
    assert near[0].text == "word0 word1"


def test_paths_that_cannot_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tmp_path / "web.jsonl"
    write_documents(files)
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").touch()
    prepared(files, tmp_path / "plain", {})
    for path, message in (
        (tmp_path / "nothing", "there is no file or folder"),
        ("http://example.org/a.jsonl", "there is no file or folder"),
        (tmp_path / "empty", "holds no file that can be read"),
        (tmp_path / "blank.txt", "has no documents to measure .*: name files with text"),
        (tmp_path / "plain", "name .*/documents"),
    ):
        with pytest.raises(UsageError, match=message):
            MovedThresholds.of(str(path), THRESHOLDS)
    assert MovedThresholds.of(str(tmp_path / "plain" / "documents"), THRESHOLDS).now.point.documents
    monkeypatch.setattr(measured_corpus, "MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="hornbook prepare"):
        MovedThresholds.of(str(files), THRESHOLDS)
    monkeypatch.setattr(measured_corpus, "MOST_ROWS", 10)
    prepared(files, tmp_path / "many", {"fineweb": {}})
    with pytest.raises(UsageError, match="prepare curve"):
        MovedThresholds.of(str(tmp_path / "many"), THRESHOLDS)


def test_planted_damage_is_the_same_for_a_seed_and_leaves_the_rows(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        write_documents(path)
        plant_damage(path, seed=3)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    rows = [json.loads(line) for line in paths[0].read_text().splitlines()]
    damaged = {row["id"]: row["text"] for row in rows if DAMAGED in row["id"]}
    whole = {row["id"]: row["text"] for row in rows if row["id"] not in damaged}
    assert len(damaged) == len(whole) == 150
    assert {name.partition(DAMAGED)[2] for name in damaged} == set(FAULTS)
    assert sum(text != whole[name.partition(DAMAGED)[0]] for name, text in damaged.items()) > 100
