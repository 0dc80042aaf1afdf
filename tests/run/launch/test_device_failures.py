"""A GPU, its memory or shared memory fails in the middle of a run: one line, its exit code, and nothing is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.errors import DoesNotFitError, Exit, HornbookError, LostDeviceError, SharedMemoryError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.model.transformer import Transformer
from hornbook.run.checkpoints.commit import newest_step
from hornbook.run.doctor.run_report import diagnose_run
from hornbook.run.job.heartbeat import Heartbeat
from hornbook.run.launch.node import _error_of
from hornbook.run.launch.rank import Failure, Report
from hornbook.run.loop import initialize_or_restore
from hornbook.run.loop.initialize_or_restore import _device_warnings
from tests.kernels.test_device_errors import ASYNC, CUDA, NCCL, REFUSED, SEGMENT, SYSTEM
from tests.parallel.test_device import gpu_of
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]
ILLEGAL = "CUDA error: an illegal memory access was encountered" + ASYNC


@pytest.fixture
def fail_in_step_7(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """fail_in_step_7(error): the seventh step (two microbatches each) raises it in forward, and all later ones."""
    plain = Transformer.forward

    def install(error: BaseException) -> None:
        calls = iter(range(10**6))

        def forward(self: Transformer, *args: Any, **options: Any) -> Any:
            if self.training and next(calls) >= 12:
                raise error
            return plain(self, *args, **options)

        monkeypatch.setattr(Transformer, "forward", forward)

    return install


def last_weights(folder: Path) -> bytes:
    return (RunDir(folder).checkpoints / "step-00000012" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("error", "kind", "said", "found"),
    [
        (torch.AcceleratorError(ILLEGAL), LostDeviceError, "dmesg", "lost_device"),
        (RuntimeError(NCCL.format(*SYSTEM, SEGMENT)), SharedMemoryError, "--shm-size", "shared_memory"),
        (OSError(28, "No space left on device", "/dev/shm/psm_1"), SharedMemoryError, "--shm-size", "shared_memory"),
    ],
)
def test_a_run_that_fails_on_its_device_keeps_its_checkpoint_and_goes_on(
    tmp_path: Path,
    launch_run: Launch,
    branch: Branch,
    events: Events,
    fail_in_step_7: Callable[[BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    kind: type[HornbookError],
    said: str,
    found: str,
) -> None:
    whole, failed = tmp_path / "whole", tmp_path / "failed"
    launch_run(whole)
    with monkeypatch.context():
        fail_in_step_7(error)
        with pytest.raises(kind, match=said) as raised:
            launch_run(failed)
        assert len(str(raised.value).splitlines()) == 1
        assert f"`hornbook resume {failed}` goes on from the newest checkpoint" in str(raised.value)
        (record,) = events(failed, "fail")
        assert (record["error"], record["text"]) == (kind.__name__, str(raised.value))
        assert newest_step(RunDir(failed).checkpoints) == 4
        report = diagnose_run(RunDir(failed))
        assert (report.findings[0].name, report.code) == (found, kind.exit_code)
    monkeypatch.undo()
    assert launch_run(failed, mode="resume") == Exit.DONE
    assert branch(failed) == branch(whole)
    assert last_weights(failed) == last_weights(whole)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(REFUSED),
        RuntimeError(f"backend='inductor' raised:\nOutOfMemoryError: {REFUSED}\n\nSet TORCHDYNAMO_VERBOSE=1"),
    ],
)
def test_memory_that_runs_out_in_a_step_tells_request_plan_and_remedy(
    tmp_path: Path,
    launch_run: Launch,
    events: Events,
    fail_in_step_7: Callable[[BaseException], None],
    error: Exception,
) -> None:
    run = tmp_path / "run"
    fail_in_step_7(error)
    with pytest.raises(DoesNotFitError) as raised:
        launch_run(run)
    text = str(raised.value)
    assert len(text.splitlines()) == 1
    for part in (
        "tried to allocate 2.00 GiB; GPU 0 has a total capacity of 79.10 GiB of which 1.31 GiB is free",
        "process 4711 has 40.00 GiB of it",
        "with one row at a time of ",
        " planned. ",
        f"`hornbook resume {run} --parallel.recompute block` goes on from the newest checkpoint",
    ):
        assert part in text
    assert [(each["error"], each["text"]) for each in events(run, "fail")] == [("DoesNotFitError", text)]
    assert [each["rows"] for each in events(run, "micro_batch")] == [1]  # two rows at once were tried before


def test_memory_that_runs_out_elsewhere_names_a_smaller_micro_batch(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError(REFUSED)

    monkeypatch.setattr("hornbook.parallel.engine.Engine.step_and_fetch", refuse)
    with pytest.raises(DoesNotFitError, match=r"with 2 rows at once of .* planned\. .* --train.micro_batch 1` goes on"):
        launch_run(tmp_path / "run")


def test_a_gpu_that_torch_cannot_use_is_refused_before_anything_is_written(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    gpu_of(monkeypatch, (6, 1))
    with pytest.raises(UsageError, match=r"compute capability 6\.1.*--train\.device cpu"):
        launch_run(tmp_path / "run", "train.device=cuda")
    assert not (tmp_path / "run").exists()


def test_ranks_that_lose_a_gpu_start_again_after_a_check(
    launcher: Launcher,
    tiny_settings: tuple[str, ...],
    tmp_path: Path,
    events: Events,
    branch: Branch,
    launch_run: Launch,
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    words = ("train", "--out", str(run), *tiny_settings, "parallel.data=2", "checkpoint.background=false")
    fault = {"do": "RuntimeError", "text": ILLEGAL, "generation": 0, "rank": 1, "phase": "clip", "step": 7}
    started = launcher.start(words, tmp_path / "output.txt", [fault], supervisor__BACKOFF=[0.0])
    assert started.wait() == Exit.DONE, started.text
    (restart,) = events(run, "restart")
    assert restart["rank"] == 1
    assert "failed with LostDeviceError: the GPU failed: CUDA error: an illegal memory access" in restart["cause"]
    assert len(events(run, "machine_check")) == 1
    launch_run(whole)
    assert [each["loss"] for each in branch(run)] == pytest.approx([each["loss"] for each in branch(whole)])


@pytest.mark.parametrize(
    ("text", "by_peer"),
    [
        (NCCL.format(*CUDA, "Cuda failure 719 'unspecified launch failure'"), False),
        (NCCL.format(*SYSTEM, SEGMENT), False),
        (NCCL.format("remote process exited", "ncclRemoteError: A call failed", "peer closed"), True),
    ],
)
def test_nccl_reports_failures_of_this_rank_and_of_others(text: str, by_peer: bool) -> None:
    assert Report.of(RuntimeError(text)).by_peer == by_peer


def test_a_machine_of_several_ends_with_the_code_of_its_lost_gpu() -> None:
    failure = Failure(0, "failed", Heartbeat(rank=0).read(), Report.of(LostDeviceError("the GPU failed")))
    assert failure.lasting_error is None
    assert _error_of(failure).exit_code == Exit.HARDWARE


def test_what_slows_or_hinders_a_run_on_its_device_is_said_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, tiny_settings: tuple[str, ...]
) -> None:
    from hornbook.settings.resolve import resolve

    train = resolve(None, [*tiny_settings, "train.device=auto"], environ={}).recipe.train
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(initialize_or_restore, "unseen_gpus", lambda: "torch is a build without CUDA")
    assert list(_device_warnings(train, torch.device("cpu"))) == ["training on the CPU: torch is a build without CUDA"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert list(_device_warnings(train, torch.device("cpu"))) == []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (9 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 1 << 30)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    bf16 = train.model_copy(update={"precision": "bf16"})
    memory, slow = _device_warnings(bf16, torch.device("cuda", 0))
    assert memory.startswith("other processes have 75.2 GB of the 85.9 GB of cuda:0: `nvidia-smi` names them")
    assert slow.startswith("a GPU before Ampere has no bf16 of its own, so bf16 is slow")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 70 << 30)
    assert list(_device_warnings(train, torch.device("cuda", 0))) == []
