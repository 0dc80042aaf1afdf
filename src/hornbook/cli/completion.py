"""Completion of a command line in a shell: commands, options, settings and their choices, recipes, runs and data.

The shell starts `hornbook` each time that a user presses Tab, so this module imports nothing large. It reads commands
and settings from a table in the user's folder. The table is built again, in seconds, when one of its modules changed.
"""

import contextlib
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from hornbook.files.user_folder import user_folder

Table = dict[str, dict]
"""As `build_table` returns it."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_GENERAL = ("--help", "--version", "--verbose", "--quiet", "--install-completion", "--show-completion")
_KINDS = {"RECIPE": ".toml", "RUN": "recipe.toml", "DATA": "text.toml", "PATH": ""}
"""For each kind of path that a command takes: the suffix of such a file, or the file that marks such a folder."""
_BOOLEAN = ["true", "false"]
_WORD = r"""(?:\\.|'[^']*(?:'|$)|"[^"]*(?:"|$)|[^\s'"\\])+"""
_MOST_ENTRIES = 5000
"""Entries of folders that are read for one completion."""


def complete() -> int:
    """Write what the word at the cursor may become, in the form that the shell reads; returns the exit code."""
    shell, num_kept, is_quoted = os.environ["_HORNBOOK_COMPLETE"].removeprefix("complete_"), 0, False
    if shell == "bash":
        words = os.environ["COMP_WORDS"].split("\n")[1 : int(os.environ["COMP_CWORD"]) + 1]
        is_quoted = words[-1].startswith(('"', "'"))
        words += [""] if words[-1] == "=" else []
        if words[-2:-1] == ["="] and len(words) > 2:  # bash makes three words of `--key=value` and completes the third
            num_kept, words[-3:] = len(words[-3]) + 1, ["".join(words[-3:])]
    else:
        line = os.environ["_TYPER_COMPLETE_ARGS"]
        words = re.findall(_WORD, line)[1:]
        words += [] if words and line.endswith(words[-1]) else [""]
    *before, word = (re.sub(r"""["'\\]""", "", word) for word in words)
    try:
        found = [each[num_kept:] for each in completions(_read_table(), before, word) if each.isprintable()]
    except KeyboardInterrupt:
        return 130
    if shell == "zsh" or (shell == "bash" and not is_quoted):
        found = [re.sub(r"[^\w@%+=:,./~-]", r"\\\g<0>", each) for each in found]
    if shell == "zsh":
        found = [f"compadd -f -- {' '.join(found)}" if found else "_files"]
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") != "is-args":
        sys.stdout.buffer.write(os.fsencode("".join(f"{line}\n" for line in found)))
    return 0 if found else 1


def completions(table: Table, before: Sequence[str], word: str) -> list[str]:
    """Words that `word` may become after the words `before`; empty where the shell should complete a file name."""
    while before and (before[0].startswith("-") or before[0] == "help"):
        before = before[1:]
    names, depth = [name.split() for name in table["commands"]], len(before)
    below = list(dict.fromkeys(name[depth] for name in names if name[:depth] == [*before] and len(name) > depth))
    commands = [table["commands"][" ".join(name)] for name in (before[:2], before[:1]) if [*name] in names]
    if not commands:
        return _matches([*below, *(_GENERAL if word.startswith("-") and not before else ())], word)
    options, arguments, common = (commands[0][part] for part in ("options", "arguments", "common"))
    settings = {f"--{key}": values for key, values in table["settings"].items() if common is not None}
    if "=" in word:
        option, _, value = word.partition("=")
        values = (options | settings).get(f"--{option.lstrip('-')}") or []
        return [f"{option}={each}" for each in _matches(values, value)]
    values = (options | settings).get(before[-1])
    if values is not None and values != _BOOLEAN:
        return _matches(values, word)
    if word.startswith("-"):
        shown = (f"--{key}" for key in common) if common and word in ("-", "--") else settings
        return _matches([*options, *shown], word)
    return _matches([*below, *arguments, *(table["settings"] if "KEY" in arguments else ())], word)


def _matches(values: Sequence[str], word: str) -> list[str]:
    """The values that begin with `word`; a kind of paths among them stands for all its paths."""
    found = [value for value in values if value not in (*_KINDS, "KEY")]
    if "RECIPE" in values:
        found += [name.removesuffix(".toml") for name in os.listdir(f"{_PACKAGE}/recipes")]
    marks = [_KINDS[value] for value in values if value in _KINDS]
    return [value for value in found if value.startswith(word)] + [*_paths(word, marks)]


def _paths(word: str, marks: Sequence[str]) -> Iterator[str]:
    """Paths that begin with `word` and have one of the marks: in the folder that `word` names, and one level below."""
    folders, num_entries = [word[: word.rfind("/") + 1]] if marks else [], count()
    for folder in folders:  # the loop appends the level below
        with contextlib.suppress(OSError), os.scandir(os.path.expanduser(folder) or ".") as entries:
            for entry in entries:
                path = folder + entry.name
                if next(num_entries) >= _MOST_ENTRIES:
                    return
                if entry.name.startswith(".") or not path.startswith(word):
                    continue
                if not entry.is_dir():
                    if any(mark in ("", ".toml") and path.endswith(mark) for mark in marks):
                        yield path
                elif any(os.path.exists(f"{entry.path}/{mark}") for mark in marks):
                    yield path
                elif folder == folders[0]:
                    folders.append(f"{path}/")


def _read_table() -> Table:
    """The table in the user's folder, which is built where it is missing, broken or older than one of its modules."""
    path = (user_folder("completion") or Path(os.devnull)) / f"{zlib.crc32(os.fsencode(_PACKAGE)):08x}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        table = json.loads(path.read_bytes())
        if all(os.stat(file).st_mtime_ns == changed for file, changed in table["modules"].items()):
            return table
    table = build_table()
    with contextlib.suppress(OSError):  # a reader that finds half a table builds its own
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(table), encoding="utf-8")
    return table


def build_table() -> Table:
    """All commands and settings, and the time of the last change of each module that lists them."""
    from hornbook.cli.commands import COMMANDS, COMMON_SETTINGS
    from hornbook.cli.main import load_command
    from hornbook.settings.schema import settings

    commands, choices = {}, dict[str, list[str]]()
    for name, entry in COMMANDS.items():
        command = load_command(name)
        for member, each in getattr(command, "commands", {"": command}).items():
            takes_settings = "ignore_unknown_options" in each.context_settings
            common = COMMON_SETTINGS.get(entry.settings, []) if takes_settings else None
            commands[f"{name} {member}".strip()] = _describe(each.params) | {"common": common}
    for key, variants in settings().items():
        types = " ".join(each.type for each in variants if "list" not in each.type)
        if "*" not in key:  # names that the user chooses are not completed
            values = list(dict.fromkeys(re.findall(r'(?<=")\w[^"]*(?=")|true|false', types)))
            choices[key] = choices[key.removesuffix(".kind")] = values
    files = [module.__file__ for name, module in sys.modules.items() if name.startswith("hornbook.")]
    changed = {file: os.stat(file).st_mtime_ns for file in [*files, f"{_PACKAGE}/cli/commands.toml"] if file}
    return {"commands": commands, "settings": choices, "modules": changed}


def _describe(parameters: Sequence) -> dict[str, object]:
    """Kinds of the arguments; for each option its choices or kinds, None for one that takes no value."""
    arguments, options = list[str](), dict[str, list[str] | None]({"--help": None})
    for each in parameters:
        declared = getattr(each, "type_descriptor", None) or each.type  # the name differs between versions of typer
        metavar = str(each.metavar or each.name.upper())
        listed = metavar.split("|") if re.fullmatch("[a-z|]+", metavar) else []
        values = [*(getattr(declared, "choices", None) or listed)]
        values = values or re.findall(r"(?<!\.)\b(RECIPE|RUN|DATA|PATH|KEY)(?!=)", metavar)
        values = [] if values == ["PATH"] else values  # the shell itself completes any path
        if each.param_type_name == "argument":
            arguments += values
        else:
            options |= dict.fromkeys([*each.opts, *each.secondary_opts], None if each.is_flag else values)
    return {"arguments": arguments, "options": options}
