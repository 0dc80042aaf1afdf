"""Scores: the laws of loss and bits-per-byte, on an evaluator whose probabilities are known."""

import math
from types import SimpleNamespace

import pytest
import torch

from hornbook.evals.loss import LossScores, LossTask
from hornbook.parallel.world import World

VOCAB = 16


class Uniform:
    """Gives every token of the vocabulary the same probability."""

    def evaluate(self, batch):
        return torch.full(batch.targets.shape, math.log(VOCAB))


def batch(rows, sequence, weight=1.0):
    targets = torch.arange(rows * sequence).reshape(rows, sequence) % VOCAB
    return SimpleNamespace(targets=targets, weights=torch.full((rows, sequence), weight))


def evaluate(batches, token_bytes):
    return LossTask("web", batches, token_bytes).score(Uniform(), World(torch.device("cpu")))


def test_uniform_model_has_log2_vocab_bits_per_token():
    token_bytes = torch.full((VOCAB,), 3)
    score = evaluate([batch(2, 8), batch(1, 8)], token_bytes)
    assert score.tokens == 24
    assert score.bytes == 72
    assert score.loss == pytest.approx(math.log(VOCAB))
    assert score.bits_per_byte == pytest.approx(math.log2(VOCAB) * score.tokens / score.bytes)


def test_targets_of_weight_zero_count_for_nothing():
    token_bytes = torch.ones(VOCAB, dtype=torch.int64)
    full, masked = batch(1, 8), batch(1, 8)
    masked.weights[0, 5:] = 0
    score = evaluate([masked], token_bytes)
    assert score.tokens == 5
    assert score.bytes == 5
    assert score.loss == pytest.approx(evaluate([full], token_bytes).loss)


def test_special_tokens_cost_bits_but_stand_for_no_bytes():
    token_bytes = torch.ones(VOCAB, dtype=torch.int64)
    token_bytes[0] = 0
    score = evaluate([batch(1, VOCAB)], token_bytes)
    assert score.bytes == VOCAB - 1
    assert score.bits_per_byte == pytest.approx(math.log2(VOCAB) * VOCAB / (VOCAB - 1))


def test_parts_add_up_and_nothing_is_not_a_number():
    whole = LossScores(3.0, 2.0, 4) + LossScores(1.0, 2.0, 4)
    assert whole == LossScores(4.0, 4.0, 8)
    assert math.isnan(LossScores().loss)
    assert math.isnan(LossScores().bits_per_byte)
