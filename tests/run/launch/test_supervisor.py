"""Many processes of one run: any may die, stop or fail, and the run goes on bit for bit or ends as it should."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.journal import verify_chain
from hornbook.files.run_directory import RunDir
from hornbook.run.job.fault_plan import PASSES
from tests.processes import state_of, wait_until
from tests.run.launcher import Launcher, Started

Events = Callable[..., list[dict[str, Any]]]
Train = Callable[..., Started]

PHASES = ("data", "forward_backward", "forward", "backward", "clip", "optimizer", "observe", "evaluate", "save")
TWO = ("parallel.data=2", "eval.every=6", "model.dropout=0.1", "checkpoint.background=false")


@pytest.fixture
def train(launcher: Launcher, tiny_settings: tuple[str, ...], tmp_path: Path) -> Train:
    """train(folder, "key=value", ..., faults=[...]) starts a run of two ranks."""

    def start(folder: Path, *words: str, resume: bool = False, **how: Any) -> Started:
        verb = ["resume", str(folder)] if resume else ["train", "--out", str(folder), *tiny_settings, *TWO]
        return launcher.start([*verb, *words], tmp_path / "output.txt", **how)

    return start


@pytest.fixture(scope="module")
def whole(train_whole: Callable[..., Path]) -> Path:
    """The same run without any interruption."""
    return train_whole(*TWO)


@pytest.fixture
def same(same: Callable[[Path], None]) -> Callable[[Path], None]:
    """Asserts what it does elsewhere, and that no process of the run is left."""

    def check(folder: Path) -> None:
        same(folder)
        assert not processes_of(folder)

    return check


def processes_of(folder: Path) -> list[int]:
    """Living processes that have a file of the run open: supervisor and ranks hold its lock."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                files = [os.readlink(path) for path in (entry / "fd").iterdir()]
            except OSError:
                continue
            if any(name.startswith(str(folder)) for name in files):
                found.append(int(entry.name))
    return found


def test_two_ranks_train_and_leave_one_run_directory(whole: Path, events: Events) -> None:
    run = RunDir(whole)
    kinds = [record["kind"] for record in events(whole)]
    assert (kinds[0], kinds[-1]) == ("start", "finish")
    assert sorted(kinds) == ["evaluation", "evaluation", "finish", "save", "save", "save", "start"]
    assert verify_chain(run.events) == len(kinds)
    state = run.read_state()
    assert state is not None
    assert (state["status"], state["step"], state["attempt"]) == ("finished", 12, 1)
    assert run.log.read_text().count("step=12") == 1
    assert not run.incidents.exists()
    assert not processes_of(whole)


def fault(do: str, **where: Any) -> dict[str, Any]:
    """Something that happens once, in the first incarnation unless told otherwise."""
    return {"do": do, "generation": 0, **where}


QUICK = (("forward_backward", 1), ("optimizer", 0), ("evaluate", 1), ("save", 0))
"""Phases and ranks of every test run; the others are slow ones."""


@pytest.mark.parametrize(
    ("phase", "rank"),
    [
        pytest.param(phase, rank, marks=() if (phase, rank) in QUICK else pytest.mark.slow)
        for phase in PHASES
        for rank in (0, 1)
    ],
)
def test_a_killed_rank_comes_back_bit_for_bit(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events, phase: str, rank: int
) -> None:
    step = {"evaluate": 6, "save": 8}.get(phase, 7)
    run = tmp_path / "run"
    started = train(run, faults=[fault("SIGKILL", rank=rank, phase=phase, step=step)])
    assert started.wait() == 0, started.text
    same(run)
    (restart,) = events(run, "restart")
    within = "forward_backward" if phase in PASSES else phase
    assert (restart["rank"], restart["phase"], restart["step"], restart["attempt"]) == (rank, within, step, 2)
    assert restart["cause"].startswith("was killed by SIGKILL")
    (resume,) = events(run, "resume")
    assert resume["step"] in ((4, 8) if phase == "save" else (4,))
    assert f"rank {rank} was killed by SIGKILL" in RunDir(run).log.read_text()


@pytest.mark.parametrize("phase", ["data", pytest.param("clip", marks=pytest.mark.slow)])
def test_a_death_while_a_save_is_written(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events, phase: str
) -> None:
    run = tmp_path / "run"
    started = train(
        run,
        "checkpoint.background=true",
        faults=[fault("SIGKILL", rank=1, phase=phase, step=4)],
        supervisor__BACKOFF=[0.0],
    )
    assert started.wait() == 0, started.text
    same(run)
    assert events(run, "resume")[0]["step"] in (0, 4)


def test_both_ranks_killed_at_once(tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events) -> None:
    started = train(tmp_path / "run", faults=[fault("SIGKILL", phase="forward_backward", step=9)])
    assert started.wait() == 0, started.text
    same(tmp_path / "run")
    assert len(events(tmp_path / "run", "restart")) == 1


@pytest.mark.parametrize("after", [0.0, pytest.param(0.05, marks=pytest.mark.slow)])
def test_a_rank_killed_in_setup(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events, after: float
) -> None:
    started = train(tmp_path / "run", faults=[fault("SIGKILL", rank=1, phase="setup", after=after)])
    assert started.wait() == 0, started.text
    same(tmp_path / "run")
    assert len(events(tmp_path / "run", "restart")) == 1


def test_five_deaths_in_a_row(tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events) -> None:
    places = [("setup", 0), ("data", 0), ("setup", 0), ("clip", 2), ("observe", 4)]
    faults = [
        fault("SIGKILL", generation=number, rank=number % 2, phase=phase, step=step)
        for number, (phase, step) in enumerate(places)
    ]
    started = train(tmp_path / "run", "guard.max_restarts=5", faults=faults, supervisor__BACKOFF=[0.0])
    assert started.wait() == 0, started.text
    same(tmp_path / "run")
    assert [(record["phase"], record["restarts"]) for record in events(tmp_path / "run", "restart")] == [
        (phase, number) for number, (phase, _) in enumerate(places, 1)
    ]


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("SIGTERM", "supervisor"),
        ("SIGUSR1", "rank"),
        pytest.param("SIGTERM", "rank", marks=pytest.mark.slow),
        pytest.param("SIGINT", "supervisor", marks=pytest.mark.slow),
    ],
)
def test_a_signal_stops_all_ranks_after_the_same_step(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events, to: str, name: str
) -> None:
    run = tmp_path / "run"
    started = train(run, faults=[fault(name, rank=1, phase="data", step=5, to=to)])
    assert started.wait() == 75, started.text
    (asked,), (stop,) = events(run, "stop_requested"), events(run, "stop")
    assert asked["reason"] == name
    assert asked["step"] == stop["step"] == events(run, "save")[-1]["step"] >= 6
    assert f"`hornbook resume {run}` goes on" in started.text
    assert train(run, resume=True).wait() == 0
    same(run)


AT_ONCE = {"deadline__SAVES": 1e9, "deadline__FLOOR_SECONDS": 0.0, "async_checkpointer__SLOW_DISK": 1e30}
"""What makes a deadline near as soon as one save has been measured, however far it is."""


@pytest.mark.parametrize("by", ["option", "slurm", "after a restart"])
def test_a_deadline_stops_all_ranks_after_the_same_step(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events, by: str
) -> None:
    run, end = tmp_path / "run", str(int(time.time()) + 3600)
    option, environ = ((), {"SLURM_JOB_END_TIME": end}) if by == "slurm" else (("--until", "1h"), {})
    deaths = [fault("SIGKILL", rank=1, phase="clip", step=2)] if by == "after a restart" else []
    started = train(run, *option, environ=environ, faults=deaths, supervisor__BACKOFF=[0.0], **AT_ONCE)
    assert started.wait() == 75, started.text
    assert len(events(run, "restart")) == len(deaths)
    asked, stop = events(run, "stop_requested", "stop")
    assert [(each["step"], each["reason"]) for each in (asked, stop)] == [(4, "deadline")] * 2
    assert "stopped at step 4 (the deadline is " in started.text
    assert f"`hornbook resume {run}` goes on" in started.text
    assert train(run, resume=True).wait() == 0
    same(run)


def test_an_evaluation_of_ranks_gives_way_to_a_signal(tmp_path: Path, train: Train, events: Events) -> None:
    run = tmp_path / "run"
    started = train(run, faults=[fault("SIGTERM", rank=1, phase="evaluate", step=6)])
    assert started.wait() == 75, started.text
    assert not events(run, "evaluation")
    assert events(run, "stop")[0]["step"] == 6


def test_a_second_interrupt_ends_all_at_once(tmp_path: Path, train: Train, same: Callable[[Path], None]) -> None:
    run = tmp_path / "run"
    slow = [fault("SIGSTOP", rank=0, phase="clip", step=6)]  # nothing else would end this step
    started = train(run, faults=slow)
    wait_until(lambda: any(state_of(pid) == "T" for pid in started.children()))
    os.kill(started.pid, signal.SIGINT)
    wait_until(lambda: any(is_pending(signal.SIGINT, pid) for pid in started.children()))  # the first was passed on
    os.kill(started.pid, signal.SIGINT)
    assert started.wait() == 130, started.text
    assert not processes_of(run)
    state = RunDir(run).read_state()
    assert state is not None
    assert state["status"] == "stopped"
    assert train(run, resume=True).wait() == 0
    same(run)


def test_a_second_sigterm_ends_all_ranks(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events
) -> None:
    run = tmp_path / "run"
    asked = fault("SIGTERM", rank=1, phase="data", step=6, to="supervisor")
    again = fault("SIGTERM", rank=1, phase="clip", step=6, to="supervisor", after=1.1)
    endless = fault("slow", rank=0, phase="clip", step=6, seconds=60)
    started = train(run, faults=[asked, again, endless])
    assert started.wait(30) == Exit.RESUMABLE, started.text
    assert not processes_of(run)
    assert [(stop["step"], stop["reason"]) for stop in events(run, "stop")] == [(4, "SIGTERM")]
    assert train(run, resume=True).wait() == 0
    same(run)


def is_pending(number: int, pid: int) -> bool:
    """Whether a signal was sent to a process and waits for it to go on."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("ShdPnd:")[1].split()[0], 16) >> (number - 1) & 1)


def test_ranks_die_with_their_supervisor(tmp_path: Path, train: Train, same: Callable[[Path], None]) -> None:
    run = tmp_path / "run"
    started = train(run, faults=[fault("SIGKILL", rank=1, phase="clip", step=6, to="supervisor")])
    assert started.wait() == -signal.SIGKILL
    wait_until(lambda: not processes_of(run))
    assert train(run, resume=True).wait() == 0
    same(run)


def test_a_second_launcher_is_refused(tmp_path: Path, train: Train, launcher: Launcher) -> None:
    run = tmp_path / "run"
    first = train(run, faults=[fault("SIGSTOP", rank=1, phase="clip", step=2)])
    wait_until(lambda: any(state_of(pid) == "T" for pid in first.children()))
    second = launcher.start(["resume", str(run)], tmp_path / "second.txt")
    assert second.wait() == Exit.IN_USE
    assert f"is in use by process {first.pid} on" in second.text
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL


def test_ranks_that_outlive_their_supervisor_keep_the_run(tmp_path: Path, train: Train, launcher: Launcher) -> None:
    run = tmp_path / "run"
    where = {"rank": 1, "phase": "clip", "step": 2}
    started = train(
        run, faults=[fault("orphan", **where), fault("SIGKILL", to="supervisor", **where), fault("SIGSTOP", **where)]
    )
    try:
        assert started.wait() == -signal.SIGKILL
        wait_until(lambda: len(processes_of(run)) == 1)
        second = launcher.start(["resume", str(run)], tmp_path / "second.txt")
        assert second.wait() == Exit.IN_USE
        assert f"is in use by process {started.pid} on" in second.text
    finally:
        for orphan in processes_of(run):
            os.kill(orphan, signal.SIGKILL)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_stopped_rank_is_found_and_replaced(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events, rank: int
) -> None:
    run = tmp_path / "run"
    started = train(run, "guard.hang_seconds=4", faults=[fault("SIGSTOP", rank=rank, phase="forward_backward", step=7)])
    assert started.wait() == 0, started.text
    same(run)
    (restart,) = events(run, "restart")
    assert (restart["rank"], restart["step"], restart["phase"]) == (rank, 7, "forward_backward")
    assert re.match(r"was stopped, and silent for 4\.\d s", restart["cause"])
    for number in (0, 1):
        stacks = (RunDir(run).incidents / "1" / f"rank-{number}.txt").read_text()
        assert "in take_step" in stacks


def test_restarts_without_progress_are_counted(tmp_path: Path, train: Train, events: Events) -> None:
    run = tmp_path / "run"
    deaths = [fault("SIGKILL", generation=number, rank=1, phase="clip", step=7) for number in range(9)]
    started = train(run, "guard.max_restarts=2", faults=deaths, supervisor__BACKOFF=[0.0])
    assert started.wait() == Exit.RETRIES_SPENT
    assert re.search(r"error rank 1 was killed by SIGKILL.*\(step 7, clip\).*guard\.max_restarts", started.text)
    assert len(events(run, "restart")) == 2
    (fail,) = events(run, "fail")
    assert (fail["error"], fail["step"]) == ("RetriesSpentError", 7)
    state = RunDir(run).read_state()
    assert state is not None
    assert state["status"] == "failed"
    assert not processes_of(run)
    verify_chain(RunDir(run).events)


def test_a_stop_between_two_incarnations_is_a_stop(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events
) -> None:
    run = tmp_path / "run"
    started = train(run, faults=[fault("SIGKILL", rank=1, phase="clip", step=6)], supervisor__BACKOFF=[30.0])
    wait_until(lambda: started.log.exists() and "restart 1 of" in started.text)
    os.kill(started.pid, signal.SIGTERM)
    assert started.wait() == Exit.RESUMABLE
    assert [(record["kind"], record["step"]) for record in events(run)][-1] == ("stop", 6)
    assert train(run, resume=True).wait() == 0
    same(run)


def test_an_interrupt_that_reaches_ranks_twice_is_one(
    tmp_path: Path, train: Train, same: Callable[[Path], None]
) -> None:
    run = tmp_path / "run"
    started = train(run, faults=[fault("SIGSTOP", rank=0, phase="clip", step=6)])
    wait_until(lambda: started.children() and state_of(started.children()[0]) == "T")
    for pid in (started.pid, *started.children()):
        os.kill(pid, signal.SIGINT)
    os.kill(started.children()[0], signal.SIGCONT)
    assert started.wait() == Exit.RESUMABLE
    assert train(run, resume=True).wait() == 0
    same(run)


@pytest.mark.parametrize(("error", "code"), [("UsageError", 2), ("DivergedError", 5)])
def test_an_error_that_stays_is_not_tried_again(
    tmp_path: Path, train: Train, events: Events, error: str, code: int
) -> None:
    run = tmp_path / "run"
    started = train(
        run, faults=[{"do": error, "text": "what is wrong: the remedy", "rank": 1, "phase": "clip", "step": 5}]
    )
    assert started.wait() == code, started.text
    assert started.text.endswith("error what is wrong: the remedy\n")
    assert "Traceback" not in started.text
    assert not events(run, "restart")
    (fail,) = events(run, "fail")
    assert (fail["error"], fail["text"], fail["attempt"]) == (error, "what is wrong: the remedy", 1)


def test_ranks_that_would_share_a_gpu_are_told_at_once(tmp_path: Path, train: Train, events: Events) -> None:
    run = tmp_path / "run"
    started = train(run, "train.device=auto", faults=[{"do": "one GPU", "rank": 1, "phase": "setup"}])
    assert started.wait() == Exit.USAGE, started.text
    assert "rank 1 of this machine would share a GPU with another (1 on this machine)" in started.text
    assert not events(run, "restart")


def test_ranks_that_choose_other_tokens_go_on_with_those_of_rank_0(tmp_path: Path, train: Train) -> None:
    run = RunDir(tmp_path / "run")
    settings = ("parallel.shard=everything", "eval.prompt=the", "eval.sample_tokens=5", "train.tokens=300")
    other = {"do": "end token", "id": 0, "rank": 1, "phase": "sample"}
    started = train(run.path, *settings, faults=[other])
    assert started.wait() == Exit.DONE, started.text
    (sample,) = run.samples.iterdir()
    assert json.loads(sample.read_text())["text"] != ""


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_defect_is_tried_again_and_its_traceback_kept(
    tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events, rank: int
) -> None:
    run = tmp_path / "run"
    started = train(run, faults=[fault("KeyError", text="strange", rank=rank, phase="clip", step=7)])
    assert started.wait() == 0, started.text
    same(run)
    (restart,) = events(run, "restart")
    assert (restart["rank"], restart["cause"]) == (rank, "failed with KeyError: 'strange'")
    kept = (RunDir(run).incidents / "1" / f"rank-{rank}.txt").read_text()
    for text in (kept, started.text):
        assert re.search(r"Traceback(.|\n)*in take_step(.|\n)*KeyError: 'strange'", text)


def test_requests_reach_all_ranks(tmp_path: Path, train: Train, same: Callable[[Path], None], events: Events) -> None:
    run = RunDir(tmp_path / "run").create()
    (run.control / "1.json").write_text(json.dumps({"action": "save", "at_step": 3}))
    (run.control / "2.json").write_text(json.dumps({"action": "stop", "at_step": 6}))
    assert train(run.path).wait() == 75
    assert [record["step"] for record in events(run.path, "save", "stop")] == [3, 4, 6, 6]
    assert train(run.path, resume=True).wait() == 0
    same(run.path)


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_shard_that_is_truncated_in_a_run_is_told(
    tmp_path: Path, tiny_corpus: Path, train: Train, events: Events, ranks: int
) -> None:
    """Who reads on is killed by SIGBUS, without a word of its own; it is not tried again."""
    data = tmp_path / "data"
    shutil.copytree(tiny_corpus, data)
    shards = [data / f"tokens/train/{source}/00000.bin" for source in ("notes", "prose")]
    faults = [{"do": "truncate", "path": str(path), "rank": 0, "phase": "clip", "step": 7} for path in shards]
    started = train(tmp_path / "run", f"data.path={data}", f"parallel.data={ranks}", faults=faults)
    assert started.wait() == Exit.INTEGRITY, started.text
    size = os.stat(tiny_corpus / "tokens/train/prose/00000.bin").st_size
    assert started.text.count(f"{shards[1]}: expected {size} bytes, found 0") == 1
    assert not events(tmp_path / "run", "restart")
