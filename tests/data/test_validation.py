from collections.abc import Callable

import pytest

from hornbook.data.batch import Batch
from hornbook.data.corpus import Corpus
from hornbook.data.validation import validation_batches
from hornbook.errors import UsageError


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
    batches = list(
        validation_batches(Corpus.open(raw.path), "a", sequence=8, micro_batch=2, max_tokens=10**6, document_mask=mask)
    )
    assert [len(batch.tokens) for batch in batches] == [2, 2, 1]
    tokens, targets = collect(batches)
    assert tokens[:39] == [token for document in documents for token in document]
    end = [] if separate_end else [raw.end]
    assert targets == [token for document in documents for token in document[1:] + end]
    assert sum(float(batch.weights.sum()) for batch in batches) == len(targets)
    assert all(sum(lengths) == 8 for batch in batches for lengths in batch.lengths)
    assert [sample for batch in batches for sample in batch.samples.tolist()] == [0, 1, 2, 3, 4]


def test_at_most_max_tokens_are_used(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [4]}, validation={"a": [5, 9, 23, 2]})
    stream = [token for document in raw.documents["validation"]["a"] for token in document]
    for limit in (1, 7, 8, 9, 20, 39, 40):
        batches = list(
            validation_batches(
                Corpus.open(raw.path), "a", sequence=8, micro_batch=3, max_tokens=limit, document_mask=False
            )
        )
        tokens, targets = collect(batches)
        assert len(targets) == min(limit, 39)
        assert tokens[: min(limit, 39)] == stream[:limit]


def test_a_source_without_validation_is_named(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [4]}, validation={"b": [5], "none": []})
    corpus = Corpus.open(raw.path)
    options = {"sequence": 8, "micro_batch": 2, "max_tokens": 100, "document_mask": True}
    with pytest.raises(UsageError, match=r"no validation data for source 'a' .*there is for: b, none"):
        next(validation_batches(corpus, "a", **options))
    assert list(validation_batches(corpus, "none", **options)) == []
