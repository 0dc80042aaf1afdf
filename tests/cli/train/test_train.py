"""The verbs train, resume and fork as a person types them, in this process."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.cli.train.training import describe_result, ending
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.job.control import Request, write_request

Branch = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture
def words(tiny_settings: tuple[str, ...]) -> list[str]:
    """Settings of a tiny run without its data, which `--data` gives."""
    return [word for word in tiny_settings if not word.startswith("data.path")]


def test_a_dry_run_says_everything_and_writes_nothing(
    tmp_path: Path, tiny_corpus: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["train", "--data", str(tiny_corpus), "--out", str(out), "-n", "--json", *words]) == Exit.DONE
    summary = json.loads(capsys.readouterr().out)
    assert (summary["steps"], summary["tokens"], summary["vocab"]) == (12, 1472, 320)
    assert summary["parameters"] == 320 * 16 + 4 * 16 * 16 + 3 * 16 * 64 + 3 * 16
    assert str(out / "metrics.jsonl") in summary["files"]
    assert str(out / "tensorboard") not in summary["files"]
    assert not out.exists()
    assert main(["train", "--data", str(tiny_corpus), "--out", str(out), "--dry-run", *words]) == Exit.DONE
    text = capsys.readouterr().out
    assert "12 steps of 128 tokens, the last of 64: 1,472 tokens" in text
    assert re.search(r"\ndata         12 steps see \d+ % of your [\d.]+k tokens; --train\.epochs 1 for all\n", text)
    assert "vocabulary 320 for the tokenizer's 257 tokens" in text
    assert re.search(
        r"\nmemory       about .* of .* free\ntime         (about|under) .*: .* tokens/s in a microbatch", text
    )
    assert "notes" in text
    assert "prose" in text
    assert not out.exists()


def test_a_dry_run_of_several_ranks_is_answered_by_rank_0(
    tmp_path: Path,
    tiny_corpus: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As torchrun starts it: every rank runs the same command line."""
    variables = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    command = ["train", "--data", str(tiny_corpus), "--out", str(tmp_path / "run"), "-n", "--json", *words]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "1")
    assert main([*command, "parallel.data=2"]) == Exit.DONE
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    assert main([*command, "parallel.data=2", "log.tensorboard=true"]) == Exit.DONE
    summary = json.loads(capsys.readouterr().out)
    assert summary["run"] == str(tmp_path / "run")
    assert str(tmp_path / "run" / "tensorboard") in summary["files"]


def test_train_answers_with_one_json_object(
    tmp_path: Path, tiny_corpus: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--data", str(tiny_corpus), "--out", str(tmp_path / "run"), "--json", *words]) == Exit.DONE
    streams = capsys.readouterr()
    answer = json.loads(streams.out)
    assert (answer["status"], answer["step"], answer["tokens"]) == ("finished", 12, 1472)
    assert answer["evaluation"]["step"] == 12
    assert "step=12" in streams.err
    assert "\r" not in streams.err
    assert "\x1b" not in streams.err


def test_quiet_says_nothing_and_logs_all_the_same(
    tmp_path: Path, tiny_corpus: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "-q", "--data", str(tiny_corpus), "--out", str(tmp_path / "run"), *words]) == Exit.DONE
    assert capsys.readouterr() == ("", "")
    assert "step=12" in (tmp_path / "run" / "log.txt").read_text()


def test_the_default_folder_is_the_recipes_name(
    tmp_path: Path, tiny_corpus: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--data", str(tiny_corpus), "name=small", *words]) == Exit.DONE
    assert RunDir("runs/small").read_state() is not None
    monkeypatch.setenv("HORNBOOK_RUNS", str(tmp_path / "elsewhere"))
    assert main(["train", "--data", str(tiny_corpus), "name=small", "-n", *words]) == Exit.DONE


@pytest.mark.parametrize("verb", ["train", "resume", "fork"])
def test_a_deadline_that_is_no_time_or_past_is_refused_before_anything_is_read(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [verb, "--until"] if verb == "train" else [verb, str(tmp_path / "none"), "--until"]
    extra = [] if verb == "resume" else ["--out", str(tmp_path / "run")]
    for text, problem in (("noon", "is no time"), ("2020-01-01T06:00", "is past")):
        assert main([*command, text, *extra]) == Exit.USAGE
        said = capsys.readouterr().err
        assert f"--until {text} {problem}: write a time from now (90s, 30m, 2h" in said
        assert "2026-11-27T06:00" in said
    monkeypatch.setenv("SLURM_JOB_END_TIME", "17")
    assert main([*command[:-1], *extra]) == Exit.USAGE
    assert "SLURM_JOB_END_TIME=17 is past: unset SLURM_JOB_END_TIME, or give --until" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_until_stops_a_run_and_a_resume_goes_on(
    tmp_path: Path, tiny_corpus: Path, words: list[str], branch: Branch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Less time than a save may take: no step is made, by the start nor by a resume with such a limit."""
    command = ["train", "--data", str(tiny_corpus), *words, "--out"]
    assert main([*command, str(tmp_path / "run"), "--until", "7s"]) == Exit.RESUMABLE
    assert "stopped at step 0 (the deadline is " in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "run"), "--until", "7s"]) == Exit.RESUMABLE
    assert main(["resume", str(tmp_path / "run"), "--until", "2d"]) == Exit.DONE
    assert main([*command, str(tmp_path / "whole")]) == Exit.DONE
    assert branch(tmp_path / "run") == branch(tmp_path / "whole")


def test_a_second_start_names_resume(
    tmp_path: Path, tiny_corpus: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--data", str(tiny_corpus), "--out", str(tmp_path / "run"), *words]
    assert main(command) == Exit.DONE
    for extra in ([], ["-n"]):
        assert main([*command, *extra]) == Exit.USAGE
        assert f"`hornbook resume {tmp_path / 'run'}` goes on with it" in capsys.readouterr().err
    assert main([*command, "--resume", "auto"]) == Exit.DONE
    assert main([*command, "--resume", "now"]) == Exit.USAGE
    assert main([*command, "--resume", "auto", "--seed", "2"]) == Exit.USAGE
    assert "seed 1 -> 2 cannot change on resume" in capsys.readouterr().err


def test_stop_resume_fork_by_their_exit_codes(
    tmp_path: Path, tiny_corpus: Path, words: list[str], branch: Branch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path / "run").create()
    write_request(run, Request(action="stop", at_step=5))
    command = ["train", "--data", str(tiny_corpus), *words]
    assert main([*command, "--out", str(run.path), "--json"]) == Exit.RESUMABLE
    assert json.loads(capsys.readouterr().out)["status"] == "stopped"
    assert main(["resume", str(run.path), "--model.width", "32"]) == Exit.USAGE
    assert "model.width 16 -> 32 cannot change on resume" in capsys.readouterr().err
    assert main(["resume", str(run.path), "-n", "--json", "--optim.lr", "0.02"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["changes"] == ["optim.lr 0.01 -> 0.02"]
    capsys.readouterr()
    assert main(["resume", str(run.path)]) == Exit.DONE
    assert f"\nnext: hornbook generate {run.path} -p TEXT; hornbook export {run.path}" in capsys.readouterr().err
    assert main(["fork", str(run.path), "--at", "5", "--out", str(tmp_path / "fork")]) == Exit.DONE
    assert branch(tmp_path / "fork") == branch(run.path)[5:]
    assert main(["fork", str(run.path), "--at", "6", "--out", str(tmp_path / "fork2")]) == Exit.USAGE
    assert main(["fork", str(run.path), "--out", str(tmp_path / "fork3"), "--model.layers", "2"]) == Exit.USAGE
    assert "model.layers 1 -> 2 cannot change in a fork" in capsys.readouterr().err


def test_starting_from_a_checkpoint_takes_its_shape(
    tmp_path: Path, tiny_corpus: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--data", str(tiny_corpus), "--out", str(tmp_path / "a"), *words]) == Exit.DONE
    without_shape = [word for word in words if not word.startswith("model.")]
    command = ["train", "--data", str(tiny_corpus), "--from", str(tmp_path / "a")]
    assert main([*command, "--out", str(tmp_path / "b"), *without_shape]) == Exit.DONE
    assert "width = 16" in RunDir(tmp_path / "b").recipe.read_text()
    assert "learning rate 0.01 (command line)\n" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "c"), *without_shape, "--model.layers", "2"]) == Exit.USAGE
    assert "model.layers is 2 (command line), the checkpoint has 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["train", "train.tokens=1000"], "missing --data DATA"),
        (["train", "train.tokens=1000", "--data", "/nowhere"], "/nowhere does not exist"),
        (["resume"], "name a run: hornbook resume RUN"),
        (["resume", "/nowhere"], "holds no run"),
        (["fork", "/nowhere", "--out", "/elsewhere"], "holds no run"),
        (["train", "no-such-recipe"], "there is no recipe no-such-recipe"),
        (["train", "tinny.toml"], "there is no file tinny.toml\n      `hornbook recipes copy RECIPE`"),
        (["train", "tiny", "--optim.learning_rate", "1"], "did you mean optim.lr"),
        (["train", "train.device=gpu", "train.tokens=1k", "-n"], "train.device is 'gpu': write auto, cpu, cuda"),
    ],
)
def test_mistakes_are_answered_with_exit_code_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == Exit.USAGE
    assert text in capsys.readouterr().err


def test_a_run_that_a_signal_met_before_its_first_step_says_so(tmp_path: Path) -> None:
    assert ending(describe_result(RunDir(tmp_path))) == f"ended before its first step: {tmp_path}"
    assert ending({"status": "stopped", "step": 1200, "run": "runs/a"}) == "stopped at step 1,200: runs/a"
