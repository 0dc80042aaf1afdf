"""The small runs of the benchmark, and their data."""

import re
from pathlib import Path

from benchmarks.reliability.kill import finish, hornbook
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import evaluations, fullest
from hornbook.run.job.job import Start
from hornbook.run.launch.launch import launch
from hornbook.settings.resolve import resolve

SEQUENCE, ROWS, VOCAB = 64, 4, 512
SMALL = (
    "model.layers=1",
    "model.width=64",
    "model.heads=2",
    f"train.sequence={SEQUENCE}",
    f"train.batch_tokens={SEQUENCE * ROWS}",
    f"train.micro_batch={ROWS}",
    "train.precision=fp32",
    "train.device=cpu",
    "train.threads=1",
    "optim.lr=3e-3",
    "optim.schedule.warmup=20 steps",
    "checkpoint.background=false",
    "eval.every=0",
    "eval.prompt=",
    "log.every=1000",
)

RULER = re.compile(r"([^\s\w])\1{59}")
"""One sign sixty times in succession."""


def prepare(folder: Path, *, with_rulers: bool = True) -> Path:
    """Data of this repository's own sources and pages: text of several kinds, whose losses scatter as real ones do.

    with_rulers: also files with lines that repeat one character. A row of nothing else has a gradient 5 to 15 times the
    usual one, and `hornbook why` names it as no text: noise that holds it is not healthy.
    """
    folder.mkdir()
    (folder / "text").mkdir()
    root = Path(__file__).parents[3]
    for number, path in enumerate(sorted([*root.glob("src/hornbook/**/*.py"), *root.glob("docs/*.md")])):
        text = path.read_text(encoding="utf-8")
        if with_rulers or not RULER.search(text):
            (folder / "text" / f"{number:04}.txt").write_text(text, encoding="utf-8")
    return prepare_texts(folder, folder / "text")


def prepare_texts(folder: Path, texts: Path) -> Path:
    """Data of any texts, with a small vocabulary, in `folder`/data."""
    finish(hornbook("prepare", texts, "--out", folder / "data", "--text.validation", "0.08"))
    finish(hornbook("tokenize", folder / "data", "--vocab", str(VOCAB)))
    return folder / "data"


def train(data: Path, folder: Path, steps: int, *words: str) -> float:
    """Train a small run in this process; its loss on held-out text at the end."""
    settings = (f"data.path={data}", *SMALL, f"train.tokens={steps * SEQUENCE * ROWS}", *words)
    ended = launch(resolve(None, settings, environ={}), RunDir(folder), Start(quiet=True))
    assert ended == Exit.DONE, ended
    last = max(evaluations(RunDir(folder)), key=lambda each: each["step"])
    return fullest(last)["all"]["loss"]
