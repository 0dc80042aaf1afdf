"""Progress on a terminal: something moves, nothing stays, and no thread is left when somebody forks."""

import os
import subprocess
import sys
import threading
import time

import pytest

from hornbook.errors import Exit
from hornbook.kernels import ahead as compile_ahead
from hornbook.progress import progress_bar, size_text, without_bars
from tests.terminal import ENVIRON, Shown, Terminal


def wait_for_more(shown: Shown) -> None:
    """Return when something else was written; a test that waits for ever is ended by pytest."""
    before = len(shown.text)
    while len(shown.text) == before:
        time.sleep(0.01)


def test_a_phase_is_shown_at_once_and_moves_while_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown.as_stderr(monkeypatch)
    with progress_bar() as progress:
        progress("load torch", 0, None)
        assert "load torch" in shown.text
        first = shown.screen().text
        while shown.screen().text == first:
            wait_for_more(shown)
        assert "load torch" in shown.screen().text
    assert shown.screen().text.strip() == ""


def test_a_phase_without_a_total_ends_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown.as_stderr(monkeypatch)
    with progress_bar() as progress:
        progress("load torch", 0, None)
        progress("score rows", 3, 10)
        before, after = shown.screen().lines[:2]
        assert [line.split("━")[0].strip() for line in (before, after)] == ["load torch", "score rows"]
        assert before.rstrip().endswith("0:00:00")  # nothing is left of it
        assert not after.rstrip().endswith("0:00:00")


def test_while_it_rests_there_is_neither_a_bar_nor_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown.as_stderr(monkeypatch)
    before = threading.active_count()
    with progress_bar() as progress:
        progress("read the text", 1, 4)
        assert threading.active_count() == before + 1
        with without_bars():
            assert threading.active_count() == before
            assert shown.screen().text.strip() == ""
            shown.write("an answer\r\n")
        assert shown.screen().lines[0] == "an answer"
        assert "read the text" in shown.screen().text
    assert shown.screen().text.strip() == "an answer"
    assert threading.active_count() == before


def test_kernels_are_compiled_by_forks_behind_a_bar_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown.as_stderr(monkeypatch)
    before, seen = threading.active_count(), set[int]()

    def processes() -> int:
        seen.add(threading.active_count())
        return 1

    monkeypatch.setattr(compile_ahead, "_processes", processes)
    with progress_bar() as progress:
        progress("tokenize", 0, None)
        compile_ahead.compile_ahead([lambda: None])
    assert seen == {before}
    assert "compiling kernels (once): 1 of 1" in shown.text


def test_a_signal_leaves_no_bar_and_no_hidden_cursor() -> None:
    code = "import os, signal; from hornbook.progress import progress_bar; from hornbook.run.job import signals; "
    code += "signals.leave_early(); bars = progress_bar(); bars.__enter__()('load torch', 0, None); "
    code += "os.kill(os.getpid(), signal.SIGTERM)"
    with Terminal(80) as terminal, open(terminal.path, "wb") as stream:
        done = subprocess.run([sys.executable, "-c", code], stderr=stream, env=os.environ | ENVIRON, check=False)
    assert done.returncode == Exit.RESUMABLE
    assert "load torch" in terminal.written
    assert terminal.screen().lines[0].startswith("ended by SIGTERM while no step was made")
    assert terminal.written.rindex("\x1b[?25h") > terminal.written.rindex("\x1b[?25l")


@pytest.mark.parametrize("why", ["no terminal", "quiet", "another rank"])
def test_elsewhere_there_is_nothing(
    why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Shown.as_stderr(monkeypatch)
    if why == "no terminal":
        monkeypatch.setattr(shown, "isatty", lambda: False)
    monkeypatch.setenv("HORNBOOK_QUIET", "1" if why == "quiet" else "")
    if why == "another rank":
        monkeypatch.setenv("RANK", "1")
    with progress_bar() as progress:
        progress("load torch", 0, None)
        progress("score rows", 1, 2)
    assert (shown.text, capsys.readouterr().out) == ("", "")


def test_sizes_are_said_with_their_unit() -> None:
    assert [size_text(size) for size in (9, 73_200_000, 5e12)] == ["9 B", "73.2 MB", "5.0 TB"]
