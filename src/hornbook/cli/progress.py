"""A progress bar on a terminal; elsewhere nothing, so that logs hold no half lines."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A function of (phase, done, total) that shows one bar per phase on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda phase, done, total: None  # noqa: ARG005
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:<20}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        known: dict[str, TaskID] = {}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in known:
                known[phase] = bars.add_task(phase, total=max(total, 1))
            bars.update(known[phase], completed=done if total else 1)

        yield show


def size_text(size: float) -> str:
    """Bytes for people: 73.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
