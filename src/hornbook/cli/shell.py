"""What all verbs share: streams, options, free words, and errors turned into messages and exit codes.

stdout is for the answer (one JSON object under `--json`), stderr is for people. A verb is one function;
it may return an `Exit` or raise a `HornbookError`, and never calls sys.exit.
"""

import contextlib
import errno
import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from hornbook.errors import Exit, HornbookError, UsageError
from hornbook.files.journal import finite

if TYPE_CHECKING:
    from rich.console import Console

    from hornbook.settings.resolve import Resolved

WORDS = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Context settings of a verb that takes `--section.key value` in any place."""

RunWords = Annotated[
    list[str] | None, typer.Argument(metavar="RUN [--section.key value]...", help="Run directory, then settings.")
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="RECIPE|RUN [--section.key value]...", help="Recipe or run directory, then settings."),
]
DryRun = Annotated[bool, typer.Option("-n", "--dry-run", help="Show what would be done and write nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]

# -v and -q stand anywhere in any command line. They travel as environment variables, so that rooms below the
# command line and processes that it starts see them too.
_SPEECH = {
    "-v": "HORNBOOK_VERBOSE",
    "--verbose": "HORNBOOK_VERBOSE",
    "-q": "HORNBOOK_QUIET",
    "--quiet": "HORNBOOK_QUIET",
}

_STORAGE_ERRNOS = {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EDQUOT, errno.EIO}


def take_speech(words: Sequence[str]) -> list[str]:
    """Note -v and -q, and return the other words; after `--` every word is left alone."""
    end = words.index("--") if "--" in words else len(words)
    for word in words[:end]:
        if word in _SPEECH:
            os.environ[_SPEECH[word]] = "1"
    return [word for at, word in enumerate(words) if at >= end or word not in _SPEECH]


def people() -> "Console":
    """Console on stderr, for people: silent under -q, in colour only on a terminal and without NO_COLOR."""
    from rich.console import Console

    class Screen(Console):
        """Whose reader may go away: what is left unsaid changes no exit code."""

        def on_broken_pipe(self) -> None:
            forget(sys.stderr)

    quiet = bool(os.environ.get("HORNBOOK_QUIET"))
    return Screen(stderr=True, quiet=quiet, highlight=False, soft_wrap=not sys.stderr.isatty())


def forget(stream: TextIO) -> None:
    """Let what is written to a stream whose reader has gone vanish, as after `2>&1 | head -1`; at the exit too."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor has no reader
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def say(text: str) -> None:
    """Print one line for people on stderr; `text` may have rich's markup ([bold]...[/])."""
    people().print(text)


def answer(value: dict[str, Any], text: str | None = None, *, as_json: bool = False) -> None:
    """Print the answer on stdout: `value` as one JSON object on one line, or `text` as it is."""
    if as_json or text is None:
        text = json.dumps(finite(value), ensure_ascii=False, default=str)
    text = text.encode(errors="backslashreplace").decode()  # names of files need not be UTF-8
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def split_target(words: Sequence[str] | None, what: str = "recipe or run directory") -> tuple[str | None, list[str]]:
    """(the one positional word or None, overrides written `key=value`) of a verb's free words."""
    targets, overrides = split_targets(words)
    if len(targets) > 1:
        raise UsageError(
            f"one {what} is enough, but there are {len(targets)}: {' '.join(targets)}\n"
            "settings are written --section.key value or section.key=value"
        )
    return (targets[0] if targets else None), overrides


def split_targets(words: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """(all positional words, overrides written `key=value`) of a verb's free words."""
    from hornbook.settings.sources import split_words

    return split_words(words or [])


def resolve_words(words: Sequence[str] | None, *extra: str, default: str | None = None) -> "Resolved":
    """The recipe that free words make: a recipe or run directory first, settings in any place.

    `extra` are overrides that options of the verb stand for, such as `data.path=DATA`; they win. `default`
    is the recipe used when the words name none; without it, the schema's defaults are used.
    """
    from hornbook.settings.resolve import resolve

    target, overrides = split_target(words)
    return resolve(target or default, [*overrides, *extra])


def guard(act: Callable[[], Any]) -> int:
    """Run `act`; what it raises becomes one message on stderr, and the exit code is returned."""
    try:
        result = act()
        sys.stdout.flush()
        flush_errors()
    except (KeyboardInterrupt, typer.Abort):
        return _report("interrupted", Exit.INTERRUPTED)
    except BrokenPipeError as error:
        if reader_has_gone():
            return _close_quietly()
        return _report(*_judge(error))
    except Exception as error:  # noqa: BLE001 - the one place where everything ends
        return _report(*_judge(error))
    return int(result) if isinstance(result, int) else Exit.DONE


def _judge(error: Exception) -> tuple[str, Exit]:
    """Message and exit code of an error; what nobody foresaw also leaves a traceback on stderr."""
    if isinstance(error, OSError) and error.errno in _STORAGE_ERRNOS:
        from hornbook.files.durable import storage_error

        error = storage_error(error)
    if isinstance(error, HornbookError):
        return str(error), error.exit_code
    if hasattr(error, "format_message"):  # the command-line parser's own errors, whichever library they come from
        context = getattr(error, "ctx", None)
        hint = f"\n`{context.command_path} --help` lists what there is" if context is not None else ""
        message = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
        if not message:  # a group alone: its help is printed already
            return f"a command is missing: one of those above, such as `{_first_command(context)}`", Exit.USAGE
        return f"{message}{hint}", Exit.USAGE
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, unimported
        return f"out of memory: {error}".rstrip(": "), Exit.DOES_NOT_FIT
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
    """Have nothing left to say on stderr: what cannot be said there would make the exit code 120."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        forget(sys.stderr)


def reader_has_gone() -> bool:
    """Whether it is stdout's pipe that nobody reads any more, and not one to a process of ours."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _close_quietly() -> int:
    """As with `| head`: end without a word, and without one at exit either."""
    forget(sys.stdout)
    flush_errors()
    return Exit.DONE
