"""Kill -9 of ranks: any rank, any moment, inside saves, both at once, the supervisor too; is it the same run?

    python -m benchmarks.reliability.kill_ranks --kills 100

One run on two ranks is trained without interruption. Then each trial trains the same run and kills again and again
until it is done: rank 0, rank 1 or both, by the clock or while a save is being written; in every fourth trial the
supervisor, after which the run is resumed. A trial counts as `benchmarks.reliability.kill` has it. Beside it: how long
after a kill the next step is on record, and the first step that no generation before had made; how long a SIGTERM takes
to end the run with everything saved, and how long it takes until a rank that hangs (SIGSTOP) is found, and until the
restart is on record. Half of the runs heal as
by default, from checkpoints alone; the others have ranks on standby and a copy in memory of every step (`HEALING`).
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import report
from benchmarks.reliability import kill
from hornbook.errors import Exit
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.commit import newest_step
from hornbook.run.diagnose.rehearsal.judge import litter

SETTINGS = kill.SETTINGS | {
    "parallel.data": 2,
    "train.micro_batch": 2,
    "guard.max_restarts": 20,
}
HEALING = {"guard.standby": True, "checkpoint.memory_every": 1}
TARGETS = ("rank 0", "rank 1", "both")
POLL_SECONDS = 0.002


@dataclass
class Trial:
    """One run whose processes were killed."""

    number: int
    shard: str
    healing: bool
    """Whether it has the settings `HEALING`."""
    kills: list[str] = field(default_factory=list)
    """What each kill hit."""
    in_save: int = 0
    recovery_seconds: list[float] = field(default_factory=list)
    """From a kill to the next step on record: kills of ranks after a checkpoint that is newer than the last kill, so
    that the restart does not wait."""
    new_step_seconds: list[float] = field(default_factory=list)
    """Of the same kills, to the first step that was not made before."""
    problems: list[str] = field(default_factory=list)


def ranks_of(supervisor: int) -> list[int]:
    """Process ids of the ranks that train, in their order; those that wait come behind them."""
    with contextlib.suppress(OSError, ValueError):
        return [int(word) for word in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]
    return []


def last_attempt(run: RunDir) -> int:
    """Attempt of the last step on record."""
    return max((record["attempt"] for record in read_records(run.metrics)), default=0)


def wait_until(process: subprocess.Popen[bytes], condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Whether the condition came true before the process ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            process.kill()
            raise RuntimeError("what was waited for never came")
        time.sleep(POLL_SECONDS)
    return True


def saving(run: RunDir) -> bool:
    """Whether a save is being written."""
    return any(name.startswith(f"{kill.TEMPORARY}step-") for name in litter(run))


def strike(trial: Trial, process: subprocess.Popen[bytes], run: RunDir, draw: random.Random, *, whole: bool) -> bool:
    """One kill at a random moment; False if the run ended before it."""
    held = newest_step(run.checkpoints)
    fresh = draw.random() < 0.8
    if fresh and not wait_until(process, lambda: newest_step(run.checkpoints) > held):
        return False
    if draw.random() < 0.4:
        if not wait_until(process, lambda: saving(run)):
            return False
        time.sleep(draw.uniform(0, 0.01))
    else:
        when = time.monotonic() + draw.uniform(0, 1.5)
        if not wait_until(process, lambda: time.monotonic() >= when):
            return False
    ranks = ranks_of(process.pid)[:2]
    target = "supervisor" if whole else draw.choice(TARGETS)
    victims = {"supervisor": [process.pid], "both": ranks, "rank 0": ranks[:1], "rank 1": ranks[1:]}[target]
    if not victims or process.poll() is not None:
        return process.poll() is None
    trial.in_save += saving(run)
    attempt, high = last_attempt(run), kill.last_step(run)
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    begun = time.monotonic()
    trial.kills.append(target)
    if not whole and wait_until(process, lambda: last_attempt(run) > attempt) and fresh:
        trial.recovery_seconds.append(time.monotonic() - begun)
        if wait_until(process, lambda: kill.last_step(run) > high):
            trial.new_step_seconds.append(time.monotonic() - begun)
    return not whole


def attempt(number: int, folder: Path) -> Trial:
    """One trial, from its first start to the end of training; then compare."""
    draw, shard = random.Random(number), ("none", "everything")[number % 2]
    trial, run = Trial(number, shard, healing=number % 4 > 1), RunDir(folder / f"run-{number}")
    settings = SETTINGS | {"parallel.shard": shard} | (HEALING if trial.healing else {})
    for round_ in range(100):
        words = kill.train_command(folder / "data", run.path, settings)
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            whole = number % 8 in (1, 7) and round_ < 2
            while strike(trial, process, run, draw, whole=whole):
                pass
            _, words_said = process.communicate()
        if process.returncode == Exit.DONE:
            break
        if process.returncode != -signal.SIGKILL:
            trial.problems.append(f"exit code {process.returncode}: {words_said.decode()[-500:]}")
            return trial
    trial.problems += kill.differences(RunDir(folder / f"reference-{shard}"), run)
    return trial


def sigterm(number: int, folder: Path) -> float:
    """Seconds from a SIGTERM at a random moment to the end of the supervisor, with exit code 75."""
    run = RunDir(folder / f"term-{number}")
    words = kill.train_command(folder / "data", run.path, SETTINGS)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(process, lambda: kill.last_step(run) > number)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    seconds = time.monotonic() - begun
    if code != Exit.RESUMABLE:
        raise RuntimeError(f"SIGTERM ended with {code}")
    return seconds


def hang(number: int, folder: Path) -> dict[str, float]:
    """Seconds from a SIGSTOP of a rank until it is found, and to the restart on record with all stacks on disk.

    The goal: max(10 s, 5 x the 99.9th percentile of the time of a step), which of few steps is the longest. The rank is
    stopped in a phase that it has entered before; one that it enters for the first time (the first evaluation, say) may
    take 300 s, since nothing says how long it takes.
    """
    run = RunDir(folder / f"hang-{number}")
    words = kill.train_command(folder / "data", run.path, SETTINGS)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(process, lambda: kill.last_step(run) > 10 + 2 * number)
        slowest = max(record["seconds"] for record in read_records(run.metrics))
        begun = time.time()
        os.kill(ranks_of(process.pid)[number % 2], signal.SIGSTOP)
        code = process.wait(120)
    if code != Exit.DONE:
        raise RuntimeError(f"a run with a hanging rank ended with {code}")
    restart = next(record for record in read_records(run.events) if record["kind"] == "restart")
    found, restarted = (restart[key] - begun for key in ("found", "time"))
    return {"found": found, "seconds": restarted, "goal": max(10.0, 5 * slowest)}


def hangs_alone(count: int) -> bool:
    """Hangs without the kills, which stay as they are on file; whether all are found in time."""
    with tempfile.TemporaryDirectory() as name:
        kill.prepare(Path(name))
        found = [hang(number, Path(name)) for number in range(count)]
    print(*found, sep="\n")
    report.write("kill_ranks", {**report.known("kill_ranks"), "hangs": found})
    return all(each["found"] <= each["goal"] for each in found)


def run(kills: int = 100) -> bool:
    """Run, print, write results/kill_ranks.json; whether every run was equal."""
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kill.prepare(folder)
        for shard in ("none", "everything"):
            settings = SETTINGS | {"parallel.shard": shard}
            kill.finish(kill.train_command(folder / "data", folder / f"reference-{shard}", settings))
        while sum(len(trial.kills) for trial in trials) < kills:
            trial = attempt(len(trials), folder)
            shutil.rmtree(folder / f"run-{trial.number}", ignore_errors=True)  # a start that failed has made none
            trials.append(trial)
            verdict = "; ".join(trial.problems) or "equal to the bit"
            print(f"{trial.number:>3}  {trial.shard:<10}  {', '.join(trial.kills):<60}  {verdict}", flush=True)
        stops = [sigterm(number, folder) for number in range(5)]
        hangs = [hang(number, folder) for number in range(4)]
    result = figures(trials, stops) | {"hangs": hangs}
    print({key: value for key, value in result.items() if key != "rows"})
    report.write("kill_ranks", result)
    return result["equal"] == result["trials"]


def times_of(trials: list[Trial], *, healing: bool) -> dict[str, dict[str, float]]:
    """Percentiles of the seconds to the next step, and to a new one."""
    found = dict[str, dict[str, float]]()
    for name in ("recovery_seconds", "new_step_seconds"):
        seconds = sorted(each for trial in trials if trial.healing == healing for each in getattr(trial, name))
        p50, p95 = (seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.95))
        found[name] = {"kills": len(seconds), "p50": p50, "p95": p95}
    return found


def figures(trials: list[Trial], stops: list[float]) -> dict[str, object]:
    """What goes into the file of results."""
    seconds = {mode: times_of(trials, healing=mode == "healing") for mode in ("plain", "healing")}
    good = [trial for trial in trials if not trial.problems]
    return {
        "kills": sum(len(trial.kills) for trial in trials),
        "kills_survived": sum(len(trial.kills) for trial in good),
        "kills_in_saves": sum(trial.in_save for trial in trials),
        "trials": len(trials),
        "equal": len(good),
        "seconds": seconds,
        "sigterm_seconds": stops,
        "rows": [asdict(trial) for trial in trials],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="kill -9 of ranks, compare bit for bit")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--hangs", type=int, help="only so many hangs; the kills on file stay")
    given = parser.parse_args()
    sys.exit(0 if (run(given.kills) if given.hangs is None else hangs_alone(given.hangs)) else 1)
