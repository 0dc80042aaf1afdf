"""`hornbook ladder`: runs are read from their directories, and a fitted law serves a budget."""

import json
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from hornbook.cli.main import main
from hornbook.cli.plan import ladder
from hornbook.cli.plan.ladder import read_rungs
from hornbook.cli.shell import resolve_words
from hornbook.data.corpus import Corpus, open_corpus
from hornbook.errors import Exit, HornbookError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.model.config.parameter_count import count_parameters, rounded_rows
from hornbook.plan.scaling.isoflop import PlannedRun
from hornbook.plan.scaling.ladder import Rung
from hornbook.plan.scaling.laws import law_named
from hornbook.settings.resolve import resolve


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> Path:
    """A finished run of 16 steps, evaluated every four."""
    folder = tmp_path_factory.mktemp("ladder") / "one"
    assert main(["train", "--out", str(folder), *tiny_settings, "eval.every=4", "train.tokens=1024"]) == Exit.DONE
    return folder


def synthetic() -> list[Rung]:
    law, found = law_named("besiroglu"), []
    for compute in (1e18, 1e19, 1e20):
        for number, factor in enumerate((0.3, 0.6, 1.0, 1.7, 3.0)):
            size = law.best_size(compute) * factor
            loss = (law.loss(size, compute / 6 / size) or 0.0) * (1 + 0.001 * math.cos(number + math.log(compute)))
            found.append(Rung(name=f"r{number}", parameters=size, tokens=compute / 6 / size, loss=loss))
    return found


def test_a_run_is_read(run: Path) -> None:
    from hornbook.model.build_model import build_model
    from hornbook.run.checkpoints.bound import recipe_in_force

    (rung,), left_out = read_rungs([run.parent], loss="held-out", count="all")
    recipe = recipe_in_force(RunDir(run))
    assert recipe.model.vocab is not None
    model = build_model(recipe.model, recipe.model.vocab, "meta")
    assert left_out == {}
    assert rung.name == "one"
    assert rung.parameters == sum(each.numel() for each in model.parameters())
    assert rung.tokens == 1024
    last = json.loads(max(run.glob("evals/step-*.json")).read_text())
    assert rung.loss == (last.get("whole") or last)["all"]["loss"]
    assert [tokens for tokens, _ in rung.curve] == [512, 1024]
    (bare,), _ = read_rungs([run], loss="train", count="without-embeddings")
    assert rung.parameters - bare.parameters == recipe.model.vocab * recipe.model.width
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert bare.loss == losses[-1]


def test_runs_of_other_text_and_unfinished_ones_are_left_out(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for name in ("a", "b", "other", "stopped", "blind"):
        shutil.copytree(run, folder / name)
    for path in (folder / "other" / "evals").iterdir():
        path.write_text(path.read_text().replace('"rows": "', '"rows": "0'))
    state = folder / "stopped" / "state.json"
    state.write_text(state.read_text().replace('"finished"', '"stopped"'))
    max((folder / "blind" / "evals").iterdir()).unlink()
    rungs, left_out = read_rungs([folder, folder / "a"], loss="held-out", count="all")
    assert [rung.name for rung in rungs] == ["a", "b"]
    reasons = {Path(name).name: text for name, text in left_out.items()}
    assert reasons.keys() == {"other", "stopped", "blind"}
    assert "other held-out rows" in reasons["other"]
    assert "not finished" in reasons["stopped"]
    assert "--loss train" in reasons["blind"]


def test_too_few_runs_end_with_their_number(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", "fit", str(run)]) == Exit.USAGE
    assert "1 runs of 1 sizes and 1 lengths do not determine" in capsys.readouterr().err
    assert main(["ladder", "fit", str(run / "evals")]) == Exit.USAGE
    assert "there is no run" in capsys.readouterr().err


def test_a_fitted_law_serves_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ladder, "read_rungs", lambda *_, **__: (synthetic(), {"runs/x": "it is dead"}))
    law = tmp_path / "new" / "law.json"
    words = ["ladder", "fit", "runs", "--out", str(law), "--compute", "1e21"]
    assert main([*words, "-n"]) == Exit.DONE
    assert not law.exists()
    assert f"would write {law}" in capsys.readouterr().err
    assert main(words) == Exit.DONE
    out, err = capsys.readouterr()
    assert "for 1e+21 operations: " in out
    assert "approach 2, isoFLOP parabolas: N ~ C^0.5" in out
    assert "runs/x is left out: it is dead" in err
    assert main([*words, "--json"]) == Exit.DONE
    value = json.loads(capsys.readouterr().out)
    assert len(value["points"]) == 15
    assert value["left_out"] == {"runs/x": "it is dead"}

    budget = ["plan", "--budget", "1e20", "--cluster", "H100", "--law", str(law)]
    assert main([*budget, "--json"]) == Exit.DONE
    main_choice = json.loads(capsys.readouterr().out)["main"]
    assert main_choice["law"]["name"] == "yours"
    assert main_choice["low"] < main_choice["loss"] < main_choice["high"]
    assert main_choice["high"] - main_choice["low"] < 0.05
    assert main(budget) == Exit.DONE
    printed = capsys.readouterr()
    assert "of yours: its 90 % interval" in printed.out
    assert "the laws differ" not in printed.err


def test_compute_of_published_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "compute.svg"
    assert main(["ladder", "published", "--out", str(out)]) == Exit.DONE
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].split() == ["GPT-3-175B", "175", "B", "300", "B", "3.14e+23", "3,637"]
    drawing = ElementTree.fromstring(out.read_text())
    names = [each.text for each in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"BERT-base", "RoBERTa-large", "T5-11B", "GPT-3-175B"} <= set(names)
    bars = [float(each.get("width", 0)) for each in drawing.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert len(bars) == 17
    assert bars == sorted(bars)
    assert main(["ladder", "published", "--out", "compute.png"]) == Exit.USAGE


def test_a_ladder_is_run_once_and_goes_on(
    tmp_path: Path,
    tiny_corpus: Path,
    tiny_settings: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each run is a process; here one that writes what a finished run leaves."""
    started = []

    def finish(*words: object) -> None:
        started.append(["train", *map(str, words)])
        made = RunDir(Path(started[-1][started[-1].index("--out") + 1])).create()
        corpus = Corpus.open(tiny_corpus)
        given = started[-1][1 : started[-1].index("--data")]
        rows = f"model.vocab={rounded_rows(corpus.vocab_size)}"
        made.recipe.write_text(resolve_words(given, rows).to_toml())
        made.data_lock.write_text(json.dumps(corpus.lock()))

    monkeypatch.setattr(ladder, "_train", finish)
    monkeypatch.setattr(ladder, "summarize", lambda _: SimpleNamespace(status="finished"))
    command = ["ladder", "run", *tiny_settings, "--data", str(tiny_corpus), "--sizes", "4"]
    command += ["--out", str(tmp_path / "runs"), "--compute", "1e15", "--compute", "3e15", "--json"]
    assert main([*command, "-n"]) == Exit.DONE
    value = json.loads(capsys.readouterr().out)
    assert not started
    assert all(each.pop("seconds") > 0 for each in value["runs"])
    assert [text.split(" reads")[0] for text in value["warnings"]] == ["the longest run"]
    assert main([*command[:-1], "-n"]) == Exit.DONE
    assert re.search(r"about [\d,.]+ \w+ of steps, as planned", capsys.readouterr().err)
    planned = value["runs"]
    made = resolve("tiny", [*tiny_settings, *PlannedRun.model_validate(planned[0]).words()], environ={}).recipe.model
    assert count_parameters(made, rounded_rows(Corpus.open(tiny_corpus).vocab_size)) == planned[0]["parameters"]
    assert main(command) == Exit.DONE
    assert len(started) == len(planned) == 8
    assert started[0][:2] == ["train", tiny_settings[0]]
    assert f"train.tokens={planned[0]['tokens']}" in started[0]
    assert started[0][-2:] == ["--resume", "auto"]
    assert main(command) == Exit.DONE
    assert len(started) == 8
    assert main([*command, "--compute", "500"]) == Exit.USAGE
    assert "--compute" in capsys.readouterr().err
    assert main([*command, "log.every=7", "train.threads=2"]) == Exit.DONE
    assert main([*command, "optim.lr=0.5"]) == Exit.USAGE
    assert re.search(r"is there, and it is another run \(optim.lr 0.01 -> 0.5\)", capsys.readouterr().err)
    lock = RunDir(tmp_path / "runs" / planned[3]["name"]).data_lock
    lock.write_text(lock.read_text().replace(Corpus.open(tiny_corpus).tokenizer_digest, "0" * 32))
    assert main(command) == Exit.USAGE
    assert "the data is not what this run began with (the tokenizer)" in capsys.readouterr().err
    assert len(started) == 8


@pytest.mark.parametrize(
    ("ending", "code", "text"),
    [
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); ready(); time.sleep(60)", Exit.RESUMABLE, "goes on"),
        ("sys.exit(9)", Exit(9), "ended with exit code 9"),
    ],
)
def test_an_interrupted_run_is_waited_for(
    ending: str, code: Exit, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C killed the run a quarter of a second later, and what it had made since its last save was lost."""
    ready = tmp_path / "ready"
    script = f"import pathlib, signal, sys, time; ready = pathlib.Path({str(ready)!r}).touch; {ending}"
    monkeypatch.setattr("hornbook.cli.plan.ladder.command", lambda *_: [sys.executable, "-c", script])

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    if "ready()" in ending:
        threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(HornbookError, match=text) as stopped:
        ladder._train("tiny")
    assert stopped.value.exit_code == code


def test_paths_that_a_run_has_settled_are_the_same_run(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a teacher its checkpoint is kept, which stays when its run has trained on; folders are kept absolute."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "general").symlink_to(tiny_corpus)
    run, teacher = RunDir(tmp_path / "run").create(), 'train.loss.teacher={{kind="top", path="{}"}}'
    path = tmp_path / "teacher"
    settled = teacher.format(path / "checkpoints" / "step-4"), f"data.replay.path={tmp_path / 'general'}"
    run.recipe.write_text(resolve_words(settled, f"data.path={tiny_corpus}").to_toml())
    given = teacher.format("teacher"), "data.replay.path=general", "data.replay.share=0.5"
    wanted = resolve_words(given, f"data.path={tiny_corpus}").recipe
    run.data_lock.write_text(json.dumps(open_corpus(wanted.data, tiny_corpus).lock()))
    with pytest.raises(UsageError, match=r"another run \(data.replay.share [\d.]+ -> 0.5\)"):
        ladder._require_same(run, wanted)
