"""TensorBoard's files, read back with TensorBoard: every step once, whatever the run went through."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit, UsageError
from hornbook.files.extras import install_command
from hornbook.files.run_directory import RunDir
from hornbook.run.observe.trackers.event_files import EventFiles

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
ON = "log.tensorboard=true"


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value) as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )

    found = EventAccumulator(str(RunDir(folder).tensorboard), size_guidance={"scalars": 0}).Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_every_step_and_evaluation_is_there(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    assert launch_run(tmp_path / "run", ON, "eval.every=6") == Exit.DONE
    found, steps = read(tmp_path / "run"), branch(tmp_path / "run")
    for tag, key in (("loss", "loss"), ("gradient_norm", "gradient_norm"), ("learning_rate", "lr")):
        assert found[f"train/{tag}"] == [(each["step"], pytest.approx(each[key], rel=1e-6)) for each in steps]
    assert [step for step, _ in found["train/tokens_per_second"]] == list(range(1, 13))
    for tag in ("loss", "bits_per_byte", "bits_per_byte/notes", "bits_per_byte/prose"):
        assert [step for step, _ in found[f"validation/{tag}"]] == [6, 12]


def test_the_recipe_and_samples_are_there(tmp_path: Path, launch_run: Launch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )

    run = RunDir(tmp_path / "run")
    assert launch_run(run.path, ON, "eval.every=6", "eval.prompt=the model", "eval.sample_tokens=3") == Exit.DONE
    found = EventAccumulator(str(run.tensorboard)).Reload()
    assert found.PluginTagToContent("text").keys() == {"recipe/text_summary", "sample/text_summary"}
    (recipe,) = found.Tensors("recipe/text_summary")
    text = recipe.tensor_proto.string_val[0].decode()
    assert "".join(line.removeprefix("    ") for line in text.splitlines(keepends=True)) == run.recipe.read_text()
    samples = found.Tensors("sample/text_summary")
    assert [each.step for each in samples] == [6, 12]
    assert samples[0].tensor_proto.string_val[0].startswith(b"    the model")


def test_steps_made_again_stand_there_once(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    run = RunDir(tmp_path / "run")
    assert launch_run(run.path, ON, "eval.every=3", "train.tokens=1280") == Exit.DONE
    checkpoints = sorted(run.checkpoints.glob("step-*"))
    assert [path.name for path in checkpoints] == ["step-00000004", "step-00000008", "step-00000010"]
    for path in checkpoints[1:]:
        path.rename(run.checkpoints / f"damaged-{path.name}")
    assert launch_run(run.path, "train.tokens=1450", "optim.lr=0.002", mode="resume") == Exit.DONE
    assert len(list(run.tensorboard.iterdir())) == 2
    found, steps = read(run.path), branch(run.path)
    assert found["train/loss"] == [(each["step"], pytest.approx(each["loss"], rel=1e-6)) for each in steps]
    assert [step for step, _ in found["validation/loss"]] == [3, 6, 9, 12]


def test_a_run_that_asks_for_them_later_has_its_past_too(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    run = RunDir(tmp_path / "run")
    assert launch_run(run.path, "eval.every=4", "train.tokens=1024") == Exit.DONE
    assert not run.tensorboard.exists()
    assert launch_run(run.path, ON, "train.tokens=1450", mode="resume") == Exit.DONE
    found, steps = read(run.path), branch(run.path)
    assert [step for step, _ in found["train/loss"]] == [each["step"] for each in steps] == list(range(1, 13))
    assert [step for step, _ in found["validation/bits_per_byte"]] == [4, 8, 12]


def test_they_change_no_bit_and_nothing_is_written_unless_asked(
    tmp_path: Path, launch_run: Launch, branch: Branch
) -> None:
    launch_run(tmp_path / "with", ON)
    launch_run(tmp_path / "without")
    assert branch(tmp_path / "with") == branch(tmp_path / "without")
    assert not RunDir(tmp_path / "without").tensorboard.exists()


def test_a_writer_that_fails_is_closed_and_told_once_and_ends_no_run(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    def close(self: Any) -> None:
        closed.append(self)
        working_close(self)
        fail()

    closed: list[Any] = []
    writer: Any = importlib.import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter
    working_close = writer.close
    monkeypatch.setattr(EventFiles, "_send", fail)
    monkeypatch.setattr(writer, "close", close)
    assert launch_run(tmp_path / "run", ON, "eval.every=6") == Exit.DONE
    assert len(closed) == 1
    text = RunDir(tmp_path / "run").log.read_text()
    assert text.count("TensorBoard gets nothing any more: [Errno 28] No space left on device") == 1


def test_without_the_package_the_remedy_is_named_before_anything_is_written(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UsageError) as caught:
        launch_run(tmp_path / "run", ON)
    assert str(caught.value) == f"log.tensorboard needs tensorboard, which is not installed: {install_command('track')}"
    assert not (tmp_path / "run").exists()
    assert launch_run(tmp_path / "plain") == Exit.DONE
    words = ["train", "tiny", "--data", "nowhere", "--out", str(tmp_path / "other"), "-n", f"--{ON}"]
    assert main(words) == Exit.USAGE
    assert install_command("track") in capsys.readouterr().err
