"""Run hornbook on a GPU, part by part: `python -m benchmarks.gpu` (or `make gpu`), from a plain checkout.

Parts run in order of worth, or in the order of `--only PART`, each in a process of its own with a time limit.
DIR/gpu-NAME.json (NAME of the GPU; `--out DIR`) has the results as they arrive: status, seconds, figures and last 200
lines of each part, tracebacks of failed tests, stacks of a part that was cut. Started again, the command continues.
After a failure that loses the device a fresh process tries it; if it fails there too, the remaining parts are skipped.
Nothing is installed or fetched, except wheels from a folder `.whl` (`setup.py`).

The parts `five minutes` take about nine minutes each. `--list` names the parts, `--again` forgets earlier results,
`--seconds` is the budget of the call. `--dry-run` runs all parts at tiny sizes on the CPU: its figures mean nothing.
"""

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import setup
from benchmarks.gpu.device import LOST, ROOT, facts, gpu_name, problem_of
from benchmarks.gpu.output import write_json
from benchmarks.gpu.parts import LEFT_OUT, PARTS, Part
from benchmarks.gpu.process import run
from benchmarks.gpu.table import table

SECONDS = 520.0
"""The budget of a call."""
SUCCESSES = {"done", "left out"}


def main() -> int:
    """Run the parts that are not done; 0 if all are, 1 if some failed or were skipped, 3 where there is no GPU or a
    package is missing, 75 if time ran out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))  # a part's processes end with this one
    chosen = arguments()
    if chosen.list:
        print(*(f"{part.name:28} {part.seconds:4.0f} s  {part.about}" for part in PARTS), sep="\n")
        return 0
    environment = setup.prepare(ROOT)
    if missing := setup.missing(environment):
        print(setup.remedy(missing))
        return 3
    machine = facts(environment)
    name = "dry-run" if chosen.dry_run else gpu_name(machine)
    if name is None:
        problem = machine.get("problem", "torch.cuda.is_available() is false")
        print(f"There is no GPU here: {problem}. --dry-run shows the command on the CPU.")
        return 3
    chosen.out.mkdir(parents=True, exist_ok=True)
    by_name = {part.name: part for part in PARTS}
    parts = [by_name[name] for name in dict.fromkeys(chosen.only)] if chosen.only else PARTS
    results = Results(chosen.out / f"gpu-{name}.json", machine, again=chosen.again)
    return run_parts(parts, results, environment, chosen.seconds, dry_run=chosen.dry_run)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only", action="append", choices=[part.name for part in PARTS], metavar="PART")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR")
    return parser.parse_args()


class Results:
    """The file of results, written whenever a part changes."""

    def __init__(self, path: Path, machine: dict[str, Any], *, again: bool = False) -> None:
        self.path, self.machine = path, machine
        before: dict[str, Any] = {} if again or not path.exists() else json.loads(path.read_text())
        self.parts: dict[str, dict[str, Any]] = before.get("parts", {})

    def put(self, name: str, outcome: dict[str, Any]) -> None:
        """Replace the outcome of a part."""
        self.parts[name] = outcome
        write_json(self.path, {"machine": self.machine, "parts": self.parts})


def run_parts(
    parts: Sequence[Part],
    results: Results,
    environment: dict[str, str],
    budget: float,
    *,
    dry_run: bool,
    probe: Callable[[dict[str, str], str], str] = problem_of,
) -> int:
    """Run parts in order within a budget in seconds, print the table, return the exit code of `main`."""
    begun, problem = time.monotonic(), ""
    for part in parts:
        remaining = budget - (time.monotonic() - begun)
        before = results.parts.get(part.name, {})
        if before.get("status") == "done":
            print(f"{part.name}: done before")
        elif problem:
            print(f"{part.name}: skipped, because the device is lost")
            results.put(part.name, {"seconds": 0, **before, "status": "skipped", "reason": f"device lost: {problem}"})
        elif remaining < part.least and not dry_run:
            print(f"{part.name}: needs {part.least:.0f} s, {remaining:.0f} s remain; the same command continues here")
        else:
            limit = part.seconds * 4 if dry_run else min(part.seconds, remaining)
            run_part(part, limit, results, environment, dry_run=dry_run)
            problem = lost_device(part.name, results.parts[part.name], environment, dry_run=dry_run, probe=probe)
    names = [part.name for part in parts]
    print(f"\n{table(names, results.parts)}\n\n{results.path}", flush=True)
    states = {results.parts.get(name, {}).get("status", "cut") for name in names}
    return 0 if states <= SUCCESSES else 75 if states <= {*SUCCESSES, "cut"} else 1


def run_part(part: Part, limit: float, results: Results, environment: dict[str, str], *, dry_run: bool) -> None:
    """Run a part and put its outcome: `status` done, left out, failed or cut, and `running` until it ends."""
    print(f"\n== {part.name}: {part.about} (at most {limit:.0f} s)", flush=True)
    begun = time.monotonic()
    outcome: dict[str, Any] = {"code_digest": results.machine.get("code_digest")}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "figures.json"
        if figures := results.parts.get(part.name, {}).get("figures"):
            write_json(output, figures)

        def put(status: str, **more: Any) -> None:
            outcome.update(status=status, seconds=round(time.monotonic() - begun, 1), **more)
            with contextlib.suppress(FileNotFoundError):
                outcome["figures"] = json.loads(output.read_text())
            results.put(part.name, outcome)

        words = [sys.executable, "-m", part.module, str(output), json.dumps({**part.spec, "dry_run": dry_run})]
        ended = run(words, limit, environment, lambda: put("running"), ROOT)
        status = "cut" if ended.code is None else {0: "done", LEFT_OUT: "left out"}.get(ended.code, "failed")
        put(status, exit_code=ended.code, output=ended.lines, **({"stacks": ended.stacks} if ended.stacks else {}))
    print(f"{part.name}: {status} after {outcome['seconds']} s", flush=True)


def lost_device(
    name: str,
    outcome: dict[str, Any],
    environment: dict[str, str],
    *,
    dry_run: bool,
    probe: Callable[[dict[str, str], str], str],
) -> str:
    """Why no process can use the device since a part that failed or was cut; "" if a fresh one can.

    A failed part is followed by a probe only if it says that its device was lost.
    """
    if outcome["status"] not in ("failed", "cut"):
        return ""
    if outcome["status"] == "failed" and not LOST.search(json.dumps(outcome)):
        return ""
    problem = probe(environment, "cpu" if dry_run else "cuda")
    print(f"{name}: a fresh process {f'fails on the device too: {problem}' if problem else 'can use the device'}")
    return problem


if __name__ == "__main__":
    sys.exit(main())
