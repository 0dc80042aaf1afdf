"""One seeded trace of faults, and the time that each side needs to come to the end of the same number of steps.

    python -m benchmarks.reliability.trace [--side NAME ...] [--steps 300] [--seed 1] [--again]

Two ranks on this machine (gloo), a model of 0.7M parameters, a checkpoint every 50 steps. Faults come from outside:
SIGKILL of a rank, of both, of the whole job, SIGSTOP for ever, a rank that is stopped half of the time for ten seconds,
a checkpoint cut in half before the job is killed. A job that ends is started again at once; where it ended on the
checkpoint that was cut, that is put aside first, as an operator would, but in no time. hornbook runs with
`guard.standby` and `checkpoint.memory_every = 1`. Goodput is the time of the same run without faults over that with
them. What is on file is not measured again.

    BENCH_LIGHTNING_PYTHON=INTERPRETER   one that has lightning
    BENCH_TORCHFT=FOLDER                 where torchft and what it needs are installed
"""

import argparse
import signal
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.reliability import kill
from benchmarks.reliability.trace import faults
from benchmarks.reliability.trace.faults import Fault
from benchmarks.reliability.trace.sides import EVERY, SIDES, TIMEOUT_SECONDS, Job

NAME = "trace"
POLL_SECONDS = 0.1
LIMIT_SECONDS = 540.0


def strike(job: Job, fault: Fault) -> None:
    """Do it; a job that was killed whole is started again."""
    ranks = job.ranks()
    if fault.kind in ("disk", "job"):
        newest = job.newest()
        if fault.kind == "disk" and newest is not None:
            faults.cut(newest)
        job.kill()
        job.start()
    elif fault.kind == "slow":
        faults.slow(ranks[fault.rank])
    elif fault.kind == "hang":
        faults.send([ranks[fault.rank]], signal.SIGSTOP)
    else:
        faults.send(ranks if fault.kind == "both" else [ranks[fault.rank]], signal.SIGKILL)


def play(job: Job, plan: list[Fault]) -> dict[str, Any]:
    """Run a job to its end under a plan: seconds in all and until each fault was made good, weights' digest."""
    begun, starts, step, first = time.monotonic(), 1, 0, 0.0
    struck, pending = list[dict[str, Any]](), list(plan)
    job.start()
    try:
        while (now := time.monotonic() - begun) < LIMIT_SECONDS:
            time.sleep(POLL_SECONDS)
            step = max(step, job.step())
            first = first or (now if step else 0.0)
            if struck and "seconds" not in struck[-1] and step > struck[-1]["at"]:
                struck[-1]["seconds"] = now - struck[-1]["time"]
            if pending and step >= pending[0].step and (not struck or "seconds" in struck[-1]):
                struck.append(asdict(pending[0]) | {"at": step, "time": now})
                starts += pending[0].kind in ("disk", "job")
                strike(job, pending.pop(0))
                print(f"{now:6.1f} s  {struck[-1]}", flush=True)
            elif (code := job.code()) is not None:
                if code == 0 and job.final():
                    break
                job.kill()
                if struck and struck[-1]["kind"] == "disk" and "seconds" not in struck[-1]:
                    job.mend()
                job.start()
                starts += 1
    finally:
        job.kill()
    found = {"seconds": now, "first_step": first, "step": step, "starts": starts, "weights": job.final()}
    return found | {"faults": struck} | job.facts()


def main(names: list[str], steps: int, seed: int, *, again: bool) -> None:
    """Measure, print, write results/trace.json after each side."""
    results = report.known(NAME)
    same = (results.get("steps"), results.get("seed")) == (steps, seed)
    figures: dict[str, Any] = {"steps": steps, "seed": seed, "every": EVERY, "timeout": TIMEOUT_SECONDS}
    figures["limit"] = LIMIT_SECONDS
    figures |= {"trace": [asdict(each) for each in faults.trace(steps, seed)]}
    figures["sides"] = results["sides"] if same else {}
    with tempfile.TemporaryDirectory() as name:
        kill.prepare(Path(name))
        for side, kind in SIDES.items():
            if names and side not in names:
                continue
            known = {} if again or "missing" in figures["sides"].get(side, {}) else figures["sides"].get(side, {})
            figures["sides"][side] = {"version": kind.version} | known
            if kind.missing:
                figures["sides"][side] = {"missing": kind.missing}
            else:
                for part, plan in (("undisturbed", []), ("faults", faults.trace(steps, seed))):
                    if part in known:
                        continue
                    found = play(kind(Path(name) / side / part, Path(name) / "data", steps), plan)
                    print(side, part, {key: each for key, each in found.items() if key != "faults"}, flush=True)
                    figures["sides"][side][part] = found
                    report.write(NAME, figures)
            report.write(NAME, figures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.trace")
    parser.add_argument("--side", action="append", default=[], choices=tuple(SIDES))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="measure what is on file once more")
    given = parser.parse_args()
    main(given.side, given.steps, given.seed, again=given.again)
