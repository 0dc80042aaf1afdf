"""Scores of labels over batches: as a slow reading of the outputs of the model gives them, for any ranks' turns."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.data.config.objectives import Labels
from hornbook.data.corpus import Corpus
from hornbook.data.validation import held_out as validation_rows
from hornbook.evals.labels import LabelScores, LabelTask
from hornbook.parallel.world import World
from hornbook.text.config.labels import ClassLabels, LabelsConfig, NumberLabels, PreferenceLabels, SpanLabels, TagLabels
from hornbook.text.config.text import SourceConfig, TextConfig, WordPiece
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize


class Oracle:
    """Says what is right, but takes label 1 for label 0."""

    def __init__(self, labels: int) -> None:
        self._labels = labels

    def outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        losses = torch.zeros(batch.tokens.shape)
        if batch.values is not None:
            return losses, batch.values
        said = batch.targets.clone()
        said[batch.weights > 0] = torch.where(said[batch.weights > 0] == 1, 0, said[batch.weights > 0])
        return losses, torch.nn.functional.one_hot(said, self._labels).float()


class Pointer(Oracle):
    """Points where the marks say that answers begin and end."""

    def outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        marks = batch.targets
        return torch.zeros(marks.shape), torch.stack([marks & 1, marks >> 1 & 1], -1).float()


class Torn(Pointer):
    """As `Pointer`, but the likeliest begin is that of "it is not here", which is no likely end."""

    def outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        losses, outputs = super().outputs(batch)
        outputs[batch.weights > 0] = torch.tensor([3.0, -3.0])
        return losses, outputs


def held_out(folder: Path, labels: LabelsConfig, rows: list[dict[str, object]]) -> Corpus:
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = {"dev": SourceConfig(paths=[str(folder / "rows.jsonl")], split="validation")}
    tokenizer = WordPiece(vocab=300, objectives=["masked"])
    train = SourceConfig(paths=[str(folder / "rows.jsonl")], split="train")
    config = TextConfig(sources={"train": train, **sources}, labels=labels, steps=[], tokenizer=tokenizer)
    prepare(config, folder / "data", workers=1)
    tokenize(folder / "data", config, workers=1)
    return Corpus.open(folder / "data")


def score(corpus: Corpus, engine: Oracle) -> LabelScores:
    objective = Labels()
    rows = validation_rows(corpus, "dev", sequence=32, document_mask=True, objective=objective)
    return LabelTask("dev", rows.batches(2), corpus, rows.plan).score(engine, World(torch.device("cpu")))


def test_classes(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": f"{n} cats", "label": n % 3} for n in range(30)]
    corpus = held_out(tmp_path, ClassLabels(labels=["a", "b", "c"]), rows)
    found = score(corpus, Oracle(3)).metrics  # 1 is taken for 0
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert "f1" not in found
    both = score(corpus, Oracle(3)) + score(corpus, Oracle(3))
    assert both.metrics == pytest.approx(found)
    assert both.as_dict()["labels"] == 60


def test_splits_are_those_of_the_recipe(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": f"{n} cats", "label": 0} for n in range(10)]
    corpus = held_out(tmp_path, ClassLabels(labels=["a", "b"]), rows)
    assert (list(corpus.train), list(corpus.validation)) == (["train"], ["dev"])


def test_entities_end_with_their_sentence(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"tokens": [str(n), "cat"], "tags": ["O", "B-X"] if n % 2 else ["I-X", "O"]} for n in range(10)
    ]
    corpus = held_out(tmp_path, TagLabels(labels=["O", "I-X", "B-X"]), rows)
    found = score(corpus, Oracle(3)).metrics  # I-X is taken for O
    assert found["accuracy"] == pytest.approx(15 / 20)
    assert (found["precision"], found["recall"]) == (1, 0.5)


def test_numbers_and_several_labels(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": f"{n} cats", "label": n / 3} for n in range(10)]
    assert score(held_out(tmp_path / "n", NumberLabels(), rows), Oracle(1)).metrics == pytest.approx(
        {"pearson": 1, "spearman": 1}
    )
    rows = [{"text": f"{n} cats", "label": [n % 2]} for n in range(10)]
    corpus = held_out(tmp_path / "m", ClassLabels(labels=["a", "b"], multiple=True), rows)
    assert score(corpus, Oracle(2)).metrics == {"accuracy": 1, "f1": 1}


def test_answers_are_words_of_the_text_as_it_was_written(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = []
    for n in range(12):
        context = f"The U.S. cat, {n}, sat."
        answer = {"text": ["U.S. cat", "cat"], "answer_start": [4, 9]}
        rows.append({"question": f"{n} who", "context": context, "answers": answer if n % 3 else []})
    corpus = held_out(tmp_path, SpanLabels(), rows)
    assert score(corpus, Pointer(2)).metrics == {"exact_match": 1, "f1": 1}
    assert np.isfinite(score(corpus, Pointer(2)).loss)
    assert score(corpus, Torn(2)).metrics == {"exact_match": 1, "f1": 1}


class Table:
    """Says of each text what a table says: its tokens are its key."""

    def __init__(self, scores: dict[tuple[int, ...], float]) -> None:
        self._scores = scores

    def outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs = torch.zeros(*batch.tokens.shape, 2)
        for row, lengths in enumerate(batch.document_lengths):
            for part in np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1]):
                key = tuple(batch.tokens[row, part].tolist())
                outputs[row, part[0], 1] = self._scores.get(key, 0.0)
        return torch.zeros(batch.tokens.shape), outputs


def candidate_corpus(folder: Path, layout: Any, rows: list[dict[str, Any]]) -> Corpus:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = [str(folder / "rows.jsonl")]
    splits: tuple[Any, ...] = ("train", "validation")
    sources = {split: SourceConfig(paths=paths, split=split) for split in splits}
    labels = ClassLabels(labels=["no", "yes"], layout=layout)
    config = TextConfig(sources=sources, labels=labels, steps=[], tokenizer=WordPiece(vocab=300))
    prepare(config, folder / "data", workers=1)
    tokenize(folder / "data", config, workers=1)
    return Corpus.open(folder / "data")


def candidate_scores(corpus: Corpus, scores: dict[int, float]) -> dict[str, float]:
    """Metrics where document n of the shard has the score that is given, else 0."""
    (shard,) = corpus.validation["validation"].shards
    documents = np.split(shard.data, shard.ends[:-1].astype(int))
    engine = Table({tuple(documents[number].tolist()): value for number, value in scores.items()})
    rows = validation_rows(corpus, "validation", sequence=48, document_mask=True, objective=Labels())
    task = LabelTask("validation", rows.batches(1), corpus, rows.plan)
    return task.score(engine, World(torch.device("cpu"))).metrics


def test_candidates_of_a_question_meet_across_batches(tmp_path: Path):
    def question(number: int) -> dict[str, Any]:
        answers = [{"text": f"{number} {word}", "label": int(word != "no")} for word in ("yes", "no", "so")]
        return {"question": f"what of {number}?", "answers": answers}

    rows = [
        {"passage": {"text": f"text {row} " * 6, "questions": [question(row), question(row + 9)]}} for row in (0, 1)
    ]
    corpus = candidate_corpus(tmp_path, "multirc", rows)
    right = {number: 1.0 for number in range(12) if number % 3 != 1}
    assert candidate_scores(corpus, right) == {"f1a": 1, "exact_match": 1}
    assert candidate_scores(corpus, right | {0: -1.0}) == {"f1a": pytest.approx(14 / 15), "exact_match": 3 / 4}
    assert candidate_scores(corpus, right | {4: 1.0, 5: -1.0}) == {"f1a": pytest.approx(7 / 8), "exact_match": 3 / 4}


def test_names_are_scored_as_answers_are(tmp_path: Path):
    text = "Ada Li met Bo"
    entities = [{"start": 0, "end": 5}, {"start": 0, "end": 2}, {"start": 11, "end": 12}]
    query = {"query": "who met Bo: @placeholder", "answers": [{"text": "Ada Li"}]}
    corpus = candidate_corpus(tmp_path, "record", [{"passage": {"text": text, "entities": entities}, "qas": [query]}])
    assert candidate_scores(corpus, {0: 2.0, 1: 1.0}) == {"exact_match": 1, "f1": 1}
    assert candidate_scores(corpus, {0: 1.0, 1: 2.0}) == {"exact_match": 0, "f1": pytest.approx(2 / 3)}
    assert candidate_scores(corpus, {2: 1.0}) == {"exact_match": 0, "f1": 0}


def resampled_slowly(scores: LabelScores, samples: int = 400) -> dict[str, float]:
    """Standard deviations of metrics that are computed anew of whole documents, drawn with replacement."""
    draw = np.random.default_rng(1)
    parts = [scores.rows[scores.rows[:, 1] == number] for number in np.unique(scores.rows[:, 1])]
    found: list[dict[str, float]] = []
    for _ in range(samples):
        drawn = [parts[number].copy() for number in draw.integers(len(parts), size=len(parts))]
        for number, rows in enumerate(drawn):
            rows[:, 1] = number
        found.append(LabelScores(scores.kind, np.concatenate(drawn)).metrics)
    return {name: float(np.std([each[name] for each in found], ddof=1)) for name in found[0]}


DRAW = np.random.default_rng(5)
TAGS = ["O", "B-A", "I-A", "B-B"]


def random_rows(columns: str, documents: int = 200) -> np.ndarray:
    """Loss, number of the document, and columns as the kind has them; labels of a document are alike in quality."""
    own = np.repeat(np.arange(documents), DRAW.integers(1, 12, documents) if columns in ("tags", "candidates") else 1)
    DRAW.shuffle(own)
    quality = DRAW.random(documents)[own]
    count = len(own)
    right = DRAW.integers(0, 4 if columns == "tags" else 2, count)
    if columns in ("tags", "classes"):
        found = [right, np.where(DRAW.random(count) < quality, right, DRAW.integers(0, 2, count))]
    elif columns == "candidates":
        found = [right, right * quality + DRAW.normal(size=count), right, DRAW.random(count)]
    elif columns == "several":
        found = [*DRAW.integers(0, 2, (6, count))]
    else:
        level = DRAW.normal(size=count).round(1)
        found = [level, level + DRAW.normal(size=count)]
    return np.stack([DRAW.exponential(size=count), own, *found], 1)


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ("classes", ClassLabels(labels=["a", "b"])),
        ("tags", TagLabels(labels=TAGS)),
        ("tags", TagLabels(labels=["a", "b", "c", "d"])),
        ("several", ClassLabels(labels=["a", "b", "c"], multiple=True)),
        ("numbers", NumberLabels()),
        ("numbers", SpanLabels()),
        ("numbers", PreferenceLabels()),
        ("candidates", ClassLabels(layout="copa")),
        ("candidates", ClassLabels(layout="multirc")),
        ("candidates", ClassLabels(layout="record")),
    ],
)
def test_errors_are_those_of_a_slow_bootstrap_of_documents(columns: str, kind: LabelsConfig) -> None:
    scores = LabelScores(kind, random_rows(columns))
    slow = resampled_slowly(scores)
    assert scores.errors.keys() == {f"{name}_se" for name in ("loss", *scores.metrics)}
    for name, error in slow.items():
        assert scores.errors[f"{name}_se"] == pytest.approx(error, rel=0.2), name
        assert scores.resampled[name].value == pytest.approx(scores.metrics[name], abs=1e-12)
    assert scores.resampled["loss"].value == pytest.approx(scores.loss)


def test_errors_have_their_closed_forms_where_there_are_some() -> None:
    """Also of more documents than are drawn one by one."""
    for count in (1_000, 50_000):
        right = DRAW.random(count) < 0.8
        rows = np.stack([DRAW.exponential(size=count), np.arange(count), np.ones(count), right], 1)
        scores = LabelScores(ClassLabels(labels=["a", "b"]), rows)
        accuracy = scores.metrics["accuracy"]
        assert scores.errors["accuracy_se"] == pytest.approx((accuracy * (1 - accuracy) / count) ** 0.5, rel=0.1)
        assert scores.errors["loss_se"] == pytest.approx(rows[:, 0].std() / count**0.5, rel=0.1)
        x = DRAW.normal(size=count)
        numbers = LabelScores(NumberLabels(), np.stack([x, np.arange(count), x, x + DRAW.normal(size=count)], 1))
        wanted = (1 - numbers.metrics["pearson"] ** 2) / count**0.5  # of normal values
        assert numbers.errors["pearson_se"] == pytest.approx(wanted, rel=0.1)


def test_labels_of_one_document_count_as_one_item() -> None:
    """The same labels, of 50 documents that are all right or all wrong, say less than of 1,000 documents."""
    right = np.repeat(DRAW.random(50) < 0.5, 20)
    rows = np.stack([np.ones(1000), np.arange(1000), np.ones(1000), right], 1)
    apart = LabelScores(ClassLabels(labels=["a", "b"]), rows)
    rows = rows.copy()
    rows[:, 1] //= 20
    together = LabelScores(TagLabels(labels=["a", "b"]), rows)
    assert together.metrics == apart.metrics
    assert together.errors["accuracy_se"] == pytest.approx(20**0.5 * apart.errors["accuracy_se"], rel=0.15)


def test_one_document_has_no_error_and_missing_losses_do_not_count() -> None:
    one = LabelScores(SpanLabels(), np.array([[0.5, 7, 1, 1]]))
    assert all(math.isnan(error) for error in one.errors.values())
    rows = np.array([[0.5, 0, 1, 1], [math.nan, 1, 1, 1], [1.5, 2, 0, 0]])
    assert LabelScores(SpanLabels(), rows).resampled["loss"].value == 1
    assert LabelScores(SpanLabels(), np.empty((0, 4))).errors == {}


def test_documents_have_the_numbers_of_their_source(tmp_path: Path) -> None:
    """However rows are packed: two models are compared by them."""
    rows: list[dict[str, object]] = [
        {"tokens": ["x"] * (n % 5 * 3 + 1), "tags": ["O"] * (n % 5 * 3 + 1)} for n in range(20)
    ]
    scores = score(held_out(tmp_path, TagLabels(labels=["O", "A"]), rows), Oracle(2))
    numbers, labels = np.unique(scores.rows[:, 1], return_counts=True)
    assert numbers.tolist() == list(range(20))
    assert labels.tolist() == [n % 5 * 3 + 1 for n in range(20)]
    assert scores.rows[:, 1].tolist() != sorted(scores.rows[:, 1]), "else the order of the rows shows nothing"
