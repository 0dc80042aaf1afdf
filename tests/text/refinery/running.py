"""Run steps over texts as prepare does, from files to what became of each document."""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hornbook.text.config.text import SourceConfig, TextConfig
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.pipeline.decide import Verdict, decide
from hornbook.text.refinery.pipeline.measure import edit_document, measure
from hornbook.text.refinery.pipeline.plan import list_all, plan
from hornbook.text.refinery.pipeline.prepare import prepare as run_prepare
from hornbook.text.refinery.step import build


def least_seconds(call: Callable[[], object], enough: float = 0.0) -> float:
    """CPU seconds of the fastest of three calls; one below `enough` is the last."""
    seconds = list[float]()
    while len(seconds) < 3 and not (seconds and seconds[-1] < enough):
        begin = time.process_time()
        call()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def write_texts(folder: Path, parts: Sequence[Sequence[str | dict[str, Any]]]) -> TextConfig:
    """JSON lines, one file (and, without bounds on their size, one task) per part."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(parts):
        rows = [{"text": each} if isinstance(each, str) else each for each in part]
        (folder / f"{number:03d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TextConfig(sources={"s": SourceConfig(paths=[str(folder)])})


def judge(steps: Sequence[Any], *parts: Sequence[str]) -> tuple[list[str], list[Verdict]]:
    """(reason of each document, verdict per task); each part is a task of its own."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = write_texts(root / "raw", parts).model_copy(update={"steps": list(steps)})
        whole = plan(config, list_all(config), root / "work")[0]
        tasks = [
            type(whole)(n, "s", n, (file,), whole.options, whole.steps, whole.read_by_steps, False, whole.work)
            for n, file in enumerate(whole.files)
        ]
        whole.work.mkdir()
        for task in tasks:
            measure(task)
        names, verdicts = decide(tasks, build(config.steps), root / "scratch")
        return [names[reason] for verdict in verdicts for reason in verdict.reasons], verdicts


def edited(config: Any, text: str, **metadata: Any) -> str:
    """What an edit makes of a text; "" where it drops the document."""
    found = edit_document(Document(text, "id", "s", metadata), 0, build([config]).edits)
    return "" if found.edited_out else found.document.text


def columns_of(config: Any, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns that a decision's measurers give, under their full names."""
    documents = [Document(text, str(number), "s") for number, text in enumerate(texts)]
    found: dict[str, np.ndarray] = {}
    for measurer in build([config]).measurers:
        found |= {f"{measurer.name}.{name}": column for name, column in measurer.measure(documents).items()}
    return found


def prepare(root: Path, steps: Sequence[Any], texts: Sequence[str | dict[str, Any]]) -> tuple[list[str], pa.Table]:
    """(kept texts, table of signals) of a whole run in `root`."""
    config = write_texts(root / "raw", [texts]).model_copy(update={"steps": list(steps)})
    run_prepare(config, root / "data")
    kept = pq.read_table(root / "data" / "documents" / "s" / "00000.parquet")
    return kept["text"].to_pylist(), pq.read_table(root / "data" / "signals" / "00000.parquet")
