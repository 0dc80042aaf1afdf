"""Going on: bit for bit, after any stop; and what must not change is refused."""

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit, IntegrityError, InUseError, UsageError
from hornbook.files.journal import read_records, verify_chain
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock
from hornbook.parallel.world import World
from hornbook.run.job.control import Request, stop_file, write_request
from hornbook.run.job.timekeeper import MEASURED_STEPS
from hornbook.run.ledger.ledger import At, Ledger
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]


def checkpoint_bytes(folder: Path, step: int = 12) -> tuple[bytes, bytes]:
    checkpoint = RunDir(folder).checkpoints / f"step-{step:08d}"
    moments = checkpoint / "trainer" / "optimizer.safetensors"
    return (checkpoint / "model.safetensors").read_bytes(), moments.read_bytes()


def stopped_run(folder: Path, launch_run: Launch, step: int, *words: str) -> RunDir:
    """A run that was asked to stop at `step` before it began."""
    run = RunDir(folder).create()
    write_request(run, Request(action="stop", at_step=step))
    assert launch_run(folder, *words) == Exit.RESUMABLE
    return run


@pytest.mark.parametrize("step", [0, 3, 4, 11])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, launch_run: Launch, branch: Branch, step: int) -> None:
    launch_run(tmp_path / "whole", "model.dropout=0.1")
    run = stopped_run(tmp_path / "parts", launch_run, step, "model.dropout=0.1")
    state = run.read_state()
    assert state is not None
    assert (state["status"], state["step"]) == ("stopped", step)
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert branch(run.path) == branch(tmp_path / "whole")
    assert checkpoint_bytes(run.path) == checkpoint_bytes(tmp_path / "whole")


@pytest.mark.slow
def test_three_ranks_go_on_bit_for_bit(
    tmp_path: Path, launcher: Launcher, tiny_settings: tuple[str, ...], branch: Branch
) -> None:
    """From three ranks on, bits of sums depend on what crosses ranks together."""
    words = [*tiny_settings, "train.batch_tokens=192", "parallel.data=3", "parallel.bucket_mb=0.05"]
    folders = [tmp_path / name for name in ("whole", "parts")]
    write_request(RunDir(folders[1]).create(), Request(action="stop", at_step=5))
    calls = [["train", "--out", str(each), *words] for each in folders] + [["resume", str(folders[1])]]
    for number, call in enumerate(calls):
        started = launcher.start(call, tmp_path / f"{number}.log")
        assert started.wait() == (Exit.RESUMABLE if number == 1 else Exit.DONE), started.text
    assert branch(folders[1]) == branch(folders[0])
    assert checkpoint_bytes(folders[1], 8) == checkpoint_bytes(folders[0], 8)


def test_many_stops_make_no_difference(
    tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch, events: Events
) -> None:
    run = stopped_run(tmp_path / "parts", launch_run, 2)
    for step in (5, 6, 9):
        write_request(run, Request(action="stop", at_step=step))
        assert launch_run(run.path, mode="resume") == Exit.RESUMABLE
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert branch(run.path) == branch(tiny_run)
    assert checkpoint_bytes(run.path) == checkpoint_bytes(tiny_run)
    assert [record["attempt"] for record in events(run.path, "start", "resume")] == [1, 2, 3, 4, 5]
    verify_chain(run.events)


def test_steps_after_the_newest_checkpoint_are_made_again(
    tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch
) -> None:
    """As after a kill at step 12: the records of attempt 1 stay, readers take attempt 2."""
    shutil.copytree(tiny_run, tmp_path / "killed")
    run = RunDir(tmp_path / "killed")
    for step in (8, 12):
        shutil.rmtree(run.checkpoints / f"step-{step:08d}")
    assert launch_run(run.path, mode="resume") == Exit.DONE
    attempts = [(record["attempt"], record["step"]) for record in read_records(run.metrics)]
    assert attempts == [(1, k) for k in range(1, 13)] + [(2, k) for k in range(5, 13)]
    assert branch(run.path) == branch(tiny_run)
    assert checkpoint_bytes(run.path) == checkpoint_bytes(tiny_run)


def test_killed_before_its_first_save_the_run_begins_again(
    tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    run = RunDir(tmp_path / "parts")
    with monkeypatch.context() as patch:
        patch.setattr("hornbook.run.loop.async_checkpointer.AsyncCheckpointer.try_save", die)
        assert launch_run(run.path) == Exit.INTERRUPTED
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert branch(run.path) == branch(tiny_run)
    assert checkpoint_bytes(run.path) == checkpoint_bytes(tiny_run)


def test_a_damaged_checkpoint_gives_way_to_the_older_one(
    tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch, events: Events
) -> None:
    run = stopped_run(tmp_path / "parts", launch_run, 6)
    weights = run.checkpoints / "step-00000006" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert events(run.path, "resume")[0]["step"] == 4
    assert len(events(run.path, "checkpoint_damaged")) == 1
    assert branch(run.path) == branch(tiny_run)
    assert checkpoint_bytes(run.path) == checkpoint_bytes(tiny_run)


def test_a_finished_run_stays_finished(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "run")
    before = branch(tmp_path / "run"), checkpoint_bytes(tmp_path / "run")
    assert launch_run(tmp_path / "run", mode="resume") == Exit.DONE
    assert (branch(tmp_path / "run"), checkpoint_bytes(tmp_path / "run")) == before


def test_a_longer_horizon_goes_on(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "run", "train.tokens=1024", "optim.schedule.kind=constant")
    assert launch_run(tmp_path / "run", "train.tokens=1450", mode="resume") == Exit.DONE
    launch_run(tmp_path / "whole", "optim.schedule.kind=constant")
    assert branch(tmp_path / "run") == branch(tmp_path / "whole")


@pytest.mark.parametrize(
    ("word", "text", "remedy"),
    [
        ("seed=2", r"seed 1 -> 2 cannot change on resume", "hornbook fork"),
        ("model.width=32", r"model\.width 16 -> 32 cannot change on resume", "hornbook grow"),  # a fork refuses it too
        ("train.sequence=64", r"train\.sequence 32 -> 64 cannot change on resume", "hornbook fork"),
        ("data.order=sequential", r'data\.order "shuffled" -> "sequential" cannot change on resume', "hornbook fork"),
    ],
)
def test_what_must_not_change_is_refused_with_both_values(
    tmp_path: Path, launch_run: Launch, word: str, text: str, remedy: str
) -> None:
    run = stopped_run(tmp_path / "run", launch_run, 2)
    before = (run.recipe.read_bytes(), run.events.read_bytes())
    with pytest.raises(UsageError, match=rf"(?s){text}.*{remedy}"):
        launch_run(run.path, word, mode="resume")
    assert (run.recipe.read_bytes(), run.events.read_bytes()) == before


def test_a_changed_setting_is_journaled_and_stays(
    tmp_path: Path, launch_run: Launch, branch: Branch, events: Events
) -> None:
    run = stopped_run(tmp_path / "run", launch_run, 4)
    write_request(run, Request(action="stop", at_step=6))
    assert launch_run(run.path, "optim.lr=0.002", mode="resume") == Exit.RESUMABLE
    (change,) = events(run.path, "resume")[0]["changes"]
    assert (change["key"], change["old"], change["new"]) == ("optim.lr", 0.01, 0.002)
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert "changes" not in events(run.path, "resume")[1]
    rates = [step["lr"] for step in branch(run.path)]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[4] < 0.0021 < rates[3]
    assert "lr = 0.002" in run.recipe.read_text()


def test_other_threads_or_another_cpu_are_told_and_on_record(
    tmp_path: Path, launch_run: Launch, events: Events
) -> None:
    """The run goes on: its last bits may be others, and it says so."""
    run = stopped_run(tmp_path / "run", launch_run, 4)
    began = json.loads(run.env.read_bytes())
    run.env.write_text(json.dumps({**began, "threads": 96, "hardware": {**began["hardware"], "cpu": "another"}}))
    assert launch_run(run.path, mode="resume") == Exit.DONE
    changed = events(run.path, "resume")[0]["environment"]["changed"]
    assert [each.split(" -> ")[0] for each in changed] == ["threads: 96", "cpu: another"]
    assert "the last bits may differ from the earlier attempts: threads: 96 -> " in run.log.read_text()


def test_a_run_in_fp16_goes_on_in_bf16(tmp_path: Path, launch_run: Launch, branch: Branch, events: Events) -> None:
    """What a pause over the fp16 scale names as the remedy."""
    run = stopped_run(tmp_path / "run", launch_run, 8, "train.precision=fp16")
    assert launch_run(run.path, "train.precision=bf16", mode="resume") == Exit.DONE
    (change,) = events(run.path, "resume")[0]["changes"]
    assert (change["key"], change["old"], change["new"]) == ("train.precision", "fp16", "bf16")
    steps = branch(run.path)
    assert [each["step"] for each in steps] == list(range(1, 13))
    assert steps[8]["loss"] < steps[0]["loss"]


def test_a_change_survives_a_kill_between_ledger_and_recipe(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    run = stopped_run(tmp_path / "run", launch_run, 4)
    old = run.recipe.read_bytes()
    write_request(run, Request(action="stop", at_step=5))
    launch_run(run.path, "optim.lr=0.002", "optim.schedule.kind=constant", mode="resume")
    run.recipe.write_bytes(old)  # as if the process had died before it replaced the recipe
    words = ("optim.lr=0.002", "optim.schedule.kind=constant")
    assert launch_run(run.path, *words, mode="resume") == Exit.DONE
    assert [step["lr"] for step in branch(run.path)][4:] == [0.002] * 8


def test_changed_data_is_an_integrity_error(tmp_path: Path, tiny_corpus: Path, launch_run: Launch) -> None:
    data = shutil.copytree(tiny_corpus, tmp_path / "data")
    run = stopped_run(tmp_path / "run", launch_run, 2, f"data.path={data}")
    index = json.loads((data / "tokens" / "index.json").read_text())
    index["shards"][1]["digest"] = "0" * 32
    (data / "tokens" / "index.json").write_text(json.dumps(index))
    with pytest.raises(IntegrityError, match=r"shard tokens/train/prose/00000.*hornbook fork"):
        launch_run(run.path, mode="resume")


def test_another_tokenizer_is_an_integrity_error(tmp_path: Path, tiny_corpus: Path, launch_run: Launch) -> None:
    data = shutil.copytree(tiny_corpus, tmp_path / "data")
    run = stopped_run(tmp_path / "run", launch_run, 2, f"data.path={data}")
    path = data / "tokenizer" / "tokenizer.json"
    definition = json.loads(path.read_text())
    vocab = definition["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    path.write_text(json.dumps(definition))
    with pytest.raises(IntegrityError, match="is not the tokenizer that made the token shards"):
        launch_run(run.path, mode="resume")


def test_data_may_move(tmp_path: Path, tiny_corpus: Path, launch_run: Launch, tiny_run: Path, branch: Branch) -> None:
    data = shutil.copytree(tiny_corpus, tmp_path / "data")
    run = stopped_run(tmp_path / "run", launch_run, 5, f"data.path={data}")
    moved = data.rename(tmp_path / "elsewhere")
    assert launch_run(run.path, f"data.path={moved}", mode="resume") == Exit.DONE
    assert branch(run.path) == branch(tiny_run)


def test_there_must_be_a_run(tmp_path: Path, launch_run: Launch) -> None:
    with pytest.raises(UsageError):
        launch_run(tmp_path / "none", mode="resume")


def test_a_second_owner_is_refused(tmp_path: Path, launch_run: Launch) -> None:
    run = stopped_run(tmp_path / "run", launch_run, 2)
    with RunLock(run), pytest.raises(InUseError, match=f"process {os.getpid()}"):
        launch_run(run.path, mode="resume")


def test_the_stop_file_holds_a_run(tmp_path: Path, launch_run: Launch) -> None:
    run = stopped_run(tmp_path / "run", launch_run, 2)
    stop_file(run).touch()
    with pytest.raises(UsageError, match="STOP holds this run: remove the file to go on"):
        launch_run(run.path, mode="resume")
    stop_file(run).unlink()
    assert launch_run(run.path, mode="resume") == Exit.DONE


def test_skipped_samples_stay_skipped(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    run = stopped_run(tmp_path / "run", launch_run, 4)
    with Ledger(run) as ledger:
        ledger.note("rewind", At(4, 512), windows=[(18, 26)])
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert [step["first_sample"] for step in branch(run.path)][3:7] == [12, 16, 28, 32]


def test_an_altered_ledger_is_noticed(tmp_path: Path, launch_run: Launch) -> None:
    run = stopped_run(tmp_path / "run", launch_run, 2)
    run.events.write_text(run.events.read_text().replace('"step": 2', '"step": 3'))
    with pytest.raises(IntegrityError, match="altered"):
        launch_run(run.path, mode="resume")


def test_a_torn_ledger_line_is_cut_and_noted(tmp_path: Path, launch_run: Launch, events: Events) -> None:
    run = stopped_run(tmp_path / "run", launch_run, 2)
    with run.events.open("a") as file:
        file.write('{"kind": "save", "att')
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert events(run.path, "resume")[0]["torn_bytes"] == 21
    with Ledger(run):
        verify_chain(run.events)


@pytest.mark.parametrize(
    "words", [(), ("train.ramp=linear", "train.ramp.start_tokens=64", "train.ramp.over_tokens=600")]
)
@pytest.mark.parametrize("step", [0, 2, 10])
def test_how_long_a_rank_is_waited_for_is_known_after_steps_of_this_attempt(
    tmp_path: Path,
    launch_run: Launch,
    branch: Branch,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    words: tuple[str, ...],
) -> None:
    """What steps took in an earlier process says nothing; then, before each larger batch."""
    run = stopped_run(tmp_path / "run", launch_run, step, *words)
    seen: list[int] = []
    monkeypatch.setattr(
        World, "set_timeout", lambda *_: seen.append(max((r["step"] for r in branch(run.path)), default=0))
    )
    assert launch_run(run.path, mode="resume") == Exit.DONE
    sizes = [record["step_tokens"] for record in branch(run.path)]
    grown = [number for number, (size, following) in enumerate(itertools.pairwise(sizes), 1) if following > size]
    known = step + MEASURED_STEPS
    assert seen.pop(0) == step  # until it is known: of the start
    assert seen == ([known] if known <= len(sizes) else []) + [number for number in grown if number > known]
    assert not words or step == 10 or max(seen) > known
