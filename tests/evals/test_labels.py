"""Scores of labels over batches: the same figures as a slow reading of what the model says, for any ranks' turns."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.data.config.objectives import Labels
from hornbook.data.corpus import Corpus
from hornbook.data.validation import held_out as validation_rows
from hornbook.evals.labels import LabelScore, evaluate_labels
from hornbook.parallel.world import World
from hornbook.text.config.labels import ClassLabels, LabelsConfig, NumberLabels, SpanLabels, TagLabels
from hornbook.text.config.text import SourceConfig, TextConfig, WordPiece
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize


class Oracle:
    """Says what is right, but takes label 1 for label 0."""

    def __init__(self, labels: int) -> None:
        self.world, self._labels = World(torch.device("cpu")), labels

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


def score(corpus: Corpus, engine: Oracle) -> LabelScore:
    objective = Labels()
    rows = validation_rows(corpus, "dev", sequence=32, document_mask=True, objective=objective)
    return evaluate_labels(engine, rows.batches(2), corpus, "dev", rows.plan)


def test_classes(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": f"{n} cats", "label": n % 3} for n in range(30)]
    corpus = held_out(tmp_path, ClassLabels(labels=["a", "b", "c"]), rows)
    figures = score(corpus, Oracle(3)).figures  # 1 is taken for 0
    assert figures["accuracy"] == pytest.approx(2 / 3)
    assert figures["macro_f1"] == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert "f1" not in figures
    both = score(corpus, Oracle(3)) + score(corpus, Oracle(3))
    assert both.figures == pytest.approx(figures)
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
    figures = score(corpus, Oracle(3)).figures  # I-X is taken for O
    assert figures["accuracy"] == pytest.approx(15 / 20)
    assert (figures["precision"], figures["recall"]) == (1, 0.5)


def test_numbers_and_several_labels(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": f"{n} cats", "label": n / 3} for n in range(10)]
    assert score(held_out(tmp_path / "n", NumberLabels(), rows), Oracle(1)).figures == pytest.approx(
        {"pearson": 1, "spearman": 1}
    )
    rows = [{"text": f"{n} cats", "label": [n % 2]} for n in range(10)]
    corpus = held_out(tmp_path / "m", ClassLabels(labels=["a", "b"], multiple=True), rows)
    assert score(corpus, Oracle(2)).figures == {"accuracy": 1, "f1": 1}


def test_answers_are_words_of_the_text_as_it_was_written(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = []
    for n in range(12):
        context = f"The U.S. cat, {n}, sat."
        answer = {"text": ["U.S. cat", "cat"], "answer_start": [4, 9]}
        rows.append({"question": f"{n} who", "context": context, "answers": answer if n % 3 else []})
    corpus = held_out(tmp_path, SpanLabels(), rows)
    assert score(corpus, Pointer(2)).figures == {"exact_match": 1, "f1": 1}
    assert np.isfinite(score(corpus, Pointer(2)).loss)
    assert score(corpus, Torn(2)).figures == {"exact_match": 1, "f1": 1}
