"""Learning rates that are too high, from the start or by `hornbook tell`: does the guard react, and what is it worth?

Each cell is a run of one size and length with `guard.mode = auto`, beside its healthy twin and, where the guard did
anything, the same run without it. The thresholds of `run/guard/settings.py` were chosen on the cells of `CHOSEN`;
`HELD_OUT` has other lengths and other text.
"""

import contextlib
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reliability.guard.page import ACTIONS
from benchmarks.reliability.guard.runs import ROWS, SEQUENCE, SMALL, prepare, prepare_texts
from hornbook.errors import DivergedError
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.job import Start
from hornbook.run.launch.launch import launch
from hornbook.settings.resolve import resolve

RATE, FACTORS = 3e-3, (3, 10, 50, 200)
SIZES = {
    "small": ("model.width=32",),
    "middle": ("model.width=64", "model.layers=2"),
    "large": ("model.width=128", "model.layers=4", "model.heads=4"),
}
CHOSEN = {"small": 600, "middle": 1200, "large": 600}
"""Steps by size."""
HELD_OUT = {"small": 1200, "middle": 600, "large": 900}


@dataclass(frozen=True)
class Cell:
    """One run."""

    size: str
    steps: int
    told: int = 1
    """Factor on the learning rate after a third of the steps."""
    begun: int = 1
    """Factor from the first step on."""

    def train(self, data: Path, folder: Path, mode: str) -> tuple[float, list[str]]:
        """(median of the last 16 losses, what the guard did)."""
        run = RunDir(folder)
        if self.told > 1:
            run.control.mkdir(parents=True)
            write_request(
                run, Request(action="set", settings=[f"optim.lr={RATE * self.told}"], at_step=self.steps // 3)
            )
        length = f"train.tokens={self.steps * SEQUENCE * ROWS}"
        words = (*SMALL, *SIZES[self.size], length, f"optim.lr={RATE * self.begun}", f"guard.mode={mode}")
        with contextlib.suppress(DivergedError):  # the ledger has the pause
            launch(resolve(None, (f"data.path={data}", *words), environ={}), run, Start(quiet=True))
        kinds = [str(record["kind"]) for record in read_records(run.events)]
        losses = [record["loss"] for record in read_records(run.metrics)]
        return statistics.median(losses[-16:]), [kind for kind in kinds if kind in ACTIONS]


def rates(folder: Path, texts: Path | None) -> dict[str, Any]:
    """Rows of both halves. `texts`: a folder of .jsonl.gz files, the text of the held-out half; None: no such half."""
    halves = [("chosen", prepare(folder / "ours", with_rulers=False), CHOSEN)]
    if texts is not None:
        halves.append(("held out", prepare_texts(folder / "theirs", texts), HELD_OUT))
    return {"rows": [row for name, data, lengths in halves for row in _half(name, data, lengths, folder)]}


def _half(name: str, data: Path, lengths: dict[str, int], folder: Path) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for size, steps in lengths.items():
        place = folder / name.replace(" ", "-") / size
        twin, alarms = Cell(size, steps).train(data, place / "twin", "auto")
        rows.append({"half": name, "size": size, "steps": steps, "cell": "healthy", "did": alarms, "with": 1.0})
        for how in ("told", "begun"):
            for factor in FACTORS:
                cell = Cell(size, steps, **{how: factor})
                guarded, did = cell.train(data, place / f"{how}-{factor}", "auto")
                alone = cell.train(data, place / f"{how}-{factor}-off", "off")[0] if did else guarded
                row = {"half": name, "size": size, "steps": steps, "cell": f"{how} x {factor}", "did": did}
                rows.append(row | {"with": guarded / twin, "without": alone / twin})
                print(rows[-1], flush=True)
    return rows
