"""Texts that are mixed: partners within a row, shares as distributed as they should be, the losses of both labels."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hornbook.data.batch import Batch
from hornbook.data.config.objectives import Labels
from hornbook.data.corpus import Corpus
from hornbook.data.labelled.mixup import partners
from hornbook.data.validation import held_out
from hornbook.errors import UsageError
from hornbook.model.build_model import build_model
from hornbook.model.config.head_config import ClassificationHead
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.init.init import initialize
from hornbook.parallel.gradients.step_objective import head_terms
from hornbook.parallel.runner import model_inputs
from hornbook.settings.resolve import resolve
from hornbook.settings.training import LossConfig
from hornbook.text.config.labels import ClassLabels, NumberLabels
from tests.data.labelled.test_labelled import PIECES, loader_of, make, one_pass, texts

MIXUP, HOST = Labels(mixup=0.4), torch.device("cpu")
KEYS = np.random.default_rng(3).integers(0, 2**63, 20_000).astype(np.uint64)


@pytest.mark.parametrize("alpha", [0.05, 0.4, 1.0])
def test_shares_have_the_moments_of_beta(alpha: float) -> None:
    """Mean 1/2 and variance 1 / (4 (2 alpha + 1)); 20,000 rows of two, so five standard errors are 0.013 or less."""
    shares = partners(np.arange(0, 40_001, 2), KEYS, alpha).shares
    assert shares.min() >= 0
    assert shares.max() <= 1
    assert shares.mean() == pytest.approx(0.5, abs=0.013)
    assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), abs=0.005)
    assert abs(np.corrcoef(shares[::2], shares[1::2])[0, 1]) < 0.04


def test_each_text_of_a_row_is_mixed_with_another_and_one_alone_is_not() -> None:
    offsets = np.array([0, 5, 6, 9])
    found = partners(offsets, KEYS[:3], 0.4)
    for first, end in pairwise(offsets):
        assert sorted(found.others[first:end]) == [*range(first, end)]
    assert [n for n, other in enumerate(found.others) if n == other] == [5]
    assert found.shares[5] == 1
    assert len(set(found.shares)) == len(found.shares)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    rows: list[dict[str, object]] = [{"text": text[:20], "label": n % 2} for n, text in enumerate(texts(60))]
    return make(tmp_path_factory.mktemp("mixed"), ClassLabels(labels=["no", "yes"]), rows, PIECES)


def test_a_text_meets_tokens_and_label_of_another_of_its_row(classes: Corpus) -> None:
    plain, met = one_pass(classes, Labels()), 0
    for batch, without in zip(one_pass(classes, MIXUP), plain, strict=True):
        assert batch.mixed is not None
        assert without.mixed is None
        assert batch.tokens.equal(without.tokens)
        assert batch.targets.equal(without.targets)
        for row, lengths in enumerate(batch.document_lengths):
            begins = np.cumsum([0, *lengths])[:-1]
            pieces = [slice(begin, begin + size) for begin, size in zip(begins, lengths, strict=True)]
            texts_of_row = [each for each in pieces if batch.weights[row, each].any()]
            for own in texts_of_row:
                mixed, size = batch.mixed.tokens[row, own], own.stop - own.start
                others = [each for each in texts_of_row if each != own]
                fitting = [
                    int(batch.targets[row, other.start])
                    for other in others
                    if mixed.equal(spliced(batch, row, own, other, size))
                ]
                assert int(batch.mixed.targets[row, own.start]) in (fitting or [int(batch.targets[row, own.start])])
                assert len(set(batch.mixed.shares[row, own].tolist())) == 1
                assert bool(fitting) == bool(others)
                met += bool(fitting)
    assert met > 20


def spliced(batch: Batch, row: int, own: slice, other: slice, size: int) -> torch.Tensor:
    """Tokens of the other text, and behind its end one's own."""
    return torch.cat([batch.tokens[row, other][:size], batch.tokens[row, own][other.stop - other.start :]])


def test_draws_depend_on_the_pass_and_on_neither_world_nor_history(classes: Corpus) -> None:
    loader = loader_of(classes, MIXUP)
    loader.take(8)
    whole = loader.take(8)
    for rank in range(2):
        part = loader_of(classes, MIXUP)
        part.seek(8)
        for mine, theirs in zip(part.take(8, rank, 2).batches, whole.batches[rank::2], strict=True):
            assert mine.mixed is not None
            assert theirs.mixed is not None
            assert mine.mixed.tokens.equal(theirs.mixed.tokens)
            assert mine.mixed.shares.equal(theirs.mixed.shares)
    again = loader_of(classes, MIXUP)
    first = again.take(rows := again.index.epoch_tokens(1.0) // 24)
    second = again.take(rows)
    drawn = [
        {share for b in each.batches if b.mixed for share in b.mixed.shares.flatten().tolist()}
        for each in (first, second)
    ]
    assert drawn[0] & drawn[1] <= {1.0}


def test_held_out_texts_are_not_mixed(classes: Corpus) -> None:
    held = held_out(classes, "set", sequence=24, document_mask=True, objective=MIXUP)
    assert all(batch.mixed is None for batch in held.batches(4))


def test_the_loss_is_that_of_mixed_vectors_with_both_labels_by_their_shares(classes: Corpus) -> None:
    """Beside a model whose embedding holds the mixed vectors themselves, one for each place."""
    head = ClassificationHead(labels=["no", "yes"])
    config = ModelConfig(kind="encoder", layers=1, width=16, heads=2, head=head)
    batch = next(each for each in one_pass(classes, MIXUP) if each.mixed is not None)
    assert batch.mixed is not None
    model = build_model(config, classes.vocab_size, "cpu")
    initialize(model, config, 1)
    with torch.no_grad():
        model.embedding.weight.normal_(generator=torch.Generator().manual_seed(2))
    inputs = model_inputs(model, batch, None, HOST, masked=False)
    found = head_terms(model.head, *model(**inputs), batch, LossConfig(), None, 1.0)["loss"]

    own, other = (model.embedding.weight[each] for each in (batch.tokens, batch.mixed.tokens))
    shares = batch.mixed.shares[..., None]
    vectors = (shares * own + (1 - shares) * other).detach()
    places = torch.arange(batch.tokens.numel()).view(batch.tokens.shape)
    again = build_model(config, batch.tokens.numel(), "cpu")
    again.load_state_dict(model.state_dict() | {"embedding.weight": vectors.flatten(0, 1)})
    hidden, _ = again(places, positions=batch.positions, lengths=batch.document_lengths)
    expected = torch.zeros(())
    for row, column in batch.weights.nonzero().tolist():
        outputs = model.head.logits(hidden[row, column])
        losses = [F.cross_entropy(outputs, each[row, column]) for each in (batch.targets, batch.mixed.targets)]
        share = float(batch.mixed.shares[row, column])
        expected = expected + share * losses[0] + (1 - share) * losses[1]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    unmixed = model.head.losses(model(**inputs | {"mixing": None})[0], batch.targets, batch.weights)["loss"]
    assert abs((unmixed - found).item()) > 0.05
    with torch.no_grad():
        assert "mixing" not in model_inputs(model, batch, None, HOST, masked=False)


def test_numbers_are_mixed_too(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": text[:20], "x": n} for n, text in enumerate(texts(30))]
    corpus = make(tmp_path, NumberLabels(values=["x"]), rows, PIECES)
    for batch in one_pass(corpus, MIXUP):
        assert batch.mixed is not None
        assert batch.values is not None
        assert batch.mixed.values is not None
        here = batch.weights > 0
        for own, other in zip(batch.values[here].split(1), batch.mixed.values[here].split(1), strict=True):
            assert other in batch.values
            assert own.shape == other.shape
        assert not batch.values.equal(batch.mixed.values)


def test_labels_of_tokens_and_divided_rows_are_refused() -> None:
    words = ["data.objective={kind='labels', mixup=0.4}", "model.kind=encoder"]
    with pytest.raises(UsageError, match=r"data\.objective\.mixup .*head\.kind is \"span\": leave it 0, or take"):
        resolve(None, [*words, "model.head.kind=span"], environ={})
    more = ["model.head.kind=classification", "parallel.tensor=2", "parallel.sequence=true"]
    with pytest.raises(UsageError, match=r"parallel\.sequence .*cannot mix its texts: leave it false"):
        resolve(None, [*words, *more], environ={})
