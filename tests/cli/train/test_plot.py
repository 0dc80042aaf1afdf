"""`hornbook runs plot`: files as a whole, runs that cannot be read named, a plan without a file."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> Path:
    """A run that was stopped on its way and resumed."""
    folder = tmp_path_factory.mktemp("plots") / "mine"
    assert main(["train", "--out", str(folder), *tiny_settings, "eval.every=4", "train.tokens=1024"]) == Exit.DONE
    assert main(["resume", str(folder), "--train.tokens", "1450"]) == Exit.DONE
    return folder


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_a_run_is_drawn(run: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new folder" / f"loss{suffix}"
    capsys.readouterr()
    assert main(["runs", "plot", str(run), "--out", str(out), "--x", "tokens"]) == Exit.DONE
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (f"{out}\n", "")
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    text = out.read_text(encoding="utf-8")
    if suffix == ".svg":
        ElementTree.fromstring(text)
    for words in ("mine", "bits per byte", "learning rate", "gradient norm", "tokens/s", "resumed", "prose", "notes"):
        assert f">{words}<" in text


def test_a_plan_writes_nothing(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "loss.svg"
    words = ["runs", "plot", str(run), "--out", str(out), "-n"]
    capsys.readouterr()
    assert main(words) == Exit.DONE
    assert capsys.readouterr().out.startswith(f"would write {out}: loss, bits per byte")
    assert main([*words, "--json"]) == Exit.DONE
    value = json.loads(capsys.readouterr().out)
    assert (value["runs"], value["left_out"]) == (["mine"], {})
    assert value["figures"]["bits per byte"] == 3
    assert not out.exists()


def test_runs_that_cannot_be_read_are_named_and_left_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = shutil.copytree(run, tmp_path / "damaged")
    (damaged / "metrics.jsonl").write_text("no json\n")
    again = shutil.copytree(run, tmp_path / "again" / "mine")
    out = tmp_path / "all.svg"
    runs = [damaged, run, tmp_path / "absent", again]
    capsys.readouterr()
    assert main(["runs", "plot", *map(str, runs), "--out", str(out)]) == Exit.DONE
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{damaged} is left out: ")
    assert "is not a JSON object" in first
    assert second == f"{tmp_path / 'absent'} is left out: it holds no run"
    text = out.read_text()
    assert f">{run}<" in text  # two runs of one name are told apart by their paths
    assert f">{again}<" in text


def test_nothing_to_draw_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "loss.svg"
    assert main(["runs", "plot", str(tmp_path / "absent"), "--out", str(out)]) == Exit.USAGE
    assert "there is nothing to plot" in capsys.readouterr().err
    assert not out.exists()


def test_the_name_says_what_is_written(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "plot", str(run), "--out", "loss.png"]) == Exit.USAGE
    assert "must end with .svg" in capsys.readouterr().err


def test_the_group_lists_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--help"]) == Exit.DONE
    assert "plot" in capsys.readouterr().out
