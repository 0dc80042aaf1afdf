"""Contenders as long-lived processes that run one timed round each in turn."""

import contextlib
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import cpus

ROOT = Path(__file__).parents[2]
THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
"""CPU threads of every contender."""


@dataclass(frozen=True)
class Contender:
    """One line of the table."""

    name: str
    command: list[str]
    attention: str = ""
    compile: bool = False
    precision: str = ""
    """Another one than the round's."""
    home: str = ""
    """The folder of a peer that is not installed."""


class Process:
    """A contender's process: `ask` sends one request and waits for its answer."""

    def __init__(self, contender: Contender, spec: dict[str, Any]) -> None:
        self.name = contender.name
        own = {"attention": contender.attention, "compile": contender.compile, "home": contender.home}
        spec = {**spec, **own, "precision": contender.precision or spec["precision"]}
        # torch.compile takes code from its cache that was made for other instructions, and dies of it.
        compiled = Path(tempfile.gettempdir(), f"torchinductor-{cpus.kind()}")
        environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(compiled)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [*contender.command, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.facts = self._read()
        """What it said of itself when it was ready."""

    def ask(self, seed: int, steps: int) -> dict[str, Any]:
        """Run a round."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"seed": seed, "steps": steps}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it may have ended, with a request unread
            self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                found = json.loads(line)
            except ValueError:
                continue  # what a library prints
            if isinstance(found, dict):
                return found
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        last = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)][-1:] or lines[-1:]
        self.close()
        raise RuntimeError(f"{self.name} ended early: {' '.join(last)[:200]}")


Answers = dict[str, list[dict[str, Any]]]


def interleave(processes: Sequence[Process], rounds: int, steps: int) -> Answers:
    """Answers of each process to a first round that does not count, and so many more, in turn; then all are ended."""
    answers: Answers = {process.name: [] for process in processes}
    try:
        for number in range(rounds + 1):
            for process in processes:
                answers[process.name].append(process.ask(seed=number, steps=steps))
    finally:
        for process in processes:
            process.close()
    return answers


def run_beside(
    contenders: Sequence[Contender], spec: dict[str, Any], rounds: int, deadline: float, required: Sequence[str]
) -> tuple[Answers, dict[str, dict[str, Any]], dict[str, str]]:
    """(answers to a first round that does not count and to others of one step, facts, problems), each by contender.

    Two at a time start and compile. Rounds end early, after two, where another would pass the deadline (by
    time.monotonic). A contender that fails is left out and its problem told; RuntimeError for a required one.
    """
    with ThreadPoolExecutor(2) as pool:
        begun = list(pool.map(lambda each: _first_round(each, spec), contenders))
    problems = {each.name: made for each, made in zip(contenders, begun, strict=True) if isinstance(made, str)}
    if failed := [f"{name}: {problems[name]}" for name in required if name in problems]:
        raise RuntimeError("; ".join(failed))
    running = [made for made in begun if not isinstance(made, str)]
    answers: Answers = {process.name: [first] for process, first in running}
    facts = {process.name: process.facts for process, _ in running}
    for number in range(rounds):
        started = time.monotonic()
        for process in [each for each, _ in running if each.name in answers]:
            try:
                answers[process.name].append(process.ask(seed=number + 1, steps=1))
            except (RuntimeError, OSError) as error:
                if process.name in required:
                    raise
                problems[process.name] = str(error)
                del answers[process.name], facts[process.name]
        if number and 2 * time.monotonic() - started > deadline:
            break
    for process, _ in running:
        if process.name in answers:
            process.close()
    return answers, facts, problems


def _first_round(contender: Contender, spec: dict[str, Any]) -> tuple[Process, dict[str, Any]] | str:
    """(process, its answer to its first step), or what went wrong."""
    try:
        process = Process(contender, spec)
        return process, process.ask(seed=0, steps=1)
    except (RuntimeError, OSError) as error:
        return str(error)


def compare(answers: Answers, tokens: int, clock: str = "seconds") -> dict[str, Any]:
    """Tokens/s where a round has `tokens`, hornbook's ratio to each within a round, and losses.

    clock: `seconds` of the wall, or `cpu_seconds`, which with one thread compares work on a machine that is busy.
    """
    seconds = {name: [answer[clock] for answer in found[1:]] for name, found in answers.items()}
    return {
        "tokens_per_second": {name: tokens / statistics.median(found) for name, found in seconds.items()},
        "ours_over": {
            name: statistics.median(b / a for a, b in zip(seconds["hornbook"], found, strict=True))
            for name, found in seconds.items()
        },
        "last_loss": {name: found[-1]["losses"][-1] for name, found in answers.items()},
        "first_loss": {name: found[0]["losses"][0] for name, found in answers.items()},
    }


def merge(parts: Sequence[dict[str, Any]], one: Callable[[str], bool]) -> dict[str, Any]:
    """Figures by contender of several groups as one; of those in every group (`one`), the first group's."""
    merged: dict[str, Any] = {key: {} for key in parts[0]}
    for number, part in enumerate(parts):
        for key, found in part.items():
            merged[key] |= {name: value for name, value in found.items() if not (number and one(name))}
    return merged
