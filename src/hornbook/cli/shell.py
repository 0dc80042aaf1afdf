"""What all commands share: options, free words, messages for people, and errors turned into exit codes.

A command is one function. It returns a `Result` (result.py) or raises a `HornbookError`, and never calls sys.exit.
"""

import contextlib
import gc
import io
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from hornbook.errors import Exit, HornbookError, UsageError, is_planned
from hornbook.files.durable import REMEDIES, storage_error
from hornbook.files.filesystem import require_local
from hornbook.kernels.device_errors import device_error

if TYPE_CHECKING:
    from rich.console import Console

    from hornbook.settings.resolve import Resolved

WORDS = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Context settings of a command that takes `--section.key value` anywhere in its arguments."""

RunWords = Annotated[
    list[str] | None, typer.Argument(metavar="RUN [--section.key value]...", help="A run directory, and settings.")
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="RECIPE|RUN [--section.key value]...", help="A recipe or a run directory, and settings."),
]
Target = Annotated[
    Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run (its newest checkpoint is used) or a checkpoint.")
]
Average = Annotated[
    bool, typer.Option("--average", help="Take the average of the weights that train.average kept, not the weights.")
]
Data = Annotated[Path, typer.Argument(metavar="DATA", help="A folder written by `hornbook prepare`.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|mps", help="Where to compute.")]
DryRun = Annotated[bool, typer.Option("-n", "--dry-run", help="Show what would be done; write nothing.")]

# -v and -q stand anywhere in any command line. They travel as environment variables, so that rooms below the
# command line and processes that it starts see them too.
_SPEECH = {
    "-v": "HORNBOOK_VERBOSE",
    "--verbose": "HORNBOOK_VERBOSE",
    "-q": "HORNBOOK_QUIET",
    "--quiet": "HORNBOOK_QUIET",
}


def take_speech(words: Sequence[str]) -> list[str]:
    """Set the environment variables of -v and -q; returns the other words. Words after `--` are left alone."""
    end = words.index("--") if "--" in words else len(words)
    for word in words[:end]:
        if word in _SPEECH:
            os.environ[_SPEECH[word]] = "1"
    return [word for at, word in enumerate(words) if at >= end or word not in _SPEECH]


def people(width: int | None = None) -> "Console":
    """Console on stderr, for people: silent under -q, in colour only on a terminal and without NO_COLOR.

    width: columns; None: those of the terminal or of COLUMNS, else 80.
    """
    from rich.console import Console

    class Screen(Console):
        """A console whose reader may leave, which changes no exit code."""

        def on_broken_pipe(self) -> None:
            forget(sys.stderr)

    quiet = bool(os.environ.get("HORNBOOK_QUIET"))
    return Screen(stderr=True, quiet=quiet, highlight=False, soft_wrap=not sys.stderr.isatty(), width=width)


def forget(stream: TextIO) -> None:
    """Discard what is written to a stream whose reader has left (`2>&1 | head -1`), also at exit."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor has no reader
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def say(text: str) -> None:
    """Print one line for people on stderr; `text` may have rich's markup ([bold]...[/])."""
    people().print(text)


def runs_folder() -> Path:
    """$HORNBOOK_RUNS, or else ./runs."""
    return Path(os.environ.get("HORNBOOK_RUNS", "runs"))


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import torch, or what comes before it, without garbage collections: all of a million objects stay."""
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def split_target(words: Sequence[str] | None, what: str = "recipe or run directory") -> tuple[str | None, list[str]]:
    """(the one positional word or None, overrides `key=value`) of a command's free words."""
    targets, overrides = split_targets(words)
    if len(targets) > 1:
        raise UsageError(
            f"name one {what}, not {len(targets)}: {' '.join(targets)}\n"
            "write settings as --section.key value or section.key=value"
        )
    return (require_local(targets[0]) if targets else None), overrides


def split_targets(words: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """(all positional words, overrides `key=value`) of a command's free words."""
    from hornbook.settings.sources import split_words

    return split_words(words or [])


def resolve_words(words: Sequence[str] | None, *extra: str) -> "Resolved":
    """The recipe given by free words, and by `extra`, settings of other options (`data.path=DATA`), which win."""
    from hornbook.settings.resolve import resolve

    target, overrides = split_target(words)
    return resolve(target, [*overrides, *extra])


def guard(act: Callable[[], Any]) -> int:
    """Run `act`; returns the exit code. An exception becomes one message on stderr."""
    try:
        result = act()
        sys.stdout.flush()
        flush_errors()
    except (KeyboardInterrupt, typer.Abort):
        return _report("interrupted", Exit.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the outermost handler
        if isinstance(error, BrokenPipeError) and reader_has_gone():  # as after `| head`: end silently, also at exit
            forget(sys.stdout)
            flush_errors()
            return Exit.DONE
        return _report(*_judge(error))
    return int(result) if isinstance(result, int) else Exit.DONE


def _judge(error: Exception) -> tuple[str, Exit]:
    """Message and exit code of an error; for a defect, a traceback is written to stderr first."""
    error = device_error(error) or error
    if isinstance(error, OSError) and error.errno in REMEDIES:
        error = storage_error(error)
    if isinstance(error, HornbookError):
        return str(error), error.exit_code
    if hasattr(error, "format_message"):  # an error of the command-line parser, click's or typer's own
        context = getattr(error, "ctx", None)
        hint = f"\nsee `{context.command_path} --help`" if context is not None else ""
        message = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
        message = message.replace(": Value error, ", ": ")  # some versions of typer say so
        if not message:  # a group without a command, whose help has been printed
            return f"a command is missing: choose one of those above, such as `{_first_command(context)}`", Exit.USAGE
        return f"{message}{hint}", Exit.USAGE
    if is_planned(error):
        return f"the fault plan raised this: {type(error).__name__}: {error}", Exit.DEFECT
    whole = bool(os.environ.get("HORNBOOK_VERBOSE"))
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(traceback.format_exception(error, limit=None if whole else -3)))
    return "this is a defect of hornbook: please report it with the lines above (-v shows all)", Exit.DEFECT


def _first_command(context: Any) -> str:
    return " ".join([context.command_path, *context.command.list_commands(context)[:1]])


def _report(message: str, code: Exit) -> int:
    style, end = ("\x1b[1;31m", "\x1b[0m") if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else ("", "")
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{style}error{end} {message}\n")
    flush_errors()
    return code


def flush_errors() -> None:
    """Flush stderr, or discard it: text that cannot be written at exit would make the exit code 120."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        forget(sys.stderr)


def reader_has_gone() -> bool:
    """Whether the broken pipe is stdout, and not one to a child process."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def read_utf8() -> None:
    """Read stdin as UTF-8; other bytes become surrogates, which `require_utf8` refuses."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")


def require_utf8(prompt: str) -> str:
    """The prompt. Raises UsageError if it holds bytes that are not UTF-8."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError("the prompt is not UTF-8 text") from error
    return prompt
