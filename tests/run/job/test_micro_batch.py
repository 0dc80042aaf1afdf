"""The micro-batch that fits, and fewer rows at once where memory runs out: the same tokens and the same loss."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.cli.train.dry_run import describe_job
from hornbook.errors import DoesNotFitError, Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.model.transformer import Transformer
from hornbook.run.checkpoints.bound import recipe_in_force
from hornbook.run.job import micro_batch
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.job import Start
from hornbook.run.job.micro_batch import largest_micro_batch, settle_micro_batch, training_bytes
from hornbook.settings.resolve import resolve

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]
WHOLE_STEP = "train.micro_batch=4"
ON_CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: you")
GONE = {"seconds", "data_seconds", "tokens_per_second", "time", "attempt", "loss", "gradient_norm"}


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """refuse(rows, error, after=n): from call n on, training on more than `rows` rows finds no memory."""

    plain = Transformer.forward

    def install(rows: int, error: BaseException = ON_CPU, after: int = 0) -> None:
        calls = iter(range(10**6))

        def forward(self: Transformer, tokens: torch.Tensor, *args: Any, **options: Any) -> Any:
            if self.training and len(tokens) > rows and next(calls) >= after:
                raise error
            return plain(self, tokens, *args, **options)

        monkeypatch.setattr(Transformer, "forward", forward)

    return install


def last_weights(folder: Path) -> bytes:
    return (RunDir(folder).checkpoints / "step-00000012" / "model.safetensors").read_bytes()


def test_chunks_of_logits_on_a_gpu_count_as_large_as_it_makes_them(
    tiny_settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, vocab = resolve(None, list(tiny_settings), environ={}).recipe, 100_000
    monkeypatch.setattr(micro_batch, "choose_device", lambda _: torch.device("cuda"))
    found = []
    for chunk in (2**10, 2**26, 2**50):
        monkeypatch.setattr(micro_batch, "device_chunk_bytes", lambda _, chunk=chunk: chunk)
        found.append(training_bytes(recipe, vocab, 4))
    logits = 4 * 4 * recipe.train.sequence * vocab
    assert [each - found[0] for each in found[1:]] == [5 * (min(size, logits) - 2**10) for size in (2**26, 2**50)]


@pytest.mark.parametrize("error", [ON_CPU, MemoryError("no room"), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_step_that_runs_out_of_memory_is_done_again_with_fewer_rows(
    tmp_path: Path,
    launch_run: Launch,
    branch: Branch,
    events: Events,
    refuse: Callable[..., None],
    error: BaseException,
) -> None:
    whole, shrunk = tmp_path / "whole", tmp_path / "shrunk"
    launch_run(whole, WHOLE_STEP)
    refuse(1, error, after=5)
    assert launch_run(shrunk, WHOLE_STEP) == Exit.DONE
    steps = list(zip(branch(whole), branch(shrunk), strict=True))
    for before, after in steps:
        assert after["loss"] == pytest.approx(before["loss"], rel=1e-5)
        assert {key: value for key, value in before.items() if key not in GONE} == {
            key: value for key, value in after.items() if key not in GONE
        }
    assert [before == after for before, after in steps][:5] == [True] * 5
    notes = [(note["step"], note["before"], note["rows"]) for note in events(shrunk, "micro_batch")]
    assert notes == [(5, 4, 2), (5, 2, 1)]


def test_a_resume_has_fewer_rows_from_the_same_step_on(
    tmp_path: Path, launch_run: Launch, branch: Branch, refuse: Callable[..., None]
) -> None:
    """To the bit, where memory would be enough now, and where the steps before are made again."""
    whole, parts = tmp_path / "whole", RunDir(tmp_path / "parts").create()
    refuse(2, after=5)
    launch_run(whole, WHOLE_STEP)
    write_request(parts, Request(action="stop", at_step=7))
    refuse(2, after=5)
    assert launch_run(parts.path, WHOLE_STEP) == Exit.RESUMABLE
    refuse(10**6)
    for folder in parts.checkpoints.glob("step-00000007"):
        folder.rename(folder.with_name(".tmp-gone"))
    assert launch_run(parts.path, mode="resume") == Exit.DONE
    assert branch(parts.path) == branch(whole)
    assert last_weights(parts.path) == last_weights(whole)


def test_one_row_that_does_not_fit_ends_the_run_with_a_remedy(
    tmp_path: Path, launch_run: Launch, refuse: Callable[..., None]
) -> None:
    refuse(0)
    with pytest.raises(DoesNotFitError, match=r"one row at a time.*recompute block"):
        launch_run(tmp_path / "run", WHOLE_STEP)


def test_other_errors_are_not_taken_for_it(tmp_path: Path, launch_run: Launch, refuse: Callable[..., None]) -> None:
    refuse(0, RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes"):
        launch_run(tmp_path / "run", WHOLE_STEP)


def test_auto_is_the_largest_divisor_that_fits(tiny_settings: tuple[str, ...]) -> None:
    recipe = resolve(None, [*tiny_settings, "train.batch_tokens=384"], environ={}).recipe  # 12 rows a step
    sizes = {rows: training_bytes(recipe, 320, rows) for rows in (1, 2, 3, 4, 6, 12)}
    assert sorted(sizes.values()) == list(sizes.values())
    for rows, size in sizes.items():
        assert largest_micro_batch(recipe, 320, int(size / micro_batch.MARGIN) + 2)[0] == rows
    with pytest.raises(DoesNotFitError, match="one row at a time needs"):
        largest_micro_batch(recipe, 320, sizes[1])


def test_auto_becomes_a_number_in_the_recipe_of_the_run(tmp_path: Path, launch_run: Launch) -> None:
    assert launch_run(tmp_path / "run", "train.micro_batch=auto") == Exit.DONE
    assert recipe_in_force(RunDir(tmp_path / "run")).train.micro_batch == 4
    assert "micro_batch = 4" in RunDir(tmp_path / "run").recipe.read_text(encoding="utf-8")
    launch_run(tmp_path / "same", WHOLE_STEP)
    assert last_weights(tmp_path / "run") == last_weights(tmp_path / "same")


def test_auto_is_settled_in_a_dry_run_and_refused_where_it_cannot_be(
    tmp_path: Path, tiny_settings: tuple[str, ...]
) -> None:
    resolved = resolve(None, [*tiny_settings, "train.micro_batch=auto"], environ={})
    assert describe_job(resolved, RunDir(tmp_path / "run"), Start(), measure=True)["estimate"]["fits"]
    with pytest.raises(UsageError, match="give a number"):
        settle_micro_batch(resolved, launched=True)
    experts = "model.mlp={kind='experts', count=4, active=2, hidden=64, capacity=1.0}"
    dropping = resolve(None, [*tiny_settings, "train.micro_batch=auto", experts], environ={})
    with pytest.raises(UsageError, match="keep for backward is not known before they run"):
        settle_micro_batch(dropping)
