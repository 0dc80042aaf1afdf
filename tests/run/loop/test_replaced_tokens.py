"""A run that learns to tell replaced tokens: resumed, evaluated, exported without its generator, taken for labels."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.cli.main import main
from hornbook.data.config.objectives import Masked
from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import evaluations, steps_that_count
from hornbook.model.build_model import build_model
from hornbook.model.config.head_config import TokenClassificationHead
from hornbook.model.heads.replaced import GENERATED, Chosen
from hornbook.model.hf.hf import read_hf
from hornbook.model.init.init import with_new_head
from hornbook.model.storage.load import load_model
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.checkpoints.manifest import ValidationLoss, read_manifest
from hornbook.run.doctor.curves import curves_of
from hornbook.run.job.start.init_from import init_from_import
from hornbook.settings.resolve import ConfigError, Resolved, resolve
from tests.run.conftest import BERT
from tests.run.launcher import Launcher

Branch = Callable[[Path], list[dict[str, Any]]]
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")  # of transformers' own imports

ELECTRA = (
    *BERT,
    'model.head.kind="replaced"',
    "model.head.generator.share=0.5",
    'data.objective.kind="replaced"',
)
COMMON = ("model.layers=2", "model.dropout=0.1", "eval.every=6", "eval.prompt=the model")


@pytest.fixture(scope="module")
def words(marked_corpus: Path, tiny_settings: tuple[str, ...]) -> list[str]:
    return [*tiny_settings, f"data.path={marked_corpus}", *COMMON, *ELECTRA]


@pytest.fixture(scope="module")
def whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run") / "whole"
    assert main(["train", "--out", str(run), *words]) == Exit.DONE
    return run


def test_both_losses_fall_and_a_resumed_run_has_the_same_bits(whole: Path, tmp_path: Path, branch: Branch) -> None:
    cut, steps = tmp_path / "cut", branch(whole)
    masked, told = ([step["loss"] for step in steps], [step["terms"]["detection"] for step in steps])
    assert sum(masked[-3:]) < 0.97 * sum(masked[:3])
    assert sum(told[-3:]) < 0.97 * sum(told[:3])
    shutil.copytree(whole, cut)
    for step in (8, 12):
        shutil.rmtree(cut / f"checkpoints/step-{step:08}")
    shutil.rmtree(cut / "evals")
    assert main(["resume", str(cut)]) == Exit.DONE
    assert branch(cut) == steps
    for name in ("model.safetensors", "config.json", "trainer/optimizer.safetensors"):
        path = Path("checkpoints/step-00000012") / name
        assert (cut / path).read_bytes() == (whole / path).read_bytes()
    one, two = (json.loads((run / "evals/step-00000012.json").read_text()) for run in (whole, cut))
    assert one["all"] == two["all"]


def test_an_evaluation_tells_both_losses_and_what_is_found(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["eval", str(whole), "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    saved = json.loads((whole / "evals/step-00000012.json").read_text())["all"]
    for name in ("loss", "detection_loss"):
        assert found[name] == pytest.approx(saved[name], rel=1e-5)
    for name in ("detection_accuracy", "replaced_share", "replaced_found", "tokens"):
        assert found[name] == pytest.approx(saved[name], rel=1e-6)
    assert found["objective"] == pytest.approx(found["loss"] + 50 * found["detection_loss"], rel=1e-9)
    assert 0.05 < found["replaced_share"] < 0.16
    assert found["detection_accuracy"] > 0.7
    assert main(["eval", str(whole)]) == Exit.DONE
    assert "replaced found" in capsys.readouterr().err
    assert main(["generate", str(whole), "-p", "the [MASK] reads"]) == Exit.USAGE
    assert "tells replaced tokens" in capsys.readouterr().err


def test_what_is_minimised_decides_which_checkpoint_is_best_and_when_a_run_stops(whole: Path) -> None:
    scored = evaluations(RunDir(whole))
    last, score = scored[-1], read_manifest(checkpoint_path(whole)).score
    assert score is not None
    assert score.loss == pytest.approx(last["all"]["loss"] + 50 * last["all"]["detection_loss"], rel=1e-9)
    assert not score.beats(score._replace(loss=1.0))
    assert score.beats(ValidationLoss(1.0, last["rows"])), "the generator's loss, of an earlier version"
    judged = curves_of(steps_that_count(RunDir(whole)), (), scored).evaluated.loss
    assert judged.tolist() == [each["all"]["objective"] for each in scored]


def test_an_export_is_electras_discriminator(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "out"
    capsys.readouterr()
    assert main(["export", str(whole), "--out", str(out), "--json"]) == Exit.DONE
    printed, said = capsys.readouterr()
    report = json.loads(printed)
    assert report["left_out"] == {"generator_blocks": 2}
    assert "left out: the generator" in " ".join(said.split())
    assert report["certificate"]["relative_difference"] < 1e-5
    assert json.loads((out / "config.json").read_text())["architectures"] == ["ElectraForPreTraining"]
    model, info = transformers.ElectraModel.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    weight = model.embeddings.word_embeddings.weight
    stored = dict(read_hf(checkpoint_path(whole))[2])
    assert torch.equal(weight.detach(), stored["embedding.weight"][: len(weight)])
    assert main(["eval", str(out), "--data", __file__]) == Exit.USAGE
    assert "the generator that replaces them is left out" in " ".join(capsys.readouterr().err.split())


def test_the_generator_is_exported_as_a_masked_model(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    out = tmp_path / "out"
    capsys.readouterr()
    assert main(["export", str(whole), "--generator", "--out", str(out), "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["certificate"]["relative_difference"] < 1e-5
    assert json.loads((out / "config.json").read_text())["architectures"] == ["ElectraForMaskedLM"]
    alone, both = load_model(out).model, load_model(checkpoint_path(whole)).model
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert alone.head is not None
        assert both.generator is not None
        rows = torch.tensor([0])
        states = both(tokens, chosen=Chosen(rows, torch.tensor([1])))[1][GENERATED]
        found = alone.head.logits(alone(tokens)[0])
        torch.testing.assert_close(found, both.generator.head.logits(states)[..., : found.shape[-1]])
    assert main(["export", str(out), "--generator", "--out", str(tmp_path / "no")]) == Exit.USAGE
    assert "has no generator" in capsys.readouterr().err
    assert main(["export", str(whole), "--generator", "--to", "peft", "--out", str(tmp_path / "no")]) == Exit.USAGE


def test_a_head_of_labels_takes_the_place_of_both(whole: Path, words: list[str]) -> None:
    checkpoint = checkpoint_path(whole)
    resolved = resolve(None, words, {})
    data = resolved.recipe.data.model_copy(update={"objective": Masked()})
    masked = Resolved(resolved.recipe.model_copy(update={"data": data}), resolved.origins)
    with pytest.raises(UsageError, match="learns by the objective"):
        init_from_import(masked, checkpoint)
    config, vocab, stream = read_hf(checkpoint)
    labelled = config.model_copy(update={"head": TokenClassificationHead(labels=["a", "b", "c"])})
    found = dict(with_new_head(stream, labelled, vocab, seed=0))
    assert found.keys() == dict(build_model(labelled, vocab).named_parameters()).keys()


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        (["model.kind=decoder"], "model.head.kind"),
        (["data.objective.kind=masked"], "data.objective"),
        (["model.head.kind=masked"], "model.head"),
        (["model.head.generator=none"], "model.head.generator"),
        (["model.head.generator.share=0"], "model.head.generator.share"),
        (["model.head.generator.share=0.3"], "model.head.generator.share"),
        (["model.attention.kv_heads=1"], "model.attention"),
        (["model.position=alibi"], "model.position"),
        (["model.mlp={kind='experts'}"], "model.head.generator"),
        (["parallel.tensor=2"], "parallel.tensor"),
        (["parallel.pipeline.stages=2"], "parallel.pipeline.stages"),
        (["surgery=[{kind='lora'}]"], "surgery"),
    ],
)
def test_what_does_not_go_together_is_named(words: list[str], changed: list[str], key: str) -> None:
    names = tuple(word.partition("=")[0] for word in changed)
    if changed[0].startswith("model.head"):
        names += ("model.head.generator",)
    kept = [word for word in words if not word.startswith(names)]
    with pytest.raises(ConfigError) as caught:
        resolve(None, [*kept, *changed], {})
    assert key in [problem.key for problem in caught.value.problems]


def test_two_processes_have_the_bits_of_one(
    launcher: Launcher, words: list[str], tmp_path: Path, branch: Branch
) -> None:
    runs = []
    for ranks in (1, 2):
        run = tmp_path / f"ranks-{ranks}"
        given = [*words, "eval.every=0", "parallel.exact=true", f"parallel.data={ranks}"]
        started = launcher.start(["train", "--out", str(run), *given], tmp_path / f"output-{ranks}.txt")
        assert started.wait() == 0, started.text
        runs.append(branch(run))
    assert runs[0] == runs[1]


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["optimizer", "gradients", "everything"])
def test_shards_learn_the_same(
    launcher: Launcher, words: list[str], whole: Path, tmp_path: Path, branch: Branch, shard: str
) -> None:
    given = [*words, "parallel.data=2", f"parallel.shard={shard}"]
    started = launcher.start(["train", "--out", str(tmp_path / "run"), *given], tmp_path / "output.txt")
    assert started.wait() == 0, started.text
    for one, two in zip(branch(whole)[:4], branch(tmp_path / "run"), strict=False):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["terms"]["detection"] == pytest.approx(one["terms"]["detection"], rel=1e-4)
