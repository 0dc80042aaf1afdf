"""Held out by time: who is, exactly; dates that say nothing; equal texts; the same bytes for any number of workers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from hornbook.data.corpus import Corpus
from hornbook.errors import IntegrityError, UsageError
from hornbook.text.config.dates import Newest, Since
from hornbook.text.config.text import BPE, SourceConfig, TextConfig
from hornbook.text.refinery.pipeline import plan as planning
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.splits import Split, is_validation
from hornbook.text.tokenizer.tokenize import TokenReport, tokenize
from hornbook.text.tokenizer.train import TrainingTexts

Tree = Callable[[Path], dict[str, bytes]]
Write = Callable[[Path, list[Any]], Path]
Rows = list[dict[str, Any]]
PLAIN: list[Any] = [{"kind": "normalize"}]
"""Steps that leave equal texts."""


def make(folder: Path, write: Write, rows: dict[str, Rows], **settings: Any) -> Path:
    """A prepared folder of sources, each of one file."""
    paths = {name: write(folder / f"{name}.jsonl", each) for name, each in rows.items()}
    sources = {name: SourceConfig(paths=[str(path)]) for name, path in paths.items()}
    prepare(TextConfig(sources=sources, **settings), folder / "data", workers=1)
    return folder / "data"


def split(data: Path, validation: float = 0.0, strict: bool = False, workers: int = 1, **later: Any) -> TokenReport:
    sources = {name: SourceConfig(paths=["-"], later=each) for name, each in later.items()}
    config = TextConfig(tokenizer=BPE(vocab=300), validation=validation, sources=sources, strict=strict)
    return tokenize(data, config, workers=workers, overwrite=True)


def held(data: Path) -> dict[str, set[str]]:
    """Split/source -> ids of its documents."""
    corpus = Corpus.open(data)
    corpus.verify()
    streams = [("train", each) for each in corpus.train.values()]
    streams += [("validation", each) for each in corpus.validation.values()]
    return {
        f"{name}/{stream.source}": {
            row["id"] for shard in stream.shards for row in pq.read_table(shard.path(".docs.parquet")).to_pylist()
        }
        for name, stream in streams
    }


def told(report: TokenReport) -> list[str]:
    """Notes about the source that is split by time, in order."""
    return [note.removeprefix("source 'news': ") for note in report.notes if note.startswith("source 'news': ")]


def dated(**dates: Any) -> Rows:
    return [{"id": name, "text": f"text of {name}", "date": date} for name, date in dates.items()]


def test_from_the_moment_on_in_any_zone_and_none_before(tmp_path: Path, write_rows: Write):
    rows = dated(
        old="2024-06-30",
        just_before="2024-06-30T23:59:59.999999Z",
        before_elsewhere="2024-07-01T01:59:59+02:00",
        that_day="2024-07-01",
        that_moment="2024-07-01T02:00:00+02:00",
        later="2025",
        that_month="2024-07",
    )
    data = make(tmp_path, write_rows, {"news": rows, "web": dated(other="2025-01-01")})
    report = split(data, news=Since(date="2024-07-01"))
    assert held(data) == {
        "train/news": {"old", "just_before", "before_elsewhere"},
        "train/web": {"other"},
        "validation/news@later": {"that_day", "that_moment", "later", "that_month"},
    }
    assert told(report) == ["4 documents from 2024-07-01T00:00:00Z on are held out as news@later"]
    assert report.shares["news@later", "validation"].documents == 4


def test_what_cannot_be_decided_is_counted_and_named_and_stays(tmp_path: Path, write_rows: Write):
    rows = dated(year="2024", month="2024-07", old="2023", none=None, words="last July", new="2024-08-01")
    data = make(tmp_path, write_rows, {"news": rows})
    report = split(data, news=Since(date="2024-07-02"))
    assert held(data) == {
        "train/news": {"year", "month", "old", "none", "words"},
        "validation/news@later": {"new"},
    }
    _, undecided, undated = told(report)
    assert "the dates of 2 documents say neither before nor after" in undecided
    assert "2 documents have no date that can be read" in undated
    assert f"(first: {tmp_path / 'news.jsonl'}:4, no date)" in undated


def test_strict_names_file_and_line(tmp_path: Path, write_rows: Write):
    data = make(tmp_path, write_rows, {"news": dated(a="2024", b="first of May")})
    with pytest.raises(
        IntegrityError, match=r"source 'news': 1 documents .*news\.jsonl:2, 'first of May' is not a date"
    ):
        split(data, strict=True, news=Since(date="2024"))
    split(data, strict=True)


def test_the_newest_share_by_whole_moments(tmp_path: Path, write_rows: Write):
    days = {f"d{number}": f"2024-01-{number:02}" for number in range(1, 21)}
    data = make(tmp_path, write_rows, {"news": dated(**days, none=None)})
    split(data, news=Newest(share=0.25))
    assert held(data)["validation/news@later"] == {f"d{number}" for number in range(16, 21)}
    assert told(split(data, news=Newest(share=0.04)))[0].startswith("nothing is held out by date")


def test_documents_of_one_moment_stay_together(tmp_path: Path, write_rows: Write):
    days = {f"d{number}": f"2024-01-{min(number, 8):02}" for number in range(1, 11)}
    data = make(tmp_path, write_rows, {"news": dated(**days)})
    report = split(data, news=Newest(share=0.2))
    assert "validation/news@later" not in held(data)
    assert "more documents than asked for are of the newest moment" in told(report)[0]
    split(data, news=Newest(share=0.3))
    assert held(data)["validation/news@later"] == {"d8", "d9", "d10"}


def test_by_content_and_by_time_at_once(tmp_path: Path, write_rows: Write):
    rows = {
        name: dated(**{f"{name}{number}": f"{2000 + number % 25}-05-01" for number in range(200)})
        for name in ("finance", "public")
    }
    data = make(tmp_path, write_rows, rows)
    split(data, 0.1, finance=Since(date="2020"), public=Since(date="2022"))
    found = held(data)
    clusters = {
        row["id"]: row["cluster"]
        for path in (data / "documents").rglob("*.parquet")
        for row in pq.read_table(path).to_pylist()
    }
    for name, first in (("finance", 20), ("public", 22)):
        ids = {row["id"] for row in rows[name]}
        later = {row["id"] for row in rows[name] if int(row["date"][2:4]) >= first}
        hashed = {each for each in ids - later if is_validation(clusters[each], 0.1)}
        assert found[f"validation/{name}@later"] == later
        assert found[f"validation/{name}"] == hashed != set()
        assert found[f"train/{name}"] == ids - later - hashed


def test_a_later_text_that_was_there_before_goes_where_its_equal_goes(tmp_path: Path, write_rows: Write):
    def row(name: str, text: str, date: str) -> dict[str, Any]:
        return {"id": name, "text": text, "date": date}

    rows = {
        "news": [row("a", "same", "2020"), row("b", "same", "2024"), row("c", "new", "2024"), row("d", "new", "2025")],
        "web": [row("e", "also elsewhere", "2025")],
        "wire": [row("f", "also elsewhere", "2025"), row("g", "only here", "2025")],
    }
    data = make(tmp_path, write_rows, rows, steps=PLAIN)
    report = split(data, news=Since(date="2024"), wire=Since(date="2024"))
    assert held(data) == {
        "train/news": {"a", "b"},
        "train/web": {"e"},
        "train/wire": {"f"},
        "validation/news@later": {"c", "d"},
        "validation/wire@later": {"g"},
    }
    assert "source 'wire': 1 later documents are equal to earlier ones" in "\n".join(report.notes)


def test_the_tokenizer_is_not_trained_on_what_is_held_out(tmp_path: Path, write_rows: Write):
    data = make(tmp_path, write_rows, {"news": dated(old="2020", new="2024"), "dev": dated(dev="2020")})
    shards = {path: Split(since=0) for path in (data / "documents" / "news").glob("*.parquet")}
    assert list(TrainingTexts(shards, 10**6)) == []
    split(data, news=Since(date="2024"))
    everything = {path: Split(whole="validation") for path in data.rglob("documents/dev/*.parquet")}
    assert list(TrainingTexts(everything, 10**6)) == []
    since = {path: Split(since=1704067200 * 10**6) for path in (data / "documents" / "news").glob("*.parquet")}
    assert list(TrainingTexts(since, 10**6)) == [["text of old"]]


def test_any_number_of_workers_and_a_second_call(
    tmp_path: Path, write_rows: Write, read_tree: Tree, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(planning, "_MIN_TASK_BYTES", 1000)
    texts = dated(**{f"n{number}": f"20{number % 25:02}" for number in range(300)})
    for part in range(3):
        write_rows(tmp_path / "news" / f"{part}.jsonl", texts[100 * part : 100 * part + 100])
    source = SourceConfig(paths=[str(tmp_path / "news")], later=Newest(share=0.2))
    trees = []
    for workers in (1, 3):
        data = tmp_path / f"data{workers}"
        config = TextConfig(sources={"news": source}, tokenizer=BPE(vocab=300), validation=0.1)
        prepare(config, data, workers=1)
        first = tokenize(data, TextConfig(tokenizer=BPE(vocab=300), validation=0.1), workers=workers)
        trees.append(read_tree(data))
        again = tokenize(data, TextConfig(tokenizer=BPE(vocab=300), validation=0.1), workers=workers)
        assert (again.notes, again.shares) == (first.notes, first.shares)
    assert len([name for name in trees[0] if name.startswith("tokens/validation/news@later/")]) >= 8
    assert trees[0] == trees[1]
    with pytest.raises(UsageError, match="already has tokens with other settings"):
        tokenize(data, config.model_copy(update={"sources": {"news": SourceConfig(paths=source.paths)}}))


def test_dates_of_toml_and_what_a_setting_may_be():
    from datetime import date, datetime, timedelta, timezone

    assert Since.model_validate({"date": date(2024, 7, 1)}).date == "2024-07-01"
    assert Since.model_validate({"date": 2024}).date == "2024"
    moment = datetime(2024, 7, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert Since.model_validate({"date": moment}).date == "2024-07-01T12:00:00+02:00"
    with pytest.raises(ValidationError, match="'soon' is not a date: ISO 8601 is read"):
        Since(date="soon")
    with pytest.raises(ValidationError, match="leave out `split`, or `later`"):
        SourceConfig(paths=["a"], split="train", later=Newest(share=0.1))
    stored = SourceConfig(paths=["a"], later=Since(date="2024")).model_dump_json()
    assert json.loads(stored)["later"] == {"kind": "since", "date": "2024"}
    assert "later" not in json.loads(SourceConfig(paths=["a"]).model_dump_json())


def test_few_documents_hold_out_one_where_their_hashes_hold_out_none(tmp_path: Path, write_rows: Write):
    """1 % of twelve documents: nothing was held out, and nothing could be evaluated."""
    data = make(tmp_path, write_rows, {"web": dated(**{f"d{n}": None for n in range(12)})})
    report = split(data, validation=0.01)
    found = held(data)
    assert len(found["validation/web"]) == 1
    assert len(found["train/web"]) == 11
    (note,) = [each for each in report.notes if "text.validation" in each]
    none = "text.validation 0.01 holds out none of 12 documents"
    assert note == f"{none}: the one with the lowest hash is held out (8% of the bytes)"
    assert not any("holds out none" in note for note in split(data, validation=0.5).notes)
    assert held(data)["validation/web"] >= found["validation/web"]


def test_a_large_part_of_the_text_is_not_held_out_unasked(tmp_path: Path, write_rows: Write):
    data = make(tmp_path, write_rows, {"web": dated(a=None, b=None, c=None)})
    (note,) = [each for each in split(data, validation=0.01).notes if "text.validation" in each]
    assert "validation/web" not in held(data)
    assert "holds out none of 3 documents, so nothing can be evaluated: --text.validation 0." in note
    share = float(note.split("--text.validation ")[1].split()[0])
    split(data, validation=share)
    assert len(held(data)["validation/web"]) == 1
    alone = make(tmp_path / "one", write_rows, {"web": dated(a=None)})
    assert any(note.endswith("so nothing can be evaluated: add more text") for note in split(alone, 0.01).notes)


def test_a_source_of_held_out_text_is_enough(tmp_path: Path, write_rows: Write):
    data = make(tmp_path, write_rows, {"web": dated(a=None, b=None), "test": dated(c=None)})
    sources = {"test": SourceConfig(paths=["-"], split="validation")}
    report = tokenize(data, TextConfig(tokenizer=BPE(vocab=300), sources=sources), workers=1)
    assert held(data) == {"train/web": {"a", "b"}, "validation/test": {"c"}}
    assert not any("holds out none" in note for note in report.notes)
