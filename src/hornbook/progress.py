"""Progress bars on a terminal, one per phase, and numbers and curves as short texts. Without torch.

Where stderr is not a terminal there are no bars, so that logs hold none.

A thread draws the bars, and a process with threads cannot be forked safely: the thread ends with its context, and
`without_bars` stops it while something else forks or writes to the terminal.
"""

import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.progress

REFRESH_SECONDS = 0.125
BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 40
"""Characters of a `sparkline`."""
Progress = Callable[[str, int, int | None], None]
"""A function of (phase, done, total); the total is None if it is unknown."""

_shown: list["_Bars"] = []
"""The bars on the terminal now."""


@contextmanager
def progress_bar(*, shown: bool = True) -> Iterator[Progress]:
    """A function that shows one bar per phase on stderr, if that is a terminal and -q was not given.

    A bar without a total moves to and fro until the next phase starts. All bars are removed at the end.
    """
    if not (shown and _is_ours()):
        yield silent
        return
    bars = _Bars()
    _shown.append(bars)
    bars.start()
    try:
        yield bars.show
    finally:
        bars.stop()
        _shown.remove(bars)


@contextmanager
def without_bars() -> Iterator[None]:
    """Remove all bars from the terminal, and stop the thread that draws them, in this context."""
    bars = list(_shown)
    for each in bars:
        each.stop()
    try:
        yield
    finally:
        for each in bars:
            each.start()


def _is_ours() -> bool:
    """Whether there is a terminal to draw on; of ranks that torchrun or Slurm started, only for the first."""
    first = all(os.environ.get(name, "0") == "0" for name in ("RANK", "SLURM_PROCID"))
    return first and sys.stderr.isatty() and not os.environ.get("HORNBOOK_QUIET")


def silent(phase: str, done: int, total: int | None) -> None:
    """Show nothing."""
    del phase, done, total


class Redraw:
    """A thread that calls `draw` every `seconds`. rich has one too, but does not wait for its end."""

    def __init__(self, draw: Callable[[], None], seconds: float) -> None:
        self._draw = draw
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when the thread has ended."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self._draw()


class _Bars:
    """One bar per phase; `stop` removes them, `start` shows them again."""

    def __init__(self) -> None:
        self._phases: dict[str, tuple[int, int | None]] = {}
        """(done, total) of each phase, in order."""
        self._tasks: dict[str, rich.progress.TaskID] = {}
        self._progress: rich.progress.Progress | None = None
        self._redraw: Redraw | None = None

    def start(self) -> None:
        """Start drawing."""
        self._progress, self._tasks = _new_progress(), {}
        for phase in self._phases:
            self._put(phase)
        self._progress.start()
        self._redraw = Redraw(self._progress.refresh, REFRESH_SECONDS)

    def stop(self) -> None:
        """Remove the bars; the thread has ended when this returns."""
        if self._redraw is not None and self._progress is not None:
            self._redraw.stop()
            self._progress.stop()
            self._redraw = self._progress = None

    def show(self, phase: str, done: int, total: int | None) -> None:
        """Set the progress of a phase; a new phase is drawn at once, and completes bars without a total."""
        new = phase not in self._phases
        for other in [name for name, (_, size) in self._phases.items() if size is None and name != phase]:
            self._phases[other] = 1, 1
            self._put(other)
        self._phases[phase] = done, total
        self._put(phase)
        if new and self._progress is not None:
            self._progress.refresh()

    def _put(self, phase: str) -> None:
        """Pass the progress of a phase to rich."""
        if self._progress is None:
            return
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(phase, total=None)
        done, total = self._phases[phase]
        if total is not None:
            self._progress.update(self._tasks[phase], total=max(total, 1), completed=done if total else 1)


def _new_progress() -> "rich.progress.Progress":
    import rich.progress
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:<20}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return rich.progress.Progress(
        *columns,
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,  # what is written there is an answer, not to be shown here
    )


def size_text(size: float) -> str:
    """Bytes for people: 73.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def escape_controls(text: str) -> str:
    r"""Text that cannot steer a terminal: each C0 or C1 control character but newline and tab becomes `\xNN`."""
    return text.translate(_CONTROLS)


def si(value: float) -> str:
    """Three significant digits with k, M, B, T: 58_912_000 -> `58.9M`."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{suffix}"
    return f"{value:.3g}"


def clock(seconds: float) -> str:
    """A duration in its two largest units: `3h52m`, `4m10s`, `12s`."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """One bar for the mean of each of `width` equal parts of the series, scaled from the least to the greatest mean."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    width = min(width, len(finite))
    edges = [len(finite) * i // width for i in range(width + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    return "".join(BARS[round((mean - low) / span * (len(BARS) - 1)) if span else 0] for mean in means)
