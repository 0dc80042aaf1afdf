"""The program `hornbook`: a table of commands, each imported only when it is used."""

import atexit
import difflib
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hornbook.cli.commands import COMMANDS, ExampleCommand, SettingsCommand
from hornbook.cli.result import CommandGroup
from hornbook.cli.shell import WORDS, guard, importing, take_speech
from hornbook.errors import Exit, UsageError
from hornbook.kernels.ahead import announce_late_compiling
from hornbook.run.job.signals import leave_early


class AllCommands(TyperGroup):
    """The group of all commands; listing them imports none."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import a command."""
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a command of one word or two. Raises UsageError with a suggestion for a mistyped one."""
        if (pair := " ".join(args[:2])) in COMMANDS:
            args = [pair, *args[2:]]
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=2, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}?" if close else "`hornbook --help` lists them"
            raise UsageError(f"there is no command {args[0]!r}: {hint}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the commands from the table, and the exit codes."""
        formatter.write_usage("hornbook", "COMMAND [ARGUMENTS]")
        formatter.write_paragraph()
        formatter.write_text("Train language models from scratch: raw text to a trained, evaluated, exported model.")
        for section in dict.fromkeys(each.section for each in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl([(name, each.help) for name, each in COMMANDS.items() if each.section == section])
        with formatter.section("Options"):
            formatter.write_dl(
                [
                    ("-h, --help", "Show this help, or that of a command: `hornbook help COMMAND`"),
                    ("-v, --verbose", "Print more, and whole tracebacks"),
                    ("-q, --quiet", "Print only problems"),
                    ("--version", "Print the version"),
                    ("--install-completion", "Install completion for your shell"),
                ]
            )
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), code.meaning) for code in Exit])


def load_command(name: str) -> Any:
    """The parser's command for a name in the table. Raises UsageError if its module does not exist."""
    entry = COMMANDS[name]
    module = f"hornbook.cli.{entry.module}"
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"`hornbook {name}` is not part of this version")
    with importing():
        found = getattr(importlib.import_module(module), entry.function)
    if isinstance(found, typer.Typer):
        command = typer.main.get_command(found)
    else:
        words = bool(entry.settings or entry.words)
        command = build_command(found, name, words=words, settings=bool(entry.settings))
    command.name = name
    return command


def build_command(function: Any, name: str, *, words: bool, settings: bool = True) -> Any:
    """The parser's command for a function that returns a `Result`.

    words: it takes `--name value` of any name. settings: these are settings of a recipe, which `--help` lists.
    """
    single = CommandGroup(add_completion=False)
    context: dict[str, Any] = {"help_option_names": ["-h", "--help"]} | (WORDS if words else {})
    single.command(name, cls=SettingsCommand if words and settings else ExampleCommand, context_settings=context)(
        function
    )
    return typer.main.get_command(single)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"hornbook {version('hornbook')}\n")
        raise typer.Exit


app = typer.Typer(
    cls=AllCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def hornbook(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,  # noqa: ARG001
) -> None:
    """Train language models from scratch."""
    if ctx.invoked_subcommand is None:
        sys.stdout.write(ctx.get_help() + "\n")


SPINS = "1000"
"""How often an idle thread of libgomp looks for work before it sleeps; its own default is 300,000.

Beside another busy process, a thread that spins holds the core that its partner needs: training on two busy
cores was 4.5 times as fast with this, and 2 % slower on idle ones (docs/speed.md).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when torch loads the library, which is later
    if arguments is None:
        announce_late_compiling()
        atexit.register(gc.freeze)  # the last garbage collection would take a quarter of the time of a short command
        if set(sys.argv[1:2]) & {"train", "resume", "fork"}:
            leave_early()
    words = take_speech(list(sys.argv[1:] if arguments is None else arguments))
    return guard(lambda: _run(words))


def _run(words: list[str]) -> Any:
    """Parse and run a command line; errors are raised for `guard`. Typer's own `main` would exit the process."""
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    command = typer.main.get_command(app)
    if "_HORNBOOK_COMPLETE" in os.environ:
        return command.main(prog_name="hornbook")
    try:
        with command.make_context("hornbook", words) as context:
            return command.invoke(context)
    except typer.Exit as end:
        return end.exit_code


if __name__ == "__main__":
    sys.exit(main())
