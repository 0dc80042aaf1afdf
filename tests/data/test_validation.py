"""Validation rows: all of them once, or some spread over all documents, the same ones whoever asks."""

from collections.abc import Callable

import numpy as np
import pytest

from hornbook.data.batch import Batch
from hornbook.data.config.objectives import Causal, FillInTheMiddle, Masked
from hornbook.data.corpus import Corpus
from hornbook.data.validation import held_out
from hornbook.errors import UsageError
from tests.data.conftest import write_tokenizer


def collect(batches: list[Batch]) -> tuple[list[int], list[int]]:
    """Inputs before padding, and targets that count, in order."""
    tokens, targets = [], []
    for batch in batches:
        for row in range(len(batch.tokens)):
            counted = batch.weights[row] > 0
            targets += batch.targets[row][counted].tolist()
            tokens += batch.tokens[row].tolist()
    return tokens, targets


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("separate_end", [False, True])
def test_every_token_is_predicted_exactly_once_in_order(make_corpus: Callable, mask: bool, separate_end: bool) -> None:
    raw = make_corpus({"a": [4]}, validation={"a": [5, 9, 23, 2], "b": [7]}, shards=2, separate_end=separate_end)
    documents = raw.documents["validation"]["a"]
    rows = held_out(Corpus.open(raw.path), "a", sequence=8, document_mask=mask)
    batches = list(rows.batches(2))
    assert [len(batch.tokens) for batch in batches] == [2, 2, 1]
    tokens, targets = collect(batches)
    assert tokens[:39] == [token for document in documents for token in document]
    end = [] if separate_end else [raw.end]
    assert targets == [token for document in documents for token in document[1:] + end]
    assert sum(float(batch.weights.sum()) for batch in batches) == len(targets)
    assert all(sum(lengths) == 8 for batch in batches for lengths in batch.document_lengths)
    assert [sample for batch in batches for sample in batch.samples.tolist()] == [0, 1, 2, 3, 4]
    assert (rows.read, rows.of) == (39, 39)


def test_at_most_max_tokens_are_read_and_at_least_a_row(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [4]}, validation={"a": [5, 9, 23, 2]})
    corpus = Corpus.open(raw.path)
    for limit, full in ((1, 1), (7, 1), (8, 1), (16, 2), (20, 2)):
        rows = held_out(corpus, "a", sequence=8, document_mask=False, max_tokens=limit)
        assert len(rows.rows) in (full, full + 1)  # the last row of the stream is a shorter one
        assert rows.read <= max(limit, 8)
        assert rows.of == 39
    for limit in (39, 40, 10**9):
        assert held_out(corpus, "a", sequence=8, document_mask=False, max_tokens=limit).read == 39


def test_what_is_drawn_is_spread_over_all_documents(make_corpus: Callable) -> None:
    """Sixteenths of the text in file order, as a dump by topic or date has them: each gives its share of the rows."""
    raw = make_corpus({"a": [4]}, validation={"a": [1024] * 64, "b": [1024] * 64})
    corpus = Corpus.open(raw.path)
    rows = held_out(corpus, "a", sequence=16, document_mask=True, max_tokens=16_384)
    assert (len(rows.rows), rows.read, rows.of) == (1024, 16_384, 65_536)
    counts = np.bincount(rows.rows // 256, minlength=16)
    assert counts.min() > 64 - 4 * 8 * 0.87  # hypergeometric: 64 of 256, a quarter drawn
    assert counts.max() < 64 + 4 * 8 * 0.87
    assert not np.array_equal(rows.rows, held_out(corpus, "b", sequence=16, document_mask=True, max_tokens=16_384).rows)


@pytest.mark.parametrize("objective", [Causal(), Masked()], ids=["causal", "masked"])
def test_the_rows_drawn_are_rows_of_the_whole_in_any_microbatch_and_for_any_seed(
    make_corpus: Callable, objective: Causal | Masked
) -> None:
    raw = make_corpus({"a": [4]}, validation={"a": [40] * 30})
    write_tokenizer(raw)
    options = {"sequence": 16, "document_mask": True, "objective": objective}
    drawn = held_out(Corpus.open(raw.path), "a", **options, max_tokens=300, seed=5)

    def rows(batches: list[Batch]) -> dict[int, tuple[list[int], list[int], list[float]]]:
        return {
            int(batch.samples[i]): (batch.tokens[i].tolist(), batch.targets[i].tolist(), batch.weights[i].tolist())
            for batch in batches
            for i in range(len(batch.samples))
        }

    small, large = rows(list(drawn.batches(3))), rows(list(drawn.batches(7)))
    whole = rows(list(drawn.whole.batches(4)))
    assert small == large
    assert len(whole) == 75
    assert small == {number: whole[number] for number in small}
    other = held_out(Corpus.open(raw.path), "a", **options, max_tokens=300, seed=6)
    assert np.array_equal(other.rows, drawn.rows)


def test_a_digest_names_what_a_figure_depends_on(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [4]}, validation={"a": [40] * 30})
    write_tokenizer(raw)
    corpus = Corpus.open(raw.path)

    def digest(**changes: object) -> str:
        options = {"sequence": 16, "document_mask": True, "max_tokens": 300, "seed": 1} | changes
        return held_out(corpus, "a", **options).digest  # pyright: ignore[reportArgumentType]

    first = digest()
    assert first == digest(seed=2) == digest(objective=FillInTheMiddle())
    others = [{"sequence": 32}, {"document_mask": False}, {"max_tokens": 600}, {"objective": Masked()}]
    assert len({first, *(digest(**change) for change in others)}) == 5
    masked = digest(objective=Masked(rate=0.3, eval_rate=0.15))
    assert masked == digest(objective=Masked()) != digest(objective=Masked(rate=0.3))


def test_a_source_without_validation_is_named(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [4]}, validation={"b": [5], "none": []})
    corpus = Corpus.open(raw.path)
    options = {"sequence": 8, "max_tokens": 100, "document_mask": True}
    with pytest.raises(UsageError, match=r"no validation data for source 'a' .*there is for: b, none"):
        held_out(corpus, "a", **options)
    assert list(held_out(corpus, "none", **options).batches(2)) == []
