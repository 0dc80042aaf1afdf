"""A failure that says something about the machine: it is checked, and what fails is left out of the next start."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit, RankLostError
from hornbook.files.run_directory import RunDir
from hornbook.parallel.world import RankInfo
from hornbook.run.job.heartbeat import RankStatus
from hornbook.run.job.job import Job
from hornbook.run.job.signals import StopSignals
from hornbook.run.launch import slot_recovery as recovery
from hornbook.run.launch.rank import Failure, Report, wait_for_ends
from hornbook.run.launch.slot_recovery import SlotKeeper, signature
from hornbook.run.launch.supervisor import running_ranks
from hornbook.run.ledger.ledger import At, Ledger
from hornbook.run.machine.deep.cordon import SECONDS, CordonList
from hornbook.run.machine.deep.slots import SlotFault, SlotReport
from hornbook.settings.resolve import resolve
from tests.run.launcher import Launcher, Started

Events = Callable[..., list[dict[str, Any]]]
Train = Callable[..., Started]
TWO = ("parallel.data=2", "checkpoint.background=false")


@pytest.fixture
def train(launcher: Launcher, tiny_settings: tuple[str, ...], tmp_path: Path) -> Train:
    """train(folder, faults=[...]) starts a run of two ranks."""

    def start(folder: Path, **how: Any) -> Started:
        words = ("train", "--out", str(folder), *tiny_settings, *TWO)
        return launcher.start(words, tmp_path / "output.txt", supervisor__BACKOFF=[0.0], **how)

    return start


def fault(do: str, generation: int, step: int = 7, **where: Any) -> dict[str, Any]:
    return {"do": do, "generation": generation, "rank": 1, "phase": "clip", "step": step, **where}


def bad(*slots: int) -> dict[str, Any]:
    """Slots whose products are wrong; no moment of a rank."""
    return {"do": "bad slots", "slots": list(slots), "generation": -1}


def test_the_same_failure_twice_is_diagnosed_and_not_tried_again(tmp_path: Path, train: Train, events: Events) -> None:
    run = tmp_path / "run"
    started = train(run, faults=[fault("KeyError", 0), fault("KeyError", 1)])
    assert started.wait() == Exit.RETRIES_SPENT, started.text
    assert len(events(run, "restart")) == 1
    (check,) = events(run, "machine_check")
    assert (check["cordoned"], check["problems"], check["step"]) == ([], [], 7)
    assert "KeyError" in check["cause"]
    evidence = json.loads((RunDir(run).incidents / "2" / "machine.json").read_text())
    assert all(len(set(slot["golden"]["fp32"])) == 1 for slot in evidence)
    assert "the second time in the same way, and a check found the machine sound" in started.text


@pytest.mark.slow
def test_another_step_or_another_error_is_another_failure(tmp_path: Path, train: Train, events: Events) -> None:
    run = tmp_path / "run"
    started = train(run, faults=[fault("KeyError", 0), fault("ValueError", 1), fault("KeyError", 2, step=6)])
    assert started.wait() == Exit.DONE, started.text
    assert len(events(run, "restart")) == 3
    assert not events(run, "machine_check")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is one slot")
def test_a_slot_that_fails_is_left_out(
    tmp_path: Path, train: Train, events: Events, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    started = train(run, faults=[fault("SIGSEGV", 0), bad(1)])
    assert started.wait() == Exit.DONE, started.text
    (check,) = events(run, "machine_check")
    (entry,) = check["cordoned"]
    assert (entry["slot"], entry["test"]) == (1, "products")
    (resume,) = events(run, "resume")
    assert [(each["key"], each["old"], each["new"]) for each in resume["changes"]] == [("parallel.data", 2, 1)]
    assert CordonList(RunDir(run).cordon).slots() == {1}
    assert main(["doctor", str(run), "--uncordon"]) == Exit.DONE
    assert "slot 1 may be used again" in capsys.readouterr().out
    assert CordonList(RunDir(run).cordon).slots() == set()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is one slot")
def test_without_a_sound_slot_the_run_ends(tmp_path: Path, train: Train, events: Events) -> None:
    run = tmp_path / "run"
    every = bad(*range(len(os.sched_getaffinity(0))))
    started = train(run, faults=[fault("SIGSEGV", 0), every])
    assert started.wait() == Exit.HARDWARE, started.text
    assert "and no slot is left: replace the hardware" in started.text
    assert events(run, "fail")[-1]["error"] == "HardwareError"


def test_a_slot_that_fails_when_it_is_back_is_out_until_a_person_lifts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, now = list[list[int]](), [1e9]

    def check(slots: list[int], *_: Any) -> list[SlotReport]:
        checked.append(slots)
        return [SlotReport(slot, memory="word 3" if slot == 1 else "") for slot in slots]

    monkeypatch.setattr(recovery, "check_slots", check)
    monkeypatch.setattr(recovery, "_stay_on", lambda _: None)
    run = RunDir(tmp_path / "run").create()
    keeper = SlotKeeper(run, resolve(None, ["parallel.data=1"], environ={}).recipe, lambda: None)
    monkeypatch.setattr(keeper, "_known", 2)
    monkeypatch.setattr(keeper, "_list", CordonList(run.cordon, lambda: now[0]))
    found = list[list[float | None]]()
    for seconds in (0.0, SECONDS / 2, SECONDS, 10 * SECONDS):
        now[0] += seconds
        found.append([each.until for each in keeper.check(1).cordoned])
    assert found == [[1e9 + SECONDS], [], [None], []]
    assert checked == [[0, 1], [0], [0, 1], [0]]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is one slot")
def test_a_slot_keeps_its_core_while_others_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of slot 1 is of core 1, also while core 0 is left out; when the cordon ends, core 0 is back."""
    cores, checked = sorted(os.sched_getaffinity(0)), list[set[int]]()

    def check(slots: list[int], *_: Any) -> list[SlotReport]:
        checked.append(os.sched_getaffinity(0))
        return [SlotReport(slot) for slot in slots]

    monkeypatch.setattr(recovery, "check_slots", check)
    run = RunDir(tmp_path / "run").create()
    keeper = SlotKeeper(run, resolve(None, ["parallel.data=1"], environ={}).recipe, lambda: None)
    try:
        CordonList(run.cordon).add([SlotFault(0, "memory", "word 3")])
        assert keeper.world() == 1
        assert os.sched_getaffinity(0) == {*cores[1:]}
        keeper.check(1)
        assert checked == [{*cores}]
        CordonList(run.cordon).lift()
        assert keeper.world() == 1
        assert os.sched_getaffinity(0) == {*cores}
    finally:
        os.sched_setaffinity(0, cores)


def test_the_gpu_of_a_rank_that_computing_again_named_alone_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the check finds it sound; of two suspects, and of ranks on a CPU, only the check says which it is."""
    monkeypatch.setattr(recovery, "check_slots", lambda slots, *_: [SlotReport(slot) for slot in slots])
    run = RunDir(tmp_path / "run").create()
    keeper = SlotKeeper(run, resolve(None, ["parallel.data=2", "train.device=cpu"], environ={}).recipe, lambda: None)
    report = Report("FaultyRankError", "step 5 computed again has other bits", "", ours=False, by_peer=False)
    failure = Failure(1, "failed", RankStatus(1, "optimizer", 4, 0, 0), report)
    found = list[list[SlotFault]]()
    told = (("cuda", [1], 3), ("cuda", [0, 1], 4), ("cuda", [1], 4), ("cpu", [1], 4))  # the first: of another failure
    for device, ranks, step in told:
        monkeypatch.setattr(keeper, "_device", device)
        monkeypatch.setattr(keeper, "_known", 4)
        with Ledger(run) as ledger:
            ledger.note("audit", At(step), found="persistent", ranks=ranks)
        CordonList(run.cordon).add([SlotFault(0, "memory", "word 3")])
        found.append(keeper.accused(failure, 2))
    assert found == [[], [], [SlotFault(2, "computing again", report.text)], []]
    assert [each.slot for each in keeper.check(1, found[2]).cordoned] == [2]


def test_what_counts_as_the_same_failure() -> None:
    status = RankStatus(1, "clip", 7, 0, 0)
    report = Report("KeyError", "'a'", "", ours=False, by_peer=False)
    assert signature(Failure(1, "failed with KeyError: 'a'", status, report)) == (7, "KeyError")
    assert signature(Failure(1, "was killed by SIGSEGV", status)) == (7, "SIGSEGV")
    assert signature(Failure(0, "was silent for 12.0 s", status)) == (7, "silent in clip")
    for outside in (
        "was killed by SIGKILL: memory ran out, and the system killed a process",
        "was stopped, and silent for 4 s",
    ):
        assert signature(Failure(1, outside, status)) is None


class _Member:
    """A job as `running_ranks` needs it."""

    def on_rank(self, info: RankInfo, *_: Any) -> SimpleNamespace:
        return SimpleNamespace(rank_info=info, control=SimpleNamespace(enter=lambda *_: None))


def test_a_generation_meets_nobody_of_another() -> None:
    """Each has a store of its own: nothing that a rank of a former one has set, or could still set, is there."""

    def arrive(job: Any) -> Exit:
        store = job.rank_info.connect()
        return Exit.DONE if store.add("arrivals", 1) <= 2 else Exit.DEFECT

    inodes = set[int]()
    for _ in range(3):
        with running_ranks(cast("Job", _Member()), arrive, [0, 1], StopSignals()) as ranks:
            waiting = list(ranks)
            while waiting:
                waiting = [rank for rank in waiting if rank not in wait_for_ends(waiting, 5.0)]
            assert [rank.end.si_status for rank in ranks] == [Exit.DONE, Exit.DONE]
            stores = [os.stat(path).st_ino for path in Path("/proc/self/fd").iterdir() if is_store(path)]
            inodes.update(stores)
            assert len(stores) == 1  # those of former generations are closed
    assert len(inodes) == 3


def is_store(path: Path) -> bool:
    try:
        return "memfd:store" in os.readlink(path)
    except OSError:
        return False


def test_the_error_of_a_lost_rank_has_no_jokes_of_gloo() -> None:
    text = (
        "[/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:15793. "
        "This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an "
        "error. GLHF! \N{BEACH WITH UMBRELLA}\ufe0f"
    )
    job: Any = SimpleNamespace(rank_info=SimpleNamespace(size=2))
    error = recovery.with_remedy(job, RuntimeError(text))
    assert isinstance(error, RankLostError)
    lost = "another rank went away: Connection closed by peer [127.0.0.1]:15793. Start all ranks again"
    assert str(error) == lost
