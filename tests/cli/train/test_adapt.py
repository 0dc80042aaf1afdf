"""`hornbook adapt` and `hornbook fisher` from the command line."""

import json
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from tests.conftest import write_corpus


def test_a_sweep_of_shares_is_trained_and_reported(
    tmp_path: Path, tiny_corpus: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    general, base, out = write_corpus(tmp_path / "general", seed=7), tmp_path / "base", tmp_path / "out"
    words = [word for word in tiny_settings if not word.startswith(("data.path", "model."))]
    assert main(["train", "--out", str(base), *tiny_settings, f"data.path={general}"]) == Exit.DONE
    command = ["adapt", *words, "train.tokens=512", "--from", str(base), "--domain", str(tiny_corpus)]
    command += ["--general", str(general), "--out", str(out)]
    capsys.readouterr()
    assert main([*command, "--replay", "0,50%", "-n", "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["shares"] == [0, 0.5]
    assert not out.exists()
    assert main([*command, "--replay", "0,50%", "optim.lr=0.2", "--domain", str(tmp_path / "no")]) == Exit.USAGE
    assert "ended with exit code 2: correct what it says above" in capsys.readouterr().out
    assert main([*command, "--replay", "0,50%", "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    assert [stage["share"] for stage in found["stages"]] == [0, 0.5]
    first = found["stages"][0]
    scores = json.loads(sorted((out / "replay-0-seed-1" / "evals").glob("*"))[-1].read_text())["sources"]
    mine = [scores[name] for name in ("replay-notes", "replay-prose")]
    expected = sum(each["loss"] * each["tokens"] for each in mine) / sum(each["tokens"] for each in mine)
    assert first["losses"]["general"]["mean"] == pytest.approx(expected)
    assert first["forgetting"]["mean"] == pytest.approx(expected - found["before"]["general"])
    assert (out / "frontier.svg").read_text().count("<circle") == 3
    assert json.loads((out / "report.json").read_text())["stages"] == found["stages"]
    newest = max(path.stat().st_mtime_ns for path in (out / "replay-0-seed-1").rglob("*"))
    assert main([*command, "--replay", "0,50%", "--json"]) == Exit.DONE
    assert max(path.stat().st_mtime_ns for path in (out / "replay-0-seed-1").rglob("*")) == newest, "it was finished"
    for other, name in (
        (["--domain", str(general)], "--domain"),
        (["--from", str(sorted((base / "checkpoints").glob("step-*"))[0])], "--from"),
        (["optim.lr=0.1"], "settings"),
    ):
        assert main([*command, "--replay", "0,50%", *other]) == Exit.USAGE
        assert f"{name}: the runs in {out} have" in capsys.readouterr().err
    (out / "adapt.json").write_text("[")
    assert main([*command, "--replay", "0,50%"]) == Exit.INTEGRITY


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--replay", "0,2"], "--replay 0,2: write different shares"),
        (["--seeds", "1,1"], "--seeds 1,1"),
        (["--seeds", "1,01"], "--seeds 1,01: write different"),
        (["--seeds", "²"], "--seeds ²: write different whole numbers"),
        (["seed=4"], "seed: `hornbook adapt` sets it"),
    ],
)
def test_what_it_cannot_do_is_named(more: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--from", "a", "--domain", "b", "--general", "c", "--out", "d"]
    assert main(["adapt", "tiny", *folders, *more]) == Exit.USAGE
    assert says in capsys.readouterr().err
