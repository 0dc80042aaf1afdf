"""Log-likelihoods of continuations: against the plain formula, over ranks, and what does not fit."""

from typing import Any, cast

import numpy as np
import pytest
import torch

from hornbook.data.batch import Batch
from hornbook.errors import UsageError
from hornbook.evals.likelihood import MOST_TOKENS, Request, encode_choices, encode_request, log_likelihoods
from hornbook.parallel.world import World
from hornbook.text.config.text import BPE
from hornbook.text.tokenizer.bpe.train import train_bpe
from hornbook.text.tokenizer.tokenizer import Tokenizer
from tests.evals.models import REQUESTS, context, engine


def by_hand(model: torch.nn.Module, request: Request) -> tuple[float, int]:
    ids = torch.tensor([request.context + request.continuation])
    with torch.no_grad():
        hidden, _ = model(ids[:, :-1])
        logits = model.head.logits(hidden)[0, len(request.context) - 1 :].double()
    targets = torch.tensor(request.continuation)
    nats = logits.log_softmax(-1)[torch.arange(len(targets)), targets].sum()
    return float(nats), int((logits.argmax(-1) == targets).sum())


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_each_request_has_the_sum_of_its_own_tokens(tiny_corpus, micro_batch: int) -> None:
    own = engine()
    with own.evaluation_mode() as model:
        likeliest, ids = [], [0, 17, 4]
        for _ in range(3):
            hidden, _ = model(torch.tensor([ids]))
            ids.append(int(model.head.logits(hidden)[0, -1].argmax()))
            likeliest.append(ids[-1])
        requests = [*REQUESTS, Request([0, 17, 4], likeliest)]
        expected = np.array([by_hand(model, each) for each in requests])
    found = log_likelihoods(own, World(torch.device("cpu")), requests, context(tiny_corpus, 64, micro_batch))
    np.testing.assert_allclose(found[:, 0], expected[:, 0], atol=1e-4)
    assert found[:, 1].tolist() == expected[:, 1].tolist()
    assert found[-1, 1] == 3, "a greedy continuation is all likeliest tokens"


def test_what_was_not_scored_is_nan(tiny_corpus) -> None:
    turns = iter([True, False, False, False, False])
    own = context(tiny_corpus, 64, 1, lambda: next(turns))
    found = log_likelihoods(engine(), World(torch.device("cpu")), REQUESTS, own)
    assert np.isnan(found[:, 0]).sum() == len(REQUESTS) - 1


def test_batches_of_a_model_that_reads_long_rows_are_no_longer_than_others(tiny_corpus) -> None:
    sizes = []

    class Watched:
        def predictions(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            sizes.append(batch.tokens.numel())
            return torch.zeros(batch.tokens.shape), torch.zeros(batch.tokens.shape)

    requests = [Request([0] * 128, [1]), Request([0] * 30_000, [1]), *[Request([0] * 64, [1])] * 600]
    log_likelihoods(cast(Any, Watched()), World(torch.device("cpu")), requests, context(tiny_corpus, 131_072, 8))
    assert sizes[0] == 30_016, "alone"
    assert sizes[1:] == [MOST_TOKENS, MOST_TOKENS, 217 * 64], "128 rows of 128, 256 of 64, and the rest"


def test_a_continuation_begins_with_the_blank_before_it(tiny_corpus) -> None:
    tokenizer = Tokenizer.load(tiny_corpus / "tokenizer")
    one, other = encode_request(tokenizer, "ab ", "cd", "x"), encode_request(tokenizer, "ab", " cd", "x")
    assert one == other
    assert tokenizer.decode(one.continuation) == " cd"
    assert one.context == [tokenizer.delimiter_id, *tokenizer.encode("ab")]
    assert encode_request(tokenizer, "", "cd", "x").context == [tokenizer.delimiter_id]


def merging_tokenizer() -> Tokenizer:
    """Byte-level BPE in which " brown" and "dog" are one token each."""
    return train_bpe(BPE(vocab=300), [[" brown brown dog the quick"] * 9])


@pytest.mark.parametrize(
    ("context", "continuation", "scored"),
    [
        ("the quick bro", "wn", " brown"),
        ("the quick brow", "n dog", " brown dog"),
        ("the quick", " brown", " brown"),
        ("the quick do", "\u00e9", "\u00e9"),
        ("the quick ", "brown", " brown"),
        ("", "dog", "dog"),
    ],
)
def test_a_token_that_spans_the_join_is_scored_whole(context: str, continuation: str, scored: str) -> None:
    """The tokens read are those of the text as a whole: no other text is scored."""
    tokenizer = merging_tokenizer()
    request = encode_request(tokenizer, context, continuation, "x")
    assert request.context + request.continuation == [tokenizer.delimiter_id, *tokenizer.encode(context + continuation)]
    assert tokenizer.decode(request.continuation) == scored
    blanks = len(context) - len(context.rstrip())
    assert request.joined_bytes == len(scored.encode()) - len(continuation.encode()) - blanks


def test_choices_are_scored_from_one_place_where_a_token_spans_the_join_of_one() -> None:
    tokenizer = merging_tokenizer()
    requests = encode_choices(tokenizer, "the quick bro", {"a": "wn", "b": "ze"})
    assert [tokenizer.decode(each.continuation) for each in requests] == [" brown", " broze"]
    assert requests[0].context == requests[1].context
    assert [each.joined_bytes for each in requests] == [4, 4]
    with pytest.raises(UsageError, match="b: '' after 'the quick bro' is no token"):
        encode_choices(tokenizer, "the quick bro", {"a": "wn", "b": ""})


def test_a_continuation_of_no_token_is_named(tiny_corpus) -> None:
    with pytest.raises(UsageError, match=r"a.jsonl:3, choice 2: '' after 'question' is no token"):
        encode_request(Tokenizer.load(tiny_corpus / "tokenizer"), "question", "", "a.jsonl:3, choice 2")


def test_what_is_longer_than_a_row_is_refused_or_cut() -> None:
    request = Request([0, 1, 2, 3], [4, 5])
    assert request.within(5, "f:1", cut=False) is request
    with pytest.raises(UsageError, match=r'f:1: 5 tokens, and the model reads 4 .*long = "cut"'):
        request.within(4, "f:1", cut=False)
    assert request.within(4, "f:1", cut=True) == Request([1, 2, 3], [4, 5], cut=True)
    assert request.within(2, "f:1", cut=True).context == [3]
    with pytest.raises(UsageError, match="f:1: the continuation has 2 tokens, and the model reads 1"):
        request.within(1, "f:1", cut=True)


@pytest.mark.parametrize(
    "parallel",
    [
        {"data": 2},
        {"data": 2, "shard": "everything"},
        {"data": 1, "context": {"ranks": 2}},
        {"data": 1, "tensor": 2},
        {"data": 1, "pipeline": {"stages": 2}},
    ],
    ids="-".join,
)
def test_ranks_find_what_one_process_finds(tiny_corpus, run_ranks, parallel) -> None:
    """More requests than a turn of the ranks has, and a last turn in which one rank has none."""
    alone = engine(0, 257, "model.layers=2")
    expected = log_likelihoods(alone, World(torch.device("cpu")), REQUESTS, context(tiny_corpus, 64, 1))
    for found in run_ranks("tests/evals/models.py:likelihoods", 2, str(tiny_corpus), parallel):
        np.testing.assert_allclose(np.array(found), expected, atol=2e-4)
