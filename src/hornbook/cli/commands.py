"""The table of commands (`commands.toml`), and the layout of their `--help`: settings, examples."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.core import TyperCommand


@dataclass(frozen=True)
class Command:
    """Where a command is defined: module `hornbook.cli.MODULE`, and in it a function, or `app` for a group."""

    module: str
    function: str
    help: str
    section: str
    examples: Sequence[str] = ()
    settings: str = ""
    """Name of a list in `COMMON_SETTINGS`; "" for a command that takes no settings of a recipe."""
    words: bool = False
    """Whether it takes `--name value` of names that are not its options."""


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
COMMANDS = {name: Command(**row) for name, row in _TABLE["commands"].items()}
"""Every command, in the order of `--help`."""
COMMON_SETTINGS: dict[str, list[str]] = _TABLE["settings"]
"""Lists of settings that `hornbook COMMAND --help` shows; `--help-all` shows all."""
_ALL = "hornbook.help_all"


class ExampleCommand(TyperCommand):
    """A command whose `--help` ends with examples."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Options, then arguments."""
        return ["[OPTIONS]", *(_usage(param) for param in self.params if param.param_type_name == "argument")]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The usual help, then what `format_more` adds, then examples."""
        super().format_help(ctx, formatter)
        self.format_more(ctx, formatter)
        if (entry := COMMANDS.get(ctx.info_name or "")) and entry.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in entry.examples))

    def format_more(self, ctx: Any, formatter: Any) -> None:
        """Write what comes between options and examples."""


def _usage(argument: Any) -> str:
    """`RUN`, `[RUN]`, `RUN...` or `[RUN]...`; a metavar of several words is a usage line itself."""
    metavar = str(argument.metavar or argument.name.upper())
    if " " in metavar:
        return metavar
    return f"{metavar if argument.required else f'[{metavar}]'}{'...' if argument.nargs == -1 else ''}"


class SettingsCommand(ExampleCommand):
    """A command that takes `--section.key value` in any place; `--help` shows common settings, `--help-all` all."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Recognise `--help-all` and `--help all`, then parse as usual."""
        wants_all = "--help-all" in args or any(args[i : i + 2] == ["--help", "all"] for i in range(len(args)))
        if wants_all:
            ctx.meta[_ALL] = True
            args = ["--help"]
        return super().parse_args(ctx, args)

    def format_more(self, ctx: Any, formatter: Any) -> None:
        """Write the settings."""
        every = ctx.meta.get(_ALL, False)
        rows = setting_rows(None if every else COMMON_SETTINGS[COMMANDS[ctx.info_name].settings])
        with formatter.section("Settings" if every else "Common settings (--help-all shows all)"):
            formatter.write_dl(rows)


def setting_rows(keys: list[str] | None) -> list[tuple[str, str]]:
    """(option, description with type and default) of each setting in `keys`, or of all settings."""
    from hornbook.settings.schema import REQUIRED, settings

    rows = []
    for key in keys or settings():
        for setting in settings()[key]:
            default = "" if setting.default is REQUIRED else f", default {_shown(setting.default)}"
            where = f"; with {setting.where}" if setting.where and not keys else ""
            rows.append((f"--{key}", f"{setting.doc} [{setting.type}{default}{where}]"))
            if keys:
                break
    return rows


def _shown(default: Any) -> str:
    from hornbook.settings.show import toml_value

    return "none" if default is None else toml_value(default)
