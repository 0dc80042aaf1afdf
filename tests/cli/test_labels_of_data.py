"""A csv with labels of one's own becomes a classifier, and nobody writes a list of labels."""

import csv
import json
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.model.config.head_config import ClassificationHead
from hornbook.model.storage.load import load_model
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.job.start.init_from import init_from_import
from hornbook.settings.resolve import resolve

NAMES = ("positive", "negative", "neutral")
SMALL = (
    *("model.layers=1", "model.width=16", "model.heads=2", "model.position.length=64"),
    *("train.sequence=64", "train.batch_tokens=256", "train.micro_batch=2", "train.tokens=1k", "train.threads=1"),
    *("train.precision=fp32", "train.device=cpu"),
)


def write_csv(path: Path, columns: tuple[str, str] = ("text", "label"), names: tuple[str, ...] = NAMES) -> Path:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows([f"review {number}, in words", names[number % len(names)]] for number in range(120))
    return path


def make(folder: Path, raw: Path, *words: str) -> Path:
    assert main(["prepare", "tiny-classify", str(raw), "--out", str(folder), *words]) == Exit.DONE
    assert main(["tokenize", str(folder), "--vocab", "300"]) == Exit.DONE
    return folder


def test_from_a_csv_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = write_csv(tmp_path / "reviews.csv", ("body", "stars"))
    data = make(tmp_path / "data", raw, "--text-field", "body", "--text.labels.label", "stars")
    assert "3 labels: negative 40, neutral 40, positive 40\n" in capsys.readouterr().err
    train = ["train", "tiny-classify", "--data", str(data), "--out", str(tmp_path / "run"), *SMALL]
    assert main([*train, "-n", "--json"]) == Exit.DONE
    assert main(train) == Exit.DONE
    assert main([*train, "--resume", "auto"]) == Exit.DONE
    head = load_model(checkpoint_path(tmp_path / "run")).config.head
    assert isinstance(head, ClassificationHead)
    assert head.labels == ["negative", "neutral", "positive"]
    assert f"# the labels of {data}" in (tmp_path / "run" / "recipe.toml").read_text()
    capsys.readouterr()
    (tmp_path / "some.txt").write_text("review 7\n")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "some.txt"), "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["label"] in NAMES
    assert main(["eval", str(tmp_path / "run"), "--data", str(raw), "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["labels"] == 120


def test_a_list_of_ones_own_wins_and_must_be_that_of_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make(tmp_path / "data", write_csv(tmp_path / "reviews.csv"))
    train = ["train", "tiny-classify", "--data", str(data), "--out", str(tmp_path / "run"), *SMALL, "-n"]
    assert main([*train, "--model.head.labels", '["negative","neutral","positive"]']) == Exit.DONE
    capsys.readouterr()
    assert main([*train, "--model.head.labels", '["negative","other"]']) == Exit.USAGE
    said = capsys.readouterr().err
    assert f"model.head.labels: {data} has 'neutral', 'positive', which the list lacks; the list has 'other'," in said
    assert "leave model.head.labels out, and the labels are those of the data" in said
    assert main([*train, "--model.head.labels", '["positive","neutral","negative"]']) == Exit.USAGE
    assert "has them in the order 'negative', 'neutral', 'positive'" in capsys.readouterr().err
    listed = make(
        tmp_path / "listed", tmp_path / "reviews.csv", "--text.labels.labels", '["positive","neutral","negative"]'
    )
    train[train.index(str(data))] = str(listed)
    assert main([*train, "--model.head.labels", '["positive","neutral","negative"]']) == Exit.DONE


def test_one_label_alone_is_told_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = make(tmp_path / "data", write_csv(tmp_path / "reviews.csv", names=("good",)))
    train = ["train", "tiny-classify", "--data", str(data), "--out", str(tmp_path / "run"), *SMALL]
    assert main(train) == Exit.USAGE
    assert "has the label 'good': there is nothing to tell apart" in capsys.readouterr().err


def test_a_checkpoint_with_the_labels_of_the_data_keeps_its_head(tmp_path: Path) -> None:
    data = make(tmp_path / "data", write_csv(tmp_path / "reviews.csv"))
    train = ["train", "tiny-classify", "--data", str(data), *SMALL]
    assert main([*train, "--out", str(tmp_path / "run")]) == Exit.DONE
    checkpoint = checkpoint_path(tmp_path / "run")
    assert not init_from_import(resolve("tiny-classify", [f"data.path={data}", *SMALL], environ={}), checkpoint)[
        1
    ].new_head
    other = make(tmp_path / "other", write_csv(tmp_path / "others.csv", names=("x", "y")))
    assert init_from_import(resolve("tiny-classify", [f"data.path={other}", *SMALL], environ={}), checkpoint)[
        1
    ].new_head
