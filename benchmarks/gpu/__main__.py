"""What hornbook does on a GPU, in nine minutes: `python -m benchmarks.gpu` (or `make gpu`), from a plain checkout.

Parts run in order of worth, each in a process of its own with a time limit: tests marked `gpu`, throughput, memory.
After each part benchmarks/results/gpu-NAME.json (NAME of the GPU; `--out FOLDER`) has what is known; started again, it
goes on where it was cut. Nothing is installed or fetched, but for wheels in a folder `.whl` (`setup.py`).

The parts `five minutes` take a call each, as the last ones: with `--only "five minutes"`, or when all others are done.

`--list` names the parts, `--only PART` runs some, `--again` forgets what is known, `--seconds` is the budget.
`--dry-run` runs all parts at tiny sizes on the CPU: it shows that the command works, and its figures mean nothing.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu import setup
from benchmarks.gpu.parts import LEFT_OUT, PARTS, Part

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SECONDS = 520.0
"""The budget of a call."""


def main() -> int:
    """Run the parts that are not done; 0 if all are, 1 if some failed, 3 where there is no GPU or a package is missing,
    75 if time ran out."""
    chosen = arguments()
    if chosen.list:
        print(*(f"{part.name:28} {part.seconds:4.0f} s  {part.about}" for part in PARTS), sep="\n")
        return 0
    environment = setup.prepare(ROOT)
    name = "dry-run" if chosen.dry_run else gpu_name(environment)
    if name is None:
        print("There is no GPU here: torch.cuda.is_available() is false. --dry-run shows the command on the CPU.")
        return 3
    if missing := setup.missing(environment):
        print(setup.remedy(missing))
        return 3
    path = chosen.out / f"gpu-{name}.json"
    found: dict[str, Any] = {} if chosen.again or not path.exists() else json.loads(path.read_text())
    return run_parts(chosen, path, found, environment)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only", action="append", choices=[part.name for part in PARTS])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def gpu_name(environment: dict[str, str]) -> str | None:
    """`h200`, `h100-80gb-hbm3`, ...; None without a GPU that torch can use."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    words = re.sub(r"[^a-z0-9]+", "-", answer.stdout.strip().lower().removeprefix("nvidia ")).strip("-")
    return words or None


def run_parts(chosen: argparse.Namespace, path: Path, found: dict[str, Any], environment: dict[str, str]) -> int:
    """All parts in order, within the budget."""
    begun, wanted = time.monotonic(), [part for part in PARTS if not chosen.only or part.name in chosen.only]
    parts = found.setdefault("parts", {})
    found["machine"] = parts_machine(environment)
    for part in wanted:
        left = chosen.seconds - (time.monotonic() - begun)
        if parts.get(part.name, {}).get("status") == "done":
            print(f"{part.name}: done before")
        elif left < part.least and not chosen.dry_run:
            print(f"{part.name}: it needs {part.least:.0f} s and {left:.0f} are left; the same command goes on here")
        else:
            parts[part.name] = run_part(part, min(part.seconds, left), parts.get(part.name), environment, chosen)
            save(path, found)
    print(f"\n{path}")
    states = [parts.get(part.name, {}).get("status") for part in wanted]
    if set(states) <= {"done", "left out"}:
        return 0
    return 75 if set(states) <= {"done", "left out", "cut", None} else 1


def run_part(
    part: Part, seconds: float, before: dict[str, Any] | None, environment: dict[str, str], chosen: argparse.Namespace
) -> dict[str, Any]:
    """The outcome of a part: `status` done, left out, failed or cut; `figures`, the last that its process wrote."""
    print(f"\n== {part.name}: {part.about} (at most {seconds:.0f} s)", flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "figures.json"
        if before and "figures" in before:
            output.write_text(json.dumps(before["figures"]))
        words = [sys.executable, "-m", part.module, str(output), json.dumps({**part.spec, "dry_run": chosen.dry_run})]
        status = run_process(words, seconds, environment)
        outcome: dict[str, Any] = {"status": status, "seconds": round(time.monotonic() - begun, 1)}
        if output.exists():
            outcome["figures"] = json.loads(output.read_text())
    print(f"{part.name}: {status} after {outcome['seconds']} s", flush=True)
    return outcome


def run_process(words: list[str], seconds: float, environment: dict[str, str]) -> str:
    """The status of a part's process; at its limit all processes that it started end with it, and free the GPU."""
    process = subprocess.Popen(words, env=environment, cwd=ROOT, start_new_session=True)
    try:
        return {0: "done", LEFT_OUT: "left out"}.get(process.wait(seconds), "failed")
    except subprocess.TimeoutExpired:
        return "cut"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def parts_machine(environment: dict[str, str]) -> dict[str, Any]:
    """Facts of the machine, by a process that may import torch."""
    code = "import json; from benchmarks import report; print(json.dumps(report.machine()))"
    words = [sys.executable, "-c", code]
    answer = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    return json.loads(answer.stdout) if answer.returncode == 0 else {"problem": answer.stderr[-2000:]}


def save(path: Path, found: dict[str, Any]) -> None:
    """Write the file whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(found, indent=1) + "\n")
    os.replace(beside, path)


if __name__ == "__main__":
    sys.exit(main())
