"""New runs from checkpoints: fork goes on, import takes weights only."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.manifest import ValidationLoss, read_manifest
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.start.init_from import InitFrom, adopt_model, check_tokenizer, init_from_fork
from hornbook.run.ledger.ledger import At, Ledger
from hornbook.settings.resolve import resolve
from hornbook.text.tokenizer.tokenizer import Tokenizer
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]


def fork_of(parent: RunDir, step: int | None, *words: str) -> InitFrom:
    recipe = resolve(str(parent.recipe), environ={}).recipe
    return init_from_fork(parent, step, recipe, resolve(str(parent.recipe), words, environ={}).recipe)


@pytest.fixture
def parent(tmp_path: Path, launch_run: Launch) -> RunDir:
    """A finished run with checkpoints at steps 4, 8 and 12."""
    launch_run(tmp_path / "parent")
    return RunDir(tmp_path / "parent")


def weights(run: RunDir, step: int) -> bytes:
    return (run.checkpoints / f"step-{step:08d}" / "model.safetensors").read_bytes()


def test_a_fork_without_changes_is_the_parents_future(
    tmp_path: Path, parent: RunDir, launch_run: Launch, branch: Branch
) -> None:
    assert launch_run(tmp_path / "child", init_from=fork_of(parent, 4)) == Exit.DONE
    assert branch(tmp_path / "child") == branch(parent.path)[4:]
    assert weights(RunDir(tmp_path / "child"), 12) == weights(parent, 12)


def test_a_fork_may_change_what_a_resume_may_not(
    tmp_path: Path, parent: RunDir, launch_run: Launch, branch: Branch
) -> None:
    init_from = fork_of(parent, 8, "seed=5", "train.sequence=16")
    assert (
        launch_run(tmp_path / "child", "seed=5", "optim.lr=0.001", "train.sequence=16", init_from=init_from)
        == Exit.DONE
    )
    steps = branch(tmp_path / "child")
    assert [step["step"] for step in steps] == [9, 10, 11, 12]
    assert steps[-1]["tokens"] == 1456  # 1,450 in rows of 16
    assert steps[0]["token_hash"] != branch(parent.path)[8]["token_hash"]
    assert steps[0]["lr"] < 0.001
    assert steps[0]["first_sample"] == 1024 // 16  # the clock counts the same tokens in shorter rows


NORMED = "model.attention.qk_norm=head"


def test_a_fork_may_normalise_queries_and_keys_and_goes_on_as_it_was(
    tmp_path: Path, parent: RunDir, launch_run: Launch, branch: Branch
) -> None:
    """As Marin did: weights, moments, clock and data stay, and the new norms keep the size of queries and keys."""
    init_from = fork_of(parent, 8, NORMED)
    child = RunDir(tmp_path / "child")
    assert launch_run(child.path, NORMED, init_from=init_from) == Exit.DONE
    steps, before = branch(child.path), branch(parent.path)[8:]
    assert [each["token_hash"] for each in steps] == [each["token_hash"] for each in before]
    assert steps[0]["loss"] == pytest.approx(before[0]["loss"], abs=0.02)
    assert steps[0]["loss"] != before[0]["loss"]
    folder = child.checkpoints / "step-00000008"
    gains = {
        name: value
        for name, value in load_file(folder / "model.safetensors").items()
        if "_norm" in name and ("q_" in name or "k_" in name)
    }
    assert len(gains) == 2  # of queries and of keys, of the only layer
    assert all((value == value[0]).all() and value[0] > 0 and value[0] != 1 for value in gains.values())
    assert launch_run(child.path, "train.tokens=2000", mode="resume") == Exit.DONE
    assert branch(child.path)[-1]["step"] > 12


@pytest.mark.slow
def test_ranks_that_share_parameters_fit_the_new_norms_alike(
    tmp_path: Path, parent: RunDir, launcher: Launcher, branch: Branch
) -> None:
    found = []
    for name, words in (("one", ()), ("two", ("parallel.data=2", "parallel.shard=everything"))):
        fork = ["fork", str(parent.path), "--at", "8", "--out", str(tmp_path / name), NORMED, *words]
        started = launcher.start(fork, tmp_path / f"{name}.txt")
        assert started.wait() == Exit.DONE, started.text
        found.append([each["loss"] for each in branch(tmp_path / name)])
    assert found[1] == pytest.approx(found[0], abs=1e-4)


def test_a_fork_names_its_parent_and_needs_it_no_more(
    tmp_path: Path, parent: RunDir, launch_run: Launch, branch: Branch, events: Events
) -> None:
    launch_run(tmp_path / "whole", init_from=fork_of(parent, 4))
    child = RunDir(tmp_path / "child").create()
    write_request(child, Request(action="stop", at_step=6))
    assert launch_run(child.path, init_from=fork_of(parent, 4)) == Exit.RESUMABLE
    assert events(child.path, "start")[0]["origin"] == {
        "kind": "fork",
        "checkpoint": str(parent.checkpoints / "step-00000004"),
        "source": {"run": events(parent.path, "start")[0]["sha"], "name": "parent", "step": 4},
    }
    assert events(child.path, "save")[0]["step"] == 4
    shutil.rmtree(parent.path)
    assert launch_run(child.path, mode="resume") == Exit.DONE
    assert branch(child.path) == branch(tmp_path / "whole")


def test_a_fork_killed_before_its_first_save_takes_its_origin_again(
    tmp_path: Path, parent: RunDir, launch_run: Launch, branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    launch_run(tmp_path / "whole", init_from=fork_of(parent, 8))
    with monkeypatch.context() as patch:
        patch.setattr("hornbook.run.loop.async_checkpointer.AsyncCheckpointer.save", die)
        assert launch_run(tmp_path / "child", init_from=fork_of(parent, 8)) == Exit.INTERRUPTED
    assert launch_run(tmp_path / "child", mode="resume") == Exit.DONE
    assert branch(tmp_path / "child") == branch(tmp_path / "whole")


def test_a_step_without_checkpoint_is_refused(parent: RunDir) -> None:
    with pytest.raises(UsageError, match="5"):
        fork_of(parent, 5)


def test_the_shape_cannot_change(parent: RunDir) -> None:
    fork_of(parent, 4, "model.dropout=0.2", "seed=3")
    with pytest.raises(UsageError, match=r"model\.width 16 -> 32 cannot change in a fork"):
        fork_of(parent, 4, "model.width=32")


def test_a_fork_skips_what_its_parent_skipped(
    tmp_path: Path, parent: RunDir, launch_run: Launch, branch: Branch
) -> None:
    with Ledger(parent) as ledger:
        ledger.note("rewind", At(12, 1472), windows=[(20, 24), (30, 31)])
    child = RunDir(tmp_path / "child").create()
    write_request(child, Request(action="stop", at_step=6))
    assert launch_run(child.path, init_from=fork_of(parent, 4)) == Exit.RESUMABLE
    assert launch_run(child.path, mode="resume") == Exit.DONE
    assert [step["first_sample"] for step in branch(child.path)] == [16, 24, 28, 33, 37, 41, 45, 49]
    assert fork_of(parent, 4, "seed=2").skipped_ranges == ()


def test_an_import_takes_the_weights_and_nothing_else(
    tmp_path: Path, parent: RunDir, launch_run: Launch, branch: Branch, events: Events
) -> None:
    init_from = InitFrom("import", parent.checkpoints / "step-00000012")
    assert launch_run(tmp_path / "child", init_from=init_from) == Exit.DONE
    child = RunDir(tmp_path / "child")
    assert weights(child, 0) == weights(parent, 12)
    moments = load_file(child.checkpoints / "step-00000000" / "trainer" / "optimizer.safetensors")
    assert not any(bool(tensor.any()) for tensor in moments.values())
    steps = branch(child.path)
    assert [step["step"] for step in steps] == list(range(1, 13))
    assert steps[0]["loss"] < branch(parent.path)[0]["loss"] - 0.5
    assert events(child.path, "start")[0]["origin"]["kind"] == "import"


def test_weights_from_elsewhere_are_scored_before_the_first_step(
    tmp_path: Path, parent: RunDir, launch_run: Launch, events: Events
) -> None:
    """The figure is that of the parent's end, and the first checkpoint's, which stays the best where nothing is."""
    init_from, child = InitFrom("import", parent.checkpoints / "step-00000012"), RunDir(tmp_path / "child")
    assert launch_run(child.path, "eval.every=6", "optim.lr=1e-30", init_from=init_from) == Exit.DONE
    scored = [record["step"] for record in events(child.path, "evaluation") if "whole" not in record]
    assert scored == [0, 6, 12]
    first, ended = (
        json.loads((run.evals / f"step-{step:08d}.json").read_text()) for run, step in ((child, 0), (parent, 12))
    )
    assert (first["step"], first["tokens"]) == (0, 0)
    assert first["all"] == ended["all"]
    assert [record["kind"] for record in events(child.path, "evaluation", "save")][:2] == ["evaluation", "save"]
    assert read_manifest(child.checkpoints / "step-00000000").score == ValidationLoss(
        first["all"]["loss"], first["rows"]
    )
    assert (child.checkpoints / "best").read_text().strip() == "step-00000000"  # nothing got better
    assert "validation loss" in child.log.read_text().split("saved step-00000000")[0]
    assert launch_run(tmp_path / "fork", init_from=fork_of(parent, 4)) == Exit.DONE
    assert not (tmp_path / "fork" / "evals" / "step-00000004.json").exists()


def test_a_start_that_was_interrupted_is_scored_on_resume_and_once(
    tmp_path: Path, parent: RunDir, launch_run: Launch, branch: Branch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    init_from, child = InitFrom("import", parent.checkpoints / "step-00000012"), RunDir(tmp_path / "child").create()
    write_request(child, Request(action="stop"))
    with monkeypatch.context() as patch:
        patch.setattr("hornbook.run.observe.observers.Evaluation._gives_way", lambda *_, **__: True)
        assert launch_run(child.path, init_from=init_from) == Exit.RESUMABLE
    assert [record["step"] for record in events(child.path, "evaluation", "save")] == [0]
    write_request(child, Request(action="stop"))
    assert launch_run(child.path, mode="resume") == Exit.RESUMABLE
    assert launch_run(child.path, mode="resume") == Exit.DONE
    assert [record["step"] for record in events(child.path, "evaluation")] == [0, 12]
    launch_run(tmp_path / "whole", init_from=init_from)
    assert branch(child.path) == branch(tmp_path / "whole")


def test_a_recipe_takes_the_model_of_the_checkpoint(parent: RunDir) -> None:
    checkpoint = parent.checkpoints / "step-00000012"
    adopted = adopt_model(resolve(None, ["model.dropout=0.1"], environ={}), checkpoint)
    model = adopted.recipe.model
    assert (model.layers, model.width, model.vocab, model.dropout) == (1, 16, 320, 0.1)
    assert adopted.origins["model.width"] == str(checkpoint)
    assert adopted.origins["model.dropout"] == "command line"
    path = parent.path / "adopted.toml"
    path.write_text(adopted.to_toml())
    assert resolve(str(path), environ={}).recipe == adopted.recipe
    adopt_model(resolve(None, ["model.width=16", "model.heads=2"], environ={}), checkpoint)
    with pytest.raises(UsageError, match=r"model\.width is 64 \(command line\), the checkpoint has 16"):
        adopt_model(resolve(None, ["model.width=64", "model.heads=2"], environ={}), checkpoint)


def test_another_tokenizer_is_refused(tmp_path: Path, parent: RunDir, tiny_corpus: Path) -> None:
    checkpoint = shutil.copytree(parent.checkpoints / "step-00000012", tmp_path / "checkpoint")
    tokenizer = Tokenizer.load(tiny_corpus / "tokenizer")
    check_tokenizer(checkpoint, tokenizer)
    definition = json.loads((checkpoint / "tokenizer.json").read_text())
    vocab = definition["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (checkpoint / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(UsageError, match="tokens of another tokenizer"):
        check_tokenizer(checkpoint, tokenizer)
    (checkpoint / "tokenizer.json").unlink()
    check_tokenizer(checkpoint, tokenizer)
