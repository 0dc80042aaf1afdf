"""Commands that messages propose: they can be typed, also where a path has blanks."""

import re
import shlex
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.cli.train.training import use_command
from hornbook.data.vocabulary import Vocabulary
from hornbook.errors import UsageError, quoted
from hornbook.files.run_directory import RunDir
from hornbook.run.job.directory import check_directory

SRC = Path(__file__).parents[1] / "src" / "hornbook"
PATHS = r"(?:\w+\.)*(?:path|root|folder|run|out|data|target|checkpoint|given|kept|file|model)"
PROPOSED = re.compile(rf"hornbook [a-z]+ [^`\"']*\{{(?:str\()?{PATHS}\)?(?: / [^}}]*)?\}}")
"""A command with a path in an f-string, as it is."""


def test_paths_in_proposed_commands_are_quoted() -> None:
    lines = [
        f"{path.relative_to(SRC)}: {line.strip()}"
        for path in SRC.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if PROPOSED.search(line)
    ]
    assert lines == []
    assert PROPOSED.search('f"next: hornbook resume {run.path}"')
    assert not PROPOSED.search('f"next: hornbook resume {quoted(run.path)}"')


def test_a_tokenizer_without_special_tokens_is_trained_anew_as_the_message_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("raw.txt").write_text("The bells ring in the morning, and the towers stand.\n" * 40)
    assert main(["prepare", "raw.txt", "--out", "da ta"]) == 0
    assert main(["tokenize", "da ta", "--vocab", "300"]) == 0
    for objective, spellings in (("masked", "[MASK] or <mask>"), ("fim", "<|fim_prefix|>")):
        vocabulary = Vocabulary(Path("da ta", "tokenizer"), 300)
        command = re.search("`hornbook (.*)`", str(vocabulary.lacks("data.objective", "it", objective, spellings)))
        assert command is not None
        assert main(shlex.split(command[1])) == 0, capsys.readouterr().err
    special = Vocabulary(Path("da ta", "tokenizer"), 300).special
    assert None not in (special.mask, special.pad, special.prefix, special.suffix, special.middle)


def test_a_path_with_blanks_is_one_word(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "de mo")
    assert shlex.split(use_command("causal", str(run.path)))[2] == str(run.path)
    assert shlex.split(use_command("masked", "run")) == ["hornbook", "generate", "run", "-p", "TEXT [MASK]"]
    with pytest.raises(UsageError, match="holds no run") as caught:
        check_directory(run, "resume")
    command = re.search("`(.*)`", str(caught.value))
    assert command is not None
    assert shlex.split(command[1])[-1] == str(run.path)
    assert (quoted("runs/a"), quoted(Path("a b"))) == ("runs/a", "'a b'")
