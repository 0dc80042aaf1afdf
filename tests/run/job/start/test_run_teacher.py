"""Distillation: the teacher predicts once, its predictions change what is learned, ranks learn the same."""

import json
import os
import shutil
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.data.config.teacher import RelationTeacher
from hornbook.errors import Exit, UsageError
from hornbook.model.config.attention_config import LatentAttentionConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.job.start.run_teacher import check_relations
from hornbook.settings.resolve import resolve
from tests.conftest import write_corpus
from tests.run.launcher import Launcher


def metrics(run: Path) -> list[dict[str, float]]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [{"loss": line["loss"], **line["terms"]} for line in lines]


def taught(teacher: Path, *words: str) -> list[str]:
    keys = {"kind": "top", "path": str(teacher), "top": "8", "temperature": "2"}
    return [*(f"train.loss.teacher.{key}={value}" for key, value in keys.items()), *words]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "data")


@pytest.fixture
def words(corpus: Path, tiny_settings: tuple[str, ...]) -> list[str]:
    return [*(word for word in tiny_settings if not word.startswith("data.path")), f"data.path={corpus}"]


@pytest.fixture
def teacher(tmp_path: Path, words: list[str]) -> Path:
    assert main(["train", "--out", str(tmp_path / "teacher"), *words, "optim.lr=0.03"]) == Exit.DONE
    return tmp_path / "teacher"


def kept(corpus: Path) -> dict[str, int]:
    files = sorted((corpus / "plans").glob("teacher-*/*/*"))
    return {str(path.relative_to(corpus)): path.stat().st_mtime_ns for path in files}


def test_the_teacher_predicts_once_for_one_rank_and_two(
    tmp_path: Path, words: list[str], corpus: Path, teacher: Path, launcher: Launcher
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    # Two ranks first: their predictions are made by a process of its own, and the run of one rank finds them.
    started = launcher.start(
        ["train", "--out", str(two), *words, *taught(teacher), "seed=5", "parallel.data=2"], tmp_path / "log.txt"
    )
    assert started.wait() == 0, started.text
    before = kept(corpus)
    assert len(before) == 8, "two sources, four files each"
    assert main(["train", "--out", str(one), *words, *taught(teacher), "seed=5"]) == Exit.DONE
    assert kept(corpus) == before
    for ours, theirs in zip(metrics(one), metrics(two), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["distillation"] == pytest.approx(theirs["distillation"], rel=1e-4)
    assert metrics(one)[-1]["distillation"] < metrics(one)[0]["distillation"] / 2, "it learns from the teacher"
    longer = ["train", "--out", str(tmp_path / "longer"), *words, *taught(teacher), "seed=5", "train.tokens=2900"]
    assert main(longer) == Exit.DONE
    assert before.items() < kept(corpus).items(), "rows that no run has read are computed, the others stay"


def test_a_resume_keeps_the_teacher_though_its_run_trains_on(
    tmp_path: Path, words: list[str], corpus: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(teacher.parent)
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    more = [*words, *taught(Path(teacher.name)), "seed=5", "optim.schedule.kind=constant"]
    assert main(["train", "--out", str(whole), *more, "train.tokens=1536"]) == Exit.DONE
    assert main(["train", "--out", str(parted), *more, "train.tokens=512"]) == Exit.DONE
    before = kept(corpus)
    assert main(["resume", str(teacher), "train.tokens=2048"]) == Exit.DONE
    monkeypatch.chdir(tmp_path.parent)
    assert main(["resume", str(parted), "train.tokens=1024"]) == Exit.DONE
    monkeypatch.chdir(teacher.parent)
    assert main(["train", "--out", str(parted), *more, "train.tokens=1536", "--resume", "auto"]) == Exit.DONE
    assert metrics(parted) == metrics(whole)
    assert kept(corpus) == before


def test_damaged_predictions_are_made_again(tmp_path: Path, words: list[str], corpus: Path, teacher: Path) -> None:
    runs = [["train", "--out", str(tmp_path / name), *words, *taught(teacher)] for name in ("a", "b")]
    assert main(runs[0]) == Exit.DONE
    damaged = next((corpus / "plans").glob("teacher-*/*/logs.npy"))
    data = bytearray(damaged.read_bytes())
    data[-3] ^= 1
    damaged.write_bytes(data)
    assert main(runs[1]) == Exit.DONE
    assert metrics(tmp_path / "a")[-1]["loss"] == metrics(tmp_path / "b")[-1]["loss"]
    assert damaged.read_bytes() != data
    # The same weights under other settings are another teacher.
    other = tmp_path / "other"
    shutil.copytree(checkpoint_path(teacher), other)
    (other / "MANIFEST.json").unlink()
    keys = json.loads((other / "config.json").read_text())
    keys["hornbook"]["model"]["position"]["theta"] = keys["rope_parameters"]["rope_theta"] = 500.0
    (other / "config.json").write_text(json.dumps(keys))
    assert main(["train", "--out", str(tmp_path / "c"), *words, *taught(other)]) == Exit.DONE
    assert len({name.split("/")[1] for name in kept(corpus)}) == 4, "two sources, two teachers"
    assert metrics(tmp_path / "a")[0]["distillation"] != metrics(tmp_path / "c")[0]["distillation"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["train.loss.teacher.top=999"], "take fewer"),
        (["data.objective.kind=prefix"], "predictions are of causal rows"),
        (["train.loss.teacher.path=nowhere"], "nowhere"),
    ],
)
def test_what_does_not_go_with_a_teacher_is_named(
    tmp_path: Path, words: list[str], teacher: Path, more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), *words, *taught(teacher), *more]) == Exit.USAGE
    assert says in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_another_vocabulary_is_refused(
    tmp_path: Path, words: list[str], teacher: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_corpus(tmp_path / "other", specials=("[MASK]",))
    saved = next((teacher / "checkpoints").glob("step-*/tokenizer.json"))
    definition = json.loads(saved.read_text())
    definition["model"]["vocab"] = json.loads((other / "tokenizer" / "tokenizer.json").read_text())["model"]["vocab"]
    folder = tmp_path / "model"
    os.rename(saved.parent, folder)
    (folder / "MANIFEST.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    assert main(["train", "--out", str(tmp_path / "run"), *words, *taught(folder)]) == Exit.USAGE
    assert "has another vocabulary than" in capsys.readouterr().err


def related(teacher: Path, *words: str) -> list[str]:
    keys = {"kind": "relations", "path": str(teacher), "of": '["attention", "value", "hidden"]', "heads": "4"}
    return [*(f"train.loss.teacher.{key}={value}" for key, value in keys.items()), "model.width=8", *words]


def test_relations_of_a_wider_teacher_are_learned_and_a_resume_goes_on_bit_for_bit(
    tmp_path: Path, words: list[str], corpus: Path, teacher: Path
) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    more = [*words, *related(teacher, "train.loss.teacher.weight=10"), "seed=5", "optim.schedule.kind=constant"]
    assert main(["train", "--out", str(whole), *more]) == Exit.DONE
    found = metrics(whole)
    assert found[-1]["distillation"] < 0.9 * found[0]["distillation"]
    assert not kept(corpus), "nothing is kept on disk"
    assert main(["train", "--out", str(parted), *more, "train.tokens=512"]) == Exit.DONE
    assert main(["resume", str(parted), "train.tokens=1450"]) == Exit.DONE
    assert metrics(parted) == found
    saved = [sorted((run / "checkpoints").glob("step-*/model.safetensors"))[-1] for run in (whole, parted)]
    assert saved[0].read_bytes() == saved[1].read_bytes()
    assert main(["train", "--out", str(tmp_path / "alone"), *more, "train.loss.teacher.weight=1e-6"]) == Exit.DONE
    alone = metrics(tmp_path / "alone")
    assert alone[0]["loss"] == found[0]["loss"]
    assert alone[0]["distillation"] == pytest.approx(found[0]["distillation"] * 1e-7, rel=1e-4)
    assert alone[-1]["distillation"] > 1.1 * found[-1]["distillation"] * 1e-7, "the text alone does not teach them"


@pytest.mark.slow
def test_two_ranks_learn_the_same_relations(
    tmp_path: Path, words: list[str], teacher: Path, launcher: Launcher
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    more = [*words, *related(teacher), "seed=5"]
    shared = ["parallel.data=2", "parallel.shard=everything"]
    started = launcher.start(["train", "--out", str(two), *more, *shared], tmp_path / "log.txt")
    assert started.wait() == 0, started.text
    assert main(["train", "--out", str(one), *more]) == Exit.DONE
    for ours, theirs in zip(metrics(one), metrics(two), strict=True):
        assert ours["distillation"] == pytest.approx(theirs["distillation"], rel=1e-4)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("train.compile=true", "train.compile  compiled code does not show"),
        ("parallel.recompute.kind=block", "parallel.recompute  activations that are dropped"),
        ("surgery=prompt", "a prompt or a prefix makes rows longer"),
        ("parallel.context.ranks=2", "parallel.context  a teacher of relations compares whole rows"),
    ],
)
def test_what_does_not_go_with_a_teacher_of_relations_is_named(more: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        resolve(None, [*related(Path("teacher")), more], environ={})


def test_masked_rows_are_for_a_teacher_of_relations() -> None:
    words = ["model.kind=encoder", "model.head.kind=masked", "data.objective.kind=masked"]
    related = [*words, "train.loss.teacher.path=x", "train.loss.teacher.kind=relations"]
    assert resolve(None, related, environ={}).recipe.train.loss.teacher.kind == "relations"
    with pytest.raises(UsageError, match=r"of causal rows, .* take train\.loss\.teacher\.kind \"relations\""):
        resolve(None, [*related[:-1], "train.loss.teacher.kind=top"], environ={})


def test_layers_without_the_relations_are_named() -> None:
    teacher, model = (ModelConfig(layers=1, width=width, heads=2) for width in (16, 8))
    check_relations(RelationTeacher(path="x", heads=4), teacher, model)
    with pytest.raises(UsageError, match="layer: 3 is more than the teacher's 1 layers"):
        check_relations(RelationTeacher(path="x", layer=3), teacher, model)
    with pytest.raises(UsageError, match=r"layers: 2 is too many: the model has 1 layers, .* first 1: take 1 at most"):
        check_relations(RelationTeacher(path="x", layers=2), teacher, model)
    with pytest.raises(UsageError, match=r"heads: the teacher's attention vectors have 16 values, which 3 .*, as 8"):
        check_relations(RelationTeacher(path="x", heads=3), teacher, model)
    latent = model.model_copy(update={"attention": LatentAttentionConfig(kv_rank=8)})
    with pytest.raises(UsageError, match=r"the model's layer 1 has attention of kind 'latent', without value"):
        check_relations(RelationTeacher(path="x", of=["hidden", "value"], heads=4), teacher, latent)
    check_relations(RelationTeacher(path="x", of=["hidden"], heads=4), teacher, latent)
