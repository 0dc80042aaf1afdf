"""Training scripts of other projects as processes: started in their folder, what they print read line by line."""

import os
import re
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.budget.text import ROOT

LAST = 60
"""Lines that are told where a script fails."""
SETTLED = 0.5
"""Share of a trial's steps that count: the last ones."""


@dataclass(frozen=True)
class Script:
    """A training script: how it is started, and what its lines say."""

    python: str
    """The interpreter."""
    home: Path
    """The folder in which it runs."""
    words: tuple[str, ...]
    """Arguments of the interpreter that name the script."""
    step: re.Pattern[str]
    """The line of a step; its group `ms` is the step's milliseconds."""

    def run(self, words: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> list[str]:
        """Run it to its end; its lines, which stand in `log` too. RuntimeError with the last ones where it fails."""
        places = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": places, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        command = [self.python, *self.words, *words]
        lines: list[str] = []
        with (
            log.open("w", encoding="utf-8") as file,
            subprocess.Popen(
                command,
                cwd=self.home,
                env=environment | dict(environ or {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                file.write(line)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {''.join(lines[-LAST:])}")
        return lines

    def seconds(self, lines: Sequence[str]) -> list[float]:
        """Of each step that was told."""
        return [float(found["ms"].replace(",", "")) / 1000 for line in lines if (found := self.step.search(line))]


def settled(seconds: Sequence[float]) -> float:
    """Seconds of a step of a trial whose first steps compiled."""
    if not seconds:
        raise RuntimeError("no step was told")
    return statistics.median(seconds[int(len(seconds) * SETTLED) :])


def last_number(pattern: str, lines: Sequence[str]) -> float:
    """The group of the last line where the pattern is found. RuntimeError where it is in none."""
    for line in reversed(lines):
        if found := re.search(pattern, line):
            return float(found[1])
    raise RuntimeError(f"no line has {pattern!r}: {''.join(lines[-LAST:])}")
