"""What train, eval and predict show on a real terminal, and that nothing of it is elsewhere."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.model.build_model import build_model
from hornbook.model.config.head_config import ClassificationHead
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import RopeConfig
from hornbook.model.hf.hf import write_hf
from hornbook.model.init.init import initialize
from tests.run.launcher import Launcher
from tests.terminal import ENVIRON, Shown, Terminal

Launch = Callable[..., Exit]
TIME = r"\d\d:\d\d:\d\d "


def on_a_terminal(launcher: Launcher, columns: int, words: list[str]) -> Terminal:
    with Terminal(columns) as terminal:
        assert launcher.start(words, Path(terminal.path), environ=ENVIRON).wait() == Exit.DONE, terminal.written
    return terminal


@pytest.mark.parametrize("columns", [80, 120])
def test_a_run_is_seen_from_its_start_to_its_end(
    columns: int, launcher: Launcher, tmp_path: Path, tiny_settings: tuple[str, ...]
) -> None:
    """Bars of the start, which go; events, which stay, in order, above the panel; and what is next."""
    settings = [*tiny_settings, "eval.every=6", "eval.tokens=64", "checkpoint.background=false"]
    terminal = on_a_terminal(launcher, columns, ["train", "--out", str(tmp_path / "run"), *settings])
    written, lines = terminal.written, terminal.screen().lines
    places = [written.index(text) for text in ("load torch", "look at the device", "read the data", "saved step-")]
    assert places == sorted(places)
    assert not any("load torch" in line or "read the data" in line for line in lines)
    events = [re.sub(TIME, "", line) for line in lines if re.match(TIME, line)]
    told = [line for line in events if line.startswith(("validation", "saved"))]
    assert [line.split()[0] for line in told] == ["saved", "validation", "saved", "validation", "saved", "validation"]
    panel = next(at for at, line in enumerate(lines) if line.startswith("run   "))
    assert all(re.match(TIME, line) is None for line in lines[panel:])
    title, loss, rate, progress, memory, *rest = lines[panel:]
    assert all(len(line) <= columns for line in (title, loss, rate, progress, memory))
    assert re.search(r"step 12 / 12 .*100\.0%   left 0s   1\.47k tokens$", progress.rstrip())
    assert re.match(r"memory [\d.]+ [MG]B of [\d.]+ [GT]B, peak [\d.]+ [MG]B", memory.rstrip())
    assert 0 <= "\n".join(rest).find("finished at step 12") < "\n".join(rest).find("next:")


def test_eval_shows_that_it_moves_and_answers_on_stdout(launcher: Launcher, tmp_path: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run")
    text = tmp_path / "held-out.txt"
    text.write_text("one model learns to read\n" * 40)
    terminal = on_a_terminal(launcher, 80, ["eval", str(tmp_path / "run"), "--data", str(text), "--baselines"])
    phases = ("load the model", "read the text", "encode", "score rows", "compute baselines")
    assert [phase for phase in phases if phase in terminal.written] == list(phases)
    shown = terminal.screen().text
    assert not any(phase in shown for phase in phases)
    assert "bits per byte" in shown


@pytest.mark.parametrize("verb", ["eval", "predict"])
def test_what_moves_is_on_stderr_and_the_answer_alone_on_stdout(
    verb: str, tmp_path: Path, launch_run: Launch, labels: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    launch_run(tmp_path / "run")
    (tmp_path / "lines.txt").write_text("one\n")
    words = [str(tmp_path / "run")] if verb == "eval" else [str(labels), str(tmp_path / "lines.txt")]
    capsys.readouterr()
    shown = Shown.as_stderr(monkeypatch)
    assert main([verb, *words, "--json"]) == Exit.DONE
    assert isinstance(json.loads(capsys.readouterr().out), dict)
    assert "load the model" in shown.text
    assert shown.screen().text.strip() == ""


@pytest.fixture
def labels(tmp_path: Path, tiny_corpus: Path) -> Path:
    """A model that gives texts one of two labels."""
    config = ModelConfig(
        layers=1, width=16, heads=2, position=RopeConfig(length=32), head=ClassificationHead(labels=["a", "b"])
    )
    model = build_model(config, 320, "cpu")
    initialize(model, config, 1)
    write_hf(tmp_path / "model", model, config, 320, tiny_corpus / "tokenizer")
    return tmp_path / "model"


def test_answers_of_predict_are_written_whole_between_the_bars(
    launcher: Launcher, tmp_path: Path, labels: Path
) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"text {number}\n" for number in range(600)))
    terminal = on_a_terminal(launcher, 80, ["predict", str(labels), str(tmp_path / "lines.txt")])
    assert "load the model" in terminal.written
    assert "read the lines" in terminal.written
    lines = [line for line in terminal.screen().lines if line.strip()]
    assert len(lines) == 600
    assert all(re.fullmatch(r"[ab]\s*[01]\.\d{4}", line.rstrip()) for line in lines)


def test_off_a_terminal_there_are_answers_and_nothing_else(launcher: Launcher, tmp_path: Path, labels: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    started = launcher.start(["predict", str(labels), str(tmp_path / "lines.txt"), "--json"], tmp_path / "out")
    assert started.wait() == Exit.DONE
    assert [json.loads(line)["text"] for line in started.text.splitlines()] == ["one", "two"]
