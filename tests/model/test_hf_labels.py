"""config.json of classes with heads for labels: what it may say, what is refused, and that both sides certify."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit, HornbookError
from hornbook.model.config.head_config import ClassificationHead, DenseTransform, LMHead, NoTransform, RegressionHead
from hornbook.model.hf.certificate import certify
from hornbook.model.hf.hf import left_out, read_hf
from hornbook.model.hf.hf_config import choose_architecture, from_json, to_json
from tests.model.likenesses import bert_like
from tests.model.parity import Pair, make_pair

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")  # of transformers' own imports
CLASSES = ClassificationHead(labels=["a", "b"], transform=DenseTransform())
BERT = bert_like(length=24, layers=1, width=16, heads=2)
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    made: dict[str, Pair] = {}

    def make(name: str) -> Pair:
        if name not in made:
            made[name] = make_pair(name, 0, tmp_path_factory.mktemp("pair") / name)
        return made[name]

    return make


@pytest.fixture
def edited(pairs: Callable[[str], Pair], tmp_path: Path) -> Callable[[str, Edit], Path]:
    """A copy of a folder with another config.json."""

    def act(name: str, edit: Edit) -> Path:
        folder = shutil.copytree(pairs(name).folder, tmp_path / name)
        keys = json.loads((folder / "config.json").read_text())
        edit(keys)
        (folder / "config.json").write_text(json.dumps(keys))
        return folder

    return act


@pytest.mark.parametrize(
    "name",
    [
        *("bert_SequenceClassification", "bert_QuestionAnswering", "roberta_TokenClassification"),
        *("gpt2_SequenceClassification", "llama_SequenceClassification", "qwen3_QuestionAnswering"),
    ],
)
def test_the_certificate_compares_heads_for_labels(pairs: Callable[[str], Pair], tmp_path: Path, name: str) -> None:
    out = tmp_path / "ours"
    assert main(["import", str(pairs(name).folder), "--out", str(out)]) == Exit.DONE
    again = tmp_path / "again"
    assert main(["export", str(out), "--out", str(again)]) == Exit.DONE
    certificate = json.loads((again / "certificate.json").read_text())
    assert certificate["ok"]
    assert certificate["relative_difference"] <= 1e-5
    assert certificate["architecture"].endswith(name.split("_")[1])
    assert read_hf(again)[0].head == pairs(name).config.head


def test_a_head_that_differs_fails_the_certificate(pairs: Callable[[str], Pair], tmp_path: Path) -> None:
    pair = pairs("bert_SequenceClassification")
    tensors = dict(read_hf(pair.folder)[2])
    tensors["head.weight"] = tensors["head.weight"] + 1e-3
    found = certify(shutil.copytree(pair.folder, tmp_path / "copy"), source=tensors)
    assert not found.ok
    assert "head.weight" in found.problems[0]


def count(number: int) -> Edit:
    names = {str(i): f"x{i}" for i in range(number)}
    return lambda keys: keys.update(id2label=names, label2id={name: int(i) for i, name in names.items()})


def test_names_may_lack() -> None:
    """Two labels then, as transformers takes it; a single output without a problem type is a number."""

    def unnamed(keys: dict[str, Any]) -> None:
        keys |= {"id2label": None, "label2id": None, "problem_type": None}
        del keys["hornbook"]

    own = to_json(BERT.model_copy(update={"head": CLASSES}), 61, dtype="float32")
    unnamed(own)
    assert from_json(own)[0].head == CLASSES.model_copy(update={"labels": ["LABEL_0", "LABEL_1"]})
    own["num_labels"] = 1
    assert from_json(own)[0].head == RegressionHead(transform=DenseTransform())


def test_what_architectures_lack_is_written_under_our_own_name() -> None:
    """BERT's class has a pooler; one that has none is not it."""
    for head, name in (
        (CLASSES, "BertForSequenceClassification"),
        (RegressionHead(transform=DenseTransform()), "BertForSequenceClassification"),
        (CLASSES.model_copy(update={"transform": NoTransform()}), "HornbookForSequenceClassification"),
        (CLASSES.model_copy(update={"bias": False}), "HornbookForSequenceClassification"),
    ):
        keys = to_json(BERT.model_copy(update={"head": head}), 61, dtype="float32")
        assert keys["architectures"] == [name]
        assert from_json(keys)[0].head == head


@pytest.mark.parametrize(
    ("name", "edit", "text"),
    [
        ("bert_QuestionAnswering", count(3), "a span has two scores for each token, not 3"),
        (
            "bert_SequenceClassification",
            lambda k: k.update(problem_type="ranking"),
            "'ranking' of . labels is no problem",
        ),
        ("bert_TokenClassification", lambda k: k.update(id2label={"0": "a", "2": "b"}), "values that make no sense"),
        ("bert_TokenClassification", lambda k: k.update(id2label={"0": "a", "1": "a"}), "the label 'a' is there twice"),
        ("bert_TokenClassification", lambda k: k.update(id2label=7), "id2label = 7.*make no sense"),
        ("bert_TokenClassification", count(9), r"classifier\.weight: expected shape \[9, \d+\], found \["),
        ("modernbert_SequenceClassification", lambda k: k.update(classifier_pooling="mean"), "only 'cls' is"),
    ],
)
def test_what_makes_no_sense_is_refused(edited: Callable[[str, Edit], Path], name: str, edit: Edit, text: str) -> None:
    def without_ours(keys: dict[str, Any]) -> None:
        edit(keys)
        keys.pop("hornbook", None)

    with pytest.raises(HornbookError, match=text):
        read_hf(edited(name, without_ours))


def test_a_pooler_that_is_not_used_is_left_out(pairs: Callable[[str], Pair], tmp_path: Path) -> None:
    """Files of older versions hold it beside a head for tokens."""
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(pairs("bert_TokenClassification").folder, tmp_path / "older")
    tensors = load_file(folder / "model.safetensors")
    width = tensors["classifier.weight"].shape[1]
    tensors["bert.pooler.dense.weight"] = tensors["classifier.weight"].new_ones(width, width)
    save_file(tensors, folder / "model.safetensors")
    assert left_out(folder) == ["bert.pooler.dense.weight"]
    assert "head.before.dense.weight" not in dict(read_hf(folder)[2])


def test_language_models_are_still_written_as_such(pairs: Callable[[str], Pair]) -> None:
    config = pairs("llama_SequenceClassification").config.model_copy(update={"head": LMHead(tied=False)})
    architecture = choose_architecture(config)
    assert architecture is not None
    assert architecture.name == "LlamaForCausalLM"
