"""The waist of evaluation: a task from outside the package, in the loop and by the verb; batches over ranks."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hornbook.cli.main import main
from hornbook.errors import Exit, UsageError
from hornbook.evals.task import Metrics, score_batches
from hornbook.files.run_directory import RunDir
from hornbook.parallel.world import DATA, Axis, World
from hornbook.settings.resolve import resolve

ROOT = Path(__file__).resolve().parents[2]
TASKS = 'eval.tasks=[{kind = "repeat:Repeat", rows = 4}]'


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module `repeat`, as docs/parts.md prints it, and `no_task`, in the path."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "parts.md").read_text(), re.DOTALL)
    (printed,) = [block for block in blocks if "class Repeat(" in block]
    (tmp_path / "repeat.py").write_text(printed)
    text = "from hornbook.settings.fields import Config\n\n\nclass Part(Config):\n    def build(self):\n        pass\n"
    (tmp_path / "no_task.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("repeat", "no_task"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("own")
def test_a_task_from_outside_is_scored_in_the_loop_and_by_the_verb(
    tmp_path: Path, launch_run: Callable[..., Exit], events: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path / "run")
    assert launch_run(run.path, TASKS, "eval.every=6", "train.threads=0") == Exit.DONE  # as many as `eval` takes
    middle, last = (json.loads(path.read_text())["tasks"]["repeat"] for path in sorted(run.evals.iterdir()))
    assert middle["tokens"] == last["tokens"] == 4 * 16
    assert [each["tasks"]["repeat"] for each in events(run.path, "evaluation") if "tasks" in each] == [middle, last]
    capsys.readouterr()
    assert main(["eval", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tasks"]["repeat"]
    assert found == last
    assert main(["eval", str(run.path)]) == 0
    assert "repeat: accuracy" in capsys.readouterr().err


def test_without_tasks_nothing_is_said_of_them(tmp_path: Path, launch_run: Callable[..., Exit]) -> None:
    run = RunDir(tmp_path / "run")
    assert launch_run(run.path) == Exit.DONE
    (last,) = (json.loads(path.read_text()) for path in run.evals.iterdir())
    assert {*last} == {"attempt", "step", "tokens", "seconds", "rows", "sources", "all"}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("kind", ["no_task:Part", "loss"])
def test_a_part_that_is_no_task_is_refused(kind: str) -> None:
    with pytest.raises(UsageError, match=r"eval\.tasks"):
        resolve(None, [f'eval.tasks=[{{kind = "{kind}"}}]'], {})


@pytest.mark.usefixtures("own")
def test_tasks_of_data_without_validation_text_are_refused(
    tmp_path: Path, launch_run: Callable[..., Exit], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is evaluated there: a setting without effect."""
    (tmp_path / "a.txt").write_text("some words of text, and then some more\n" * 40)
    data = tmp_path / "data"
    assert main(["prepare", str(tmp_path / "a.txt"), "--out", str(data), "--text.validation", "0"]) == 0
    assert main(["tokenize", str(data), "--vocab", "300"]) == 0
    capsys.readouterr()
    with pytest.raises(UsageError, match=r"eval\.tasks: .* has no validation text"):
        launch_run(tmp_path / "run", TASKS, f"data.path={data}")
    assert not (tmp_path / "run").exists()


def rank_of_two(rank: int, given: list[list[torch.Tensor]]) -> World:
    """A rank of two, whose `all_gather` gives what both gave."""
    answers = iter(given)

    class Two(World):
        def all_gather(self, tensor: torch.Tensor, axes: Sequence[Axis]) -> list[torch.Tensor]:
            del tensor
            assert axes == DATA
            return next(answers)

    return Two(torch.device("cpu"), rank, {"replica": 2})


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_ranks_take_turns_and_all_have_all_rows_in_order(count: int) -> None:
    batches: list[Any] = list(range(count))
    alone = score_batches(World(torch.device("cpu")), batches, 2, tensors_of, rows_of)
    assert alone[:, 0].tolist() == [number for number in range(count) for _ in range(number % 3)]
    parts = [alone[alone[:, 0] % 2 == rank] for rank in (0, 1)]
    size = max(len(part) for part in parts)
    padded = [torch.from_numpy(np.pad(part, ((0, size - len(part)), (0, 0)))) for part in parts]
    for rank in (0, 1):
        world = rank_of_two(rank, [[torch.tensor(len(part)) for part in parts], padded])
        assert np.array_equal(score_batches(world, batches, 2, tensors_of, rows_of), alone)


def test_a_batch_is_scored_while_the_next_is_computed() -> None:
    """So that a GPU computes meanwhile: the model is called for batch n + 1 before the results of n are looked at."""
    calls = list[tuple[str, int]]()

    def compute(batch: Any) -> list[torch.Tensor]:
        calls.append(("compute", batch))
        return [torch.tensor(batch)]

    def score(batch: Any, number: torch.Tensor) -> np.ndarray:
        assert int(number) == batch
        calls.append(("score", batch))
        return np.array([[float(number)]])

    batches: list[Any] = [0, 1, 2]
    rows = score_batches(World(torch.device("cpu")), batches, 1, compute, score)
    assert rows.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert calls == [*(("compute", 0), ("compute", 1), ("score", 0), ("compute", 2)), ("score", 1), ("score", 2)]


def tensors_of(batch: Any) -> list[torch.Tensor]:
    return [torch.tensor(float(batch))]


def rows_of(batch: Any, value: torch.Tensor) -> np.ndarray:
    """Batch n has n mod 3 rows."""
    return np.full((batch % 3, 2), float(value))


def test_metrics_as_a_line() -> None:
    assert Metrics({"exact_match": 0.25, "tokens": 4000}).summary == "exact match 0.2500, tokens 4,000"
