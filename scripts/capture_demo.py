"""Regenerate the captured terminal in README.md and docs/demo.svg by running the demo for real.

`make docs` runs it. What stands between the markers in README.md is the demo's own output, so it cannot lie.
"""

import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- demo:begin -->", "<!-- demo:end -->"
LINES_KEPT_OF_TRAINING = 6
WIDTH = 110


def run_demo() -> str:
    """Output of `hornbook quickstart`, as a person reads it off a terminal."""
    command = [sys.executable, "-m", "hornbook.cli.main", "quickstart"]
    done = subprocess.run(command, check=True, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return re.sub(r"/\S*/hornbook-\w+", "DEMO", done.stdout)


def shorten(output: str) -> str:
    """Leave out the middle of each long run of step lines."""
    kept: list[str] = []
    steps: list[str] = []
    for line in [*output.splitlines(), ""]:
        if line.startswith("step="):
            steps.append(line)
            continue
        if len(steps) > LINES_KEPT_OF_TRAINING:
            half = LINES_KEPT_OF_TRAINING // 2
            steps = [*steps[:half], f"... {len(steps) - 2 * half} lines ...", *steps[-half:]]
        kept += [*steps, line]
        steps = []
    return "\n".join(kept).strip()


def main() -> None:
    """Run, shorten, write both files."""
    text = shorten(run_demo())
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{BEGIN}\n```\n{text}\n```\n{END}{after}")
    terminal = Console(record=True, width=WIDTH, file=open("/dev/null", "w"))  # noqa: SIM115 (closed with the process)
    terminal.print(Text(text))
    terminal.save_svg(str(ROOT / "docs" / "demo.svg"), title="hornbook quickstart")


if __name__ == "__main__":
    main()
