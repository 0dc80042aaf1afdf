"""What the ledger says of the other files of a run: what was changed, exchanged, cut or deleted is noticed."""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit, IntegrityError, StorageError, UsageError
from hornbook.files.journal import chain, read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.bound import recipe_in_force, refuse_edited, why_foreign
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.checkpoints.manifest import Manifest, read_manifest, write_manifest
from hornbook.run.doctor.check_run import check_run
from hornbook.run.job.control import Request, write_request
from hornbook.run.ledger.ledger import read_past
from hornbook.run.loop import training_loop as train

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, launch_run: Launch) -> RunDir:
    """Twelve steps, saved at 4, 8 and 12, stopped at 9."""
    run = RunDir(tmp_path / "run").create()
    write_request(run, Request(action="stop", at_step=9))
    assert launch_run(run.path, "checkpoint.background=false") == Exit.RESUMABLE
    assert check_run(run).ok
    return run


def edit(run: RunDir, pattern: str, new: str) -> None:
    text = run.recipe.read_text()
    assert re.search(pattern, text, re.MULTILINE)
    run.recipe.write_text(re.sub(pattern, new, text, count=1, flags=re.MULTILINE))


def problems(run: RunDir) -> dict[str, str]:
    return {finding.what: finding.text for finding in check_run(run).findings if not finding.ok}


def rewrite(run: RunDir, records: Sequence[dict[str, Any]]) -> None:
    """The ledger anew, its chain sound."""
    previous, lines = "", []
    for old in records:
        record = chain({key: value for key, value in old.items() if key != "prev"}, previous)
        previous = record["sha"]
        lines.append(json.dumps(record) + "\n")
    run.events.write_text("".join(lines))


def ledger(run: RunDir) -> list[dict[str, Any]]:
    return list(read_records(run.events))


def as_before(run: RunDir) -> None:
    """A run of a version that bound nothing."""
    noted = ("recipe", "manifest", "metrics")
    rewrite(run, [{key: value for key, value in record.items() if key not in noted} for record in ledger(run)])
    for path in run.checkpoints.glob("step-*/MANIFEST.json"):
        old = read_manifest(path.parent)
        path.unlink()
        write_manifest(path.parent, replace(old, ledger=None))


def test_an_edit_of_the_recipe_that_may_be_is_journaled(run: RunDir, launch_run: Launch, events: Events) -> None:
    edit(run, r"^lr = 0\.01\b", "lr = 0.03")
    assert "optim.lr = 0.01 (now 0.03)" in problems(run)["recipe"]
    assert recipe_in_force(run).optim.lr == 0.01
    with pytest.raises(IntegrityError, match=r"the ledger has optim.lr = 0.01 \(now 0.03\): put the values back"):
        refuse_edited(run)
    assert launch_run(run.path, mode="resume") == Exit.DONE
    (change,) = events(run.path, "resume")[0]["changes"]
    assert (change["key"], change["old"], change["new"], change["policy"]) == ("optim.lr", 0.01, 0.03, "journaled")
    assert recipe_in_force(run).optim.lr == 0.03
    assert check_run(run).ok


def test_an_edit_of_the_recipe_that_may_not_be_is_refused(run: RunDir, launch_run: Launch) -> None:
    edit(run, r"^seed = 1\b", "seed = 3")
    before = run.events.read_bytes()
    with pytest.raises(UsageError, match=r"(?s)seed 1 -> 3 cannot change on resume.*recipe.toml was changed since"):
        launch_run(run.path, mode="resume")
    assert run.events.read_bytes() == before
    edit(run, r"^seed = 3\b", "seed = 1")
    assert launch_run(run.path, mode="resume") == Exit.DONE


def test_comments_and_order_of_the_recipe_are_free(run: RunDir, launch_run: Launch, events: Events) -> None:
    run.recipe.write_text("# mine\n" + run.recipe.read_text())
    assert not problems(run)
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert "changes" not in events(run.path, "resume")[0]


def test_a_run_made_before_goes_on_and_is_bound_from_then_on(
    run: RunDir, launch_run: Launch, tiny_run: Path, branch: Branch
) -> None:
    as_before(run)
    assert check_run(run).ok
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert branch(run.path) == branch(tiny_run)
    edit(run, r"^seed = 1\b", "seed = 3")
    assert "seed = 1 (now 3)" in problems(run)["recipe"]


def test_a_newest_checkpoint_that_is_gone_is_told(run: RunDir, launch_run: Launch, events: Events) -> None:
    newest = max(run.checkpoints.glob("step-*"))
    step = int(newest.name.removeprefix("step-"))
    assert problems(run) == {}
    shutil.rmtree(newest)
    assert f"step {step} was saved last, and its checkpoint is gone" in problems(run)["checkpoints"]
    assert launch_run(run.path, mode="resume") == Exit.DONE
    (warning,) = events(run.path, "warning")
    assert f"step {step} was saved, and its checkpoint is gone: steps from" in warning["text"]
    assert problems(run) == {}, "it was saved again"


@pytest.mark.parametrize("step", [8, 9, 10])
def test_a_checkpoint_of_another_run_is_not_taken(
    run: RunDir, tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch, events: Events, step: int
) -> None:
    """Of the same shapes: in the place of one of ours, or as one more."""
    launch_run(tmp_path / "other", "seed=2", "checkpoint.every=1")
    name = f"step-{step:08d}"
    shutil.rmtree(run.checkpoints / name, ignore_errors=True)
    shutil.copytree(RunDir(tmp_path / "other").checkpoints / name, run.checkpoints / name)
    assert "it was saved by another run" in problems(run)[name]
    assert checkpoint_path(run.path).name == ("step-00000009" if step != 9 else "step-00000008")
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert branch(run.path) == branch(tiny_run)
    if step > 8:
        (note,) = events(run.path, "checkpoint_damaged")
        assert note["text"].startswith("it was saved by another run; an older checkpoint is used")
        assert (run.checkpoints / f"damaged-{name}").is_dir()


def test_a_checkpoint_without_a_run_counts_in_runs_made_before_only(run: RunDir, launch_run: Launch) -> None:
    manifest = run.checkpoints / "step-00000009" / "MANIFEST.json"
    as_before(run)
    content = manifest.read_bytes()
    assert checkpoint_path(run.path).name == "step-00000009"
    assert launch_run(run.path, mode="resume") == Exit.DONE
    shutil.copytree(manifest.parent, run.checkpoints / "step-00000013")
    for path in (run.checkpoints / "step-00000013" / "MANIFEST.json", manifest):
        path.write_bytes(content)
    assert "step-00000009" not in problems(run)  # no digest was noted of it
    loose = Manifest(step=13, tokens=1, score=None, final=False, files={})
    assert why_foreign(run, read_past(run), loose) == "no record of the ledger says that this run saved it"


def test_a_save_that_was_killed_before_its_record_counts(run: RunDir, launch_run: Launch, events: Events) -> None:
    records = ledger(run)
    assert [record["kind"] for record in records[-2:]] == ["save", "stop"]
    rewrite(run, records[:-2])
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert events(run.path, "resume")[0]["step"] == 9


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_ledger_that_was_cut_ends_the_resume_with_the_remedy(run: RunDir, launch_run: Launch, keep: int) -> None:
    lines = run.events.read_bytes().splitlines(keepends=True)
    if keep:
        run.events.write_bytes(b"".join(lines[:keep]))
    else:
        run.events.unlink()
    assert "ledger" in problems(run) or "step-00000009" in problems(run)
    with pytest.raises(IntegrityError, match=r"(?s)cut or deleted.*Put back a copy of events.jsonl.*--from"):
        launch_run(run.path, mode="resume")
    assert checkpoint_path(run.path).name == "step-00000009"  # the remedy works
    run.events.write_bytes(b"".join(lines))
    assert launch_run(run.path, mode="resume") == Exit.DONE


def test_a_damaged_ledger_names_the_remedy(run: RunDir, launch_run: Launch) -> None:
    content = run.events.read_bytes()
    run.events.write_bytes(content.replace(b'"attempt": 1', b'"attempt": 3', 1))
    with pytest.raises(IntegrityError, match=r"record 1 was altered.*Put back a copy of events.jsonl"):
        launch_run(run.path, mode="resume")
    assert "Put back a copy" in problems(run)["ledger"]


def test_a_finished_run_whose_last_records_are_gone_is_not_whole(run: RunDir, launch_run: Launch) -> None:
    assert launch_run(run.path, mode="resume") == Exit.DONE
    run.events.write_bytes(b"".join(run.events.read_bytes().splitlines(keepends=True)[:-2]))
    assert "though state.json says that the run finished" in problems(run)["ledger"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda _: b"", "it has 0 bytes of"),
        (lambda data: data[:-30], r"it has [\d,]+ bytes of"),
        (lambda data: data.replace(b'"loss": 5.', b'"loss": 4.', 1), "lines before it were changed"),
        (lambda data: b"".join(data.splitlines(keepends=True)[1:]), "lines before it were changed"),
    ],
)
def test_changed_metrics_are_noticed(
    run: RunDir, launch_run: Launch, events: Events, damage: Callable[[bytes], bytes], words: str
) -> None:
    content = run.metrics.read_bytes()
    run.metrics.write_bytes(damage(content))
    assert run.metrics.read_bytes() != content
    assert re.search(words, problems(run)["metrics"])
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert re.search(r"metrics.jsonl is not what it was when step", events(run.path, "warning")[0]["text"])
    assert "metrics" in problems(run)


def test_deleted_metrics_are_noticed(run: RunDir) -> None:
    run.metrics.unlink()
    assert "metrics.jsonl is not what it was when step 4 was saved" in problems(run)["metrics"]


def test_files_that_do_not_belong_to_a_checkpoint_are_named_and_stop_nothing(run: RunDir, launch_run: Launch) -> None:
    folder = run.checkpoints / "step-00000009"
    (folder / "adapter_config.json").write_text("{}")
    (folder / "trainer" / "more.bin").write_bytes(b"x")
    assert "does not list adapter_config.json, trainer/more.bin" in problems(run)["step-00000009"]
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert ledger(run)[-1]["kind"] == "finish"


def test_damage_is_told_once_and_with_one_path(
    run: RunDir, launch_run: Launch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (run.checkpoints / "step-00000009" / "MANIFEST.json").write_text("{}")
    assert launch_run(run.path, mode="resume") == Exit.DONE
    lines = [line for line in capsys.readouterr().err.splitlines() if "MANIFEST.json" in line]
    assert len(lines) == 1
    assert lines[0].count("step-00000009") == 1
    assert not caplog.records


def moved(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], None]) -> None:
    """Do something in a step, behind its arithmetic."""
    original = train.take_step

    def stepping(job: Any, state: Any, *rest: Any) -> Any:
        taken = original(job, state, *rest)
        if state.step == step:
            act()
        return taken

    monkeypatch.setattr(train, "take_step", stepping)


@pytest.mark.parametrize("words", [(), ("checkpoint.background=false",), ("checkpoint.every=0",)])
def test_a_run_that_is_renamed_ends_at_once_and_can_go_on_at_its_new_place(
    tmp_path: Path, launch_run: Launch, branch: Branch, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    launch_run(tmp_path / "whole", *words)
    with monkeypatch.context() as patch:
        moved(patch, 6, lambda: os.rename(tmp_path / "run", tmp_path / "moved"))
        with pytest.raises(StorageError, match=r"run was renamed or deleted while the run wrote into it") as caught:
            launch_run(tmp_path / "run", *words)
    assert caught.value.exit_code == Exit.STORAGE
    assert not (tmp_path / "run").exists()
    assert launch_run(tmp_path / "moved", mode="resume") == Exit.DONE
    assert not list((tmp_path / "moved").rglob(".tmp-*"))
    assert branch(tmp_path / "moved") == branch(tmp_path / "whole")


def test_a_run_that_is_deleted_ends_at_once_and_makes_no_stump(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved(monkeypatch, 4, lambda: shutil.rmtree(tmp_path / "run"))
    with pytest.raises(StorageError, match=r"renamed or deleted"):
        launch_run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_gives_way_to_another_touches_nothing_of_it(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_run(tmp_path / "other")
    before = {path: path.read_bytes() for path in sorted((tmp_path / "other").rglob("*")) if path.is_file()}

    def exchange() -> None:
        os.rename(tmp_path / "run", tmp_path / "moved")
        shutil.copytree(tmp_path / "other", tmp_path / "run")

    moved(monkeypatch, 6, exchange)
    with pytest.raises(StorageError, match=r"renamed or deleted"):
        launch_run(tmp_path / "run")
    state = {"state.json"}  # the heartbeat may have been written before the next look
    for path, content in before.items():
        there = tmp_path / "run" / path.relative_to(tmp_path / "other")
        assert path.name in state or there.read_bytes() == content, path


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl"])
def test_a_record_that_is_deleted_ends_the_run_at_the_next_save(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    moved(monkeypatch, 6, (tmp_path / "run" / name).unlink)
    with pytest.raises(StorageError, match=f"cannot write .*{name}"):
        launch_run(tmp_path / "run")
    assert not (tmp_path / "run" / name).exists()


def test_damaged_tokens_end_a_run_with_3_and_their_names(
    tmp_path: Path, tiny_corpus: Path, launch_run: Launch, events: Events
) -> None:
    data = tmp_path / "data"
    shutil.copytree(tiny_corpus, data)
    shard = data / "tokens/train/prose/00000.bin"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"prose/00000.bin: block 0 .* documents 0 to 119 \('tokens/train/prose"):
        launch_run(tmp_path / "run", f"data.path={data}")
    assert events(tmp_path / "run")[-1]["kind"] == "fail"
