"""What a dry run says of memory and time: measured where that takes seconds, by arithmetic where it does not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hornbook.cli.train import dry_run
from hornbook.cli.train.dry_run import describe_job, summary_text, time_text
from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.model.config.flops import SCORING_COST, operations_per_token
from hornbook.model.config.parameter_count import count_parameters
from hornbook.run.diagnose import estimate
from hornbook.run.job.job import Start
from hornbook.run.job.run_inputs import Inputs, open_inputs, vocabulary_warning
from hornbook.run.job.timekeeper import seconds_spent
from hornbook.settings.resolve import resolve

Launch = Callable[..., Exit]


@pytest.fixture
def inputs_of(tiny_settings: tuple[str, ...]) -> Callable[..., Inputs]:
    """The tiny run, with other settings."""
    return lambda *words: open_inputs(resolve(None, [*tiny_settings, *words], environ={}))


def test_a_small_run_is_measured_and_changes_nothing(inputs_of: Callable[..., Inputs]) -> None:
    inputs, threads = inputs_of(), torch.get_num_threads()
    found = estimate.estimate(inputs, inputs.length, 0)
    assert (found.device, found.computed, found.fits) == ("cpu", "a microbatch", True)
    assert found.seconds > 0
    assert found.memory > estimate.least_bytes(inputs)
    assert (inputs.loader.clock, torch.get_num_threads()) == (0, threads)


def test_what_does_not_fit_is_not_tried(inputs_of: Callable[..., Inputs], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = inputs_of()
    monkeypatch.setattr(estimate, "_measure", lambda *_: pytest.fail("nothing may be computed"))
    monkeypatch.setattr(estimate, "free_memory", lambda _: 1000)
    found = estimate.estimate(inputs, inputs.length, 0)
    least = estimate.least_bytes(inputs)
    assert least > 16 * count_parameters(inputs.recipe.model, 320)  # state, and what backward needs
    assert (found.memory, found.fits, found.computed) == (least, False, "")


def test_a_stage_keeps_what_its_own_blocks_do(
    inputs_of: Callable[..., Inputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "state_bytes", lambda *_: {})
    words = "model.layers=8", "train.micro_batch=4"  # one microbatch, of which no stage holds another at once
    whole, stage = (estimate.least_bytes(inputs_of(*words, *more)) for more in ((), ("parallel.pipeline=4",)))
    assert whole / 4 < stage < whole / 2


def test_memory_of_rows_that_are_not_tried_is_that_of_the_last_ones_each(
    inputs_of: Callable[..., Inputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = inputs_of("train.micro_batch=10", "train.batch_tokens=320", "checkpoint.background=false")
    peaks = iter([1000, 1600, 1600])  # after two rows, then after four
    monkeypatch.setattr(estimate, "PROBE_ROWS", 4)
    monkeypatch.setattr(estimate, "memory_of", lambda _: SimpleNamespace(peak=next(peaks)))
    _, _, memory, computed = estimate._measure(inputs, free=0)
    assert (memory, computed) == (1600 + 6 * 300, "4 rows")


def test_what_is_slow_is_judged_by_products(inputs_of: Callable[..., Inputs], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = inputs_of("eval.every=4", "eval.tokens=100")
    monkeypatch.setattr(estimate, "matmul_rate", lambda *_: 1e-6)
    found = estimate.estimate(inputs, inputs.length, 0)
    (cost,) = operations_per_token(inputs.recipe.model, 320, 32).values()
    held_out = [stream.tokens for stream in inputs.corpus.validation.values()]
    scored = 3 * 100 * len(held_out) + sum(held_out)
    assert found.seconds == pytest.approx((1472 + SCORING_COST * scored) * cost.total / (0.5 * 1e3))
    assert found.computed == ""


def test_a_step_is_its_microbatches_and_one_update(
    inputs_of: Callable[..., Inputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = inputs_of("eval.every=0", "train.micro_batch=3")
    bare = replace(inputs, loader=inputs.loader)
    monkeypatch.setattr(estimate, "_measure", lambda *_: (2.0, 0.5, 10**6, "a microbatch"))
    monkeypatch.setattr(estimate, "_scored", lambda *_: 0)
    found = estimate.estimate(bare, bare.length, 0)
    assert found.tokens_per_second == 128 / (2 * 2.0 + 0.5)  # 4 rows: two microbatches, the second of one row
    assert found.seconds == pytest.approx(1472 / found.tokens_per_second)
    assert estimate.estimate(bare, bare.length, 736).seconds == pytest.approx(found.seconds / 2)
    shared = inputs_of("eval.every=0", "parallel.data=2")
    assert estimate.estimate(shared, shared.length, 0).memory == 2 * 10**6
    timed = inputs_of("train.seconds=1")
    assert estimate.estimate(timed, timed.length, 0).seconds == 1.0
    assert estimate.estimate(timed, timed.length, 0, spent=0.75).seconds == 0.25
    assert estimate.estimate(timed, timed.length, 0, spent=2.0).seconds == 0.0


def test_a_resume_counts_the_time_that_was_spent(tmp_path: Path, launch_run: Launch) -> None:
    run = RunDir(tmp_path / "run")
    assert launch_run(run.path) == Exit.DONE
    assert dry_run._progress(run, Start("resume")) == ((12, 1472), seconds_spent(run))
    assert seconds_spent(run) > 0
    assert dry_run._progress(run, Start()) == ((0, 0), 0.0)


def test_a_device_that_is_not_there_is_an_error(
    tmp_path: Path, tiny_settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    resolved = resolve(None, [*tiny_settings, "train.device=cuda"], environ={})
    with pytest.raises(UsageError, match=r"train\.device is 'cuda', but this torch sees no cuda device"):
        describe_job(resolved, RunDir(tmp_path / "run"), Start())


def test_rows_that_no_token_uses_are_named(inputs_of: Callable[..., Inputs]) -> None:
    assert vocabulary_warning(inputs_of()) == ""
    found = vocabulary_warning(inputs_of("model.vocab=5000"))
    assert found.startswith("model.vocab is 5,000 and the tokenizer has 257 tokens: 75,888 parameters are never used")


def test_plan_and_header_say_the_same_of_data_and_vocabulary(
    tmp_path: Path, tiny_settings: tuple[str, ...], launch_run: Launch
) -> None:
    words = ("model.vocab=1000",)
    summary = describe_job(resolve(None, [*tiny_settings, *words], environ={}), RunDir(tmp_path / "run"), Start())
    text = summary_text(summary)
    assert summary["seen"] in text
    assert "12 steps see 8" in text
    assert "metrics.jsonl" not in text
    launch_run(tmp_path / "run", *words)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert f"data: {summary['seen']}" in log
    assert f"warning: {summary['warnings'][0]}" in log


@pytest.mark.parametrize(
    ("known", "lines"),
    [
        ({"computed": "a microbatch"}, ["about 2.0 GB of 3.0 GB free", "about 2.0 hours: 1,200 tokens/s in a micro"]),
        (
            {"computed": "", "fits": False, "memory": 4 * 10**9},
            ["at least 4.0 GB and 3.0 GB are free: it does not fit", "half the rate"],
        ),
    ],
)
def test_the_estimate_in_words(
    tmp_path: Path, tiny_settings: tuple[str, ...], known: dict[str, Any], lines: list[str]
) -> None:
    summary = describe_job(resolve(None, tiny_settings, environ={}), RunDir(tmp_path / "run"), Start())
    found = {"seconds": 7200.0, "tokens_per_second": 1200.0, "memory": 2 * 10**9, "free": 3 * 10**9, "fits": True}
    text = summary_text(summary | {"estimate": found | known})
    assert all(line in text for line in lines), text


def test_times_for_people() -> None:
    shown = [time_text(seconds) for seconds in (3, 59.6, 150, 3600 * 3, 3600 * 100, 4e9)]
    assert shown == ["3 seconds", "60 seconds", "2.5 minutes", "3.0 hours", "4.2 days", "127 years"]
