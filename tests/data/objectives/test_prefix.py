from collections.abc import Callable

import numpy as np
import pytest
import torch

from hornbook.data.config.data import DataConfig
from hornbook.data.config.objectives import Causal, Mixture, MixturePart, ObjectiveConfig, Prefix
from hornbook.data.loader.loader import Loader, build_loader
from tests.data.conftest import Raw

SEQUENCE = 64


@pytest.fixture(scope="module")
def raw(make_corpus: Callable) -> Raw:
    return make_corpus({"a": np.random.default_rng(5).integers(2, 90, 800).tolist()}, separate_end=True)


def loader(raw: Raw, objective: ObjectiveConfig, *, document_mask: bool = True) -> Loader:
    config = DataConfig(objective=objective, document_mask=document_mask)
    return build_loader(config, raw.path, sequence=SEQUENCE, micro_batch=4, seed=1, prefetch=False)


@pytest.mark.parametrize("document_mask", [True, False])
def test_the_prefix_is_seen_and_only_what_follows_is_predicted(raw: Raw, document_mask: bool) -> None:
    data = loader(raw, Prefix(), document_mask=document_mask)
    count = data.index.epoch_tokens(1) // SEQUENCE
    made, plain = data.take(count), loader(raw, Causal(), document_mask=document_mask).take(count)
    assert made.token_hash == plain.token_hash
    total = 0.0
    for batch, causal in zip(made.batches, plain.batches, strict=True):
        assert torch.equal(batch.targets, causal.targets)
        assert batch.document_lengths == causal.document_lengths
        assert batch.prefixes is not None
        for row, (lengths, prefixes) in enumerate(zip(batch.document_lengths, batch.prefixes, strict=True)):
            begin = 0
            for length, prefix in zip(lengths, prefixes, strict=True):
                before = causal.weights[row, begin : begin + length]
                used = length if before.any() else 0
                assert (prefix == 0 and not before.any()) or 1 <= prefix <= max(1, used - 1)
                expected = before.clone()
                expected[: max(prefix - 1, 0)] = 0
                assert torch.equal(batch.weights[row, begin : begin + length], expected)
                begin += length
        total += float(batch.weights.sum())
    assert made.total_weight == total


def test_prefix_lengths_are_uniform(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [SEQUENCE] * 6300})
    batches = loader(raw, Prefix()).take(6300).batches
    lengths = [row[0] for batch in batches for row in batch.prefixes or ()]
    counts = np.bincount(lengths, minlength=SEQUENCE)
    assert (counts[0], len(counts)) == (0, SEQUENCE)
    assert ((counts[1:] - 100) ** 2 / 100).sum() < 103.44  # 99.9 % point of chi-square with 62 degrees


def test_causal_rows_of_a_mixture_have_no_prefix(raw: Raw) -> None:
    parts = [MixturePart(weight=3, objective=Causal()), MixturePart(weight=1, objective=Prefix())]
    count = 400
    batches = loader(raw, Mixture(parts=parts)).take(count).batches
    plain = loader(raw, Causal()).take(count).batches
    causal = 0
    for batch, before in zip(batches, plain, strict=True):
        for row, prefixes in enumerate(batch.prefixes or ()):
            causal += not any(prefixes)
            assert any(prefixes) or torch.equal(batch.weights[row], before.weights[row])
    assert abs(causal / count - 0.75) < 3.29 * np.sqrt(0.75 * 0.25 / count)
