"""What a command returns, and how the shell shows it: no command writes its answer itself.

stdout has the answer: its text, or one JSON object on one line under `--json`. stderr is for people.
"""

import contextlib
import functools
import inspect
import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.examples import ExampleCommand
from hornbook.cli.shell import forget, people, reader_has_gone
from hornbook.errors import Exit
from hornbook.files.journal import finite
from hornbook.progress import escape_controls

if TYPE_CHECKING:
    from rich.console import RenderableType

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


@dataclass(frozen=True)
class Result:
    """The answer of a command, or one of several that it yields as they come."""

    value: Mapping[str, Any]
    """The JSON object of `--json`; what JSON cannot hold is written as its str()."""
    text: str | None = None
    """What stdout has without `--json`; nothing where it is None."""
    code: Exit = Exit.DONE
    """With which the process ends, if this is the last result."""
    report: Sequence["RenderableType"] = ()
    """For people, on stderr: rich's tables, and lines that may have rich's markup."""
    notes: Sequence["RenderableType"] = ()
    """More of the same, left out under `--json`."""


Results = Generator[Result, None, None]
Command = Callable[..., Result | Results | Exit]
"""A function of options. It returns one result, yields several, or returns an exit code alone if it has none."""


class CommandGroup(typer.Typer):
    """Commands that return results: each gets an option `--json`, and the shell prints what it returns."""

    def command(self, *arguments: Any, **options: Any) -> Any:
        """Register a command; the function itself stays as it was."""
        register = super().command(*arguments, **({"cls": ExampleCommand} | options))

        def decorate(function: Command) -> Command:
            register(_printing(function))
            return function

        return decorate


def _printing(function: Command) -> Callable[..., Exit]:
    """A function that prints what `function` returns, with an option `--json` unless `function` has it itself."""
    signature = inspect.signature(function)
    takes_json = "as_json" in signature.parameters

    @functools.wraps(function)
    def command(*, as_json: bool, **given: Any) -> Exit:
        if takes_json:
            given["as_json"] = as_json
        return show(function(**given), as_json=as_json)

    if not takes_json:
        option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
        signature = signature.replace(parameters=[*signature.parameters.values(), option])
        command.__annotations__ = function.__annotations__ | {"as_json": Json}
    vars(command)["__signature__"] = signature
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    command.__doc__ = "\n\n".join(" ".join(each.split()) for each in paragraphs)  # a terminal breaks lines elsewhere
    return command


def show(found: Result | Results | Exit, *, as_json: bool = False) -> Exit:
    """Print a result, or each of several as it comes; returns the exit code, that of the last.

    A reader of stdout that leaves ends the output and changes no exit code.
    """
    if isinstance(found, Exit):
        return found
    code = Exit.DONE
    with contextlib.closing(_only(found) if isinstance(found, Result) else found) as results:
        try:
            for result in results:
                code = result.code
                _print(result, as_json=as_json)
        except BrokenPipeError:
            if not reader_has_gone():
                raise
            forget(sys.stdout)
    return code


def _only(result: Result) -> Results:
    yield result


def _print(result: Result, *, as_json: bool) -> None:
    if as_json:
        write(json.dumps(finite(result.value), ensure_ascii=False, default=str) + "\n", raw=True)
    elif result.text is not None:
        write(result.text if result.text.endswith("\n") else result.text + "\n")
    console = people()
    for each in [*result.report, *(() if as_json else result.notes)]:
        console.print(each)


def write(text: str, *, raw: bool = False) -> None:
    """Write text on stdout at once; on a terminal nothing in it steers the terminal, unless it is `raw`."""
    text = text.encode(errors="backslashreplace").decode()  # names of files need not be UTF-8
    sys.stdout.write(escape_controls(text) if not raw and sys.stdout.isatty() else text)
    sys.stdout.flush()


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of words as aligned columns, the first row a header; what could steer the terminal is escaped."""
    rows = [[word if word.isprintable() else repr(word)[1:-1] for word in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
