"""prepare: rows add up, duplicates go, and neither workers nor kills change a byte."""

import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest
import xxhash

from hornbook.errors import IntegrityError, InUseError, StorageError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock
from hornbook.text.config.content import MentionsConfig
from hornbook.text.config.text import DropEmptyConfig, ExactDedupConfig, NormalizeConfig, SourceConfig, TextConfig
from hornbook.text.refinery.pipeline import plan as planning
from hornbook.text.refinery.pipeline import prepare as room
from hornbook.text.refinery.pipeline.folder import clear, read_text_config
from hornbook.text.refinery.pipeline.funnel import Funnel
from hornbook.text.refinery.pipeline.plan import list_all, plan
from hornbook.text.refinery.pipeline.prepare import WHOLE, prepare, prepare_share
from tests.text.kills import Killed, killed_at_rename

Tree = Callable[[Path], dict[str, bytes]]
Write = Callable[[Path, list[Any]], Path]
Make = Callable[..., list[str]]


def config_of(**sources: Any) -> TextConfig:
    options = {name: value for name, value in sources.items() if not isinstance(value, Path)}
    named = {name: SourceConfig(paths=[str(path)]) for name, path in sources.items() if isinstance(path, Path)}
    return TextConfig(sources=named, **options)


def kept_texts(data: Path, source: str) -> list[str]:
    paths = sorted((data / "documents" / source).glob("*.parquet"))
    return [text for path in paths for text in pq.read_table(path)["text"].to_pylist()]


def killed_before_decide(monkeypatch: pytest.MonkeyPatch, config: TextConfig, data: Path) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(room, "decide", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            prepare(config, data, workers=1)


@pytest.fixture
def corpus(tmp_path: Path, write_rows: Write, make_texts: Make) -> TextConfig:
    """Two sources in three formats; duplicates within and across them, damage, blank lines."""
    raw = tmp_path / "raw"
    web = write_rows(raw / "web" / "a.jsonl", [{"text": text, "id": f"w{n}"} for n, text in enumerate(make_texts(60))])
    with web.open("ab") as file:
        file.write(b'\n\nbroken\n{"text": ""}\n{"text": " \\u200b"}\n{"text": "half')
    rows = [json.dumps({"text": text.replace("\n", "\r\n")}).encode() + b"\n" for text in make_texts(40)]
    (raw / "web" / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(rows)))
    (raw / "notes").mkdir()
    for number, text in enumerate(make_texts(25, seed=1)):
        (raw / "notes" / f"{number:02d}.txt").write_text(text)
    (raw / "notes" / "bad.md").write_bytes(b"\xff\xfb\x00")
    return config_of(web=raw / "web", notes=raw / "notes")


def test_the_result_equals_a_plain_reference(tmp_path: Path, corpus: TextConfig, make_texts: Make):
    funnel = prepare(corpus, tmp_path / "data")
    seen: set[str] = set()
    expected: dict[str, list[str]] = {"web": [], "notes": []}
    for source, texts in (("web", make_texts(60) + make_texts(40)), ("notes", make_texts(25, seed=1))):
        for text in texts:
            if text not in seen:
                expected[source].append(text)
                seen.add(text)
    assert kept_texts(tmp_path / "data", "web") == expected["web"]
    assert kept_texts(tmp_path / "data", "notes") == expected["notes"]
    web = funnel.sources["web"]
    assert (web.read.rows, web.kept.rows, web.files) == (60 + 6 + 40, len(expected["web"]), 2)
    assert {reason: tally.rows for reason, tally in web.dropped.items()} == {
        "blank line": 2,
        "empty": 2,
        "exact duplicate": 100 - len(expected["web"]),
    }
    assert {reason: tally.rows for reason, tally in web.quarantined.items()} == {
        "invalid JSON": 1,
        "half-written last line": 1,
    }
    assert {reason: tally.rows for reason, tally in funnel.sources["notes"].quarantined.items()} == {"invalid UTF-8": 1}


def test_every_row_is_in_the_signals_or_the_quarantine(tmp_path: Path, corpus: TextConfig):
    data = tmp_path / "data"
    funnel = prepare(corpus, data)
    rows = [row for path in sorted((data / "signals").glob("*")) for row in pq.read_table(path).to_pylist()]
    counted = Counter((row["source"], row["reason"]) for row in rows)
    for source, parts in funnel.sources.items():
        assert counted[source, "kept"] == parts.kept.rows
        for reason, tally in parts.dropped.items():
            assert counted[source, reason] == (0 if reason == "blank line" else tally.rows)
    assert [(row["task"], row["row"]) for row in rows] == sorted((row["task"], row["row"]) for row in rows)
    damaged = [json.loads(line) for line in (data / "quarantine.jsonl").read_text().splitlines()]
    raw = tmp_path / "raw"
    assert [(row["file"], row["line"], row["reason"].partition(":")[0]) for row in damaged] == [
        (str(raw / "web" / "a.jsonl"), 63, "invalid JSON"),
        (str(raw / "web" / "a.jsonl"), 66, "half-written last line"),
        (str(raw / "notes" / "bad.md"), 1, "invalid UTF-8"),
    ]
    assert damaged[0]["excerpt"] == "broken"
    assert Funnel.from_json(json.loads((data / "funnel.json").read_text())) == funnel


def test_documents_say_where_they_come_from(tmp_path: Path, corpus: TextConfig):
    prepare(corpus, tmp_path / "data")
    first = pq.read_table(tmp_path / "data" / "documents" / "web" / "00000.parquet").to_pylist()[0]
    assert (first["id"], first["source"], first["origin"]) == ("w0", "web", f"{tmp_path}/raw/web/a.jsonl:1")
    assert first["bytes"] == len(first["text"].encode())
    assert first["cluster"] == xxhash.xxh3_128_hexdigest(first["text"].encode())


@pytest.fixture
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tasks small, so that a small corpus has many of them."""
    monkeypatch.setattr(planning, "_MIN_TASK_BYTES", 1000)


@pytest.mark.usefixtures("many_tasks")
def test_any_number_of_workers_writes_the_same_bytes(tmp_path: Path, corpus: TextConfig, read_tree: Tree):
    trees = []
    for workers in (1, 3):
        prepare(corpus, tmp_path / f"data{workers}", workers=workers)
        trees.append(read_tree(tmp_path / f"data{workers}"))
    assert len(list((tmp_path / "data1" / "signals").iterdir())) >= 5
    assert trees[0] == trees[1]


@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize("first", [1, pytest.param(4, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.slow)])
def test_stopped_at_every_rename_it_goes_on_to_the_same_bytes(
    tmp_path: Path, corpus: TextConfig, read_tree: Tree, monkeypatch: pytest.MonkeyPatch, first: int
):
    real = os.replace
    calls = 0

    def count(*names: Any) -> None:
        nonlocal calls
        calls += 1
        real(*names)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", count)
        prepare(corpus, tmp_path / "whole", workers=1)
    expected, points = read_tree(tmp_path / "whole"), calls
    assert points > 40
    data = tmp_path / "data"
    for point in range(first, points, 9):
        with killed_at_rename(point):
            prepare(corpus, data, workers=1)
        (data / f".tmp-litter-{point}").write_text("what a killed writer leaves")
        prepare(corpus, data, workers=1)
        assert read_tree(data) == expected, f"killed at rename {point}"
        clear(data)


@pytest.mark.usefixtures("many_tasks")
def test_finished_tasks_are_not_done_again(tmp_path: Path, corpus: TextConfig, monkeypatch: pytest.MonkeyPatch):
    killed_before_decide(monkeypatch, corpus, tmp_path / "data")
    work = tmp_path / "data" / "work"
    before = {path.name: path.stat().st_mtime_ns for path in work.glob("measured-*.parquet")}
    after: dict[str, int] = {}

    def look(phase: str, done: int, total: int) -> None:
        assert done <= total
        if phase == "decide":
            after.update({path.name: path.stat().st_mtime_ns for path in work.glob("measured-*.parquet")})

    prepare(corpus, tmp_path / "data", workers=1, progress=look)
    assert len(before) >= 5
    assert before == after


def test_an_input_that_changed_while_stopped_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.txt"
    path.write_text("old")
    killed_before_decide(monkeypatch, config_of(s=path), tmp_path / "data")
    path.write_text("newer")
    prepare(config_of(s=path), tmp_path / "data")
    assert kept_texts(tmp_path / "data", "s") == ["newer"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("measured-00000.json", ".parquet"),
        ("verdicts.json", ".reasons.npy"),
        ("verdicts.json", "verdicts.json"),
        ("applied-00000.json", ".samples.jsonl"),
    ],
)
def test_inputs_that_came_and_went_between_kills_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_tree: Tree, first: str, second: str
):
    """Files of one plan are never taken for those of another, wherever the run of either was killed."""
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "b.txt").write_text("first")
    config = config_of(s=raw)
    prepare(config, tmp_path / "expected")

    def stop_after(name: str) -> None:
        real = os.replace

        def replace(source: Any, target: Any) -> None:
            real(source, target)
            if str(target).endswith(name):
                raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", replace)
            with pytest.raises(Killed):
                prepare(config, tmp_path / "data", workers=1)

    stop_after(first)
    (raw / "a.txt").write_text(" ")
    (raw / "c.txt").write_text("first")
    stop_after(second)
    (raw / "a.txt").unlink()
    (raw / "c.txt").unlink()
    prepare(config, tmp_path / "data", workers=1)
    assert read_tree(tmp_path / "data") == read_tree(tmp_path / "expected")


def test_a_run_killed_after_its_manifest_leaves_no_work(tmp_path: Path, corpus: TextConfig, read_tree: Tree):
    prepare(corpus, tmp_path / "data")
    expected = read_tree(tmp_path / "data")
    (tmp_path / "data" / "work").mkdir()
    (tmp_path / "data" / "work" / "measured-00000.parquet").write_text("")
    (tmp_path / "data" / "unfinished.json").write_text("{}")
    prepare(corpus, tmp_path / "data")
    assert read_tree(tmp_path / "data") == expected


def test_a_second_prepare_of_the_same_gives_the_same_funnel_and_touches_nothing(
    tmp_path: Path, corpus: TextConfig, read_tree: Tree
):
    first = prepare(corpus, tmp_path / "data")
    before = read_tree(tmp_path / "data")
    assert prepare(corpus, tmp_path / "data", workers=2) == first
    assert read_tree(tmp_path / "data") == before


def test_another_configuration_is_refused_until_overwritten(tmp_path: Path, corpus: TextConfig):
    data = tmp_path / "data"
    prepare(corpus, data)
    other = corpus.model_copy(update={"steps": [NormalizeConfig(), DropEmptyConfig()]})
    with pytest.raises(UsageError, match="--overwrite"):
        prepare(other, data)
    (data / "mine.txt").write_text("not hornbook's")
    assert "exact duplicate" not in prepare(other, data, overwrite=True).total().dropped
    assert (data / "mine.txt").exists()
    assert read_text_config(data).steps == other.steps


def test_an_unfinished_folder_of_other_settings_is_refused(tmp_path: Path, corpus: TextConfig):
    data = tmp_path / "data"
    prepare_share(corpus, data, "measure", slice(0, None, 2))
    other = corpus.model_copy(update={"steps": [DropEmptyConfig()]})
    for begin in (lambda: prepare(other, data), lambda: prepare_share(other, data, "measure")):
        with pytest.raises(UsageError, match="was made with other settings"):
            begin()
    (data / "unfinished.json").write_text("")
    with pytest.raises(IntegrityError, match=r"unfinished\.json is damaged"):
        prepare(corpus, data)
    assert prepare(corpus, data, overwrite=True).total().kept.rows


def test_a_step_that_cannot_be_made_leaves_what_was_there(tmp_path: Path, corpus: TextConfig, read_tree: Tree):
    terms, data = tmp_path / "terms.toml", tmp_path / "data"
    steps = [DropEmptyConfig(), MentionsConfig(terms=str(terms))]
    config = corpus.model_copy(update={"steps": steps})
    sound = '[groups]\nyoung = ["youth"]\nold = ["pensioner"]\n[attributes]\ncrime = ["thief"]\n'
    terms.write_text(sound.replace("pensioner", "youth"))
    with pytest.raises(UsageError, match="leave it in one"):
        prepare(config, data)
    with pytest.raises(UsageError, match="leave it in one"):
        prepare_share(config, data, "measure")
    terms.write_text(sound)
    prepare(config, data)  # mended, it is not told that the folder is of other settings
    before = read_tree(data)
    terms.write_text(sound.replace("pensioner", "youth"))
    with pytest.raises(UsageError, match="leave it in one"):
        prepare(config, data, overwrite=True)
    assert read_tree(data) == before


def test_other_tokenizer_settings_do_not_matter_to_prepare(tmp_path: Path, corpus: TextConfig):
    prepare(corpus, tmp_path / "data")
    prepare(corpus.model_copy(update={"validation": 0.5, "strict": False}), tmp_path / "data")


def test_changed_inputs_are_refused(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    prepare(config_of(s=path), tmp_path / "data")
    for text in ("two", "three", None):
        path.write_text(text) if text else path.rename(tmp_path / "b.txt")
        with pytest.raises(UsageError, match=r"have changed since|does not exist"):
            prepare(config_of(s=path), tmp_path / "data")


def test_a_folder_with_other_things_is_refused(tmp_path: Path, corpus: TextConfig):
    data = tmp_path / "data"
    data.mkdir()
    (data / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="holds other things"):
        prepare(corpus, data)
    assert [entry.name for entry in data.iterdir()] == ["thesis.tex"]


def test_damage_to_what_was_written_is_noticed(tmp_path: Path, corpus: TextConfig):
    data = tmp_path / "data"
    prepare(corpus, data)
    lost = data / "documents" / "web" / "00000.parquet"
    lost.rename(tmp_path / "away")
    with pytest.raises(IntegrityError, match=r"web/00000\.parquet is missing"):
        prepare(corpus, data)
    (data / "manifest.json").write_text("{")
    with pytest.raises(IntegrityError, match=r"manifest\.json is damaged"):
        prepare(corpus, data)
    with pytest.raises(IntegrityError, match=r"manifest\.json is damaged"):
        read_text_config(data)
    prepare(corpus, data, overwrite=True)
    assert lost.exists()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("many_tasks")
def test_strict_stops_at_the_first_damaged_row(tmp_path: Path, corpus: TextConfig, workers: int):
    strict = corpus.model_copy(update={"strict": True})
    with pytest.raises(IntegrityError, match=r"a\.jsonl:63: invalid JSON"):
        prepare(strict, tmp_path / "data", workers=workers)
    prepare(corpus, tmp_path / "data", workers=workers)
    with pytest.raises(IntegrityError, match=r"a\.jsonl:63: invalid JSON"):
        prepare(strict, tmp_path / "data", workers=workers)


def test_strict_sees_what_an_earlier_run_had_measured(
    tmp_path: Path, corpus: TextConfig, monkeypatch: pytest.MonkeyPatch
):
    killed_before_decide(monkeypatch, corpus, tmp_path / "data")
    with pytest.raises(IntegrityError, match=r"a\.jsonl:63"):
        prepare(corpus.model_copy(update={"strict": True}), tmp_path / "data")


def test_two_in_one_folder_the_second_is_refused(tmp_path: Path, corpus: TextConfig):
    (tmp_path / "data").mkdir()
    with RunLock(RunDir(tmp_path / "data")), pytest.raises(InUseError):
        prepare(corpus, tmp_path / "data")
    prepare(corpus, tmp_path / "data")


@pytest.mark.parametrize("name", ["a/b", "..", "", ".hidden", "x" * 200])
def test_source_names_that_are_no_folder_names_are_refused(tmp_path: Path, name: str):
    (tmp_path / "a.txt").write_text("x")
    config = TextConfig(sources={name: SourceConfig(paths=[str(tmp_path / "a.txt")])})
    with pytest.raises(UsageError, match="source name"):
        prepare(config, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_no_sources_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="nothing to prepare"):
        prepare(TextConfig(), tmp_path / "data")


def test_when_nothing_is_left_the_reasons_are_said(tmp_path: Path, write_rows: Write):
    with pytest.raises(UsageError, match="no rows at all"):
        prepare(config_of(s=write_rows(tmp_path / "a.jsonl", [])), tmp_path / "data1")
    path = write_rows(tmp_path / "b.jsonl", [{"text": ""}, {"text": 5}, {"body": "x"}])
    with pytest.raises(IntegrityError, match="none of 3 rows is left: 1 text is not a string, 1 missing text, 1 empty"):
        prepare(config_of(s=path), tmp_path / "data2")


def test_one_empty_source_beside_a_good_one(tmp_path: Path, write_rows: Write):
    good = write_rows(tmp_path / "a.jsonl", [{"text": "x"}])
    funnel = prepare(config_of(good=good, none=write_rows(tmp_path / "b.jsonl", [])), tmp_path / "data")
    assert (funnel.sources["none"].read.rows, funnel.sources["good"].kept.rows) == (0, 1)


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path, corpus: TextConfig):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="file"):
        prepare(corpus, tmp_path / "file" / "data")


def test_input_in_memory_is_read_in_this_process(tmp_path: Path):
    memory = fsspec.filesystem("memory")
    memory.pipe({f"/m/{number}.txt": f"text {number}".encode() for number in range(5)})
    try:
        config = TextConfig(sources={"m": SourceConfig(paths=["memory://m"])})
        assert prepare(config, tmp_path / "data", workers=3).total().kept.rows == 5
        assert prepare(config, tmp_path / "data").total().kept.rows == 5
    finally:
        memory.rm("/m", recursive=True)


def test_tasks_depend_on_the_input_alone_and_keep_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    draw = random.Random(0)
    for number in range(40):
        (tmp_path / f"{number:02d}.txt").write_text("x" * draw.randint(0, 3000))
    config = config_of(s=tmp_path)
    inputs = list_all(config)
    for size in (1, 5000, 10**9):
        monkeypatch.setattr(planning, "_MIN_TASK_BYTES", size)
        tasks = plan(config, inputs, tmp_path / "work")
        assert [file for task in tasks for file in task.files] == inputs["s"]
        assert all(
            len(task.files) == 1 or task.size <= max(size, sum(f.size for f in inputs["s"]) / 16) for task in tasks
        )
    assert len(tasks) == 1


def test_the_order_of_steps_decides_which_one_is_blamed(tmp_path: Path, write_rows: Write):
    path = write_rows(tmp_path / "a.jsonl", [{"text": " "}, {"text": " "}, {"text": "x"}])
    for number, (steps, expected) in enumerate(
        [
            ([DropEmptyConfig(), ExactDedupConfig()], {"empty": 2}),
            ([ExactDedupConfig(), DropEmptyConfig()], {"exact duplicate": 1, "empty": 1}),
        ]
    ):
        funnel = prepare(config_of(s=path, steps=steps), tmp_path / f"data{number}")
        assert {reason: tally.rows for reason, tally in funnel.total().dropped.items()} == expected


@pytest.mark.parametrize("count", [1, 3])
def test_phases_in_shares_write_the_same_bytes(tmp_path: Path, corpus: TextConfig, read_tree: Tree, count: int):
    corpus = corpus.model_copy(update={"shard_bytes": 1024})
    prepare(corpus, tmp_path / "whole")
    shares = [slice(number, None, count) for number in range(count)]
    data = tmp_path / "shares"
    with pytest.raises(UsageError, match=r"tasks are not measured \(the first is 0\)"):
        prepare_share(corpus, data, "decide")
    for share in shares:
        prepare_share(corpus, data, "measure", share)
    with pytest.raises(UsageError, match="run `--phase decide` first"):
        prepare_share(corpus, data, "write", shares[0])  # jobs that all decide would share one scratch folder
    for phase in ("measure", "decide", "write"):
        for share in reversed(shares) if phase != "decide" else [WHOLE]:
            prepare_share(corpus, data, phase, share)
    prepare(corpus, data)
    assert read_tree(data) == read_tree(tmp_path / "whole")
    assert prepare_share(corpus, data, "measure") == f"{data} is finished"


def test_shares_that_begin_at_once_agree_on_the_settings(tmp_path: Path, write_rows: Write):
    """Threads stand for jobs on hosts that share a file system, and whose process ids are the same."""
    path = write_rows(tmp_path / "a.jsonl", [{"text": "x"}])
    configs = [config_of(s=path), config_of(s=path, steps=[DropEmptyConfig()])]
    for repeat in range(5):
        data, together = tmp_path / f"data{repeat}", Barrier(8)

        def job(number: int, data: Path = data, together: Barrier = together) -> str:
            together.wait()
            try:
                return prepare_share(configs[number % 2], data, "measure", WHOLE)
            except UsageError as error:
                return str(error)

        with ThreadPoolExecutor(8) as pool:
            said = list(pool.map(job, range(8)))
        won = [number % 2 for number, each in enumerate(said) if each == "measured 1 of 1 tasks"]
        assert len(won) == 4
        assert len(set(won)) == 1
        assert sum("was made with other settings" in each for each in said) == 4
        assert [name for name in os.listdir(data) if name.startswith(".tmp-")] == []


def test_tasks_on_ray_write_the_same_bytes(tmp_path: Path, corpus: TextConfig, read_tree: Tree):
    pytest.importorskip("ray", reason="ray is in the extra `scale`")
    prepare(corpus, tmp_path / "here")
    prepare(corpus, tmp_path / "ray", on="ray")
    assert read_tree(tmp_path / "ray") == read_tree(tmp_path / "here")


def test_a_name_to_exclude_that_nothing_has_is_an_error(tmp_path: Path, corpus: TextConfig):
    for names, text in (
        (["w3", "w3000"], r"no document has the id or origin 'w3000'\. Sources are web, notes; .* the id '.*' and"),
        (["web"], r"'web'.* web is a source: leave out text\.sources\.web"),
    ):
        with pytest.raises(UsageError, match=text):
            prepare(corpus.model_copy(update={"exclude": names}), tmp_path / "data")
    named = [str(tmp_path / "raw" / "web" / "a.jsonl") + ":2", "w3"]
    funnel = prepare(corpus.model_copy(update={"exclude": named}), tmp_path / "data")  # the folder is free
    assert funnel.total().dropped["excluded"].rows == 2
