"""Paired differences: their formulas, what they find in two runs, and what cannot be compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hornbook.cli.main import main
from hornbook.data.corpus import Corpus
from hornbook.errors import UsageError
from hornbook.evals.compare import compare, paired
from hornbook.evals.evaluate import Evaluator, Report
from hornbook.evals.items import ItemScores, mean_and_error
from hornbook.evals.labels import LabelScores
from hornbook.evals.loss import LossScores
from hornbook.settings.resolve import resolve
from hornbook.text.config.labels import ClassLabels, TagLabels
from hornbook.text.tokenizer.tokenizer import Tokenizer
from tests.evals.models import SETTINGS, engine

Launch = Callable[..., Any]
TASKS = '[{kind = "copy", items = 8, tokens = 4}, {kind = "cloze", items = 6}]'


def test_errors_are_those_of_pairs() -> None:
    draw = np.random.default_rng(0)
    level = draw.normal(0, 100, 400)  # items differ far more than models do
    found = paired(level + 1 + draw.normal(0, 1, 400), level)
    assert found.difference == pytest.approx(1, abs=0.2)
    assert found.se == pytest.approx(1 / 20, rel=0.15)
    assert found.low < 1 < found.high
    assert found.certain
    assert found.high - found.low == pytest.approx(2 * 1.96 * found.se, rel=0.1)


def test_intervals_hold_the_truth_as_often_as_stated() -> None:
    draw = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        found = paired(draw.exponential(1, 60), draw.exponential(1, 60))
        inside += found.low <= 0 <= found.high
    assert 180 <= inside <= 200


def test_errors_of_ratios_are_those_of_samples() -> None:
    """Bits are in proportion to bytes, so documents of many sizes say little of the rate: it varies less than they."""
    draw = np.random.default_rng(2)
    sizes = np.maximum(draw.lognormal(6, 1.5, (300, 200)), 1).round()
    rates = draw.normal(2, 0.2, sizes.shape)
    truth = float(((rates * sizes).sum(1) / sizes.sum(1)).std())
    values = rates * sizes / sizes.mean(1, keepdims=True)
    errors = [mean_and_error(*each)[1] for each in zip(values, sizes, strict=True)]
    assert float(np.mean(errors)) == pytest.approx(truth, rel=0.15)
    found = paired(values[0], np.zeros(200), sizes[0])
    assert found.high - found.low == pytest.approx(2 * 1.96 * errors[0], rel=0.25)
    item = ItemScores({"bits_per_byte": values[0]}, "x", sizes={"bits_per_byte": sizes[0]})
    assert item.as_dict()["bits_per_byte_se"] == errors[0]


def test_documents_add_up_to_the_whole(tiny_corpus: Path) -> None:
    """Rows cut documents; each byte counts once, in its own document."""
    corpus, recipe = Corpus.open(tiny_corpus), resolve(None, [*SETTINGS, "train.micro_batch=3"], {}).recipe
    tokenizer = Tokenizer.load(tiny_corpus / "tokenizer")
    evaluator, model = Evaluator(corpus, tokenizer, recipe, 32), engine()
    whole, apart = (evaluator.evaluate(model, evaluator.rows(), by_document=each) for each in (False, True))
    for source, score in apart.by_source.items():
        other = whole.by_source[source]
        assert isinstance(score, LossScores)
        assert isinstance(other, LossScores)
        assert score.nats == pytest.approx(other.nats)
        assert (score.tokens, score.bytes) == (other.tokens, other.bytes)
        (shard,) = corpus.validation[source].shards
        table = shard.table()
        assert score.documents[:, 0].tolist() == list(range(shard.documents))
        assert score.documents[:, 3].tolist() == table["bytes"].to_pylist()


def report(nats: list[float], digest: str, tokens: float = 1.0) -> Report:
    documents = np.array([[number, each, tokens, 2.0] for number, each in enumerate(nats)])
    tasks: dict[str, Any] = {"a": ItemScores({"accuracy": np.array([1.0, 0.0, 1.0])}, digest)}
    return Report({"x": LossScores(sum(nats), len(nats), 2 * len(nats), documents)}, {}, tasks)


def test_fertility_is_told_where_tokenizers_differ() -> None:
    one, other = report([1.0, 2.0, 3.0], "one"), report([1.0, 2.0, 3.0], "one", tokens=0.5)
    assert "tokens_per_byte" not in compare(one, one)["sources"]["x"]
    found = compare(one, other)["sources"]["x"]["tokens_per_byte"]
    assert (found["first"], found["second"], found["difference"], found["se"]) == (0.5, 0.25, 0.25, 0.0)


def test_only_equal_items_are_compared() -> None:
    found = compare(report([1.0, 2.0, 3.0], "one"), report([1.0, 1.0, 1.0, 9.0], "other"))
    assert found["all"]["bits_per_byte"]["items"] == 3, "documents that both read"
    assert found["all"]["bits_per_byte"]["first"] == pytest.approx(2 / 2 / np.log(2))
    assert found["all"]["bits_per_byte"]["difference"] == pytest.approx(1 / 2 / np.log(2))
    assert "items differ" in found["tasks"]["a"]["reason"]


TAGS = TagLabels(labels=["O", "B-A", "I-A"])


def tag_scores(rights: list[float], cut: int = 0) -> LabelScores:
    """Of documents 0 and on, whose tags are right as often as stated; from the last one so many tags are cut off."""
    draw, rows = np.random.default_rng(7), []
    for number, share in enumerate(rights):
        expected = draw.integers(0, 3, 3 + number % 9)
        predicted = np.where(draw.random(len(expected)) < share, expected, 0)
        rows.append(np.stack([1 - share + 0 * expected, np.full(len(expected), number), expected, predicted], 1))
    rows[-1] = rows[-1][: len(rows[-1]) - cut]
    order = np.random.default_rng(len(rights) + cut).permutation(len(rows))  # each tokenizer packs in its own way
    return LabelScores(TAGS, np.concatenate([rows[number] for number in order]))


def test_labels_are_paired_by_document() -> None:
    """Beside a slow bootstrap: the same documents of both, whole."""
    draw = np.random.default_rng(3)
    level = draw.random(150) * 0.6
    one, other = tag_scores([*(level + 0.3)]), tag_scores([*level])
    found = compare(Report({"x": one}, {}), Report({"x": other}, {}))["sources"]["x"]
    assert found.keys() == {"loss", *one.metrics}
    slow = []
    parts = [[side.rows[side.rows[:, 1] == number] for number in range(150)] for side in (one, other)]
    for _ in range(300):
        drawn = draw.integers(150, size=150)
        both = []
        for part in parts:
            rows = np.concatenate([part[number] for number in drawn])
            rows[:, 1] = np.repeat(np.arange(150), [len(part[number]) for number in drawn])
            both.append(LabelScores(TAGS, rows).metrics)
        slow.append({name: both[0][name] - both[1][name] for name in both[0]})
    for name, each in found.items():
        assert each["items"] == 150
        assert each["low"] < each["difference"] < each["high"]
        if name != "loss":
            assert each["difference"] == pytest.approx(one.metrics[name] - other.metrics[name])
            samples = [sample[name] for sample in slow]
            assert each["se"] == pytest.approx(np.std(samples), rel=0.2)
            assert (each["low"], each["high"]) == pytest.approx(np.percentile(samples, [2.5, 97.5]), abs=each["se"] / 2)
    assert found["loss"]["difference"] == pytest.approx(-0.3)
    assert found["loss"]["se"] == pytest.approx(0, abs=1e-6), "the second is worse by as much in each document"
    same = compare(Report({"x": one}, {}), Report({"x": one}, {}))["all"]["f1"]
    assert same["difference"] == same["se"] == same["low"] == same["high"] == 0


def test_documents_that_only_one_model_read_whole_are_left_out_and_told() -> None:
    one, other = tag_scores([0.5] * 20), tag_scores([0.5] * 18, cut=2)
    found = compare(Report({"x": one}, {}), Report({"x": other}, {}))
    assert found["unpaired"] == {"x": {"first_alone": 2, "second_alone": 0, "other_labels": 1}}
    assert found["sources"]["x"]["f1"] == {
        "first": found["sources"]["x"]["f1"]["second"], "second": found["sources"]["x"]["f1"]["first"],
        "difference": 0, "se": 0, "low": 0, "high": 0, "items": 17,
    }  # fmt: skip
    assert "unpaired" not in compare(Report({"x": one}, {}), Report({"x": one}, {}))


def test_labels_are_not_compared_with_text_or_other_labels() -> None:
    labels = Report({"x": tag_scores([0.5] * 4)}, {})
    with pytest.raises(UsageError, match="one model predicts text and the other labels"):
        compare(labels, report([1.0, 2.0], "one"))
    other = LabelScores(TagLabels(labels=["O", "I-A", "B-A"]), tag_scores([0.5] * 4).rows)
    with pytest.raises(UsageError, match="other labels: compare models on the data of one run"):
        compare(labels, Report({"x": other}, {}))


def test_a_benchmark_is_compared_by_its_score() -> None:
    draw, kind = np.random.default_rng(0), ClassLabels(layout="mnli")

    def scores(share: float) -> LabelScores:
        right = np.arange(300) % 3
        predicted = np.where(draw.random(300) < share, right, 0)
        return LabelScores(kind, np.stack([right, np.arange(300), right, predicted], 1).astype(float))

    one, other = ({"matched": scores(share), "mismatched": scores(share - 0.2)} for share in (0.9, 0.7))
    found = compare(Report({**one}, {}), Report({**other}, {}))
    score, parts = found["benchmark"]["score"], found["sources"].values()
    assert (found["benchmark"]["task"], score["items"]) == ("mnli", 600)
    assert score["difference"] == pytest.approx(np.mean([part["accuracy"]["difference"] for part in parts]))
    assert score["se"] == pytest.approx(np.hypot(*(part["accuracy"]["se"] for part in parts)) / 2, rel=0.1)


def test_models_of_pairs_are_compared_by_tasks_alone(
    tmp_path: Path, launch_run: Launch, marked_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("model.kind=encoder_decoder", "data.objective.kind=span", f"data.path={marked_corpus}", "train.tokens=512")
    launch_run(tmp_path / "pairs", *words)
    assert main(["eval", str(tmp_path / "pairs"), "--compare", str(tmp_path / "pairs")]) == 2
    assert "by --tasks of encoder-decoders" in capsys.readouterr().err
    path = tmp_path / "items.jsonl"
    path.write_text('{"question": "the model", "answer": "x"}\n' * 3)
    task = f'[{{kind = "generation", path = "{path}", max_tokens = 4}}]'
    words = ["eval", str(tmp_path / "pairs"), "--compare", str(tmp_path / "pairs"), "--tasks", task]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sources"], found["tasks"]["generation"]["exact"]["items"]) == ({}, 3)
    assert main(words) == 0


def test_two_runs_are_compared_by_source_and_task(
    tmp_path: Path, launch_run: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        launch_run(tmp_path / name, f"seed={seed}", f"eval.tasks={TASKS}", "train.sequence=64")
    words = ["eval", str(tmp_path / "a"), "--compare"]
    capsys.readouterr()
    assert main([*words, str(tmp_path / "b"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sources"].keys() == {"notes", "prose"}
    assert found["all"]["bits_per_byte"]["items"] == 8
    assert found["tasks"]["copy"]["accuracy"]["items"] == 8
    alone = json.loads((tmp_path / "a" / "evals" / "step-00000012.json").read_text())
    assert found["all"]["bits_per_byte"]["first"] == pytest.approx(alone["all"]["bits_per_byte"], rel=1e-5)
    assert main([*words, str(tmp_path / "a"), "--json"]) == 0
    same = json.loads(capsys.readouterr().out)["all"]["bits_per_byte"]
    assert same["difference"] == same["se"] == same["low"] == same["high"] == 0
    assert main([*words, str(tmp_path / "b")]) == 0
    assert "bits per byte" in capsys.readouterr().err
