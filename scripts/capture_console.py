"""Regenerate docs/console.svg, the picture in README.md: a real run of `tiny` on a terminal of 100 columns.

`make docs` runs it (`python -m scripts.capture_console`). Text that this Python has installed is prepared and
tokenized, and a model is trained on it; the picture is what the terminal shows at three quarters of the steps.
"""

import codecs
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from tests.terminal import ENVIRON, Screen, Terminal

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "console.svg"
COLUMNS = 100
BYTES = 3_000_000
SHARE = 0.75
TITLE = "hornbook"
COMMAND = "hornbook train tiny --data data/mine --out runs/mine"
TEXTS = "import sys, pathlib; from hornbook.text.ingest.corpora.installed import write_installed_corpus as w; "
TEXTS += f"w(pathlib.Path('texts'), max_bytes={BYTES}, seed=1)"
_STEP = re.compile(r"step ([\d,]+) / ([\d,]+) ")


def progress(screen: Screen) -> float:
    """Share of the steps that the panel says are made."""
    found = _STEP.findall(screen.text)
    return 0.0 if not found else int(found[-1][0].replace(",", "")) / int(found[-1][1].replace(",", ""))


def moment(columns: int, parts: Iterable[bytes]) -> Screen:
    """What a person saw when so much was done; a whole panel, which ends with its line about memory."""
    screen, decoder = Screen(columns), codecs.getincrementaldecoder("utf-8")()
    for part in parts:
        screen.feed(decoder.decode(part))
        last = next((line for line in reversed(screen.lines) if line.strip()), "")
        if progress(screen) >= SHARE and last.startswith("memory "):
            return screen
    raise ValueError("the run never came so far, or had no panel")


def styled(screen: Screen) -> list[Text]:
    """The lines of a screen with their colours."""
    lines = []
    for line in screen.cells:
        cells = [line.get(at, (" ", "")) for at in range(max(line, default=-1) + 1)]
        pieces = [(style, "".join(each for each, _ in piece)) for style, piece in groupby(cells, lambda cell: cell[1])]
        lines.append(Text.from_ansi("".join(f"\x1b[0;{style or 0}m{piece}" for style, piece in pieces)))
    while lines and not lines[-1].plain.strip():
        lines.pop()
    return lines


def picture(command: str, screen: Screen) -> str:
    """An SVG of a command and what it shows; it asks for no font from anywhere."""
    console = Console(
        record=True, width=screen.columns, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.assemble(("$ ", "dim"), (command, "bold")))
    for line in styled(screen):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title=TITLE, code_format=form, unique_id="console")


def film(folder: Path) -> list[bytes]:
    """Train in a folder, on a terminal; what was written to it, in its pieces."""
    hornbook = [sys.executable, "-m", "hornbook.cli.main"]
    subprocess.run([sys.executable, "-c", TEXTS], cwd=folder, check=True)
    subprocess.run([*hornbook, "prepare", "tiny", "texts", "--out", "data/mine"], cwd=folder, check=True)
    subprocess.run([*hornbook, "tokenize", "data/mine"], cwd=folder, check=True)
    with Terminal(COLUMNS) as terminal, open(terminal.path, "wb") as stream:
        words = COMMAND.split()[1:]
        subprocess.run([*hornbook, *words], cwd=folder, check=True, stderr=stream, env=os.environ | ENVIRON)
    return terminal.parts


def main() -> None:
    """Film a run and draw the picture."""
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_text(picture(COMMAND, moment(COLUMNS, film(Path(folder)))))


if __name__ == "__main__":
    main()
