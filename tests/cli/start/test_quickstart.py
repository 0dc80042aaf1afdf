"""The quickstart's choices; the whole film is played by tests/test_readme.py."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hornbook.cli.child import hornbook
from hornbook.cli.main import main
from hornbook.cli.start import demo
from hornbook.errors import Exit, HornbookError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.settings.resolve import resolve
from tests.terminal import Shown


def test_sizes_grow():
    for figures in ([size.parameters for size in demo.SIZES], [size.tokens for size in demo.SIZES]):
        assert figures == sorted(figures)
    for size in demo.SIZES:
        assert size.width % size.heads == 0


@pytest.mark.parametrize("size", demo.SIZES, ids=lambda size: size.name)
def test_the_recipe_of_each_size_is_valid(size, tmp_path: Path):
    path = tmp_path / "demo.toml"
    path.write_text(demo.recipe_text(size, tmp_path / 'a "quoted" folder'))
    recipe = resolve(str(path), environ={}).recipe
    assert recipe.train.tokens == size.steps * recipe.train.batch_tokens
    assert recipe.model.width == size.width
    assert recipe.text.sources["code"].paths == [str(tmp_path / 'a "quoted" folder' / "code.jsonl")]


def test_something_moves_while_the_machine_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown.as_stderr(monkeypatch)

    def probed(*_: object) -> None:
        assert "look at the machine" in shown.screen().text
        raise UsageError("enough")

    monkeypatch.setattr(demo, "measure_machine", probed)
    assert main(["quickstart"]) == Exit.USAGE
    assert "enough" in shown.screen().text
    assert "look at the machine" not in shown.screen().text


def test_an_unknown_size_and_a_full_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["quickstart", "--size", "huge"]) == 2
    assert "xs, s, m, l, xl" in capsys.readouterr().err
    (tmp_path / "mine.txt").write_text("precious")
    assert main(["quickstart", "--size", "xs", "--keep", str(tmp_path)]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.txt"]


def test_a_verb_that_fails_ends_the_demo_with_its_code():
    with pytest.raises(HornbookError, match="ended with exit code 2") as caught:
        hornbook("prepare", "no-such-folder", "--out", "nowhere")
    assert caught.value.exit_code == 2


def test_attempts_are_compared_at_the_last_step_both_made(tmp_path: Path):
    run = RunDir(tmp_path)
    records = [(1, 1, 5.0), (1, 2, 4.0), (1, 3, 3.5), (2, 2, 4.0), (2, 3, 3.25), (2, 4, 3.0)]
    lines = [
        json.dumps({"attempt": attempt, "step": step, "tokens": 0, "loss": loss}) for attempt, step, loss in records
    ]
    run.metrics.write_text("\n".join(lines) + "\n")
    kill = demo.compare_attempts(run)
    assert kill is not None
    assert (kill.step, kill.before, kill.after) == (3, 3.5, 3.25)


@pytest.mark.parametrize(
    ("last", "saves", "ripe"),
    [(40, [16, 32], True), (39, [16, 32], False), (60, [], False), (48, [16, 32, 48], False), (56, [16, 32, 48], True)],
)
def test_the_worker_is_killed_well_past_a_save(tmp_path: Path, last: int, saves: list[int], ripe: bool):
    """Half of the run, as long as it is by then, is 40 steps; nothing is killed that has no save to go on from."""
    run = RunDir(tmp_path).create()
    state = {"attempt": 1, "step": last, "tokens": 0, "status": "running", "heartbeat": 0.0}
    run.state.write_text(json.dumps(state | {"total_tokens": 80 * demo.BATCH_TOKENS}))
    lines = [json.dumps({"attempt": 1, "step": step, "tokens": 0, "loss": 5.0}) for step in range(1, last + 1)]
    run.metrics.write_text("\n".join(lines) + "\n")
    for step in saves:
        (run.checkpoints / f"step-{step:08d}").mkdir()
    assert demo.is_ripe(run, 0.5) is ripe


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends children with their parent")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_demo_leaves_no_training_process_behind(
    tmp_path: Path, tiny_settings: tuple[str, ...], number: signal.Signals
):
    run = RunDir(tmp_path / "run")
    words = ["train", "--out", str(run.path), *tiny_settings, "train.tokens=1000000000"]
    program = f"from hornbook.cli.start import demo\ndemo.train_and_kill({words!r}, demo.RunDir({str(run.path)!r}))"
    with (tmp_path / "output.txt").open("w") as output:
        parent = subprocess.Popen([sys.executable, "-c", program], stdout=output, stderr=output)
    try:
        while (state := run.read_state()) is None:
            assert parent.poll() is None, (tmp_path / "output.txt").read_text()
            time.sleep(0.05)
        pid = state.get("pid")
        assert pid is not None
        assert pid != parent.pid
        worker = os.pidfd_open(pid)
    finally:
        parent.send_signal(number)
        parent.wait(60)
    ended, _, _ = select.select([worker], [], [], 60)
    os.close(worker)
    assert ended
