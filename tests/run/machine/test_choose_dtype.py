"""`train.precision = "auto"`: settled when a run starts, kept by its recipe, and said where it is slow."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.errors import Exit, UsageError
from hornbook.model.layers.precision import Choice
from hornbook.run.machine import choose_dtype as precision
from hornbook.run.machine.choose_dtype import describe_precision, settle_precision, slow_precision
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved
from tests.run.launcher import Launcher

CPU = torch.device("cpu")
Launch = Callable[..., Exit]


def resolved(origins: dict[str, str] | None = None, **train: Any) -> Resolved:
    parallel = {"data": train.pop("ranks", 1)}
    return Resolved(Recipe.model_validate({"train": train, "parallel": parallel}), origins or {})


def chooses(monkeypatch: pytest.MonkeyPatch, name: Any, reason: str = "a reason") -> None:
    monkeypatch.setattr(precision, "choose_precision", lambda _device: Choice(name, reason))


def kept(run: Path) -> str:
    return tomllib.loads((run / "recipe.toml").read_text())["train"]["precision"]


def test_what_is_named_stays() -> None:
    asked = resolved({"train.precision": "command line"}, precision="bf16", device="cpu")
    assert settle_precision(asked) == asked
    assert describe_precision(asked) == "bf16"


def test_auto_is_settled_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    chooses(monkeypatch, "fp32")
    settled = settle_precision(resolved(device="cpu"))
    assert settled.recipe.train.precision == "fp32"
    assert describe_precision(settled) == "fp32 (auto: a reason)"


def test_a_run_keeps_what_it_took_on_another_machine(
    launch_run: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: Callable[..., list[dict[str, Any]]]
) -> None:
    run = tmp_path / "run"
    chooses(monkeypatch, "bf16")
    assert launch_run(run, "train.precision=auto", "train.tokens=512") == Exit.DONE
    assert kept(run) == "bf16"
    chooses(monkeypatch, "fp32")
    assert launch_run(run, "train.tokens=1024", mode="resume") == Exit.DONE
    assert kept(run) == "bf16"
    assert launch_run(run, "train.tokens=1450", "train.precision=auto", mode="resume") == Exit.DONE
    assert kept(run) == "fp32"
    changes = [change["key"] for record in events(run, "resume") for change in record.get("changes", ())]
    assert changes == ["train.tokens", "train.tokens", "train.precision"]


def test_what_is_slow_here_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "is_widened", lambda tensor: tensor.dtype in (torch.bfloat16, torch.float16))
    chooses(monkeypatch, "fp32", "this CPU has no bf16 instructions")
    said = slow_precision("bf16", CPU)
    assert said.startswith("bf16 is slow here (this CPU has no bf16 instructions)")
    assert said.endswith("--train.precision fp32 is faster")
    assert "fp16" in slow_precision("fp16", CPU)
    assert slow_precision("fp32", CPU) == ""
    monkeypatch.setattr(precision, "is_widened", lambda _tensor: False)
    assert slow_precision("bf16", CPU) == ""


def test_a_gpu_that_only_emulates_bf16_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert "before Ampere" in slow_precision("bf16", torch.device("cuda"))


def test_mps_without_bf16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda _major, _minor: False)
    with pytest.raises(UsageError, match=r"no bf16 before macOS 14: use --train\.precision fp32"):
        settle_precision(resolved(precision="bf16", device="mps"))
    assert settle_precision(resolved(device="mps")).recipe.train.precision == "fp32"
    assert settle_precision(resolved(precision="bf16", device="cpu")).recipe.train.precision == "bf16"


def test_a_process_that_forks_ranks_does_not_ask_a_gpu_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork does not copy a context of CUDA."""
    with pytest.raises(UsageError, match=r"train\.device is 'xpu'"):
        settle_precision(resolved(ranks=2, device="xpu"))
    monkeypatch.setattr(precision, "choose_device", lambda _name: torch.device("cuda"))
    monkeypatch.setattr(precision, "choose_precision", lambda _device: pytest.fail("asked here"))
    settled = settle_precision(resolved(ranks=2, device="cpu"))
    assert settled.recipe.train.precision in ("bf16", "fp32")
    assert settled.origins["train.precision"].startswith("auto: ")


def test_a_measurement_of_a_cpu_starts_no_thread() -> None:
    """A fork would lack it, and wait for it for ever."""
    code = """if True:
        import os, torch
        from hornbook.model.layers.precision import bf16_ratio
        torch.set_num_threads(4)
        tasks = lambda: len(os.listdir("/proc/self/task"))
        before, ratio = tasks(), bf16_ratio(torch.device("cpu"))
        assert ratio > 0 and torch.get_num_threads() == 4
        print(tasks() - before)
    """
    environ = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.strip() == "0"


def test_ranks_train_in_the_precision_that_was_chosen(
    launcher: Launcher, tiny_settings: tuple[str, ...], tmp_path: Path
) -> None:
    words = ["train", "--out", str(tmp_path / "run"), *tiny_settings, "train.precision=auto", "parallel.data=2"]
    started = launcher.start(words, tmp_path / "output.txt")
    assert started.wait() == 0, started.text
    assert kept(tmp_path / "run") in ("bf16", "fp32")
