"""The console of a training run: a live panel on a terminal, whole lines anywhere else.

Off a terminal it writes one complete line per interval, without carriage returns or escape codes, so that logs stay
readable.
"""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TextIO

from rich.console import Console as Terminal
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from hornbook.progress import BARS, Redraw, clock, escape_controls, si, sparkline
from hornbook.run.job.signals import STOPPING
from hornbook.run.ledger.step_report import Step
from hornbook.run.ledger.token_costs import EVEN, Work

_BAR_WIDTH = 32
_LEAST_BAR = 4
_REFRESH_SECONDS = 0.2
_RATE_STEPS = 20


@dataclass(frozen=True)
class Header:
    """Facts of the run for the first line."""

    name: str
    parameters: int
    precision: str
    device: str
    batch_tokens: int
    """Tokens of the full batch."""
    total_steps: int
    total_tokens: int
    schedule: str
    ramp: bool = False
    """Whether the batch grows; then every line has its size."""
    work: Work = EVEN
    """What its tokens cost, for the time that is left."""


def _coloured(line: str) -> Text:
    """A line with coloured bars and a dim time of day, where the terminal has colours."""
    text = Text(line, no_wrap=True)
    text.highlight_regex(f"[{BARS}]+", "cyan")
    text.highlight_regex(r"^\d\d:\d\d:\d\d ", "dim")
    return text


class _Screen(Terminal):
    """A terminal that falls silent when it cannot be written (its reader ends, its disk fills); the run goes on.

    One thread at a time draws on it: rich composes a line and its panel before it writes them, and a panel of another
    height that a second thread writes in between makes them erase what stands above.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(file=stream, highlight=False, soft_wrap=True)
        self._turn = threading.RLock()

    def on_broken_pipe(self) -> None:
        self.quiet = True

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Take the turn. Take it before rich's own locks: who takes one of those first may wait for ever."""
        with self._turn:
            try:
                yield
            except OSError:
                self.quiet = True

    def print(self, *objects: Any, **options: Any) -> None:
        with self.drawing():
            super().print(*objects, **options)


@dataclass
class Watch:
    """The last lines of the panel, computed at every refresh: memory, a phase that lasts a second or more, a stop."""

    stopping: Callable[[], bool] = bool
    """Whether a stop was requested."""
    memory: Callable[[], str] = str
    """Memory in use, total, and peak."""
    doing: Callable[[], tuple[str, int]] = lambda: ("", 0)
    """(phase, step): one of `hornbook.run.job.heartbeat.PHASES`, and the last finished step."""

    def __post_init__(self) -> None:
        self._seen, self._since = ("", 0), time.monotonic()

    def __rich_console__(self, console: Terminal, options: ConsoleOptions) -> RenderResult:
        del console, options
        line = "   ".join(filter(None, (self.memory(), self._phase())))
        if line:
            yield Text(line, no_wrap=True)
        if self.stopping():
            yield Text(STOPPING, style="bold")

    def _phase(self) -> str:
        doing, now = self.doing(), time.monotonic()
        if doing != self._seen:
            self._seen, self._since = doing, now
        lasts = now - self._since
        return f"{_DOING[doing[0]]} {clock(lasts)}" if doing[0] and lasts >= 1 else ""


_DOING = {
    "setup": "starting",
    "data": "waiting for data",
    "forward_backward": "forward and backward",
    "clip": "clipping",
    "optimizer": "updating",
    "observe": "writing",
    "evaluate": "evaluating",
    "sample": "sampling",
    "save": "saving",
    "end": "ending",
}
"""Phase -> text for people."""


class Console:
    """Observer that shows a run on `stream` (stderr by default)."""

    def __init__(
        self,
        header: Header,
        *,
        every: int,
        stream: TextIO | None = None,
        live: bool | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._header = header
        self._every = every
        self._terminal = _Screen(stream or sys.stderr)
        self._losses: list[float] = []
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=_RATE_STEPS)
        """(seconds, tokens, tokens consumed at its end) of the newest steps."""
        self._bits_per_byte: float | None = None
        self._best: float | None = None
        self._coverage = ""
        self._said_bits = True
        """Whether a line has the newest bits per byte."""
        self._said_steps: int | None = None
        """Steps of the run that a line said last, where it was shortened."""
        self._mfu: float | None = None
        self._watch = watch or Watch()
        self._last: Step | None = None
        self.live = self._terminal.is_terminal if live is None else live
        """Whether there is a panel, which shows a requested stop."""
        self._live = Live(self._panel(), console=self._terminal, auto_refresh=False) if self.live else None
        self._redraw: Redraw | None = None

    def __enter__(self) -> "Console":
        if self._live is not None:
            with self._terminal.drawing():
                self._live.start(refresh=True)
            self._redraw = Redraw(self._terminal.drawing()(self._live.refresh), _REFRESH_SECONDS)
        else:
            self._print(self._title())
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None and self._redraw is not None:
            self._redraw.stop()
            with self._terminal.drawing():
                self._live.update(self._panel(), refresh=True)
                self._live.stop()

    def __call__(self, step: Step) -> None:
        """Show one finished step."""
        self._last = step
        self._losses.append(step.loss)
        self._recent.append((step.seconds, step.step_tokens, step.tokens))
        if step.skipped:
            far = "a loss or gradient far out, update skipped"
            what = far if math.isfinite(step.grad_norm + step.loss) else "a non-finite gradient, update skipped"
            self.note(f"step {step.step:,}: {what}")
        if self._live is not None:
            with self._terminal.drawing():
                self._live.update(self._panel())
        elif step.step % self._every == 0 or step.step in (1, self._header.total_steps):
            self._print(self._line(step))

    def scored(self, bits_per_byte: float, coverage: str) -> None:
        """Set the newest validation loss; `coverage` names the scored part of the text; only equal parts compare."""
        before = self._best if coverage == self._coverage else None
        self._bits_per_byte, self._best, self._coverage = bits_per_byte, before, coverage
        self._said_bits = False
        if math.isfinite(bits_per_byte):
            self._best = bits_per_byte if before is None else min(bits_per_byte, before)

    def used(self, mfu: float) -> None:
        """Set the newest MFU, by the causal convention; without one no line has it."""
        self._mfu = mfu

    def shorten(self, step: int, total_steps: int, total_tokens: int, why: str) -> None:
        """Set the new length of a run that was shortened after step `step`; a line says less than 5 % only once."""
        before = self._said_steps or self._header.total_steps
        if self._said_steps is None or total_steps < 0.95 * before:
            self.note(f"shortened after step {step:,} from {before:,} to {total_steps:,} steps ({why})")
            self._said_steps = total_steps
        self.update(total_steps=total_steps, total_tokens=total_tokens)

    def update(self, **fields: Any) -> None:
        """Set fields of the header."""
        self._header = replace(self._header, **fields)

    def note(self, text: str) -> None:
        """Show an event on a line: a save, a loss, a sample, a warning."""
        self._print(f"{time.strftime('%H:%M:%S')} {' '.join(text.split())}")

    def _print(self, text: str) -> None:
        """Print a line, above the panel if there is one, so that it stays in the history of the terminal."""
        self._terminal.print(_coloured(escape_controls(text) if self._terminal.is_terminal else text))

    def _rate(self) -> float:
        seconds = sum(each[0] for each in self._recent)
        return sum(each[1] for each in self._recent) / seconds if seconds else math.nan

    def _seconds_left(self, step: Step) -> float:
        work = self._header.work
        done = sum(work.between(end - tokens, end) for _, tokens, end in self._recent)
        seconds = sum(each[0] for each in self._recent)
        return work.between(step.tokens, self._header.total_tokens) * seconds / done if done and seconds else math.nan

    def _title(self) -> str:
        header = self._header
        size = f"{'up to ' if header.ramp else ''}{header.batch_tokens:,} tokens/step"
        return (
            f"{header.name}   {si(header.parameters)} parameters · {header.precision} · {header.device} · "
            f"{size} · {header.total_steps:,} steps · {si(header.total_tokens)} tokens"
        )

    def _line(self, step: Step) -> str:
        bits = "" if self._said_bits else f" bpb={self._bits_per_byte:.4f} ({self._coverage})"
        self._said_bits = True
        batch = f" batch={step.step_tokens}" if self._header.ramp else ""
        return (
            f"step={step.step} loss={step.loss:.4f}{bits} grad={step.grad_norm:.3g} lr={step.lr:.3g} "
            f"tok/s={si(self._rate())}{self._use()} tokens={si(step.tokens)}{batch} "
            f"eta={clock(self._seconds_left(step))}"
        )

    def _use(self) -> str:
        return "" if self._mfu is None else f" mfu={100 * self._mfu:.1f}%"

    def _panel(self) -> RenderableType:
        title, step = Text(self._title(), style="bold", no_wrap=True, overflow="ellipsis"), self._last
        if step is None:
            return Group(title, self._watch)
        best = "" if self._best is None else f", best {self._best:.4f}"
        bits = "" if self._bits_per_byte is None else f"  bpb {self._bits_per_byte:.4f} ({self._coverage}{best})"
        grad, speed = f"grad {step.grad_norm:.3g}", f"{si(self._rate())} tok/s{self._use()}"
        rate = f"{grad}   lr {step.lr:.3g} {self._header.schedule}   {speed}"
        loss = f"loss {step.loss:.4f}{bits}   {sparkline(self._losses)}"
        return Group(title, *map(_coloured, (loss, rate, self._progress(step))), self._watch)

    def _progress(self, step: Step) -> str:
        """Steps, a bar that fills the line, time left; a narrow terminal may cut off the end."""
        share = min(step.tokens / self._header.total_tokens, 1.0)
        batch = f"   batch {step.step_tokens:,}" if self._header.ramp else ""
        before = f"step {step.step:,} / {self._header.total_steps:,}  "
        after = f"{100 * share:.1f}%   left {clock(self._seconds_left(step))}   {si(step.tokens)} tokens{batch}"
        width = min(_BAR_WIDTH, self._terminal.width - len(before) - len(after) - 2)
        if width < _LEAST_BAR:
            return before + after
        filled = int(share * width)
        return f"{before}{'█' * filled}{'·' * (width - filled)}  {after}"
