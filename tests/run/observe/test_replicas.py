"""Replicas that differ: found at the next comparison, mended by the majority, or left behind by a restart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.errors import Exit
from hornbook.files.journal import verify_chain
from hornbook.files.run_directory import RunDir
from hornbook.run.job.control import Request, write_request
from hornbook.run.observe.replicas import Difference, ReplicaCheck, blame, combined, differences, digests
from tests.run.launcher import Launcher

Events = Callable[..., list[dict[str, Any]]]
SETTINGS = ("model.dropout=0.1", "guard.hash_every=3", "checkpoint.memory_every=2", "checkpoint.background=false")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_every_flipped_bit_changes_the_digest(dtype: torch.dtype) -> None:
    tensor = torch.arange(24).to(dtype).view(4, 6)
    before = digests([tensor, torch.zeros(3)])
    seen = {before[0]}
    raw = tensor.view(-1).view(torch.uint8)
    for bit in range(8 * len(raw)):
        raw[bit // 8] ^= 1 << bit % 8
        now = digests([tensor, torch.zeros(3)])
        assert now[1] == before[1]
        assert combined(now) != combined(before)
        seen.add(now[0])
        raw[bit // 8] ^= 1 << bit % 8
    assert len(seen) == 8 * len(raw) + 1


def test_only_ranks_of_one_layout_are_compared() -> None:
    assert differences([(1, 5), (2, 6), (1, 5), (2, 6)]) == []
    assert differences([(1, 5), (2, 6), (1, 7), (2, 6)]) == [[0, 2]]


def test_the_majority_is_right() -> None:
    names = ["a", "b"]
    assert blame([0, 2, 3], names, {0: [1, 2], 2: [1, 9], 3: [1, 2]}) == Difference([2], 0, ["b"])
    assert blame([1, 2, 3], names, {1: [8, 2], 2: [1, 2], 3: [1, 2]}) == Difference([1], 2, ["a"])
    assert blame([0, 1], names, {0: [1, 2], 1: [1, 9]}) == Difference([0, 1], None, ["b"])
    assert blame([0, 1, 2], names, {0: [1, 2], 1: [3, 2], 2: [1, 9]}) == Difference([0, 1, 2], None, ["a", "b"])


def test_every_save_is_of_a_state_that_was_compared(
    tmp_path: Path, launch_run: Callable[..., Any], events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a schedule, that of a stop, and the last one."""
    compared = set[int]()

    def compare(_: ReplicaCheck, state: Any, *, saving: bool) -> None:
        compared.update([state.step] if saving else [])

    monkeypatch.setattr(ReplicaCheck, "compare_if_due", compare)
    run = RunDir(tmp_path / "run").create()
    write_request(run, Request(action="stop", at_step=6))
    assert launch_run(run.path) == Exit.RESUMABLE
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert {each["step"] for each in events(run.path, "save")} == {4, 6, 8, 12} == compared


@pytest.mark.parametrize(("ranks", "act"), [(2, "restart"), pytest.param(3, "copy", marks=pytest.mark.slow)])
def test_a_flipped_bit_of_one_replica_is_healed(
    tmp_path: Path,
    launcher: Launcher,
    tiny_settings: tuple[str, ...],
    train_whole: Callable[..., Path],
    branch: Callable[[Path], list[dict[str, Any]]],
    events: Events,
    ranks: int,
    act: str,
) -> None:
    settings = (*SETTINGS, f"parallel.data={ranks}", "train.micro_batch=1", "train.batch_tokens=192")
    whole, run = train_whole(*settings), tmp_path / "run"
    words = ["train", "--out", str(run), *tiny_settings, *settings]
    flip = {"do": "flip weight", "generation": 0, "rank": 1, "phase": "observe", "step": 7}
    started = launcher.start(words, tmp_path / "output.txt", faults=[flip], supervisor__BACKOFF=[0.0])
    assert started.wait() == 0, started.text
    (record,) = events(run, "replicas_differ")
    assert (record["step"], record["agreed"], record["act"]) == (8, 6, act)
    assert record["ranks"] == ([1] if ranks == 3 else [0, 1])
    assert record["differing"] >= 1
    assert verify_chain(RunDir(run).events)
    assert [each["step"] for each in events(run, "resume")] == ([6] if act == "restart" else [])
    if act == "restart":
        assert branch(run) == branch(whole)
