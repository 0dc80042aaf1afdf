"""`hornbook launch`, and `train --world N --rank R --dry-run`, as a person types them, in this process."""

import json
import stat
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit

SMALL = ["tiny", "--train.batch_tokens", "32Ki", "--train.sequence", "64", "--train.micro_batch", "1"]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A run on two machines of eight GPUs, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return ["launch", *SMALL, "--data", "/shared/data", "--out", "/shared/run", "--nodes", "2", "--gpus", "8"]


def test_a_dry_run_prints_the_script_and_writes_nothing(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main([*words, "--on", "slurm", "--time", "24h", "--dry-run"]) == Exit.DONE
    text = capsys.readouterr().out
    assert "#SBATCH --time=24:00:00" in text
    command = next(line for line in text.splitlines() if "srun --kill" in line)
    assert command.startswith(
        "{ srun --kill-on-bad-exit=1 hornbook train tiny --data /shared/data --out /shared/run --train.batch_tokens"
    )
    assert "--parallel.data=16 --resume auto 2>&1" in command
    assert main([*words, "--on", "k8s", "--image", "me/hornbook", "-n", "--json"]) == Exit.DONE
    assert "completionMode" in json.loads(capsys.readouterr().out)["script"]
    assert main([*words, "--on", "ssh", "--hosts", "a,b", "-n"]) == Exit.DONE
    assert "HORNBOOK_NODE=1 MASTER_ADDR=a" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_job_is_named_after_the_recipe_that_was_given(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
):
    """Not after the one that it extends; nor is its run."""
    (tmp_path / "mine.toml").write_text('extends = "tiny"\n')
    (tmp_path / "named.toml").write_text('extends = "mine.toml"\nname = "theirs"\n')
    given = [each for each in words if each not in ("tiny", "--out", "/shared/run")]
    for recipe, name in (("mine.toml", "mine"), ("named.toml", "theirs")):
        assert main([*given, recipe, "--on", "slurm", "-n"]) == Exit.DONE
        text = capsys.readouterr().out
        assert f"#SBATCH --job-name={name}\n" in text
        assert f"--out runs/{name} " in text


def test_settings_of_the_environment_go_along(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HORNBOOK_SET", "optim.lr=0.002")
    assert main([*words, "--on", "ssh", "--hosts", "a,b", "-n"]) == Exit.DONE
    assert "--out /shared/run --optim.lr=0.002 --train.batch_tokens" in capsys.readouterr().out


def test_without_a_scheduler_the_script_is_written_and_the_remedy_named(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert main([*words, "--on", "slurm"]) == Exit.USAGE
    assert "tiny.sbatch is written, but there is no sbatch here" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "tiny.sbatch").read_text().startswith("#!/bin/bash\n#SBATCH")


def test_a_script_is_handed_to_the_scheduler_and_never_replaces_another(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text('#!/bin/sh\necho "Submitted batch job 7: $1"\n')
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:/usr/bin:/bin")
    assert main([*words, "--on", "slurm"]) == Exit.DONE
    assert capsys.readouterr().out == "Submitted batch job 7: tiny.sbatch\n"
    assert main([*words, "--on", "slurm", "--time", "1h"]) == Exit.USAGE
    assert "tiny.sbatch exists and is another script" in " ".join(capsys.readouterr().err.split())


def test_a_job_that_is_there_is_not_taken_for_a_new_one(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text("#!/bin/sh\necho service/tiny unchanged\necho job.batch/tiny $ANSWER\n")
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{kubectl.parent}:/usr/bin:/bin")
    monkeypatch.setenv("ANSWER", "created")
    assert main([*words, "--on", "k8s", "--image", "i"]) == Exit.DONE
    for answer in ("unchanged", "configured"):  # the second where its deadline or parallelism is another now
        monkeypatch.setenv("ANSWER", answer)
        assert main([*words, "--on", "k8s", "--image", "i"]) == Exit.USAGE
        assert "`kubectl delete -f tiny.yaml` first" in " ".join(capsys.readouterr().err.split())


def test_axes_that_do_not_make_the_machines_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([*words, "--on", "slurm", "-n", "--parallel.data", "8"]) == Exit.USAGE
    text = " ".join(capsys.readouterr().err.split())
    assert "--nodes and --gpus ask for 16 ranks, and parallel.data is 8: give --parallel.data 16" in text


def test_a_rank_of_a_large_run_is_built_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    large = ["train", *SMALL, "--world", "512", "--rank", "37", "--dry-run", "--model.vocab", "1k"]
    assert main([*large, "--train.device", "cpu", "--parallel.shard", "everything"]) == Exit.DONE
    text = capsys.readouterr().out
    assert "rank         37 of 512: shard 37 of 512" in text
    assert "all_gather     over shard (512 ranks)" in text
    assert list(tmp_path.iterdir()) == []


def test_bad_ranks_and_worlds_are_refused(capsys: pytest.CaptureFixture[str]):
    for more, text in (
        (["--rank", "3"], "--rank is for --dry-run alone"),
        (["--rank", "3", "-n", "--from", "a"], "--from a: --rank 3 builds a rank of the recipe alone"),
        (["--rank", "3", "-n", "--resume", "auto"], "--resume auto: --rank 3 builds a rank of the recipe alone"),
        (["--rank", "8", "--world", "8", "-n", "--model.vocab", "1k"], "the ranks of a world of 8 are 0 to 7"),
        (["--rank", "0", "--world", "8", "-n"], "give --model.vocab"),
        (["--world", "8", "--parallel.data", "4", "-n"], "--world asks for 8 ranks, and parallel.data is 4"),
    ):
        assert main(["train", *SMALL, "--train.device", "cpu", *more]) == Exit.USAGE
        assert text in " ".join(capsys.readouterr().err.split())
