"""Results of commands, printed in one place: text, JSON, streams, a terminal, a reader that leaves."""

import io
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from rich.table import Table

from hornbook.cli.main import COMMANDS, build_command, load_command, main
from hornbook.cli.result import Command, CommandGroup, Json, Options, Result, Results, columns, show, table
from hornbook.errors import Exit
from hornbook.model.generate import generate as generating
from hornbook.run.observe.console import Console, Header

CLI = Path(__file__).parents[2] / "src" / "hornbook" / "cli"
FOUND = {"a": "\u2603", "b": [1, math.nan], "c": Path("d")}


def call(function: Command, *words: str) -> Any:
    return build_command(function, "sample", words=False).main(args=list(words), standalone_mode=False)


def test_a_result_is_text_or_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    def sample(name: Annotated[str, typer.Option()] = "x") -> Result:
        return Result({"name": name, **FOUND}, f"for {name}", Exit.INTEGRITY)

    assert call(sample, "--name", "people") == Exit.INTEGRITY
    assert capsys.readouterr().out == "for people\n"
    assert call(sample, "--json") == Exit.INTEGRITY
    out = capsys.readouterr().out
    assert json.loads(out) == {"name": "x", "a": "\u2603", "b": [1, None], "c": "d"}
    assert out.count("\n") == 1


@dataclass(frozen=True)
class Shared(Options):
    name: Annotated[str, typer.Option(help="A name.")]
    count: Annotated[int, typer.Option(min=1)] = 2


def test_fields_of_shared_options_are_options_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    def sample(word: str, *, shared: Shared, last: bool = False) -> Result:
        return Result({"word": word, "last": last, **vars(shared)})

    assert call(sample, "w", "--name", "x", "--json") == Exit.DONE
    assert json.loads(capsys.readouterr().out) == {"word": "w", "name": "x", "count": 2, "last": False}
    with pytest.raises(Exception, match="name"):
        call(sample, "w")


def test_every_command_has_an_option_for_json() -> None:
    for name in COMMANDS:
        command = load_command(name)
        for each in getattr(command, "commands", {"": command}).values():
            assert "--json" in {option for param in each.params for option in param.opts}, (name, each.name)


def test_answers_are_written_in_one_place() -> None:
    """Every other module returns results; `write` shows pieces of generated text."""
    by_hand = re.compile(r"(?<![\w.])print\(|stdout\.write|typer\.echo")
    found = {path.name for path in CLI.rglob("*.py") if by_hand.search(path.read_text(encoding="utf-8"))}
    assert found == {"result.py", "main.py"}  # main prints its help and version


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train tiny --out s3://b/run", "--out s3://b/run: only a local path can be written here: give run, and"),
        ("train tiny --data s3://b/data", "--data s3://b/data: only a local path can be read here: give data, copied"),
        ("train tiny data.path=gs://b/data", "data.path  gs://b/data: only a local path can be read here"),
        ("prepare README.md --out s3://b/data", "--out s3://b/data: only a local path can be written"),
        ("prepare README.md --exclude a --exclude s3://b/list --out data", "--exclude s3://b/list: only a local"),
        ("export hf://o/n --out model", "error hf://o/n: only a local path can be read"),
        ("resume s3://b/run", "error s3://b/run: only a local path"),
        ("tokenize s3://b/data", "error s3://b/data: only a local path"),
        ("average s3://b/run@1 run --out model", "error s3://b/run@1: only a local path"),
        ("why s3://b/run@1", "error s3://b/run: only a local path"),
    ],
)
def test_a_url_is_refused_where_only_a_local_path_works(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == Exit.USAGE
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_help_breaks_lines_only_between_paragraphs() -> None:
    """The lines of a docstring are those of the source, not of the terminal."""

    def sample() -> Result:
        """Do something.

        What it does is said here,
        in two lines.
        """
        return Result({})

    assert (
        build_command(sample, "sample", words=False).help == "Do something.\n\nWhat it does is said here, in two lines."
    )


def test_usage_names_arguments_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    for words, usage in (
        (["verify"], "verify [OPTIONS] RUN_A [RUN_B]"),
        (["runs", "compare"], "runs compare [OPTIONS] RUN..."),
        (["prepare", "curve"], "prepare curve [OPTIONS] DATA STEP.KEY [VALUE]..."),
        (["recipes", "show"], "recipes show [OPTIONS] RECIPE|RUN [--section.key value]..."),
    ):
        assert main([*words, "--help"]) == Exit.DONE
        assert f"Usage: hornbook {usage} " in capsys.readouterr().out


def test_without_a_text_stdout_stays_empty(capsys: pytest.CaptureFixture[str]) -> None:
    made = Table("source")
    made.add_row("notes")
    assert show(Result(FOUND, report=[made, "[bold]next[/]: train"], notes=["only for people"])) == Exit.DONE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.search(r"source.*notes.*\nnext: train\nonly for people\n$", printed.err, re.DOTALL)


def test_a_table_in_a_file_is_as_wide_as_its_cells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = table("cases", ["case", "what happened"], ["seconds"], fold=True)
    made.add_row("a case " * 10, "it went on " * 20, "1.0")
    monkeypatch.delenv("COLUMNS", raising=False)
    show(Result(FOUND, report=[made]))
    lines = [line for line in capsys.readouterr().err.splitlines() if "case a case" in line or "went" in line]
    assert len(lines) == 1
    assert len(lines[0]) < 400
    monkeypatch.setenv("COLUMNS", "60")
    show(Result(FOUND, report=[made]))
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 60


def test_under_json_the_report_stays_and_notes_go(capsys: pytest.CaptureFixture[str]) -> None:
    show(Result(FOUND, "text", report=["report"], notes=["note"]), as_json=True)
    assert capsys.readouterr().err == "report\n"


def test_a_stream_is_printed_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []

    def sample(as_json: Json = False) -> Results:
        for number in range(3):
            yield Result({"number": number}, f"number {number}, as JSON {as_json}", Exit(number))
            printed.append(capsys.readouterr().out)

    assert call(sample) == Exit.USAGE
    assert printed == ["number 0, as JSON False\n", "number 1, as JSON False\n", "number 2, as JSON False\n"]
    assert call(sample, "--json") == Exit.USAGE
    assert printed[3:] == ['{"number": 0}\n', '{"number": 1}\n', '{"number": 2}\n']


def test_a_stream_that_cannot_be_printed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its progress bars are gone before the error is told."""
    closed = []

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            del text
            raise KeyboardInterrupt

    def sample() -> Results:
        try:
            yield Result({}, "x")
        finally:
            closed.append(True)

    monkeypatch.setattr(sys, "stdout", Interrupted())
    with pytest.raises(KeyboardInterrupt) as caught:
        show(sample())
    assert (closed, caught.type) == ([True], KeyboardInterrupt)


def test_a_command_of_a_group_returns_its_result_to_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    app = CommandGroup()

    @app.command("one")
    def sample() -> Result:
        return Result({"a": 1}, "one")

    @app.command()
    def nothing() -> Exit:
        return Exit.IN_USE

    command = typer.main.get_command(app)
    assert command.main(args=["one", "--json"], standalone_mode=False) == Exit.DONE
    assert capsys.readouterr().out == '{"a": 1}\n'
    assert command.main(args=["nothing"], standalone_mode=False) == Exit.IN_USE
    assert (sample(), capsys.readouterr().out) == (Result({"a": 1}, "one"), "")


LEAVING = """
import sys
from hornbook.cli.result import Result, show
from hornbook.errors import Exit
sys.stdin.read()  # the reader has gone by now
sys.exit(show({found}))
"""


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ("Result({}, 'x', Exit.RESUMABLE)", 75),
        ("(Result({}, str(number)) for number in range(9))", 0),
        ("Result({'x': 1}, code=Exit.INTEGRITY, notes=['x']), as_json=True", 3),
    ],
)
def test_a_reader_that_leaves_changes_no_exit_code(found: str, code: int) -> None:
    """A scheduler starts what ended with 75 again."""
    reading, writing = os.pipe()
    words = [sys.executable, "-c", LEAVING.format(found=found)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        os.close(reading)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (code, b"")


def test_columns_are_aligned() -> None:
    assert columns([("a", "b"), ("longer", "x")]) == "a       b\nlonger  x"
    assert columns([("a",), ("\x1b[2J",)]) == "a\n\\x1b[2J"


# ---- What a model says

SAID = "one\x1b[2J\x07\r\x9b3m\ttwo\u2603\n"
ON_TERMINAL = "one\\x1b[2J\\x07\\x0d\\x9b3m\ttwo\u2603\n"


class Screen(io.StringIO):
    """A stdout that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_model_steers_no_terminal(
    command: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Generated text is escaped on a terminal, and unchanged in a file, in a pipe and in JSON."""
    monkeypatch.setattr(generating, "stream_text", lambda tokens, *_: (list(tokens), iter(SAID))[1])
    for words in (["--tokens", "2"], ["--tokens", "2", "--json"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("the\n"))
        assert main([command, str(checkpoint), *words]) == Exit.DONE
        printed = capsys.readouterr().out
        assert (json.loads(printed)["text"] if "--json" in words else printed.removeprefix("the")[:-1]) == SAID
    monkeypatch.setattr(sys, "stdin", io.StringIO("the\n"))
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    assert main([command, str(checkpoint), "--tokens", "2"]) == Exit.DONE
    assert screen.getvalue().removeprefix("the") == ON_TERMINAL + "\n"


def test_texts_of_results_steer_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the label or the answer that predict shows."""
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    show(Result({"answer": SAID}, SAID))
    assert screen.getvalue() == ON_TERMINAL


def test_samples_in_the_console_steer_no_terminal() -> None:
    said = "one\x1b[2J two"
    header = Header("demo", 1, "fp32", "cpu", 1, 1, 1, "cosine")
    for stream, expected in ((Screen(), "one\\x1b[2J two"), (io.StringIO(), said)):
        with Console(header, every=1, stream=stream, live=False) as console:
            console.note(f"sample {said}")
        assert f"sample {expected}\n" in stream.getvalue()
