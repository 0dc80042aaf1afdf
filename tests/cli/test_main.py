"""The frame of the command line: the table of commands, help, mistyped commands, words in any order."""

import os
import re
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from typing import Annotated, Any

import pytest
import typer

from hornbook.cli.commands import COMMANDS, COMMON_SETTINGS, Command, setting_rows
from hornbook.cli.main import build_command, main
from hornbook.cli.shell import DryRun, Words, guard, split_target
from hornbook.errors import Exit
from hornbook.settings.schema import settings
from tests.test_documents import missing_words

DESIGN_COMMANDS = (
    "quickstart doctor fetch prepare tokenize plan train reference adapt launch ladder bench resume fork tell rehearse "
    "verify replay seal eval generate chat serve predict import grow prune average fisher export data why watch "
    "explore runs recipes config"
)


def test_the_commands_are_those_of_the_design() -> None:
    assert [name for name in COMMANDS if " " not in name] == DESIGN_COMMANDS.split()
    assert all(name.split()[0] in COMMANDS for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = COMMANDS[name]
    assert main([name, "--help"]) == Exit.DONE
    printed = capsys.readouterr()
    assert f"hornbook {name}" in printed.out
    assert printed.err == ""
    assert re.search(r"\bverbs?\b", printed.out, re.IGNORECASE) is None
    if name in ("resume", "fork"):
        assert f"hornbook {name} [OPTIONS] RUN [--section.key value]..." in printed.out
        assert "RECIPE" not in printed.out.partition("Examples:")[0]
    if entry.examples:
        assert printed.out.endswith("Examples:\n" + "".join(f"  {line}\n" for line in entry.examples))
        assert list(missing_words("```\n" + "\n".join(entry.examples) + "\n```")) == []
    if entry.settings:
        common = COMMON_SETTINGS[entry.settings]
        assert set(common) <= set(settings())
        assert all(f"--{key}" in printed.out for key in common)
        assert "Common settings (--help-all shows all)" in printed.out


def test_help_lists_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == Exit.DONE
    text = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(entry.help)}", text, re.MULTILINE)
    for code in Exit:
        assert re.search(rf"^  {int(code)} +{re.escape(code.meaning)}", text, re.MULTILINE)
    assert main(["-h"]) == main([]) == Exit.DONE
    assert capsys.readouterr().out == text * 2


@pytest.mark.parametrize("words", [[], ["train"], ["runs", "ls"], ["prepare", "report"]])
def test_help_is_a_command_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", *words]) == Exit.DONE
    text = capsys.readouterr().out
    assert main([*words, "--help"]) == Exit.DONE
    assert capsys.readouterr().out == text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == Exit.DONE
    text = capsys.readouterr().out
    assert text == f"hornbook {version('hornbook')}\n"
    assert subprocess.check_output([sys.executable, "-m", "hornbook", "--version"], text=True) == text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["trian"], "error there is no command 'trian': did you mean train?\n"),
        (["exprot", "x"], "error there is no command 'exprot': did you mean export or explore?\n"),
        (["zzzz"], "error there is no command 'zzzz': `hornbook --help` lists them\n"),
        (["--bogus"], "error No such option: --bogus\nsee `hornbook --help`\n"),
        (
            ["config", "shwo"],
            "error No such command 'shwo'. Did you mean 'show'?\nsee `hornbook config --help`\n",
        ),
        (["recipes", "copy"], "error Missing argument 'RECIPE'.\nsee `hornbook recipes copy --help`\n"),
    ],
)
def test_mistakes_in_words(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == Exit.USAGE
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", text)


def test_a_command_whose_file_is_absent_breaks_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(COMMANDS, "absent", Command("absent", "absent", "Not there", "Look"))
    assert main(["--help"]) == Exit.DONE
    assert main(["absent"]) == Exit.USAGE
    assert capsys.readouterr().err == "error `hornbook absent` is not part of this version\n"


# --- words in any order


def run_sample(*words: str) -> dict[str, Any]:
    """What a command with free words receives."""
    seen: dict[str, Any] = {}

    def sample(
        words: Words = None, data: str | None = None, out: Annotated[str, typer.Option()] = "", dry_run: DryRun = False
    ) -> Exit:
        seen.update(data=data, out=out, dry_run=dry_run)
        seen["target"], seen["overrides"] = split_target(words)
        return Exit.DONE

    command = build_command(sample, "sample", words=True)
    code = guard(lambda: command.main(args=list(words), prog_name="hornbook sample", standalone_mode=False))
    return seen | {"code": code}


EXPECTED = {
    "target": "tiny",
    "overrides": ["optim.lr=3e-4", "train.compile=true", "seed=5"],
    "data": "D",
    "out": "R",
    "dry_run": True,
    "code": 0,
}


@pytest.mark.parametrize(
    "line",
    [
        "tiny --optim.lr 3e-4 --train.compile seed=5 --data D --out R -n",
        "-n --data D --out R tiny --optim.lr 3e-4 --train.compile --seed 5",
        "--optim.lr 3e-4 -n --train.compile --data=D --seed=5 tiny --out=R",
        "--optim.lr=3e-4 --out R --train.compile yes tiny --dry-run seed=5 --data D",
        "optim.lr=3e-4 --train.compile=on seed=5 -n --data D --out R -- tiny",
    ],
)
def test_words_in_any_order(line: str) -> None:
    found = run_sample(*line.split())
    found["overrides"] = [re.sub("=(yes|on)$", "=true", word) for word in found["overrides"]]
    assert found == EXPECTED


def test_negative_and_dashed_values() -> None:
    assert run_sample("tiny", "--optim.lr", "-1e-3", "--seed", "-5")["overrides"] == ["optim.lr=-1e-3", "seed=-5"]
    assert run_sample("--eval.prompt", "-", "tiny")["overrides"] == ["eval.prompt=-"]


def test_two_recipes_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_sample("tiny", "small")["code"] == Exit.USAGE
    assert capsys.readouterr().err == (
        "error name one recipe or run directory, not 2: tiny small\n"
        "write settings as --section.key value or section.key=value\n"
    )


# --- help of commands with settings


@pytest.mark.parametrize("words", [["--help-all"], ["--help", "all"]])
def test_help_all_shows_every_setting(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words]) == Exit.DONE
    text = capsys.readouterr().out
    assert all(f"--{key}" in text for key in settings())


def test_rows_have_doc_type_and_default() -> None:
    assert setting_rows(["optim.lr", "train.tokens"]) == [
        ("--optim.lr", "Peak learning rate. [number, default 0.0003]"),
        ("--train.tokens", "Length of the run in tokens; or give `epochs`. [integer | none, default none]"),
    ]
    floors = [text for option, text in setting_rows(None) if option == "--optim.schedule.floor"]
    assert len(floors) == 9
    assert '; with optim.schedule.kind = "cosine"]' in floors[1]


# --- speed


def test_help_takes_at_most_one_and_a_half_times_its_libraries() -> None:
    """DESIGN 4; interleaved, and the smaller of median and minimum, so that a busy machine does not decide."""
    commands = {
        "libraries": [sys.executable, "-c", "import typer, rich, pydantic"],
        "help": [sys.executable, "-c", "from hornbook.cli.main import main; main(['--help'])"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(9):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"NO_COLOR": "1"})
            seconds[name].append(time.perf_counter() - start)
    ratios = [measure(seconds["help"]) / measure(seconds["libraries"]) for measure in (statistics.median, min)]
    assert min(ratios) <= 1.5, seconds
