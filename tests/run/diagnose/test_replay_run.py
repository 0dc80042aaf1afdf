"""A run with every kind of decision is trained again bit for bit; without one of them it differs behind it only."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit, IntegrityError, UsageError
from hornbook.files.journal import Appender, read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.diagnose.replay_run import DecisionRecord, list_decisions, plan_replay, replay_run
from hornbook.run.doctor.compare_runs import compare_runs
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.job import Start
from hornbook.run.launch.launch import launch
from hornbook.settings.resolve import resolve
from tests.run.guard.poison import poison

Output = Callable[..., tuple[int, Any]]
LONGER = "train.tokens=2200"


def tell(run: RunDir, step: int, *settings: str) -> None:
    write_request(run, Request(action="set", settings=list(settings), at_step=step, reason="a test"))


def go_on(run: RunDir, target: str | None, words: tuple[str, ...], stop: int | None = None) -> None:
    if stop is not None:
        write_request(run, Request(action="stop", at_step=stop))
    mode = "start" if target is None else "resume"
    ended = launch(resolve(target, words, environ={}), run, Start(mode, quiet=True))
    assert ended == (Exit.DONE if stop is None else Exit.RESUMABLE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> RunDir:
    """12 steps: told twice, stopped, resumed with another setting, rewound to step 8, told again."""
    run = RunDir(tmp_path_factory.mktemp("runs") / "told").create()
    tell(run, 3, "optim.lr=0.02")
    tell(run, 5, "train.batch_tokens=256")
    go_on(run, None, (*tiny_settings, LONGER), stop=6)
    go_on(run, str(run.recipe), ("guard.max_skips=5",), stop=9)
    for folder in run.checkpoints.glob("step-00000009"):
        shutil.rmtree(folder)  # the next attempt repeats step 9
    tell(run, 9, "optim.clip.limit=0.5")
    go_on(run, str(run.recipe), ())
    return run


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    def call(*words: object) -> tuple[int, Any]:
        capsys.readouterr()
        code = main(["-q", "replay", *(str(word) for word in words), "--json"])
        text = capsys.readouterr().out
        return code, json.loads(text) if text else None

    return call


def parts(value: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {part["name"]: (part["compared"], part["different"]) for part in value["parts"]}


def test_all_decisions_are_made_again(run: RunDir, output: Output, tmp_path: Path) -> None:
    steps = list(read_records(run.metrics))[-1]["step"]
    code, value = output(run.path, "--out", tmp_path / "again")
    assert (code, value["equal"], value["steps"]) == (0, True, [steps, steps])
    assert {name: each[0] for name, each in parts(value).items()} == {
        **dict.fromkeys(("tokens", "losses", "norms"), steps),
        **dict.fromkeys(("saves", "clock", "guard", "weights", "optimizer"), 4),
    }
    assert len(value["decisions"]) == 3
    kinds = [(record["kind"], record["step"]) for record in read_records(tmp_path / "again" / "events.jsonl")]
    assert kinds.count(("resume", 6)) == 2  # with the setting that a resume changed, then with what was told behind it
    assert main(["verify", str(tmp_path / "again")]) == 0


def test_a_part_begins_at_a_checkpoint(run: RunDir, output: Output) -> None:
    code, value = output(run.path, "--from", 8, "--to", 10)
    assert (code, value["from"], value["to"], parts(value)["tokens"]) == (0, 8, 10, (2, 0))
    assert parts(value)["weights"] == (1, 0)  # the checkpoint that it began with
    made = [each.text for each in plan_replay(run, end=5).decisions]
    assert made == ["optim.lr 0.01 -> 0.02"], "the others change steps behind the end"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"rule": "D0"}, "not finite"),
        ({"rule": "D1b", "z_loss": -0.21, "z_norm": 22.4}, "gradient norm z 22.4, loss z -0.2"),
    ],
)
def test_a_refused_step_is_told_by_what_the_guard_saw(fields: dict[str, Any], text: str) -> None:
    assert DecisionRecord({"kind": "skip", "step": 3, **fields}).text == text


def test_without_a_decision_the_steps_behind_it_differ(run: RunDir, output: Output) -> None:
    told = [each for each in list_decisions(run) if each.record["kind"] == "intervention"]
    code, value = output(run.path, "--without", told[-1].id[:6], "--from", 8)
    assert (code, value["without"], value["equal"]) == (0, told[-1].id, False)
    assert value["parted"]["step"] == told[-1].record["step"] + 2  # a smaller step shows in the next loss
    assert value["effect"]["run"]["mean_loss"] != value["effect"]["without"]["mean_loss"]


def test_a_difference_is_found_and_named(run: RunDir, tmp_path: Path) -> None:
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    records = list(read_records(copy.metrics))
    records[2]["gradient_norm"] += 1e-9
    copy.metrics.unlink()
    with Appender(copy.metrics) as lines:
        for record in records:
            lines.append(record)
    assert replay_run(plan_replay(copy, None, 4), RunDir(tmp_path / "again"), quiet=True) == Exit.DONE
    comparison = compare_runs(copy, RunDir(tmp_path / "again"))
    assert comparison.parted is not None
    assert (comparison.parted.name, comparison.parted.first) == ("norms", 3)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Four steps have gradients that are no numbers, whenever they read these samples."""
    undo = poison((range(80, 96), float("nan")))
    yield
    undo()


@pytest.mark.usefixtures("poisoned")
def test_what_the_guard_did_is_done_again_or_not(
    tmp_path: Path, output: Output, launch_run: Callable[..., Any]
) -> None:
    run = tmp_path / "run"
    assert launch_run(run, "train.tokens=4096", "guard.max_skips=2") == Exit.DONE
    code, value = output(run)
    assert (code, value["equal"], value["steps"]) == (0, True, [32, 32])
    (back,) = (each for each in list_decisions(RunDir(run)) if each.record["kind"] == "rollback")
    assert value["decisions"] == [each.id for each in list_decisions(RunDir(run))]
    code, value = output(run, "--without", back.id, "--out", tmp_path / "without")
    assert (code, value["equal"]) == (0, False)
    assert value["parted"]["step"] == back.begins + 1
    assert value["steps"] == [32, 24]  # it diverges
    kinds = [record["kind"] for record in read_records(tmp_path / "without" / "events.jsonl")]
    assert "suppressed" in kinds
    assert "rollback" not in kinds


def test_the_list_of_decisions(run: RunDir, output: Output) -> None:
    code, value = output(run.path, "--list")
    found = [(each["kind"], each["step"], each["text"]) for each in value["decisions"]]
    assert code == 0
    assert found == [
        ("intervention", 3, "optim.lr 0.01 -> 0.02"),
        ("intervention", 5, "train.batch_tokens 128 -> 256"),
        ("resume", 6, "guard.max_skips 8 -> 5"),
        ("intervention", 9, "optim.clip.limit 1.0 -> 0.5"),
    ]


def test_what_cannot_be_replayed_is_said(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 12 steps: --from and --to"):
        plan_replay(run, None, 99)
    with pytest.raises(UsageError, match="has no checkpoint of step 7"):
        plan_replay(run, 7)
    with pytest.raises(UsageError, match="names no decision"):
        plan_replay(run, without="beef")
    resume = next(each for each in list_decisions(run) if each.record["kind"] == "resume")
    with pytest.raises(UsageError, match="a resume cannot be left out"):
        plan_replay(run, without=resume.id)
    with pytest.raises(UsageError, match="not empty"):
        replay_run(plan_replay(run), run, quiet=True)
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    copy.events.write_text(copy.events.read_text().replace("0.02", "0.03", 1))
    with pytest.raises(IntegrityError, match="was altered"):
        plan_replay(copy)


def test_other_data_is_refused(run: RunDir, tmp_path: Path) -> None:
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    lock = json.loads(copy.data_lock.read_text())
    copy.data_lock.write_text(json.dumps(lock | {"tokenizer": "another"}))
    with pytest.raises(IntegrityError, match="the tokenizer"):
        replay_run(plan_replay(copy), RunDir(tmp_path / "again"), quiet=True)
    copy.data_lock.unlink()
    with pytest.raises(IntegrityError, match=r"data\.lock cannot be read"):
        replay_run(plan_replay(copy), RunDir(tmp_path / "other"), quiet=True)
