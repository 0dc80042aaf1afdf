"""The results of commands, and the one place that prints them.

stdout has the answer: its text, or with `--json` one JSON object on one line. stderr is for people.
"""

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from hornbook.cli.commands import ExampleCommand
from hornbook.cli.shell import forget, people, reader_has_gone
from hornbook.errors import Exit
from hornbook.files.filesystem import require_local
from hornbook.files.journal import finite
from hornbook.progress import escape_controls

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


@dataclass(frozen=True)
class Result:
    """The result of a command, or one of several that it yields."""

    value: Mapping[str, Any]
    """The JSON object of `--json`; other types are written as their str()."""
    text: str | None = None
    """The text for stdout without `--json`; None writes nothing."""
    code: Exit = Exit.DONE
    """Exit code of the process, if this is its last result."""
    report: Sequence["RenderableType"] = ()
    """For people, on stderr, also with `--json`: tables of rich, and lines that may have its markup."""
    notes: Sequence["RenderableType"] = ()
    """The same, but not with `--json`."""
    terminal: "Callable[[], RenderableType] | None" = None
    """Makes what a terminal shows in place of `text`, in colour; NO_COLOR takes the text."""


Results = Generator[Result, None, None]
Command = Callable[..., Result | Results | Exit]
"""A function of options that returns one result, yields several, or returns an exit code alone."""


class CommandGroup(typer.Typer):
    """A group of commands that return results: it adds `--json` to each, and prints what it returns."""

    def command(self, *arguments: Any, **options: Any) -> Any:
        """Register a command; the function itself is unchanged and can be called from Python."""
        register = super().command(*arguments, **({"cls": ExampleCommand} | options))

        def decorate(function: Command) -> Command:
            register(_printing(function))
            return function

        return decorate


class Options:
    """Base of dataclasses whose fields are options: those of a command, or those that several commands share."""


def _flat(signature: inspect.Signature) -> tuple[inspect.Signature, dict[str, type[Options]]]:
    """(the signature with the fields of each `Options` in its place, the class of each by parameter)."""
    flat, groups = list[inspect.Parameter](), dict[str, type[Options]]()
    for each in signature.parameters.values():
        if not (isinstance(each.annotation, type) and issubclass(each.annotation, Options)):
            flat.append(each)
            continue
        groups[each.name], hints = each.annotation, get_type_hints(each.annotation, include_extras=True)
        for field in dataclasses.fields(each.annotation):  # pyright: ignore[reportArgumentType]
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            kind, annotation = inspect.Parameter.KEYWORD_ONLY, hints[field.name]
            flat.append(inspect.Parameter(field.name, kind, default=default, annotation=annotation))
    return signature.replace(parameters=flat), groups


def _printing(function: Command) -> Callable[..., Exit]:
    """A function that prints what `function` returns; it has an option `--json`, its own or that of `function`."""
    signature, groups = _flat(inspect.signature(function))
    takes_json = "as_json" in signature.parameters

    @functools.wraps(function)
    def command(*, as_json: bool, **given: Any) -> Exit:
        _require_local(signature, given)
        if takes_json:
            given["as_json"] = as_json
        for name, group in groups.items():
            given[name] = group(**{key: given.pop(key) for key in vars(group)["__dataclass_fields__"]})
        return show(function(**given), as_json=as_json)

    if not takes_json:
        option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
        signature = signature.replace(parameters=[*signature.parameters.values(), option])
    command.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    vars(command)["__signature__"] = signature
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    command.__doc__ = "\n\n".join(" ".join(each.split()) for each in paragraphs)  # a terminal breaks lines elsewhere
    return command


_WRITTEN = ("out", "keep", "script", "plot")
"""Parameters whose path a command writes."""


def _require_local(signature: inspect.Signature, given: Mapping[str, Any]) -> None:
    """Raise UsageError if a parameter that is a path was given a URL."""
    for name, value in given.items():
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, Path):
                positional = signature.parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
                require_local(path, name="" if positional else f"--{name.strip('_')} ", writes=name in _WRITTEN)


def show(found: Result | Results | Exit, *, as_json: bool = False) -> Exit:
    """Print one result, or each of several when it is yielded; returns the exit code of the last.

    If the reader of stdout leaves, the output ends, and the exit code stays.
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


UNFOLDED = 1000
"""Columns of a file or pipe."""


def _only(result: Result) -> Results:
    yield result


def _print(result: Result, *, as_json: bool) -> None:
    if as_json:
        write(json.dumps(finite(result.value), ensure_ascii=False, default=str) + "\n", raw=True)
    elif result.terminal is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        from rich.console import Console

        Console(highlight=False, soft_wrap=True).print(result.terminal())
    elif result.text is not None:
        write(result.text if result.text.endswith("\n") else result.text + "\n")
    console = people(_room())
    for each in [*result.report, *(() if as_json else result.notes)]:
        console.print(each)


def _room() -> int | None:
    """Columns for tables: those of the terminal or of COLUMNS, else as many as their longest cells need."""
    return None if sys.stderr.isatty() or "COLUMNS" in os.environ else UNFOLDED


def write(text: str, *, raw: bool = False) -> None:
    """Write text to stdout and flush it; on a terminal, control characters are escaped unless `raw`."""
    text = text.encode(errors="backslashreplace").decode()  # names of files need not be UTF-8
    sys.stdout.write(escape_controls(text) if not raw and sys.stdout.isatty() else text)
    sys.stdout.flush()


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of words as aligned columns, the header first; unprintable characters are escaped."""
    rows = [[word if word.isprintable() else repr(word)[1:-1] for word in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def table(title: str, left: Sequence[str], right: Sequence[str], *, fold: bool = False, **more: Any) -> "Table":
    """An empty table for people: columns aligned left, then numbers. fold: break words that are too long."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, **more)
    for name in left:
        made.add_column(name, overflow="fold" if fold else "ellipsis")
    for name in right:
        made.add_column(name, justify="right")
    return made
