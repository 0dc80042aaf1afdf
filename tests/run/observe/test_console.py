"""The console: whole plain lines off a terminal, a small live panel on one."""

import io
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
import torch
from rich.console import Console as Terminal
from rich.console import ConsoleOptions

from hornbook.progress import clock, si, sparkline
from hornbook.run.job.signals import STOPPING
from hornbook.run.ledger.step_report import Step
from hornbook.run.machine.process_memory import Memory, memory_of
from hornbook.run.observe.console import Console, Header, Watch
from tests.terminal import Shown

HEADER = Header("demo", 3_400_000, "bf16", "cpu", 4096, 250, 1_024_000, "cosine")


def step(number: int, loss: float = 4.0, norm: float = 0.5, *, skipped: bool = False) -> Step:
    return Step(
        attempt=1,
        step=number,
        tokens=number * 4096,
        step_tokens=4096,
        loss=loss,
        grad_norm=norm,
        lr=1e-3,
        skipped=skipped,
        token_hash="00",
        first_sample=0,
        num_samples=16,
        seconds=0.25,
        data_seconds=0.0,
        final=number == 250,
    )


def test_off_a_terminal_each_interval_is_one_plain_line():
    stream = io.StringIO()
    with Console(HEADER, every=10, stream=stream) as console:
        for number in range(1, 26):
            console(step(number, loss=5 - number / 100))
    text = stream.getvalue()
    assert "\r" not in text
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].startswith("demo   3.4M parameters · bf16 · cpu")
    assert [line.split()[0] for line in lines[1:]] == ["step=1", "step=10", "step=20"]
    assert "tok/s=16.4k" in lines[2]
    assert "eta=1m00s" in lines[2]


def test_notes_and_skips_are_shown_at_once():
    stream = io.StringIO()
    with Console(HEADER, every=10, stream=stream) as console:
        console(step(3, norm=math.inf, skipped=True))
        console(step(4, skipped=True))
        console.scored(1.25, "5 of 9 tokens")
        console.note("saved\ncheckpoint")
        console(step(10))
    text = stream.getvalue()
    assert "step 3: a non-finite gradient, update skipped" in text
    assert "step 4: a loss or gradient far out, update skipped" in text
    assert "saved checkpoint" in text
    assert "bpb=1.2500 (5 of 9 tokens)" in text


def test_bits_per_byte_stand_once_on_the_line_after_their_evaluation():
    stream = io.StringIO()
    with Console(HEADER, every=10, stream=stream) as console:
        console(step(10))
        for bits in (1.25, 1.5):
            console.scored(bits, "5 of 9 tokens")
            for number in (20, 30):
                console(step(number))
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("step=")]
    assert ["bpb=" in line for line in lines] == [False, True, False, True, False]
    assert "bpb=1.5000" in lines[3]


def test_small_shortenings_after_the_first_are_not_said():
    """The demo said it ten times; the ledger has each."""
    stream = io.StringIO()
    with Console(HEADER, every=10, stream=stream) as console:
        for number, steps in ((20, 240), (30, 238), (40, 229), (50, 225), (60, 180)):
            console.shorten(number, steps, 10 * steps, "train.seconds")
    said = [line[9:] for line in stream.getvalue().splitlines() if "shortened" in line]
    assert said == [
        "shortened after step 20 from 250 to 240 steps (train.seconds)",
        "shortened after step 50 from 240 to 225 steps (train.seconds)",
        "shortened after step 60 from 225 to 180 steps (train.seconds)",
    ]


class Screen(io.StringIO):
    """A terminal that keeps what was written."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty columns."""
    for name, value in (("COLUMNS", "60"), ("LINES", "24"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_the_live_panel_is_small_and_carries_the_figures():
    stream = io.StringIO()
    with Console(HEADER, every=10, stream=stream, live=True) as console:
        for number in range(1, 51):
            console(step(number, loss=5 - number / 50))
        console.scored(1.5, "5 of 9 tokens")
    lines = stream.getvalue().rstrip().splitlines()
    assert len(lines) <= 5
    text = "\n".join(lines)
    assert "step 50 / 250" in text
    assert "20.0%" in text
    assert "bpb 1.5000 (5 of 9 tokens, best 1.5000)" in text


@pytest.mark.usefixtures("narrow")
def test_events_stay_above_the_panel():
    """Each is written once, and followed by a line end: what is drawn again is the panel alone."""
    screen = Screen()
    with Console(HEADER, every=10, stream=screen, live=True) as console:
        console(step(50))
        for number in range(20):
            console.note(f"event {number}.")
            console(step(51 + number))
    written = screen.getvalue()
    assert [written.count(f"event {number}.") for number in range(20)] == [1] * 20
    assert [f"event {number}.\n" in written for number in range(20)] == [True] * 20


@dataclass
class Slow:
    """A line that rich composes for as long as three redraws take."""

    line: str

    def __rich_console__(self, console: Terminal, options: ConsoleOptions) -> Iterable[str]:
        time.sleep(0.6)
        yield self.line


def test_a_line_and_its_panel_are_drawn_before_the_next_redraw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The panel grows with the first step; rich alone lets its thread draw that one while a line is composed."""
    screen = Shown.as_stderr(monkeypatch)
    with Console(HEADER, every=10, live=True) as console:
        console.note("first")
        console(step(1))
        with monkeypatch.context() as patch:
            patch.setattr("hornbook.run.observe.console._coloured", Slow)
            console.note("second")
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in screen.screen().lines]
    assert [line.split()[0] for line in lines if line] == ["first", "second", "demo", "loss", "grad", "step"]


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(("steps", "tokens"), [(250, 1_024_000), (1_250_000, 5_120_000_000)])
def test_the_time_left_is_seen_on_a_narrow_terminal(steps: int, tokens: int):
    screen = Screen()
    header = replace(HEADER, total_steps=steps, total_tokens=tokens, ramp=True)
    with Console(header, every=10, stream=screen, live=True) as console:
        console(step(steps // 5))
    (line,) = [line for line in screen.getvalue().splitlines() if "step " in line and "left" in line][-1:]
    assert re.search(r"left (\d+[dhms])+", line)


@pytest.mark.usefixtures("narrow")
def test_the_panel_says_that_the_run_will_stop():
    screen, asked = Screen(), [False]
    with Console(HEADER, every=10, stream=screen, live=True, watch=Watch(stopping=lambda: asked[0])) as console:
        console(step(50))
        assert STOPPING[:40] not in screen.getvalue()
        asked[0] = True
    assert STOPPING[:40] in screen.getvalue()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_panel_fits_and_shows_memory_and_time_left(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest lines there are, of a run of terabytes, in two widths."""
    for name, value in (("COLUMNS", str(columns)), ("LINES", "24"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    shown = Shown()
    header = replace(HEADER, total_steps=1_250_000, total_tokens=15_300_000_000_000, ramp=True)
    memory = str(Memory(1_234_567_890, 123_456_789_012, 2_164_000_000_000)) + " (rank 0)"
    watch = Watch(memory=lambda: memory, doing=lambda: ("forward_backward", 12))
    with Console(header, every=10, stream=shown, live=True, watch=watch) as console:
        console(step(250_000))
        console.scored(1.2345, "1,234,567 of 12,345,678 tokens")
        console.note("saved step-00250000")
        while "forward and backward" not in shown.screen(columns).text:
            time.sleep(0.01)
    event, _, _, _, progress, now = [line.rstrip() for line in shown.screen(columns).lines if line.strip()]
    assert event.endswith("saved step-00250000")
    assert re.search(r"left \d+d\d\dh ", progress)
    assert re.fullmatch(r"memory 1\.2 GB of 2\.2 TB, peak 123\.5 GB \(rank 0\)   forward and backward \d+s", now)
    assert all(len(line) <= columns for line in (progress, now))


def test_memory_is_that_of_this_process() -> None:
    found = memory_of(torch.device("cpu"))
    assert 0 < found.used <= found.peak <= found.total
    held = torch.ones(64 * 2**20)
    grown = memory_of(torch.device("cpu"))
    assert grown.peak >= grown.used >= held.nbytes


@pytest.mark.parametrize(
    ("value", "text"), [(58_912_000, "58.9M"), (999, "999"), (1_500, "1.5k"), (2.16e9, "2.16B"), (0.000123, "0.000123")]
)
def test_si(value, text):
    assert si(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.2, "12s"), (250, "4m10s"), (3600 * 3 + 52 * 60, "3h52m"), (90000, "1d01h"), (float("nan"), "?")],
)
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_sparkline_spans_the_range_and_survives_what_is_not_finite():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, float("nan"), 1.0]) == "▁▁"
    assert sparkline([]) == ""
    assert len(sparkline(range(1000))) == 40
