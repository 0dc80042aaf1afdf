"""Fault plans: what a file may say, and that each kind of fault strikes where it says and is on record."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit, UsageError
from hornbook.files.journal import verify_chain
from hornbook.files.run_directory import RunDir
from hornbook.run.job.fault_plan import check_plan, check_steps, parse_plan, read_plan
from hornbook.settings.resolve import resolve
from tests.run.launcher import Launcher, Started

Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]
Start = Callable[..., Started]


@pytest.fixture
def start(launcher: Launcher, tiny_settings: tuple[str, ...], tmp_path: Path) -> Start:
    """start(run, plan text, "key=value", ...) starts the tiny run under a plan."""

    def begin(run: Path, plan: str, *words: str) -> Started:
        path = tmp_path / "plan.toml"
        path.write_text(plan)
        verb = ["resume", str(run)] if (run / "recipe.toml").exists() else ["train", "--out", str(run), *tiny_settings]
        faults = ["--faults", str(path)] if plan else []
        return launcher.start([*verb, "checkpoint.background=false", *faults, *words], tmp_path / "output.txt")

    return begin


@pytest.fixture(scope="module")
def whole(train_whole: Callable[..., Path]) -> Path:
    """The tiny run of one rank without any fault."""
    return train_whole("checkpoint.background=false")


def plan(*faults: str) -> str:
    return "".join(f"[[faults]]\n{fault}\n" for fault in faults)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('do = "kill"\nat = {step = 1}', r"plan.toml:2: faults.0.do must be .*kill9.*did you mean kill9"),
        ('do = "kill9"\nat = {step = -1}', r"plan.toml:3: faults.0.at.step must be at least 0, not -1"),
        ('do = "kill9"', r"plan.toml:1: faults.0.at is required"),
        ("at = {step = 1}", r"plan.toml:1: faults.0.do is required"),
        ('do = "kill9"\nat = {step = 1, rank = -1}', r"faults.0.at.rank must be a number from 0 on or .every., not -1"),
        (
            'do = "kill9"\nat = {step = 1, phase = "clap"}',
            r"plan.toml:3: faults.0.at.phase .*must be one of setup, data",
        ),
        ('do = "kill9"\nat = {step = 1, rang = 1}', r"plan.toml:3: faults.0.at.rang no such setting"),
        (
            'do = "exc"\nerror = "print"\nat = {step = 1}',
            r"plan.toml:3: faults.0.error must be an error of Python .*, not .print.",
        ),
        ('do = "slow"\nseconds = 0\nat = {step = 1}', r"plan.toml:3: faults.0.seconds must be more than 0"),
        ('do = "bitflip_param"\nagain = true\nat = {step = 1}', r"plan.toml.*faults.0.*again: a weight whose bit"),
    ],
)
def test_what_a_plan_may_not_say_is_named_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(plan(text))
    with pytest.raises(UsageError, match=told):
        read_plan(path)


def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for content in (None, b"faults = [", b"\xff", b""):
        path = tmp_path / "plan.toml"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError, match=r"plan\.toml"):
            read_plan(path)


def test_a_fault_that_cannot_happen_here_is_refused(tiny_settings: tuple[str, ...]) -> None:
    recipe = resolve(None, tiny_settings, environ={}).recipe
    cases = (
        ({"do": "kill9", "at": {"step": 1, "rank": 1}}, r"faults\.0 \(kill9\): there is no rank 1, the run has 1"),
        ({"do": "stop", "to": "supervisor", "at": {"step": 1}}, "has no supervisor"),
        ({"do": "stop", "at": {"step": 0, "phase": "setup"}}, "have a phase 'setup'"),
        ({"do": "netcut", "at": {"step": 1}}, "has no connections"),
    )
    for fault, told in cases:
        with pytest.raises(UsageError, match=told):
            check_plan(parse_plan({"faults": [fault]}, "a plan"), recipe)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            {"do": "kill9", "at": {"step": 12}},
            r"faults\.0 \(kill9\): phase 'forward_backward' .*ends after 12: name an",
        ),
        ({"do": "eio", "at": {"step": 13, "phase": "save"}}, r"phase 'save' is not entered with 13 steps done"),
        ({"do": "nan_batch", "at": {"step": 1000}}, r"phase 'forward' is not entered with 1,000 steps"),
        (
            {"do": "torn_shard", "at": {"step": 3}},
            r"no checkpoint to damage .* the first is saved after 4: name a later",
        ),
        ({"do": "bitflip_shard", "at": {"step": 0, "phase": "data"}}, r"set --checkpoint\.every"),
    ],
)
def test_a_fault_outside_of_the_run_is_refused(fault: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check_steps(parse_plan({"faults": [fault]}, "a plan"), 12, 4)


def test_a_fault_within_the_run_is_taken() -> None:
    faults = [
        {"do": "kill9", "at": {"step": 11}},
        {"do": "eio", "at": {"step": 12, "phase": "save"}},
        {"do": "torn_shard", "at": {"step": 4}},
    ]
    check_steps(parse_plan({"faults": faults}, "a plan"), 12, 4)
    check_steps(parse_plan({"faults": [{"do": "torn_shard", "at": {"step": 0}}]}, "a plan"), 12, 0)


def test_a_start_refuses_a_fault_that_comes_too_late_or_too_early(tmp_path: Path, start: Start) -> None:
    run = tmp_path / "run"
    for fault, told in (
        ('do = "exit"\nat = {step = 40}', "ends after 12"),
        ('do = "torn_shard"\nat = {step = 3}', "after 4"),
    ):
        started = start(run, plan(fault))
        assert started.wait() == Exit.USAGE
        assert told in started.text
        assert not run.exists()
    assert start(run, plan('do = "torn_shard"\nat = {step = 3}'), "checkpoint.every=0").wait() == Exit.USAGE


def test_an_error_of_the_plan_is_no_defect_of_ours(tmp_path: Path, start: Start) -> None:
    started = start(tmp_path / "run", plan('do = "exc"\nat = {step = 2}'))
    assert started.wait() == Exit.DEFECT
    assert "error the fault plan raised this: RuntimeError: injected by the fault plan" in started.text
    assert "Traceback" not in started.text
    assert "report" not in started.text


def test_a_killed_process_resumes_to_the_same_bits_and_both_are_on_record(
    tmp_path: Path, start: Start, same: Callable[[Path], None], events: Events
) -> None:
    run = tmp_path / "run"
    assert start(run, plan('do = "kill9"\nat = {step = 7, phase = "backward"}')).wait() == -9
    (fault,) = events(run, "fault")
    assert (fault["do"], fault["step"], fault["phase"], fault["rank"]) == ("kill9", 7, "backward", 0)
    assert events(run, "fault_plan")[0]["faults"][0]["at"]["step"] == 7
    assert start(run, "").wait() == 0
    same(run)


def test_faults_of_two_ranks_in_two_generations(tmp_path: Path, start: Start, events: Events) -> None:
    """Rank 1 cannot write the ledger: rank 0 or the supervisor does, also of a fault that ends its generation."""
    run = tmp_path / "run"
    started = start(
        run,
        plan(
            'do = "slow"\nseconds = 0.01\nsteps = 3\nat = {step = 2, rank = 1}',
            'do = "exc"\nerror = "KeyError"\nat = {step = 5, phase = "clip", rank = 1}',
            'do = "exit"\ncode = 9\nat = {step = 6, phase = "data", rank = 1, generation = 1}',
            'do = "inf_grad"\nat = {step = 7}',
        ),
        "parallel.data=2",
    )
    assert started.wait() == 0, started.text
    told = [(each["do"], each["step"], each["rank"], each["generation"]) for each in events(run, "fault")]
    assert told == [("slow", 2, 1, 0), ("exc", 5, 1, 0), ("exit", 6, 1, 1)]
    causes = [each["cause"] for each in events(run, "restart")]
    assert causes == ["failed with KeyError: 'injected by the fault plan'", "ended with exit code 9"]
    verify_chain(RunDir(run).events)
    assert "faults.3 (inf_grad) of the fault plan did not strike" in started.text  # its generation had ended


def test_ranks_whose_connections_end_restart_to_the_same_bits(
    tmp_path: Path, start: Start, train_whole: Callable[..., Path], branch: Branch, events: Events
) -> None:
    run, whole = tmp_path / "run", train_whole("parallel.data=2", "checkpoint.background=false")
    started = start(run, plan('do = "netcut"\nat = {step = 6, rank = 1}'), "parallel.data=2")
    assert started.wait() == 0, started.text
    (fault,), (restart,) = events(run, "fault"), events(run, "restart")
    assert (fault["do"], fault["rank"], restart["step"]) == ("netcut", 1, 6)
    assert "RankLostError" in restart["cause"]
    assert branch(run) == branch(whole)
    assert verify_chain(RunDir(run).events)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_save_on_a_full_disk_gives_ballast_up_and_all_ranks_stop(
    tmp_path: Path, start: Start, events: Events, rank: int
) -> None:
    """Whichever rank meets it: rank 0 as it makes the files, another as it fills them."""
    run = tmp_path / "run"
    words = ("parallel.data=2", "checkpoint.ballast=1000000")
    started = start(run, plan(f'do = "enospc"\nat = {{step = 4, phase = "save", rank = {rank}}}'), *words)
    assert started.wait() == Exit.RESUMABLE, started.text
    (released,), (stop,) = events(run, "ballast_released"), events(run, "stop_requested")
    assert (released["step"], stop["step"], stop["reason"]) == (4, 4, "full disk")
    assert [each["step"] for each in events(run, "save")][-1] == 4
    assert start(run, "").wait() == 0
    assert events(run, "finish")


@pytest.mark.parametrize("kind", ["nan_batch", "inf_grad"])
def test_numbers_that_are_not_finite_on_one_rank_are_skipped_by_all(
    tmp_path: Path, start: Start, events: Events, kind: str
) -> None:
    run = tmp_path / "run"
    started = start(run, plan(f'do = "{kind}"\nagain = true\nat = {{step = 5, rank = 1}}'), "parallel.data=2")
    assert started.wait() == 0, started.text
    (skip,) = events(run, "skip")
    assert (skip["step"], skip["recomputed"]) == (6, True)
    assert len(events(run, "fault")) == 1
    losses = [json.loads(line)["loss"] for line in RunDir(run).metrics.read_text().splitlines()]
    assert len(losses) == 12
    assert [step for step, loss in enumerate(losses, 1) if loss is None] == ([6] if kind == "nan_batch" else [])
    assert all(math.isfinite(loss) for loss in losses if loss is not None)


@pytest.mark.parametrize("kind", ["bitflip_grad", "bitflip_param"])
def test_a_flipped_bit_changes_what_follows_and_nothing_before(
    tmp_path: Path, start: Start, whole: Path, kind: str
) -> None:
    run = tmp_path / "run"
    assert start(run, plan(f'do = "{kind}"\nat = {{step = 5}}')).wait() == 0
    first, second = (
        [json.loads(line)["loss"] for line in RunDir(folder).metrics.read_text().splitlines()]
        for folder in (whole, run)
    )
    differs = [one != other for one, other in zip(first, second, strict=True)]
    assert differs.index(True) == (5 if kind == "bitflip_param" else 6)


@pytest.mark.parametrize("kind", ["torn_shard", "bitflip_shard"])
def test_a_damaged_checkpoint_gives_way_to_the_older_one(
    tmp_path: Path, start: Start, same: Callable[[Path], None], events: Events, kind: str
) -> None:
    run = tmp_path / "run"
    faults = plan(f'do = "{kind}"\nat = {{step = 9, phase = "data"}}', 'do = "kill9"\nat = {step = 9, phase = "clip"}')
    assert start(run, faults).wait() == -9
    started = start(run, "")
    assert started.wait() == 0, started.text
    (damaged,) = events(run, "checkpoint_damaged")
    assert damaged["path"].endswith("step-00000008")
    assert re.search(r"step-00000008.*an older checkpoint is used", started.text)
    assert events(run, "resume")[-1]["step"] == 4
    same(run)


@pytest.mark.parametrize(("kind", "text"), [("enospc", "No space left|free"), ("eio", "Input/output error|disk")])
def test_a_save_that_fails_once_is_told_and_changes_nothing(
    tmp_path: Path, start: Start, same: Callable[[Path], None], events: Events, kind: str, text: str
) -> None:
    run = tmp_path / "run"
    started = start(run, plan(f'do = "{kind}"\nat = {{step = 4, phase = "save"}}'))
    assert started.wait() == 0, started.text
    (warning,) = events(run, "warning")
    assert re.search(text, warning["text"])
    assert [each["step"] for each in events(run, "save")] == [8, 12]
    same(run)


def test_a_clock_that_jumps_changes_nothing(
    tmp_path: Path, start: Start, same: Callable[[Path], None], events: Events
) -> None:
    run = tmp_path / "run"
    faults = plan(*(f'do = "clock_jump"\nseconds = {s}\nat = {{step = {n}}}' for n, s in ((3, 86400), (6, -172800))))
    assert start(run, faults).wait() == 0
    same(run)
    times = {each["step"]: each["time"] for each in events(run, "save")}
    assert times[8] - times[4] < -80_000


@pytest.mark.parametrize(("phase", "rank"), [("clip", 1), ("forward_backward", 0), ("forward_backward", 1)])
def test_a_rank_that_hangs_by_itself_is_found(
    tmp_path: Path, start: Start, events: Events, phase: str, rank: int
) -> None:
    """Asleep for a minute with stop signals of no use to it: the supervisor kills it. The other one is silent as long,
    in a collective, and is not named."""
    run = tmp_path / "run"
    hang = plan(f'do = "slow"\nseconds = 60\nat = {{step = 7, phase = "{phase}", rank = {rank}}}')
    started = start(run, hang, "parallel.data=2", "guard.hang_seconds=2")
    assert started.wait(40) == 0, started.text
    (restart,) = events(run, "restart")
    assert (restart["rank"], restart["step"]) == (rank, 7)
    assert re.match(r"was silent for 2\.\d s", restart["cause"])


def test_a_signal_to_one_rank_stops_all(tmp_path: Path, start: Start, events: Events) -> None:
    run = tmp_path / "run"
    started = start(run, plan('do = "sigterm"\nat = {step = 5, phase = "clip", rank = 1}'), "parallel.data=2")
    assert started.wait() == Exit.RESUMABLE, started.text
    assert [each["step"] for each in events(run, "stop")] == [6]
