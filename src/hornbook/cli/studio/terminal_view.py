"""`hornbook watch --tty`: runs in a terminal, for machines without a browser; what is read is what the page reads."""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from hornbook.cli.result import columns
from hornbook.files.run_directory import RunDir
from hornbook.progress import clock, escape_controls, si, sparkline
from hornbook.studio.live.run_view import Runs, describe, newest_steps, spark

SECONDS = 1.0
EVENTS = 8
"""Newest events of one run."""
HEAD = ("run", "status", "heartbeat", "step", "done", "loss", "lr", "tok/s", "left", "last event", "loss so far")


def rows_of(runs: Runs) -> list[dict[str, Any]]:
    """The runs as they are now, with the speed and the rate of their newest steps; without those just deleted."""
    rows = list[dict[str, Any]]()
    for name, run in runs.all().items():
        with contextlib.suppress(OSError):
            rows.append({**describe(run), "name": name, "spark": spark(run), **_speed(run)})
    return rows


def _speed(run: RunDir) -> dict[str, Any]:
    steps = newest_steps(run)
    speeds = [each["tokens_per_second"] for each in steps if each.get("tokens_per_second")]
    return {
        "lr": steps[-1].get("lr") if steps else None,
        "tokens_per_second": sum(speeds) / len(speeds) if speeds else None,
    }


def screen(rows: list[dict[str, Any]]) -> str:
    """A table of the runs; of one run alone also its newest events."""
    lines = [columns([HEAD, *map(_row, rows)])] if rows else ["no run yet: `hornbook train tiny` makes one"]
    lines += [f"{row['name']}: {each}" for row in rows for each in filter(None, (row["problem"], *row["problems"]))]
    if len(rows) == 1:
        lines += ["", *(_event(each, is_long=True) for each in rows[0]["events"][-EVENTS:])]
    return escape_controls("\n".join(lines))


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    def text(key: str, write: Callable[[Any], str]) -> str:
        return "-" if row[key] is None else write(row[key])

    is_running, total, speed = row["status"] == "running", row["total_tokens"], row["tokens_per_second"]
    left = clock((total - row["tokens"]) / speed) if is_running and total and speed else "-"
    return (
        row["name"],
        row["status"],
        text("heartbeat_seconds", lambda age: f"{clock(age)} ago"),
        f"{row['step']:,}",
        text("done", "{:.0%}".format),
        text("loss", "{:.4f}".format),
        text("lr", "{:.3g}".format),
        text("tokens_per_second", si),
        left,
        _event(row["events"][-1]) if row["events"] else "-",
        sparkline(row["spark"], 20),
    )


def _event(record: Mapping[str, Any], *, is_long: bool = False) -> str:
    kind = f"{record['kind']} at step {record['step'] or 0:,}"
    if not is_long:
        return kind
    facts = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in record["facts"].items()}
    words = facts.get("text") or "  ".join(f"{key} {value}" for key, value in facts.items())
    return f"{time.strftime('%H:%M:%S', time.localtime(record['time'] or 0))}  {kind}  {words}"[:200]


def follow(runs: Runs) -> list[dict[str, Any]]:
    """Draw the runs once a second until Ctrl-C; returns the last rows."""
    from rich.live import Live
    from rich.text import Text

    rows = rows_of(runs)
    with contextlib.suppress(KeyboardInterrupt), Live(auto_refresh=False, screen=True) as live:
        while True:
            text = f"{screen(rows)}\n\n{time.strftime('%H:%M:%S')}, every second; Ctrl-C ends"
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            time.sleep(SECONDS)
            rows = rows_of(runs)
    return rows
