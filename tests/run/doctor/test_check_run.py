"""Two runs: equal to the bit, or parted at a named step. One run: whole, or damaged by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.journal import Appender
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.checkpoint_store import CheckpointStore
from hornbook.run.doctor.check_run import check_run
from hornbook.run.doctor.compare_runs import Comparison, compare_runs, differing_tensors
from hornbook.settings.training import CheckpointConfig

STEPS = 6


class Trained:
    """A state whose numbers follow from its step; `edit` may change them."""

    def __init__(self, step: int, edit: Callable[[int, dict[str, torch.Tensor]], None]) -> None:
        self.step, self.tokens = step, step * 64
        self.weights = {
            "a": torch.arange(6.0).reshape(2, 3) * step,
            "b": torch.full((4,), step / 3, dtype=torch.bfloat16),
        }
        self.moments = {"a": torch.arange(6.0) / step}
        self.state = {"step": step, "clock": step * 8}
        edit(step, self.weights | {"moment": self.moments["a"]})

    def create(self, folder: Path) -> None:
        (folder / "trainer").mkdir()
        save_file(self.weights, folder / "model.safetensors")
        save_file(self.moments, folder / "trainer" / "optimizer.safetensors")
        (folder / "trainer" / "state.json").write_text(json.dumps(self.state))

    def fill(self, folder: Path) -> None:
        """It is all there."""


def keep(_step: int, _tensors: dict[str, torch.Tensor]) -> None:
    """No change."""


def make(
    path: Path,
    edit: Callable[[int, dict[str, torch.Tensor]], None] = keep,
    metrics: Callable[[dict[str, object]], None] = lambda _: None,
    steps: int = STEPS,
    change: Callable[[Trained], None] = lambda _: None,
) -> RunDir:
    run = RunDir(path).create()
    checkpoints = CheckpointStore(run.checkpoints, CheckpointConfig.model_validate({"keep": 99}))
    with Appender(run.metrics) as lines, Appender(run.events, chained=True) as ledger:
        for step in range(1, steps + 1):
            record = {
                "attempt": 1,
                "step": step,
                "tokens": step * 64,
                "loss": 5 - step / 7,
                "token_hash": f"{step:016x}",
            }
            metrics(record)
            lines.append(record)
            if step % 2 == 0:
                ledger.append({"kind": "save", "attempt": 1, "step": step, "tokens": step * 64})
                trained = Trained(step, edit)
                change(trained)
                checkpoints.save(trained)
    return run


def named(comparison: Comparison) -> dict[str, tuple[int, int, int | None]]:
    return {part.name: (part.compared, part.different, part.first) for part in comparison.parts}


def test_the_same_run_twice_is_equal(tmp_path: Path):
    comparison = compare_runs(make(tmp_path / "a"), make(tmp_path / "b"))
    assert comparison.equal
    assert comparison.parted is None
    assert named(comparison) == {
        "tokens": (6, 0, None),
        "losses": (6, 0, None),
        "norms": (6, 0, None),
        "saves": (0, 0, None),
        "clock": (3, 0, None),
        "guard": (3, 0, None),
        "weights": (3, 0, None),
        "optimizer": (3, 0, None),
    }
    assert json.loads(json.dumps(comparison.to_json()))["equal"] is True


def test_only_the_last_attempt_of_a_step_counts(tmp_path: Path):
    a, b = make(tmp_path / "a"), make(tmp_path / "b")
    lines = b.metrics.read_text().splitlines()
    lost = [line.replace('"loss": ', '"loss": 1') for line in lines[3:5]]
    second = [line.replace('"attempt": 1', '"attempt": 2') for line in lines[3:]]
    b.metrics.write_text("\n".join([*lines[:3], *lost, *second]) + "\n")
    assert compare_runs(a, b).equal


def last_bit(step: int, tensors: dict[str, torch.Tensor]) -> None:
    if step == 4:
        tensors["a"].view(torch.int32)[1, 1] ^= 1


def last_bit_of_bfloat(step: int, tensors: dict[str, torch.Tensor]) -> None:
    if step == 6:
        tensors["b"].view(torch.int16)[2] ^= 1


def sign_of_zero(step: int, tensors: dict[str, torch.Tensor]) -> None:
    if step == 2:
        tensors["moment"][0] = -0.0


@pytest.mark.parametrize(
    ("edit", "part", "first"),
    [(last_bit, "weights", 4), (last_bit_of_bfloat, "weights", 6), (sign_of_zero, "optimizer", 2)],
)
def test_one_bit_of_one_tensor_is_found(
    tmp_path: Path, edit: Callable[[int, dict[str, torch.Tensor]], None], part: str, first: int
):
    comparison = compare_runs(make(tmp_path / "a"), make(tmp_path / "b", edit))
    assert not comparison.equal
    assert comparison.parted is not None
    assert (comparison.parted.name, comparison.parted.first, comparison.parted.different) == (part, first, 1)


def test_distance_is_the_largest_difference(tmp_path: Path):
    for name, values in (("a", [1.0, 2.0, 3.0]), ("b", [1.0, 2.5, 3.25])):
        (tmp_path / name).mkdir()
        save_file({"x": torch.tensor(values)}, tmp_path / name / "m.safetensors")
    words = differing_tensors(tmp_path / "a", tmp_path / "b")
    assert words == "1 of 1 tensors, x first (at most 0.5 apart in 2 of 3 places)"
    save_file({"x": torch.tensor([1, 2, 3])}, tmp_path / "b" / "m.safetensors")
    assert "F32 [3] and I64 [3]" in differing_tensors(tmp_path / "a", tmp_path / "b")
    save_file({"y": torch.tensor([1.0])}, tmp_path / "b" / "m.safetensors")
    assert "in one only, x first" in differing_tensors(tmp_path / "a", tmp_path / "b")
    save_file({"x": torch.tensor([1.0, float("nan"), 3.0])}, tmp_path / "b" / "m.safetensors")
    assert "not finite" in differing_tensors(tmp_path / "a", tmp_path / "b")


def test_tensors_may_be_spread_over_files_differently(tmp_path: Path):
    make(tmp_path / "a", steps=2)
    make(tmp_path / "b", steps=2)
    folder = tmp_path / "b" / "checkpoints" / "step-00000002"
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for i, (name, tensor) in enumerate(tensors.items()):
        save_file({name: tensor}, folder / f"model-{i}.safetensors")
    assert differing_tensors(tmp_path / "a" / "checkpoints" / "step-00000002", folder) == ""


def other_tokens(record: dict[str, object]) -> None:
    if record["step"] in (3, 5):
        record["token_hash"] = "f" * 16


def other_loss(record: dict[str, object]) -> None:
    if record["step"] == 5:
        record["loss"] = 5 - 5 / 7 + 1e-15


@pytest.mark.parametrize(
    ("metrics", "part", "first", "different"), [(other_tokens, "tokens", 3, 2), (other_loss, "losses", 5, 1)]
)
def test_where_metrics_part(
    tmp_path: Path, metrics: Callable[[dict[str, object]], None], part: str, first: int, different: int
):
    parted = compare_runs(make(tmp_path / "a"), make(tmp_path / "b", metrics=metrics)).parted
    assert parted is not None
    assert (parted.name, parted.first, parted.different) == (part, first, different)


def test_a_shorter_run_is_compared_as_far_as_it_goes(tmp_path: Path):
    comparison = compare_runs(make(tmp_path / "a"), make(tmp_path / "b", steps=3))
    assert comparison.equal
    assert comparison.steps == (6, 3)
    assert named(comparison)["weights"] == (1, 0, None)


def test_nothing_to_compare_is_told(tmp_path: Path):
    with pytest.raises(UsageError, match="no step and no checkpoint in common"):
        compare_runs(make(tmp_path / "a"), RunDir(tmp_path / "b").create())
    with pytest.raises(UsageError, match="holds no run"):
        compare_runs(RunDir(tmp_path / "a"), RunDir(tmp_path / "absent"))
    with pytest.raises(UsageError, match="absent holds no run"):
        compare_runs(RunDir(tmp_path / "absent"), RunDir(tmp_path / "a"))


@pytest.mark.parametrize("turned", [False, True])
def test_what_one_run_lacks_is_a_difference_or_is_not_compared(tmp_path: Path, turned: bool):
    """Whichever of the two it is that lacks it."""

    def no_hash(record: dict[str, object]) -> None:
        if record["step"] == 5:
            del record["token_hash"]

    def less(trained: Trained) -> None:
        if trained.step == 4:
            del trained.state["clock"], trained.weights["b"]

    whole, lacking = make(tmp_path / "a"), make(tmp_path / "b", metrics=no_hash, change=less)
    shutil.rmtree(lacking.checkpoints / "step-00000002")
    comparison = compare_runs(lacking, whole) if turned else compare_runs(whole, lacking)
    assert named(comparison) == {
        "tokens": (6, 1, 5),
        "losses": (6, 0, None),
        "norms": (6, 0, None),
        "saves": (0, 0, None),
        "clock": (2, 1, 4),
        "guard": (2, 0, None),
        "weights": (2, 1, 4),
        "optimizer": (2, 0, None),
    }
    assert comparison.parts[4].detail == ("clock None and 32" if turned else "clock 32 and None")
    assert comparison.parts[6].detail == "1 tensors are in one only, b first"


def test_runs_without_metrics_are_compared_by_their_checkpoints(tmp_path: Path):
    whole, bare = make(tmp_path / "a"), make(tmp_path / "b")
    bare.metrics.write_text("")
    for pair, steps in (((whole, bare), (6, 0)), ((bare, whole), (0, 6))):
        comparison = compare_runs(*pair)
        assert comparison.steps == steps
        assert named(comparison)["tokens"] == (0, 0, None)
        assert named(comparison)["weights"] == (3, 0, None)


def test_damage_is_an_error_not_a_difference(tmp_path: Path):
    a, b = make(tmp_path / "a"), make(tmp_path / "b")
    path = b.checkpoints / "step-00000004" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match="step-00000004"):
        compare_runs(a, b)


def test_a_whole_run_is_whole_and_each_damage_is_named(tmp_path: Path):
    run = make(tmp_path / "a")
    assert [(finding.what, finding.ok) for finding in check_run(run).findings] == [
        ("ledger", True),
        ("metrics", True),
        ("step-00000006", True),
        ("step-00000004", True),
        ("step-00000002", True),
    ]
    path = run.checkpoints / "step-00000004" / "trainer" / "optimizer.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    run.events.write_text(run.events.read_text().replace('"step": 4', '"step": 5'))
    run.metrics.write_text("x\n" + run.metrics.read_text())
    checkup = check_run(run)
    assert not checkup.ok
    assert [finding.what for finding in checkup.findings if not finding.ok] == ["ledger", "metrics", "step-00000004"]


def test_data_is_compared_with_what_the_run_began_with(tmp_path: Path, tiny_corpus: Path):
    from hornbook.data.corpus import Corpus

    data = shutil.copytree(tiny_corpus, tmp_path / "data")
    run = make(tmp_path / "a")
    run.data_lock.write_text(json.dumps(Corpus.open(data).lock()))
    run.recipe.write_text(f'[data]\npath = "{data}"\n')
    assert check_run(run).ok
    lock = json.loads(run.data_lock.read_text())
    lock["shards"]["tokens/train/prose/00000"] = "0" * 32
    run.data_lock.write_text(json.dumps(lock))
    (bad,) = [finding for finding in check_run(run).findings if not finding.ok]
    assert bad.what == "data"
    assert "tokens/train/prose/00000" in bad.text
