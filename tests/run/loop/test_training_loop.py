"""The loop: what it writes, what it computes, and that looking changes nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.data.loader.loader import build_loader
from hornbook.errors import DivergedError, Exit, UsageError
from hornbook.files.journal import read_records, verify_chain
from hornbook.files.run_directory import RunDir
from hornbook.model.heads import head
from hornbook.parallel.engine import Engine
from hornbook.run.job.control import Request, write_request
from hornbook.settings.resolve import resolve

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]


def checkpoint_bytes(folder: Path, step: int) -> tuple[bytes, bytes]:
    checkpoint = RunDir(folder).checkpoints / f"step-{step:08d}"
    moments = checkpoint / "trainer" / "optimizer.safetensors"
    return (checkpoint / "model.safetensors").read_bytes(), moments.read_bytes()


def test_labels_are_smoothed_over_the_tokens_of_the_tokenizer(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """257 tokens stand in 320 rows."""
    seen, compute = set(), head.loss_and_grad_

    def watched(logits: torch.Tensor, *rest: Any) -> Any:
        if rest[-1].smoothing:  # not in the evaluation at the end
            seen.add((logits.shape[1], rest[-1].num_real_tokens))
        return compute(logits, *rest)

    monkeypatch.setattr(head, "loss_and_grad_", watched)
    assert launch_run(tmp_path / "run", "train.loss.smoothing=0.1", "train.tokens=384") == Exit.DONE
    assert seen == {(320, 257)}


def test_a_run_leaves_a_complete_directory(tmp_path: Path, launch_run: Launch, events: Events) -> None:
    run = RunDir(tmp_path / "run")
    assert launch_run(run.path, "eval.every=6", "eval.prompt=the", "checkpoint.background=false") == Exit.DONE
    for path in (run.recipe, run.env, run.data_lock, run.metrics, run.events, run.log, run.state):
        assert path.is_file(), path
    assert sorted(p.name for p in run.checkpoints.glob("step-*")) == ["step-00000004", "step-00000008", "step-00000012"]
    assert [p.name for p in sorted(run.evals.iterdir())] == ["step-00000006.json", "step-00000012.json"]
    assert [p.name for p in sorted(run.samples.iterdir())] == ["step-00000006.json", "step-00000012.json"]
    state = run.read_state()
    assert state is not None
    assert (state["status"], state["step"], state["tokens"]) == ("finished", 12, 1472)
    kinds = [record["kind"] for record in events(run.path)]
    assert kinds == ["start", "save", "evaluation", "save", "evaluation", "save", "finish"]
    assert verify_chain(run.events) == len(kinds)


def test_the_recipe_in_the_run_is_complete_and_valid(tmp_path: Path, tiny_corpus: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run")
    text = (tmp_path / "run" / "recipe.toml").read_text()
    again = resolve(str(tmp_path / "run" / "recipe.toml"), environ={})
    assert again.recipe.model.vocab == 320
    assert again.recipe.data.path == str(tiny_corpus)
    assert again.recipe.optim.lr == 0.01
    assert "the tokenizer's 257, rounded up to a multiple of 64" in text
    assert "command line" in text


def test_metrics_have_every_step_and_the_loaders_hashes(
    tmp_path: Path, tiny_corpus: Path, launch_run: Launch, branch: Branch
) -> None:
    launch_run(tmp_path / "run")
    steps = branch(tmp_path / "run")
    assert [step["step"] for step in steps] == list(range(1, 13))
    assert [step["step_tokens"] for step in steps] == [128] * 11 + [64]
    assert [step["tokens"] for step in steps] == [128 * k for k in range(1, 12)] + [1472]
    recipe = resolve(str(tmp_path / "run" / "recipe.toml"), environ={}).recipe
    loader = build_loader(recipe.data, tiny_corpus, sequence=32, micro_batch=2, seed=recipe.seed, prefetch=False)
    hashes = [loader.take(step["num_samples"]).token_hash for step in steps]
    assert [step["token_hash"] for step in steps] == hashes


def test_the_learning_rate_is_the_schedule_of_tokens(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "run", "optim.schedule.kind=linear", "optim.schedule.floor=0.1")
    for number, step in enumerate(branch(tmp_path / "run")):
        begun = 128 * number
        factor = (begun + 128) / 384 if begun + 128 <= 384 else 1 - 0.9 * (begun - 384) / (1472 - 384)
        assert step["lr"] == pytest.approx(0.01 * factor, rel=1e-12)


def test_equal_runs_are_equal_to_the_bit_and_the_seed_matters(
    tmp_path: Path, launch_run: Launch, branch: Branch
) -> None:
    launch_run(tmp_path / "a")
    launch_run(tmp_path / "b")
    launch_run(tmp_path / "c", "seed=2")
    assert branch(tmp_path / "a") == branch(tmp_path / "b")
    assert checkpoint_bytes(tmp_path / "a", 12) == checkpoint_bytes(tmp_path / "b", 12)
    assert checkpoint_bytes(tmp_path / "a", 12)[0] != checkpoint_bytes(tmp_path / "c", 12)[0]
    assert branch(tmp_path / "a")[0]["token_hash"] != branch(tmp_path / "c")[0]["token_hash"]


def test_observers_change_no_bit(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "blind", "model.dropout=0.1")
    launch_run(
        tmp_path / "watched",
        "model.dropout=0.1",
        "eval.every=1",
        "eval.prompt=the",
        "eval.sample_every=1",
        "log.every=1",
    )
    assert len(list((tmp_path / "watched" / "evals").iterdir())) == 12
    assert branch(tmp_path / "blind") == branch(tmp_path / "watched")
    assert checkpoint_bytes(tmp_path / "blind", 12) == checkpoint_bytes(tmp_path / "watched", 12)


def test_the_model_learns(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    words = ("train.epochs=1", "train.batch_tokens=512", "train.micro_batch=16", "optim.lr=0.05")
    launch_run(tmp_path / "run", "train.tokens=none", *words)
    losses = [step["loss"] for step in branch(tmp_path / "run")]
    assert losses[0] == pytest.approx(5.77, abs=0.05)  # ln 320: nothing is known yet
    assert losses[-1] < 3.2
    assert sum(step["step_tokens"] for step in branch(tmp_path / "run")) >= 19_000


def test_a_model_that_diverged_makes_no_sample_and_the_guard_ends_the_run(tmp_path: Path, launch_run: Launch) -> None:
    words = ("optim.lr=1e30", "eval.every=1", "eval.prompt=the")
    with pytest.raises(DivergedError, match="steps in a row"):
        launch_run(tmp_path / "run", *words, "guard.max_skips=4", "guard.mode=off")
    assert "no sample: the model's logits are not finite" in (tmp_path / "run" / "log.txt").read_text()


def test_evaluation_is_per_source_and_in_all(tmp_path: Path, launch_run: Launch, events: Events) -> None:
    launch_run(tmp_path / "run", "eval.every=12")
    result = json.loads((tmp_path / "run" / "evals" / "step-00000012.json").read_text())
    assert set(result["sources"]) == {"notes", "prose"}
    parts = result["sources"].values()
    assert result["all"]["tokens"] == sum(part["tokens"] for part in parts)
    assert result["all"]["bytes"] == sum(part["bytes"] for part in parts)
    assert events(tmp_path / "run", "evaluation")[0]["all"] == result["all"]


def test_the_best_checkpoint_has_the_lowest_score(tmp_path: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run", "eval.every=4", "optim.lr=0.02", "optim.schedule.kind=constant")
    run = RunDir(tmp_path / "run")
    scores = {path.stem: json.loads(path.read_text())["all"]["loss"] for path in run.evals.iterdir()}
    assert (run.checkpoints / "best").read_text().strip() == min(scores, key=lambda name: scores[name])


class Spoiler:
    """Puts a NaN into one gradient at the given steps."""

    def __init__(self, steps: set[int]) -> None:
        self.steps = steps
        self.original = Engine.forward_backward

    def __call__(self, engine: Engine, batches: Any, total_weight: float, key: tuple[int, int] | None = None) -> Any:
        losses = self.original(engine, batches, total_weight, key)
        assert key is not None
        if key[1] + 1 in self.steps:
            gradient = engine.named_parameters["norm.weight"].grad
            assert gradient is not None
            gradient[3] = float("nan")
        return losses


def spoil(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    spoiler = Spoiler(steps)

    def forward_backward(self: Engine, batches: Any, total_weight: float, key: tuple[int, int] | None = None) -> Any:
        return spoiler(self, batches, total_weight, key)

    monkeypatch.setattr(Engine, "forward_backward", forward_backward)


def test_a_non_finite_step_is_skipped_to_the_bit_and_noted(
    tmp_path: Path, launch_run: Launch, branch: Branch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, {5, 6, 9})
    assert launch_run(tmp_path / "run", "checkpoint.every=1") == Exit.DONE
    assert checkpoint_bytes(tmp_path / "run", 4) == checkpoint_bytes(tmp_path / "run", 5)
    assert checkpoint_bytes(tmp_path / "run", 5) == checkpoint_bytes(tmp_path / "run", 6)
    assert checkpoint_bytes(tmp_path / "run", 6) != checkpoint_bytes(tmp_path / "run", 7)
    steps = branch(tmp_path / "run")
    assert [step["step"] for step in steps if step["skipped"]] == [5, 6, 9]
    assert steps[4]["gradient_norm"] is None
    notes = events(tmp_path / "run", "skip")
    assert [(note["step"], note["in_a_row"]) for note in notes] == [(5, 1), (6, 2), (9, 1)]
    assert notes[0]["token_hash"] == steps[4]["token_hash"]
    assert steps[-1]["tokens"] == 1472  # a skipped step counts


def test_too_many_skips_in_a_row_end_the_run_and_save_nothing_of_them(
    tmp_path: Path, launch_run: Launch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, set(range(6, 100)))
    with pytest.raises(DivergedError, match=r"4 steps in a row, up to step 9.*resume with a lower --optim\.lr"):
        launch_run(tmp_path / "run", "guard.max_skips=3", "guard.mode=off")
    run = RunDir(tmp_path / "run")
    assert [record["step"] for record in events(run.path, "skip")] == [6, 7, 8, 9]
    assert events(run.path)[-1]["kind"] == "fail"
    state = run.read_state()
    assert state is not None
    assert state["status"] == "failed"
    newest = max(path.name for path in run.checkpoints.glob("step-*"))
    assert newest == "step-00000008"  # inside the streak: the weights are those of step 5
    monkeypatch.undo()
    assert launch_run(run.path, "optim.lr=0.001", mode="resume") == Exit.DONE


def test_skips_in_a_row_survive_a_restart(
    tmp_path: Path, launch_run: Launch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "run").create()
    write_request(run, Request(action="stop", at_step=6))
    spoil(monkeypatch, {5, 6, 7, 8})
    assert launch_run(run.path, "guard.max_skips=3", "guard.mode=off") == Exit.RESUMABLE
    with pytest.raises(DivergedError, match="4 steps in a row, up to step 8"):
        launch_run(run.path, mode="resume")
    assert [note["in_a_row"] for note in events(run.path, "skip")] == [1, 2, 3, 4]


def test_a_directory_in_use_is_refused(tmp_path: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run")
    with pytest.raises(UsageError, match=r"already holds a run: `hornbook resume .*run` goes on with it"):
        launch_run(tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty and holds no run"):
        launch_run(tmp_path / "other")


def test_what_is_missing_is_said(tmp_path: Path, launch_run: Launch) -> None:
    with pytest.raises(UsageError, match=r"give --train\.tokens or --train\.epochs"):
        launch_run(tmp_path / "a", "train.tokens=none")
    with pytest.raises(UsageError, match="missing --data DATA"):
        launch_run(tmp_path / "b", "data.path=none")
    with pytest.raises(UsageError, match=r"the tokenizer has 257 tokens and model\.vocab has room for 256"):
        launch_run(tmp_path / "c", "model.vocab=256")
    assert not (tmp_path / "c").exists()


def test_precision_is_that_of_activations_only(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "run", "train.precision=bf16")
    launch_run(tmp_path / "wide")
    from safetensors.torch import load_file

    tensors = load_file(tmp_path / "run" / "checkpoints" / "step-00000012" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    narrow, wide = branch(tmp_path / "run"), branch(tmp_path / "wide")
    assert narrow[-1]["loss"] != wide[-1]["loss"]
    assert narrow[-1]["loss"] == pytest.approx(wide[-1]["loss"], rel=0.02)


def test_micro_batch_changes_rounding_only(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "small", "train.micro_batch=1")
    launch_run(tmp_path / "large", "train.micro_batch=4")
    for small, large in zip(branch(tmp_path / "small"), branch(tmp_path / "large"), strict=True):
        assert small["token_hash"] == large["token_hash"]
        assert small["loss"] == pytest.approx(large["loss"], rel=1e-5)


def test_metrics_are_strict_json(tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, {2})
    launch_run(tmp_path / "run")
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert len(list(read_records(tmp_path / "run" / "metrics.jsonl"))) == 12
