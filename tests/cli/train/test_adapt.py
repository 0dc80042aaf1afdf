"""`hornbook adapt` and `hornbook fisher` from the command line."""

import json
import shutil
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest

from hornbook.cli.main import main
from hornbook.cli.train import adapt
from hornbook.errors import Exit
from hornbook.run.diagnose.domain_transfer import domain_losses
from tests.conftest import write_corpus
from tests.run.launcher import Launcher


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
    nothing = [word.replace(str(tiny_corpus), str(tmp_path / "no")) for word in command]
    assert main([*nothing, "--replay", "0,50%", "optim.lr=0.2"]) == Exit.USAGE
    assert f"{tmp_path / 'no'} does not exist" in capsys.readouterr().err
    assert not out.exists()
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
        (["--domain", str(write_corpus(tmp_path / "other", seed=9))], "--domain"),
        (["--from", str(sorted((base / "checkpoints").glob("step-*"))[0])], "--from"),
        (["optim.lr=0.1"], "settings"),
    ):
        assert main([*command, "--replay", "0,50%", *other]) == Exit.USAGE
        assert f"{name}: the runs in {out} have" in capsys.readouterr().err
    index = general / "tokens" / "index.json"
    text = index.read_text()
    index.write_text(text.replace(json.loads(text)["shards"][0]["digest"], "0" * 32))
    assert main([*command, "--replay", "0,50%"]) == Exit.INTEGRITY
    told = " ".join(capsys.readouterr().err.split())
    assert f"{out / 'replay-0-seed-1'}: the data is not what this run began with (shard replay-tokens/" in told
    assert "`hornbook adapt` with another --out trains anew" in told
    index.write_text(text)
    (out / "adapt.json").write_text("[")
    assert main([*command, "--replay", "0,50%"]) == Exit.INTEGRITY


def fork(launcher: Launcher, words: list[str], log: Path) -> "CompletedProcess[None]":
    """In place of `subprocess.run` of a command: the same command in a fork, which has imported hornbook already."""
    return CompletedProcess(words, launcher.start(words, log).wait(), None)


def test_domains_are_learned_one_after_another(
    tmp_path: Path,
    tiny_corpus: Path,
    tiny_settings: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    launcher: Launcher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Losses of a stage are those that its run has of its own texts, before its first step and after its last."""
    general, other = write_corpus(tmp_path / "general", seed=7), write_corpus(tmp_path / "other", seed=11)
    base, out = tmp_path / "base", tmp_path / "out"
    monkeypatch.setattr(adapt, "command", lambda *words: [*map(str, words)])
    run = SimpleNamespace(run=lambda words, **_: fork(launcher, words, tmp_path / "log"), DEVNULL=None)
    monkeypatch.setattr(adapt, "subprocess", run)
    words = [word for word in tiny_settings if not word.startswith(("data.path", "model."))]
    assert main(["train", "--out", str(base), *tiny_settings, f"data.path={general}"]) == Exit.DONE
    command = ["adapt", *words, "train.tokens=512", "optim.lr=0.02", "--from", str(base), "--general", str(general)]
    command += ["--replay", "25%", "--out", str(out)]
    capsys.readouterr()
    assert main([*command, "--domain", str(tiny_corpus), "--domain", str(general), "-n"]) == Exit.USAGE
    assert "--domain and --general name a folder twice" in capsys.readouterr().err
    assert main([*command, "--domain", str(tiny_corpus), "--domain", str(other), "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    (chain,) = found["chains"]
    assert chain["texts"] == ["general", tiny_corpus.name, "other"]
    matrix = chain["matrix"]
    assert len({round(loss, 6) for row in matrix for loss in row}) == 9
    for stage in (1, 2):
        scores = sorted((out / f"replay-0.25-seed-1-domain-{stage}" / "evals").glob("*"))
        for path, row in ((scores[0], matrix[stage - 1]), (scores[-1], matrix[stage])):
            losses = domain_losses(json.loads(path.read_text())["sources"])
            assert (losses["general"], losses["domain"]) == pytest.approx((row[0], row[stage]), abs=1e-5)
    assert chain["adaptation"]["other"]["mean"] == pytest.approx(matrix[1][2] - matrix[2][2])
    assert chain["forward_transfer"]["mean"] == pytest.approx(matrix[0][2] - matrix[1][2])
    assert chain["backward_transfer"]["mean"] == pytest.approx(matrix[1][1] - matrix[2][1])
    assert "| other | " in (out / "report.md").read_text()
    assert (out / "frontier.svg").read_text().count("<circle") == 2


def test_everything_that_the_report_needs_is_checked_before_the_first_run(
    tmp_path: Path,
    checkpoint: Path,
    tiny_corpus: Path,
    tiny_settings: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word for word in tiny_settings if not word.startswith(("data.path", "model."))]
    domain, out = shutil.copytree(tiny_corpus, tmp_path / "domain"), tmp_path / "out"
    index = json.loads((domain / "tokens" / "index.json").read_text())
    index["shards"] = [shard for shard in index["shards"] if shard["split"] == "train"]
    (domain / "tokens" / "index.json").write_text(json.dumps(index))
    command = ["adapt", *words, "--from", str(checkpoint), "--domain", str(domain), "--general", str(tiny_corpus)]
    command += ["--replay", "50%", "--out", str(out)]
    for more in (["-n"], []):
        assert main([*command, *more]) == Exit.USAGE
        assert (
            f"{domain} holds no validation tokens, so nothing could be compared: tokenize it anew with a larger share, "
            f"`hornbook tokenize {domain} --text.validation 0.1 --overwrite`"
        ) in " ".join(capsys.readouterr().err.split())
    assert not out.exists()
    other = write_corpus(tmp_path / "other", seed=5)
    command[command.index(str(domain))] = str(other)
    assert main([*command, "-n"]) == Exit.DONE
    for wrong, says in (("train.tokens=none", "--train.tokens"), ("model.width=48", "model.width is 48")):
        assert main([*command, wrong, "-n"]) == Exit.USAGE
        assert says in capsys.readouterr().err


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
