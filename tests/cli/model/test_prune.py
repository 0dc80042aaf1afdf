"""`hornbook prune`, healing, and the use of what it writes."""

import json
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit


def test_a_pruned_model_is_an_ordinary_one_and_heals(
    tmp_path: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    run, small, healed = tmp_path / "run", tmp_path / "small", tmp_path / "healed"
    assert main(["train", "--out", str(run), *tiny_settings, "model.layers=3"]) == Exit.DONE
    capsys.readouterr()
    command = ["prune", str(run), "--heads", "1", "--hidden", "32", "--layers", "2", "--rows", "8"]
    assert main([*command, "--out", str(small), "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    before, after = found["before"], found["after"]
    assert after["parameters"] < before["parameters"]
    assert (
        after["bytes"]
        < before["bytes"]
        == (sorted((run / "checkpoints").glob("step-*/model.safetensors"))[-1]).stat().st_size
    )
    assert before["loss"] < after["loss"] < before["loss"] + 3
    assert len(found["layers"]) == 2
    assert main(["generate", str(small), "-p", "the", "--tokens", "3"]) == Exit.DONE
    words = [word for word in tiny_settings if not word.startswith("model.")]
    teacher = ["train.loss.teacher.kind=top", f"train.loss.teacher.path={run}", "train.loss.teacher.top=16"]
    assert main(["train", "--from", str(small), "--out", str(healed), *words, *teacher]) == Exit.DONE
    scores = [json.loads(path.read_text())["all"]["loss"] for path in sorted((healed / "evals").glob("*.json"))]
    assert scores[-1] < scores[0]
    capsys.readouterr()
    assert main(["prune", str(healed), "--sparse", "--out", str(tmp_path / "sparse"), "--rows", "2"]) == Exit.DONE
    assert "tokens per second:" in capsys.readouterr().out


def test_too_few_heads_and_nothing_to_do_are_named(
    tmp_path: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", "--out", str(run), *tiny_settings, "train.tokens=512"]) == Exit.DONE
    out = ["--out", str(tmp_path / "out")]
    for more, says in ((["--heads", "0"], "one at least must stay"), ([], "nothing to take out")):
        assert main(["prune", str(run), *out, *more]) == Exit.USAGE
        assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("step", ["lora", "freeze"])
def test_of_a_model_with_surgery_the_merged_weights_are_cut(
    tmp_path: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str], step: str
) -> None:
    """Importance needs gradients of weights that the run itself had frozen, and losses are of the same weights."""
    base, run, small = (tmp_path / name for name in ("base", "run", "small"))
    words = [word for word in tiny_settings if not word.startswith("model.")]
    assert main(["train", "--out", str(base), *tiny_settings, "train.tokens=512"]) == Exit.DONE
    chosen = {"lora": '["lora"]', "freeze": '[{kind = "freeze", names = ["blocks.*"]}]'}[step]
    start = ["train", "--from", str(base), "--out", str(run), *words, "train.tokens=512"]
    assert main([*start, f"surgery={chosen}"]) == Exit.DONE
    capsys.readouterr()
    assert main(["prune", str(run), "--heads", "1", "--rows", "2", "--out", str(small), "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    assert main(["prune", str(run), "--heads", "2", "--rows", "2", "--out", str(tmp_path / "whole"), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["before"]["loss"] == pytest.approx(whole["after"]["loss"])
    assert found["before"]["bytes"] > found["after"]["bytes"]
    assert found["after"]["parameters"] < found["before"]["parameters"] == whole["after"]["parameters"]
