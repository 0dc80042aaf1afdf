"""env.json."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from hornbook.parallel.world import World
from hornbook.run.machine import environment
from hornbook.run.machine.environment import bits_depend_on, describe_environment, git_state


def test_the_environment_names_versions_threads_and_seed_but_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("HF_TOKEN", "hf_hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HORNBOOK_SET", "train.tokens=1M data.path=s3://me:hunter2@bucket/x")
    found = describe_environment(World(torch.device("cpu")), 7, ["hornbook", "train"])
    assert found["variables"]["HORNBOOK_SET"] == "train.tokens=1M data.path=s3://me:[hidden]@bucket/x"
    assert found["versions"]["torch"] == torch.__version__
    assert (found["threads"], found["seed"], found["argv"]) == (torch.get_num_threads(), 7, ["hornbook", "train"])
    assert found["variables"]["OMP_NUM_THREADS"] == "1"
    assert "hunter2" not in json.dumps(found)
    assert bits_depend_on(found)["device"] == "cpu"


def test_the_code_is_compared_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "run" / "start" / "environment.py"))
    digests = []
    for text, name in (("a", "x.py"), ("b", "x.py"), ("b", "y.py")):
        (tmp_path / "x.py").unlink(missing_ok=True)
        (tmp_path / name).write_text(text)
        digests.append(environment.code_digest.__wrapped__())
    assert len(set(digests)) == 3


def test_other_code_is_told_and_older_runs_recorded_none() -> None:
    found = describe_environment(World(torch.device("cpu")), 7, [])
    assert bits_depend_on(found)["code"] == environment.code_digest()
    del found["code"]
    assert "code" not in bits_depend_on(found)


def test_git_state_is_commit_and_whether_changed(tmp_path: Path) -> None:
    assert git_state(tmp_path / "missing") is None
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    assert git_state(tmp_path) is None, "there is no commit"
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    state = git_state(tmp_path)
    assert state is not None
    assert (len(state["commit"]), state["changed"]) == (40, False)
    (tmp_path / "file").write_text("2")
    assert (git_state(tmp_path) or {})["changed"]
