"""A run with multi-token prediction: resumed, exported without it, drafting text, refused where it cannot be."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from hornbook.cli.main import main
from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.model.surgery.adapters.adapter_files import tensors_digest
from hornbook.model.surgery.folders import read_merged
from hornbook.parallel.gradients.fisher import FisherFile
from hornbook.run.job.control import Request, write_request
from hornbook.settings.resolve import resolve
from tests.run.launcher import Launcher

WORDS = ("model.mtp.kind=sequential", "model.mtp.depth=2", "model.dropout=0.1", "model.layers=2")
Branch = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def whole(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.conftest import TINY_RUN

    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(["train", "--out", str(folder), f"data.path={tiny_corpus}", *TINY_RUN, *WORDS]) == 0
    return folder


def test_a_run_that_went_on_from_a_checkpoint_has_the_same_bits(tmp_path: Path, whole: Path, branch: Branch) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    for step in (8, 12):
        (cut / f"checkpoints/step-{step:08}/model.safetensors").write_bytes(b"damaged")
    assert main(["resume", str(cut)]) == 0
    assert branch(cut) == branch(whole)
    assert all(record["terms"]["mtp"] > 0 for record in branch(whole))
    for name in ("model.safetensors", "trainer/optimizer.safetensors"):
        ends = [(run / "checkpoints/step-00000012" / name).read_bytes() for run in (whole, cut)]
        assert ends[0] == ends[1]
    assert "mtp.blocks.3.attention.query.weight" in load_file(whole / "checkpoints/step-00000012/model.safetensors")


def test_an_export_says_what_it_leaves_out_and_computes_the_same(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["export", str(whole), "--out", str(out), "--no-certificate", "--json"]) == Exit.DONE
    printed, said = capsys.readouterr()
    assert json.loads(printed)["left_out"] == {"mtp_blocks": 2}
    assert "left out: 2 blocks of multi-token prediction" in " ".join(said.split())
    assert json.loads((out / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    texts = [_text(folder, capsys)["text"] for folder in (whole, out)]
    assert texts[0] == texts[1]
    assert main(["generate", str(out), "-p", "a", "--speculative"]) == Exit.USAGE
    assert "model.mtp.kind" in capsys.readouterr().err


def test_a_mean_says_what_it_leaves_out(tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["average", str(whole), "--last", "2", "--out", str(tmp_path / "mean"), "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["left_out"] == {"mtp_blocks": 2}


def test_its_fisher_information_is_that_of_the_weights_it_was_taken_at(tmp_path: Path, whole: Path) -> None:
    checkpoint, file = whole / "checkpoints/step-00000012", tmp_path / "fisher.safetensors"
    assert main(["fisher", str(whole), "--out", str(file), "--rows", "1"]) == Exit.DONE
    FisherFile(file).check(tensors_digest(read_merged(checkpoint)[2]), checkpoint)
    for name in load_file(checkpoint / "model.safetensors"):
        FisherFile(file).read(name)


def test_text_is_drafted_and_told(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = _text(whole, capsys, "--greedy")
    for words in (("--speculative",), ("--draft", str(whole), "--draft-tokens", "3")):
        drafted = _text(whole, capsys, "--greedy", *words)
        assert drafted["ids"] == plain["ids"]
        told = drafted["speculative"]
        assert told["passes"] + told["accepted"] >= plain["tokens"]
        assert told["tokens_per_pass"] >= 1
    assert main(["generate", str(whole), "-p", "a", "--speculative", "--beams", "2"]) == Exit.USAGE
    assert main(["generate", str(whole), "-p", "a", "--speculative", "--draft", str(whole)]) == Exit.USAGE
    assert main(["generate", str(whole), "-p", "a", "--speculative", "--draft-tokens", "3"]) == Exit.USAGE


def _text(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["generate", str(folder), "-p", "the page", "--tokens", "40", "--json", *words]) == Exit.DONE
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("model.mtp", ["data.objective.kind=prefix"]),
        ("data.document_mask", ["data.document_mask=false"]),
        ("model.mtp", ["model.kind=encoder", "model.head.kind=masked", "data.objective.kind=masked"]),
    ],
)
def test_what_cannot_serve_it_is_refused_with_a_remedy(key: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        resolve("tiny", ["model.mtp.kind=sequential", *words], environ={})
    lines = [line for line in str(error.value).splitlines() if key in line and ("mtp" in line or "further" in line)]
    assert lines
    assert all(": leave" in line or ": take" in line for line in lines)


@pytest.mark.slow
def test_ranks_of_every_axis_come_and_go(
    tmp_path: Path, launcher: Launcher, tiny_settings: tuple[str, ...], branch: Branch
) -> None:
    """Each attempt goes on from the checkpoint of the one before; losses of training and validation are those of one
    process."""
    common = [
        "train.batch_tokens=384",
        "train.micro_batch=2",
        "train.tokens=6400",
        "checkpoint.every=0",
        "eval.every=6",
    ]
    experts = ["model.mlp={kind='experts',count=4,active=2,hidden=32}", *WORDS]
    layouts = [
        (3, "parallel.tensor=2", "parallel.sequence=true"),
        (6, "parallel.tensor=1", "parallel.sequence=false", "parallel.context=2"),
        (9, "parallel.context=1", "parallel.pipeline.stages=2"),
        (12, "parallel.pipeline.stages=1", "parallel.expert=2"),
        (None, "parallel.expert=1", "parallel.tensor=2", "parallel.pipeline.stages=2"),
    ]
    for name, attempts in {"alone": [(None,)], "run": layouts}.items():
        folder = tmp_path / name
        for stop, *words in attempts:
            if stop is not None:
                (folder / "control").mkdir(parents=True, exist_ok=True)
                write_request(RunDir(folder), Request(action="stop", at_step=stop))
            begin = ["train", "--out", str(folder), *tiny_settings, *common, *experts]
            verb = ["resume", str(folder)] if (folder / "recipe.toml").exists() else begin
            started = launcher.start([*verb, *words], tmp_path / f"{name}.log")
            assert started.wait() == (Exit.DONE if stop is None else Exit.RESUMABLE), started.text
    alone, run = branch(tmp_path / "alone"), branch(tmp_path / "run")
    assert [step["token_hash"] for step in run] == [step["token_hash"] for step in alone]
    for term in ("loss", "mtp"):
        found, expected = ([step["terms"].get(term, step["loss"]) for step in steps] for steps in (run, alone))
        assert found == pytest.approx(expected, rel=1e-4)
    evaluations = (
        {path.name: json.loads(path.read_text())["all"]["loss"] for path in (tmp_path / name).glob("evals/step-*.json")}
        for name in ("run", "alone")
    )
    found, expected = evaluations
    assert found == {name: pytest.approx(loss, rel=1e-4) for name, loss in expected.items()}
