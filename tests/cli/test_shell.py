"""Streams, errors and exit codes."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from hornbook.cli.shell import guard, people, resolve_words, say, split_targets, take_speech
from hornbook.errors import (
    DivergedError,
    DoesNotFitError,
    Exit,
    HardwareError,
    HornbookError,
    IntegrityError,
    InUseError,
    RankLostError,
    RetriesSpentError,
    SharedMemoryError,
    StoppedError,
    StorageError,
    UsageError,
)
from hornbook.files.durable import storage_error


def raising(error: BaseException) -> Callable[[], Any]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError, Exit.USAGE),
        (IntegrityError, Exit.INTEGRITY),
        (DoesNotFitError, Exit.DOES_NOT_FIT),
        (DivergedError, Exit.DIVERGED),
        (InUseError, Exit.IN_USE),
        (StorageError, Exit.STORAGE),
        (SharedMemoryError, Exit.STORAGE),
        (RankLostError, Exit.RESUMABLE),
        (StoppedError, Exit.RESUMABLE),
        (HardwareError, Exit.HARDWARE),
        (RetriesSpentError, Exit.RETRIES_SPENT),
    ],
)
def test_our_errors_are_one_message_and_their_code(
    error: type[HornbookError], code: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guard(raising(error("what is wrong: the remedy"))) == code
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "error what is wrong: the remedy\n")


def test_every_kind_of_error_has_a_test() -> None:
    tested = {
        UsageError,
        IntegrityError,
        DoesNotFitError,
        DivergedError,
        InUseError,
        StorageError,
        SharedMemoryError,
        RankLostError,
        StoppedError,
        HardwareError,
        RetriesSpentError,
    }
    ours = {kind for kind in HornbookError.__subclasses__() if kind.__module__ == HornbookError.__module__}
    assert ours == tested


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (Exit.RESUMABLE, 75), (3, 3), ("text", 0)])
def test_a_verb_may_return_its_exit_code(result: Any, code: int) -> None:
    assert guard(lambda: result) == code


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "No space left on device; free some space"),
        (errno.EDQUOT, "quota is spent"),
        (errno.EROFS, "Read-only file system; choose a place that can be written"),
        (errno.EACCES, "Permission denied; check the permissions"),
        (errno.EIO, "the device reports errors"),
    ],
)
def test_storage_that_fails_is_code_7_with_the_path(
    number: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guard(raising(OSError(number, os.strerror(number), "/some/place"))) == Exit.STORAGE
    text = capsys.readouterr().err
    assert text.startswith("error /some/place: ")
    assert words in text
    assert "Traceback" not in text


def test_a_storage_error_without_a_path() -> None:
    assert str(storage_error(OSError(errno.ENOSPC, "x"))).startswith("No space left on device; ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_device_for_real(capsys: pytest.CaptureFixture[str]) -> None:
    assert guard(lambda: Path("/dev/full").write_text("x")) == Exit.STORAGE
    assert capsys.readouterr().err == "error No space left on device; free some space or choose another place\n"


def test_interrupts() -> None:
    assert guard(raising(KeyboardInterrupt())) == guard(raising(typer.Abort())) == Exit.INTERRUPTED


def test_memory_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    class OutOfMemoryError(RuntimeError):
        """Named as torch's."""

    assert guard(raising(MemoryError())) == guard(raising(OutOfMemoryError("3 GiB"))) == Exit.DOES_NOT_FIT
    assert capsys.readouterr().err == "error out of memory\nerror out of memory: 3 GiB\n"


def test_a_gpu_that_fails_under_any_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert guard(raising(RuntimeError("CUDA error: uncorrectable ECC error encountered\nadvice"))) == Exit.HARDWARE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error the GPU failed: CUDA error: uncorrectable ECC error encountered. ")


def deep(depth: int) -> None:
    if depth == 0:
        raise ZeroDivisionError("the reason")
    deep(depth - 1)


def test_a_defect_says_so_after_a_short_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guard(lambda: deep(12)) == Exit.DEFECT
    short = capsys.readouterr().err
    assert short.endswith("error this is a defect of hornbook: please report it with the lines above (-v shows all)\n")
    assert "ZeroDivisionError: the reason" in short
    monkeypatch.setenv("HORNBOOK_VERBOSE", "1")
    assert guard(lambda: deep(12)) == Exit.DEFECT
    assert len(capsys.readouterr().err) > len(short)


def test_a_missing_file_nobody_foresaw_is_a_defect() -> None:
    assert guard(raising(FileNotFoundError(errno.ENOENT, "no", "x"))) == Exit.DEFECT


def test_the_reader_of_a_pipe_may_leave() -> None:
    code = "import sys; from hornbook.cli.main import main; sys.exit(main(['config', 'schema']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == Exit.DONE


def test_a_broken_pipe_of_a_process_of_ours_is_a_defect() -> None:
    code = """
import sys
from hornbook.cli.shell import guard
def act():
    raise BrokenPipeError(32, "x")
sys.exit(guard(act))"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, "defect" in ran.stderr) == (Exit.DEFECT, True)


def test_people_read_stderr_without_colour_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("[bold red]loud[/] " + "word " * 60)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "loud " + "word " * 60 + "\n"


def test_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HORNBOOK_QUIET", "1")
    say("nothing")
    assert people().quiet
    assert guard(raising(UsageError("a problem"))) == Exit.USAGE
    assert capsys.readouterr().err == "error a problem\n"


def test_speech_is_taken_from_any_place() -> None:
    assert take_speech(["train", "-v", "tiny", "--quiet", "--", "-q"]) == ["train", "tiny", "--", "-q"]
    assert (os.environ["HORNBOOK_VERBOSE"], os.environ["HORNBOOK_QUIET"]) == ("1", "1")


def test_targets_and_overrides() -> None:
    assert split_targets(["a", "--optim.lr", "1", "b", "seed=2"]) == (["a", "b"], ["optim.lr=1", "seed=2"])
    assert split_targets(None) == ([], [])


def test_resolving_words() -> None:
    resolved = resolve_words(["--seed", "7", "tiny"], "data.path=D")
    assert (resolved.recipe.name, resolved.recipe.seed, resolved.recipe.data.path) == ("tiny", 7, "D")
    assert resolve_words(["seed=1", "gpt2-124m"], "seed=2").recipe.seed == 2


LEAVING = """
import sys
from hornbook.cli import main
from hornbook.cli.train import training
from hornbook.cli.shell import say
from hornbook.errors import Exit, UsageError
sys.stdin.read()  # the reader has gone by now
def act():
    say("one line"); say("another")
    if {fails}: raise UsageError("no")
    return Exit({code})
sys.exit(main.guard(act))
"""


@pytest.mark.parametrize(("code", "fails"), [(0, False), (75, False), (2, True)])
@pytest.mark.parametrize("both", [True, False])
def test_a_reader_of_stderr_that_leaves_changes_no_exit_code(code: int, fails: bool, both: bool) -> None:
    words = [sys.executable, "-c", LEAVING.format(code=code, fails=fails)]
    reading, writing = os.pipe()
    output = writing if both else subprocess.DEVNULL
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, stderr=writing) as process:
        os.close(writing)
        os.close(reading)
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == code
