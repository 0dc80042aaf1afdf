"""`--help` of commands that take settings: common ones, from the schema; `--help-all` shows all of them."""

from typing import Any

from hornbook.cli.commands import ExampleCommand

_TEXT = [
    "text.steps",
    "text.strict",
    "text.max_document_bytes",
    "text.shard_bytes",
    "text.validation",
    "text.tokenizer.kind",
    "text.tokenizer.vocab",
]
_TRAIN = [
    "seed",
    "train.tokens",
    "train.batch_tokens",
    "train.sequence",
    "train.micro_batch",
    "train.precision",
    "model.layers",
    "model.width",
    "model.heads",
    "optim.lr",
    "optim.schedule.kind",
    "optim.schedule.warmup",
    "checkpoint.every",
    "eval.every",
]
_RESUME = [
    "train.tokens",
    "train.micro_batch",
    "train.threads",
    "optim.lr",
    "optim.clip",
    "optim.schedule.kind",
    "optim.schedule.floor",
    "checkpoint.every",
    "checkpoint.keep",
    "eval.every",
    "log.every",
]
FREQUENT = {"prepare": _TEXT, "tokenize": _TEXT, "train": _TRAIN, "fork": _TRAIN, "resume": _RESUME}
"""Settings that `hornbook COMMAND --help` shows."""

_ALL = "hornbook.help_all"


class SettingsCommand(ExampleCommand):
    """A command that takes `--section.key value` in any place."""

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
        rows = setting_rows(None if every else FREQUENT.get(ctx.info_name or "", _TRAIN))
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
