"""Regenerate the captured terminal in docs/demo.md by running the demo for real.

`make docs` runs it. What stands between the markers of the page is the demo's own output, so it cannot lie.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- demo:begin -->", "<!-- demo:end -->"
TRAINING = re.compile(r"step=|\d\d:\d\d:\d\d ")
ENDS_KEPT = 6


def run_demo() -> str:
    """Output of `hornbook quickstart`, as a person reads it off a terminal."""
    command = [sys.executable, "-m", "hornbook.cli.main", "quickstart"]
    done = subprocess.run(command, check=True, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return re.sub(r"/\S*/hornbook-\w+", "DEMO", done.stdout)


def shorten(output: str) -> str:
    """Leave out the middle of each long stretch of training lines."""
    kept: list[str] = []
    stretch: list[str] = []
    for line in [*output.splitlines(), ""]:
        if TRAINING.match(line):
            stretch.append(line)
            continue
        if len(stretch) > 2 * ENDS_KEPT + 1:
            stretch = [*stretch[:ENDS_KEPT], f"... {len(stretch) - 2 * ENDS_KEPT} lines ...", *stretch[-ENDS_KEPT:]]
        kept += [*stretch, line]
        stretch = []
    return "\n".join(line.rstrip() for line in kept).strip()


def main() -> None:
    """Run, shorten, write the page."""
    text = shorten(run_demo())
    page = ROOT / "docs" / "demo.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n```\n{text}\n```\n{END}{after}")


if __name__ == "__main__":
    main()
