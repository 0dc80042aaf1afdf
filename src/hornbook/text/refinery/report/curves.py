"""The curves of all thresholds of a folder, as a part of the page that prepare's receipt is."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import pyarrow.parquet as pq

from hornbook.errors import HornbookError
from hornbook.text.config.step import StepConfig
from hornbook.text.refinery.scores.curve import around, curve, curve_table, read_signals, thresholds
from hornbook.text.refinery.step import Decision
from hornbook.text.refinery.table import build

_MOST_ROWS = 2_000_000
"""Documents whose columns a page reads; of more, `prepare curve` reads those of one step."""


def curves_page(data: Path, configs: Sequence[StepConfig]) -> str:
    """Tables of what stays around today's thresholds, folded; "" where no step has one."""
    rows = sum(pq.ParquetFile(path).metadata.num_rows for path in (data / "signals").glob("*.parquet"))
    if rows > _MOST_ROWS:
        return ""
    try:
        steps = [step for step in build(configs).decisions if isinstance(step, Decision)]
        tables = [table for step in steps for table in _tables(data, configs, step)]
    except HornbookError as error:  # a model's file may be gone, an extra not installed
        return _section([f'<p class="note">They cannot be shown: {escape(str(error))}</p>'])
    return _section(tables) if tables else ""


def _section(parts: list[str]) -> str:
    note = "What stays of the documents that come to a step, around today's value; other values: "
    return "\n".join(["<h2>Thresholds</h2>", f'<p class="note">{note}<code>hornbook prepare curve</code>.</p>', *parts])


def _tables(data: Path, configs: Sequence[StepConfig], step: Decision) -> Iterator[str]:
    known = {key: now for key, now in thresholds(step).items() if now and getattr(step.config, key) is not None}
    if not known:
        return
    step, signals = read_signals(data, configs, step.name)
    for key, now in known.items():
        points = curve(step, signals, key, list(dict.fromkeys(around(now))))
        header, *rows = curve_table(points, now)
        cells = ["".join(f"<th>{name}</th>" for name in header)]
        cells += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
        table = '<table class="curve">' + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"
        yield f"<details><summary>{escape(step.name)}.{key} = {now:g}</summary>{table}</details>"
