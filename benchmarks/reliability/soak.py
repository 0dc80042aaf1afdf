"""A soak: one run on two ranks, a fault about every minute; how much of the time went into steps that count?

    python -m benchmarks.reliability.soak --minutes 10 --seed 1

A pilot says how long a step takes; from that and the seed follows the plan: which fault strikes which rank in which
phase, at which step. Faults that end the command (a killed supervisor, SIGTERM) are followed by a resume, as from a
scheduler. Then the same run is trained without faults, and both are compared bit for bit. Goodput is the time that the
steps take in the run without faults, as its metrics.jsonl has it, over the time of the soaked run from its first start
to the end of the last: starts, saves, restarts, steps made again or slowly, and hangs are what is lost. Ranks keep
copies of the state in memory and others stand by, as a user would have it where faults are that frequent.
"""

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks import report
from benchmarks.reliability import kill
from hornbook.errors import Exit
from hornbook.files.journal import current_branch, read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.diagnose.rehearsal import judge

BATCH, PILOT_STEPS, SAVE_SECONDS, COPY_SECONDS = 2048, 60, 5.0, 0.5
SETTINGS = kill.SETTINGS | {
    "model.width": 128,
    "parallel.data": 2,
    "train.micro_batch": 4,
    "train.batch_tokens": BATCH,
    "eval.every": 0,
    "guard.max_restarts": 10,
    "guard.standby": True,
}
PHASES = ("data", "forward", "backward", "clip", "optimizer", "observe")
KINDS = ("kill9", "kill9", "both", "save", "stop", "exc", "exit", "enospc", "eio", "clock", "slow", "sigterm", "parent")
"""What strikes, drawn with equal chances; kills of one rank count twice."""
RESTARTS, ENDS = ("kill9", "both", "save", "stop", "exc", "exit"), ("sigterm", "parent")
"""Which of them end the ranks, and which the command."""


def fault(kind: str, step: int, every: int, draw: random.Random) -> dict[str, Any]:
    """A fault of the plan near a step."""
    at = {"step": step, "phase": draw.choice(PHASES), "rank": draw.randrange(2)}
    saved = {"step": step - step % every, "phase": "save"}
    made: dict[str, dict[str, Any]] = {
        "both": {"do": "kill9", "at": at | {"rank": "every"}},
        "save": {"do": "kill9", "after": 0.01, "at": saved | {"rank": at["rank"]}},
        "enospc": {"do": "enospc", "at": saved},
        "eio": {"do": "eio", "at": saved},
        "clock": {"do": "clock_jump", "seconds": draw.choice((86_400.0, -86_400.0)), "at": at},
        "slow": {"do": "slow", "seconds": 0.2, "steps": 10, "at": at | {"phase": "data"}},
        "sigterm": {"do": "sigterm", "to": "supervisor", "at": at | {"phase": "clip"}},
        "parent": {"do": "kill9", "to": "supervisor", "at": at | {"phase": "clip"}},
    }
    return made.get(kind) or {"do": kind, "at": at}


def plans(steps: int, gap: float, every: int, draw: random.Random) -> Iterator[list[dict[str, Any]]]:
    """The plan of each start: a fault about every `gap` steps, none in the last tenth of the run."""
    plan, generation, position = list[dict[str, Any]](), 0, 0.0
    while (position := position + gap * draw.uniform(0.8, 1.2)) < 0.9 * steps:
        kind = draw.choice(KINDS)
        each = fault(kind, max(int(position), every + 1), every, draw)
        plan.append({**each, "at": {**each["at"], "generation": generation}})
        generation += kind in RESTARTS
        if kind in ENDS:
            yield plan
            plan, generation = [], 0
    yield plan


def start(data: Path, run: RunDir, settings: dict[str, Any], plan: Sequence[dict[str, Any]]) -> int:
    """Train or resume under a plan; the exit code."""
    words = kill.train_command(data, run.path, settings)
    if plan:
        path = run.path.with_name("plan.toml")
        path.write_text(tomli_w.dumps({"faults": list(plan)}))
        words += ["--faults", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (Exit.DONE, Exit.RESUMABLE, -9):
        raise RuntimeError(f"exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.returncode


def useful_seconds(run: RunDir) -> float:
    """Time of the steps that count."""
    return sum(record["seconds"] for record in current_branch(read_records(run.metrics)))


def run(minutes: float = 10.0, seed: int = 1, gap: float = 60.0) -> bool:
    """Run, print, write results/soak.json; whether the run was equal to the one without faults."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kill.prepare(folder)
        data, pilot = folder / "data", RunDir(folder / "pilot")
        start(data, pilot, SETTINGS | {"train.tokens": PILOT_STEPS * BATCH}, ())
        recorded = sorted(record["seconds"] for record in read_records(pilot.metrics))
        step = recorded[len(recorded) // 2]
        steps, every = int(minutes * 60 / step), max(int(SAVE_SECONDS / step), 2)
        copies = max(int(COPY_SECONDS / step), 1)
        settings = SETTINGS | {"train.tokens": steps * BATCH, "checkpoint.every": every}
        settings |= {"checkpoint.memory_every": copies}
        whole, soaked = RunDir(folder / "whole"), RunDir(folder / "soaked")
        codes, begun = list[int](), time.monotonic()
        for plan in itertools.chain(plans(steps, gap / step, every, random.Random(seed)), itertools.repeat([])):
            codes.append(start(data, soaked, settings, plan))
            if codes[-1] == Exit.DONE:
                break
        wall = time.monotonic() - begun
        begun = time.monotonic()
        start(data, whole, settings, ())
        undisturbed = time.monotonic() - begun
        problems = judge.differences(whole, soaked, steps)
        useful = useful_seconds(whole)
        result = figures(soaked, wall, undisturbed, problems) | {
            "minutes": minutes,
            "seed": seed,
            "gap": gap,
            "codes": codes,
        }
        result |= {"steps": steps, "checkpoint_every": every, "memory_every": copies, "step_seconds": step}
        result |= {"goodput": useful / wall, "goodput_undisturbed": useful / undisturbed}
    print({key: value for key, value in result.items() if key != "faults"}, *result["faults"], sep="\n")
    report.write("soak", result)
    return not problems


def figures(soaked: RunDir, wall: float, undisturbed: float, problems: list[str]) -> dict[str, Any]:
    """What the soaked run shows."""
    records = list(read_records(soaked.events))
    struck = [record for record in records if record["kind"] == "fault"]
    told = [f"{each['do']} on rank {each['rank']} at step {each['step']}, {each['phase']}" for each in struck]
    kinds = Counter(record["kind"] for record in records)
    made = [record["step"] for record in read_records(soaked.metrics)]
    return {
        "wall_seconds": wall,
        "undisturbed_seconds": undisturbed,
        "goodput_beside_undisturbed": undisturbed / wall,
        "faults_struck": len(struck),
        "restarts": kinds["restart"],
        "steps_again": len(made) - len(set(made)),
        "faults": told,
        "problems": problems,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="a run with a fault about every minute, and its goodput")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gap", type=float, default=60.0, help="seconds between two faults, about")
    given = parser.parse_args()
    sys.exit(0 if run(given.minutes, given.seed, given.gap) else 1)
