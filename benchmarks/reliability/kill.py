"""Kill -9 anywhere: is the resumed run the uninterrupted run, bit for bit?

    python -m benchmarks.reliability.kill --kills 20

One run is trained without interruption. Then each trial trains the same run, kills the process (SIGKILL) at a random
moment, and resumes until it is done: a third of the kills by the clock, a third while a save is being written, a
third at a random step; every second trial is killed once more while it restarts. A trial counts if the token hash
and the loss of every step, the clock, the weights and the moments are equal to the bit, the ledger's chain holds,
and nothing unfinished is left behind.
"""

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import report
from hornbook.files.durable import TEMPORARY
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.diagnose.rehearsal import judge
from hornbook.run.diagnose.rehearsal.judge import litter

KINDS = ("time", "save", "step")
STEPS, EVERY, BATCH = 60, 6, 512
SETTINGS = {
    "model.layers": 2,
    "model.width": 64,
    "model.heads": 2,
    "model.dropout": 0.1,
    "train.sequence": 64,
    "train.micro_batch": 4,
    "train.batch_tokens": BATCH,
    "train.tokens": STEPS * BATCH,
    "train.threads": 1,
    "checkpoint.every": EVERY,
    "eval.every": 20,
}
WORDS = ("a", "hornbook", "was", "the", "single", "page", "from", "which", "one", "child", "learned", "to", "read")
POLL_SECONDS = 0.001
PATIENCE_SECONDS = 300.0


@dataclass
class Trial:
    """One run that was killed."""

    number: int
    kind: str
    at_steps: list[int] = field(default_factory=list)
    """Last step on record when each kill fell."""
    in_save: list[bool] = field(default_factory=list)
    """Whether each kill left an unfinished checkpoint behind."""
    starts: int = 0
    problems: list[str] = field(default_factory=list)


def write_text(folder: Path, documents: int = 300) -> None:
    """A small corpus of one source."""
    folder.mkdir()
    draw = random.Random(7)
    for i in range(documents):
        (folder / f"{i:03}.txt").write_text(" ".join(draw.choices(WORDS, k=draw.randint(30, 300))) + "\n")


def hornbook(*words: str | Path) -> list[str]:
    """A command line of this installation."""
    return [sys.executable, "-m", "hornbook.cli.main", *map(str, words)]


def train_command(data: Path, run: Path, settings: Mapping[str, object]) -> list[str]:
    """Train, or resume what is there already."""
    if (run / "recipe.toml").exists():
        return hornbook("resume", run)
    words = [f"--{key}={value}" for key, value in settings.items()]
    return hornbook("train", "tiny", "--data", data, "--out", run, *words)


def finish(command: Sequence[str]) -> None:
    """Run a command to its end; RuntimeError with its words if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[3:6])}: exit code {done.returncode}\n{done.stderr[-2000:]}")


def last_step(run: RunDir) -> int:
    """Step of the last whole record in the metrics."""
    return max((record["step"] for record in read_records(run.metrics)), default=0)


def moment(kind: str, run: RunDir, draw: random.Random, seconds: float) -> Callable[[float], bool]:
    """A test, given the seconds since the start: is it time to kill?"""
    if kind == "time":
        when = draw.uniform(0, seconds)
        return lambda elapsed: elapsed >= when
    if kind == "step":
        step = draw.randrange(1, STEPS)
        return lambda _: last_step(run) >= step
    seen: set[str] = set()
    wanted = draw.randint(1, STEPS // EVERY)

    def saving(_: float) -> bool:
        seen.update(name for name in litter(run) if name.startswith(f"{TEMPORARY}step-"))
        return len(seen) >= wanted

    return saving


def kill_once(trial: Trial, command: Sequence[str], run: RunDir, due: Callable[[float], bool], delay: float) -> bool:
    """Start the command and kill it when it is due; False if it ended before."""
    trial.starts += 1
    before, begun = litter(run), time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not due(elapsed := time.monotonic() - begun):
            if process.poll() is not None:
                return False
            if elapsed > PATIENCE_SECONDS:
                process.kill()
                raise RuntimeError("the moment to kill never came")
            time.sleep(POLL_SECONDS)
        time.sleep(delay)
        alive = process.poll() is None
        if alive:
            os.kill(process.pid, signal.SIGKILL)
    if alive:
        trial.at_steps.append(last_step(run))
        trial.in_save.append(any(name.startswith(f"{TEMPORARY}step-") for name in litter(run) if name not in before))
    return alive


def attempt(number: int, folder: Path, seconds: float, settings: dict[str, float]) -> Trial:
    """One trial, from its first start to the end of training; then compare."""
    draw = random.Random(number)
    trial, run = Trial(number, KINDS[number % len(KINDS)]), RunDir(folder / f"run-{number}")
    due = moment(trial.kind, run, draw, seconds)
    killed = kill_once(trial, train_command(folder / "data", run.path, settings), run, due, draw.uniform(0, 0.008))
    if killed and number % 2 == 0:
        due = moment("time", run, draw, seconds / 2)
        kill_once(trial, train_command(folder / "data", run.path, settings), run, due, 0.0)
    trial.starts += 1
    finish(train_command(folder / "data", run.path, settings))
    trial.problems += differences(RunDir(folder / "reference"), run)
    return trial


def differences(reference: RunDir, run: RunDir) -> list[str]:
    """How a finished run is not the uninterrupted one."""
    return judge.differences(reference, run, STEPS)


def prepare(folder: Path) -> None:
    """Corpus and token shards."""
    write_text(folder / "text")
    finish(hornbook("prepare", folder / "text", "--out", folder / "data"))
    finish(hornbook("tokenize", folder / "data", "--vocab", "300"))


def run_trials(kills: int, folder: Path, say: Callable[[str], None]) -> tuple[list[Trial], float]:
    """The uninterrupted run, then at least `kills` kills; gives the trials and the seconds of the uninterrupted run."""
    prepare(folder)
    finish(train_command(folder / "data", folder / "reference", SETTINGS))
    begun = time.monotonic()
    finish(train_command(folder / "data", folder / "again", SETTINGS))  # the first one compiled kernels
    seconds = time.monotonic() - begun
    if problems := differences(RunDir(folder / "reference"), RunDir(folder / "again")):
        raise RuntimeError(f"two uninterrupted runs differ, so nothing can be said about kills: {problems}")
    say(f"uninterrupted, twice, equal: {STEPS} steps in {seconds:.1f} s, a checkpoint every {EVERY} steps")
    trials: list[Trial] = []
    for number in itertools.count():
        trial = attempt(number, folder, seconds, SETTINGS)
        shutil.rmtree(folder / f"run-{number}")
        if not trial.at_steps and not trial.problems:
            continue  # the clock was too late, the run had ended
        trials.append(trial)
        say(line(trial))
        if sum(len(trial.at_steps) for trial in trials) >= kills:
            break
    return trials, seconds


def line(trial: Trial) -> str:
    """One line of the table."""
    kills = ", ".join(
        f"step {step}{' in a save' if saving else ''}"
        for step, saving in zip(trial.at_steps, trial.in_save, strict=True)
    )
    verdict = "; ".join(trial.problems) or "equal to the bit"
    return f"{trial.number:>3}  by {trial.kind:<4}  {trial.starts} starts  killed at {kills:<36}  {verdict}"


def figures(trials: list[Trial], seconds: float) -> dict[str, object]:
    """What goes into the file of results."""
    good = [trial for trial in trials if not trial.problems]
    return {
        "kills": sum(len(trial.at_steps) for trial in trials),
        "kills_in_saves": sum(sum(trial.in_save) for trial in trials),
        "trials": len(trials),
        "equal": len(good),
        "kills_survived": sum(len(trial.at_steps) for trial in good),
        "steps": STEPS,
        "checkpoint_every": EVERY,
        "uninterrupted_seconds": round(seconds, 2),
        "rows": [asdict(trial) for trial in trials],
    }


def run(kills: int = 20) -> bool:
    """Run, print the table, write results/kill.json; whether every run was equal."""
    with tempfile.TemporaryDirectory() as folder:
        trials, seconds = run_trials(kills, Path(folder), lambda text: print(text, flush=True))
    result = figures(trials, seconds)
    print(
        f"{result['equal']} of {result['trials']} runs equal to the uninterrupted one; {result['kills_survived']} of "
        f"{result['kills']} kills survived, {result['kills_in_saves']} kills were inside a save"
    )
    report.write("kill", result)
    return result["equal"] == result["trials"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="kill -9 anywhere, resume, compare bit for bit")
    parser.add_argument("--kills", type=int, default=20)
    sys.exit(0 if run(parser.parse_args().kills) else 1)
