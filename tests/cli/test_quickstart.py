"""The quickstart's choices; the whole film is played by tests/test_readme.py."""

import itertools
import json
from pathlib import Path

import pytest

from hornbook.cli import demo
from hornbook.cli.main import main
from hornbook.errors import HornbookError
from hornbook.resolve import resolve
from hornbook.rundir import RunDir


def test_sizes_grow():
    work = [size.work for size in demo.SIZES]
    assert work == sorted(work)
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


@pytest.mark.parametrize("rate", [5e9, 4e10, 1e13])
def test_the_largest_size_that_fits_is_chosen(rate: float):
    for smaller, size in itertools.pairwise(demo.SIZES):
        seconds = demo.seconds_for(size, rate)
        assert demo.choose_size(seconds, rate) == size
        assert demo.choose_size(seconds * (1 - 1e-9), rate) == smaller
    assert demo.choose_size(1, rate) == demo.SIZES[0]
    assert demo.seconds_for(demo.SIZES[2], 2e10) > 2 * demo.SECONDS_BESIDE_TRAINING


def test_an_unknown_size_and_a_full_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["quickstart", "--size", "huge"]) == 2
    assert "xs, s, m, l, xl" in capsys.readouterr().err
    (tmp_path / "mine.txt").write_text("precious")
    assert main(["quickstart", "--size", "xs", "--keep", str(tmp_path)]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.txt"]


def test_a_verb_that_fails_ends_the_demo_with_its_code():
    with pytest.raises(HornbookError, match="ended with exit code 2") as caught:
        demo.hornbook("prepare", "no-such-folder", "--out", "nowhere")
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
