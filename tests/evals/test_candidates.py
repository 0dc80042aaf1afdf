"""Figures of questions with candidates against slow readings of their definitions, and through shards and batches."""

import json
from collections import defaultdict
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
from hornbook.evals.candidates import best_of, candidate_figures, question_of
from hornbook.evals.labels import evaluate_labels
from hornbook.parallel.world import World
from hornbook.text.config.labels import ClassLabels
from hornbook.text.config.text import SourceConfig, TextConfig, WordPiece
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize

DRAW = np.random.default_rng(8)


def slow_figures(layout: str, questions: list[int], rows: list[list[float]]) -> dict[str, float]:
    """Question by question, as the benchmark's own scripts go through a file of answers."""
    asked: dict[int, list[list[float]]] = defaultdict(list)
    for question, row in zip(questions, rows, strict=True):
        asked[question].append(row)
    if layout == "multirc":
        hits = sum(right == 1 and score > 0 for right, score, _, _ in rows)
        said, there = sum(score > 0 for _, score, _, _ in rows), sum(right == 1 for right, _, _, _ in rows)
        precision, recall = hits / said, hits / there
        whole = [all((score > 0) == (right == 1) for right, score, _, _ in each) for each in asked.values()]
        return {"f1a": 2 * precision * recall / (precision + recall), "exact_match": sum(whole) / len(whole)}
    chosen = [max(each, key=lambda row: row[1]) for each in asked.values()]
    if layout == "copa":
        return {"accuracy": sum(row[0] for row in chosen) / len(chosen)}
    return {
        "exact_match": sum(row[2] for row in chosen) / len(chosen),
        "f1": sum(row[3] for row in chosen) / len(chosen),
    }


@pytest.mark.parametrize("layout", ["copa", "multirc", "record"])
def test_as_a_slow_reading_of_the_definitions(layout: str):
    for _ in range(20):
        questions = DRAW.integers(0, 40, 150)
        right = DRAW.integers(0, 2, 150)
        scores = DRAW.integers(-2, 3, 150) + right  # with ties
        rows = np.column_stack([right, scores, right, DRAW.uniform(size=150)]).astype(float)
        expected = slow_figures(layout, questions.tolist(), rows.tolist())
        assert candidate_figures(layout, questions, rows) == pytest.approx(expected, abs=1e-12)


def test_the_first_of_equals_is_chosen():
    assert best_of(np.array([3, 1, 3, 1, 1]), np.array([2.0, 0.0, 2.0, 5.0, 5.0])).tolist() == [3, 0]


def test_questions_have_numbers_that_a_float_holds():
    numbers = {question_of(f"a/b#c.jsonl:{row}-{question}#0") for row in range(50) for question in range(50)}
    assert len(numbers) == 2500
    assert all(int(float(number)) == number for number in numbers)
    assert question_of("x#1") == question_of("x#22") != question_of("y#1")


class Table:
    """Says of each text what a table says: its tokens are its key."""

    def __init__(self, scores: dict[tuple[int, ...], float]) -> None:
        self.world, self._scores = World(torch.device("cpu")), scores

    def outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs = torch.zeros(*batch.tokens.shape, 2)
        for row, lengths in enumerate(batch.document_lengths):
            for part in np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1]):
                key = tuple(batch.tokens[row, part].tolist())
                outputs[row, part[0], 1] = self._scores.get(key, 0.0)
        return torch.zeros(batch.tokens.shape), outputs


def held_out(folder: Path, layout: Any, rows: list[dict[str, Any]]) -> Corpus:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = [str(folder / "rows.jsonl")]
    splits: tuple[Any, ...] = ("train", "validation")
    sources = {split: SourceConfig(paths=paths, split=split) for split in splits}
    labels = ClassLabels(labels=["no", "yes"], layout=layout)
    config = TextConfig(sources=sources, labels=labels, steps=[], tokenizer=WordPiece(vocab=300))
    prepare(config, folder / "data", workers=1)
    tokenize(folder / "data", config, workers=1)
    return Corpus.open(folder / "data")


def score(corpus: Corpus, scores: dict[int, float]) -> dict[str, float]:
    """Figures where document n of the shard has the score that is given, else 0."""
    (shard,) = corpus.validation["validation"].shards
    documents = np.split(shard.data, shard.ends[:-1].astype(int))
    engine = Table({tuple(documents[number].tolist()): value for number, value in scores.items()})
    rows = validation_rows(corpus, "validation", sequence=48, document_mask=True, objective=Labels())
    return evaluate_labels(engine, rows.batches(1), corpus, "validation", rows.plan).figures


def test_candidates_of_a_question_meet_across_batches(tmp_path: Path):
    def question(number: int) -> dict[str, Any]:
        answers = [{"text": f"{number} {word}", "label": int(word != "no")} for word in ("yes", "no", "so")]
        return {"question": f"what of {number}?", "answers": answers}

    rows = [
        {"passage": {"text": f"text {row} " * 6, "questions": [question(row), question(row + 9)]}} for row in (0, 1)
    ]
    corpus = held_out(tmp_path, "multirc", rows)
    right = {number: 1.0 for number in range(12) if number % 3 != 1}
    assert score(corpus, right) == {"f1a": 1, "exact_match": 1}
    assert score(corpus, right | {0: -1.0}) == {"f1a": pytest.approx(14 / 15), "exact_match": 3 / 4}
    assert score(corpus, right | {4: 1.0, 5: -1.0}) == {"f1a": pytest.approx(7 / 8), "exact_match": 3 / 4}


def test_names_are_scored_as_answers_are(tmp_path: Path):
    text = "Ada Li met Bo"
    entities = [{"start": 0, "end": 5}, {"start": 0, "end": 2}, {"start": 11, "end": 12}]
    query = {"query": "who met Bo: @placeholder", "answers": [{"text": "Ada Li"}]}
    corpus = held_out(tmp_path, "record", [{"passage": {"text": text, "entities": entities}, "qas": [query]}])
    assert score(corpus, {0: 2.0, 1: 1.0}) == {"exact_match": 1, "f1": 1}
    assert score(corpus, {0: 1.0, 1: 2.0}) == {"exact_match": 0, "f1": pytest.approx(2 / 3)}
    assert score(corpus, {2: 1.0}) == {"exact_match": 0, "f1": 0}
