"""Completion in a shell after `hornbook --install-completion`: what it offers, quoting, its table and its time."""

import os
import pty
import select
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hornbook.cli import completion
from hornbook.cli.commands import COMMANDS, COMMON_SETTINGS
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.schema import Section, settings, shapes_at

Complete = Callable[..., list[str]]


@pytest.fixture(scope="module")
def table() -> completion.Table:
    return completion.build_table()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home where `hornbook --install-completion` was run in bash, with the program `hornbook` in `bin`."""
    home = tmp_path_factory.mktemp("home")
    program = home / "bin" / "hornbook"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hornbook "$@"\n')
    program.chmod(0o755)
    environ = {**os.environ, "HOME": str(home), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", "hornbook --install-completion; true"], env=environ, check=True, capture_output=True)
    return home


@pytest.fixture
def user(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with runs, data and recipes."""
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(home))
    folder = tmp_path / "work"
    for name in ("runs/mine/recipe.toml", "de mo/run/recipe.toml", "data/web/text.toml", "own/a.txt", "tin.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def complete(user: Path) -> Complete:  # noqa: ARG001
    """What bash offers for the last of its words: bash makes three words of `--key=value`."""

    def run(*words: str) -> list[str]:
        line = " ".join(map(shlex.quote, ("hornbook", *words)))
        script = f"""source ~/.bashrc; COMP_WORDS=({line}); COMP_CWORD={len(words)}
        $(complete -p hornbook | sed 's/.*-F \\([^ ]*\\).*/\\1/') hornbook; printf '%s\\n' "${{COMPREPLY[@]}}" """
        done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return sorted(done.stdout.split("\n")[:-1]) if done.stdout != "\n" else []

    return run


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], ["train"]),
        (["recipes", ""], ["copy", "ls", "show"]),
        (["help", "run"], ["runs"]),
        (["--ver"], ["--verbose", "--version"]),
        (["recipes", "copy", "bert-b"], ["bert-base"]),
        (["train", "tiny-b"], ["tiny-bart", "tiny-bert"]),
        (["train", "tin.t"], ["tin.toml"]),
        (["train", "r"], ["roberta-base", "roberta-large", "runs/mine"]),
        (["resume", ""], ["de\\ mo/run", "runs/mine"]),
        (["resume", "de\\ "], ["de\\ mo/run"]),
        (["resume", '"de '], ["de mo/run"]),
        (["resume", "runs/"], ["runs/mine"]),
        (["tokenize", "d"], ["data/web"]),
        (["prepare", "ow"], ["own"]),
        (["train", "tiny", "--data", ""], ["data/web"]),
        (["train", "tiny", "--optim.l"], ["--optim.lr"]),
        (["train", "--res"], ["--resume"]),
        (["export", "runs/mine", "--to", ""], ["gguf", "hf", "onnx", "peft"]),
        (["train", "tiny", "--optim.kind", "mu"], ["muon"]),
        (["train", "tiny", "--optim", "mu"], ["muon"]),
        (["train", "tiny", "--optim.kind", "=", "mu"], ["muon"]),
        (["train", "tiny", "optim", "=", "mu"], ["muon"]),
        (["train", "tiny", "--optim.kind=mu"], ["--optim.kind=muon"]),
        (["train", "--train.compile", "="], ["false", "true"]),
        (["train", "--train.compile", "tiny-b"], ["tiny-bart", "tiny-bert"]),
        (["config", "explain", "optim.l"], ["optim.lr"]),
        (["zzz"], []),
        (["train", "zzz"], []),
        (["train", "--zzz"], []),
        (["train", "--optim.kind", "=", "zzz"], []),
        (["train", "tiny", "--train.tokens", ""], []),
        (["runs", "ls", ""], []),
    ],
)
def test_bash_offers(words: list[str], offered: list[str], complete: Complete) -> None:
    assert complete(*words) == offered


def test_a_person_presses_tab_in_bash(user: Path) -> None:
    """The completed words arrive as they are meant, blanks included; where nothing is known, bash completes files."""
    keys = 'hornbook resume de\t--optim.l\t1 --optim=mu\t--data=dat\t "de\t ow\ta\t zzz\t'
    line, descriptor = pty.fork()
    if line == 0:
        os.chdir(user)
        os.execvpe("bash", ["bash", "--noprofile", "-i"], {**os.environ, "TERM": "dumb"})
    try:
        os.write(descriptor, f"{keys}\x01printf '<%s>\\n' \x05; echo en''d\r".encode())
        shown, deadline = "", time.monotonic() + 120
        while "\nend" not in shown.replace("\r", "") and time.monotonic() < deadline:
            if select.select([descriptor], [], [], 1)[0]:
                shown += os.read(descriptor, 65536).decode()
    finally:
        os.kill(line, 9)
        os.waitpid(line, 0)
        os.close(descriptor)
    arguments = [each[1:-1] for each in shown.replace("\r", "").split("\n") if each.startswith("<") and each[-1] == ">"]
    words = "hornbook|resume|de mo/run|--optim.lr|1|--optim=muon|--data=data/web|de mo/run|own/a.txt|zzz"
    assert arguments == words.split("|")


def test_two_hyphens_offer_options_and_common_settings(table: completion.Table) -> None:
    offered = completion.completions(table, ["train"], "--")
    assert {f"--{key}" for key in COMMON_SETTINGS[COMMANDS["train"].settings]} < set(offered)
    assert {"--data", "--resume", "--help"} < set(offered)
    assert len(offered) < 60
    assert len(completion.completions(table, ["train"], "--m")) > 60


def test_the_table_has_all_that_commands_take(table: completion.Table) -> None:
    assert {name.split()[0] for name in table["commands"]} == {name.split()[0] for name in COMMANDS}
    keys = {key for key in settings() if "*" not in key}
    assert keys <= set(table["settings"])
    assert {key for key in table["settings"] if f"{key}.kind" not in keys} == keys
    (optimizers,) = shapes_at(("optim",))
    assert isinstance(optimizers, Section)
    assert table["settings"]["optim"] == table["settings"]["optim.kind"] == [*optimizers.kinds]
    assert table["settings"]["train.compile"] == ["true", "false"]
    assert table["settings"]["optim.lr"] == []
    recipes = completion.completions(table, ["recipes", "copy"], "")
    assert set(recipes) >= set(shipped_recipes())


@pytest.mark.parametrize(
    "broken", [b"", b"{", b"[]", b"\xff", b'{"modules": []}', b'{"modules": {"/nowhere.py": 1}}', "changed", "folder"]
)
def test_a_table_that_is_broken_or_old_is_built_again(
    broken: bytes | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORNBOOK_HOME", str(tmp_path))
    module, built = tmp_path / "module.py", list[int]()
    module.touch()

    def build_table() -> completion.Table:
        built.append(1)
        return {"commands": {}, "settings": {}, "modules": {str(module): module.stat().st_mtime_ns}}

    monkeypatch.setattr(completion, "build_table", build_table)
    first = completion._read_table()
    assert completion._read_table() == first
    assert built == [1]
    (path,) = (tmp_path / "completion").iterdir()
    if broken == "changed":
        os.utime(module, ns=(0, module.stat().st_mtime_ns + 1))
    elif broken == "folder":
        path.unlink()
        path.mkdir()
    else:
        assert isinstance(broken, bytes)
        path.write_bytes(broken)
    assert completion._read_table().keys() == first.keys()
    assert built == [1, 1]
    completion._read_table()
    assert len(built) == (3 if broken == "folder" else 2)


def test_a_table_that_cannot_be_kept_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HORNBOOK_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(completion, "build_table", lambda: {"modules": {}})
    assert completion._read_table() == {"modules": {}}


def test_the_table_names_the_modules_that_define_commands_and_settings(table: completion.Table) -> None:
    named = {Path(file).relative_to(completion._PACKAGE).as_posix() for file in table["modules"]}
    assert {"cli/commands.toml", "cli/train/train.py", "optim/config/optim.py", "settings/schema.py"} < named
    assert all(Path(file).stat().st_mtime_ns == changed for file, changed in table["modules"].items())


def test_folders_with_many_files_end_the_search(
    table: completion.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(completion, "_MOST_ENTRIES", 3)
    for number in range(4):
        (tmp_path / f"run{number}").mkdir()
        (tmp_path / f"run{number}" / "recipe.toml").touch()
    assert len(completion.completions(table, ["resume"], "")) == 3


def ask(shell: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`hornbook` as a shell's completion runs it."""
    environ = {**os.environ, "_HORNBOOK_COMPLETE": f"complete_{shell}", **environ}
    return subprocess.run([sys.executable, "-m", "hornbook"], env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("hornbook resume de", "compadd -f -- de\\ mo/run\n"),
        ('hornbook resume "de m', "compadd -f -- de\\ mo/run\n"),
        ("hornbook resume de\\ ", "compadd -f -- de\\ mo/run\n"),
        ("hornbook train --optim=mu", "compadd -f -- --optim=muon\n"),
        ("hornbook train --optim ", None),
        ("hornbook train zzz", "_files\n"),
    ],
)
def test_zsh_gets_words_or_files(line: str, answer: str | None, user: Path) -> None:  # noqa: ARG001
    done = ask("zsh", _TYPER_COMPLETE_ARGS=line)
    assert done.stderr == ""
    assert (done.stdout == answer) if answer else "adamw" in done.stdout.split()


def test_fish_is_told_whether_there_are_words(user: Path) -> None:  # noqa: ARG001
    for line, code, answer in (("hornbook resume de", 0, "de mo/run\n"), ("hornbook train zzz", 1, "")):
        done = ask("fish", _TYPER_COMPLETE_ARGS=line, _TYPER_COMPLETE_FISH_ACTION="get-args")
        assert (done.stdout, done.stderr) == (answer, "")
        done = ask("fish", _TYPER_COMPLETE_ARGS=line, _TYPER_COMPLETE_FISH_ACTION="is-args")
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_completion_imports_nothing_large(user: Path) -> None:  # noqa: ARG001
    code = (
        "import sys; from hornbook.__main__ import main; main(); "
        "sys.exit(' '.join({'numba', 'numpy', 'pydantic', 'rich', 'torch', 'typer', 'tomllib'} & set(sys.modules)))"
    )
    words = {"COMP_WORDS": "hornbook\ntrain\n--optim.l", "COMP_CWORD": "2", "_HORNBOOK_COMPLETE": "complete_bash"}
    for again in (False, True):  # the first time may build the table
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | words, capture_output=True, text=True, check=False
        )
        assert done.stdout == "--optim.lr\n"
        assert not again or done.stderr in ("", "\n")


def test_a_key_takes_little_longer_than_an_empty_program() -> None:
    words = {"COMP_WORDS": "hornbook\ntrain\n--optim.k", "COMP_CWORD": "2", "_HORNBOOK_COMPLETE": "complete_bash"}

    def seconds(*program: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, *program], env=os.environ | words, check=True, capture_output=True)
        return time.perf_counter() - begin

    seconds("-m", "hornbook")  # builds the table
    assert statistics.median(seconds("-m", "hornbook") / seconds("-c", "pass") for _ in range(15)) < 8
