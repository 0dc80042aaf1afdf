"""Merges left out by chance: the tokens are those of the paper's algorithm, draw for draw, and the text comes back."""

import itertools
import json
import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from hornbook.errors import UsageError
from hornbook.text.config.text import WordPiece
from hornbook.text.tokenizer.bpe.encode import Encoder
from hornbook.text.tokenizer.bpe.tables import STYLES, Draws, Dropout, Merges, byte_characters, find_merges
from hornbook.text.tokenizer.tokenizer import Tokenizer as Documents
from hornbook.text.tokenizer.train import train_wordpiece
from tests.text.tokenizer.bpe.test_encode import RAWS, TEXT, TEXTS

RAW = RAWS[next(iter(STYLES))]
Ranks = dict[tuple[int, int], tuple[int, int]]
_ALL = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def merges_of(raw: Tokenizer) -> Merges:
    merges = find_merges(json.loads(raw.to_str()))
    assert merges is not None
    return merges


MERGES = {pattern: merges_of(raw) for pattern, raw in RAWS.items()}
ENCODERS = {pattern: Encoder(merges) for pattern, merges in MERGES.items()}
ENCODER = ENCODERS[next(iter(STYLES))]


def drawn(key: int, count: int) -> int:
    """Number `count` of SplitMix64 (Steele et al. 2014) begun at `key`."""
    value = (key + _GOLDEN * (count + 1)) & _ALL
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _ALL
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _ALL
    return value ^ value >> 31


def split_word(word: list[int], ranks: Ranks, key: int, limit: int) -> list[int]:
    """Algorithm 1 of Provilkov et al. 2020 as it stands there: every possible merge is drawn for at every step."""
    tokens, starts, step = list(word), list(range(len(word))), 0
    while True:
        possible = [
            (*ranks[pair], at)
            for at, pair in enumerate(itertools.pairwise(tokens))
            if pair in ranks and drawn(key, step << 32 | starts[at]) >= limit
        ]
        if not possible:
            return tokens
        _, merged, at = min(possible, key=lambda each: (each[0], each[2]))
        tokens[at : at + 2] = [merged]
        del starts[at + 1]
        step += 1


def words_of(raw: Tokenizer, merges: Merges, text: str) -> tuple[Ranks, list[list[int]]]:
    """Rank and merge of each pair, and the words of a text as tokens of bytes."""
    ranks = {(left, right): (rank, merged) for rank, (left, right, merged) in enumerate(merges.triples)}
    byte_of = {letter: byte for byte, letter in enumerate(byte_characters())}
    assert raw.pre_tokenizer is not None
    words = [letters for letters, _ in raw.pre_tokenizer.pre_tokenize_str(text)]
    return ranks, [[merges.byte_ids[byte_of[letter]] for letter in letters] for letters in words]


def split_text(raw: Tokenizer, merges: Merges, text: str, key: int, limit: int) -> list[int]:
    ranks, words = words_of(raw, merges, text)
    tokens, place = [], 0
    for word in words:
        tokens += split_word(word, ranks, drawn(key, place), limit)
        place += len(word)
    return tokens


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(TEXT, min_size=1, max_size=4),
    room=st.integers(3, 40),
    probability=st.sampled_from([0.01, 0.1, 0.5, 0.9, 1 - 2**-53]),
    seed=st.integers(0, 2**63),
)
def test_tokens_are_those_of_the_algorithm_draw_for_draw(texts: list[str], room: int, probability: float, seed: int):
    draws = Dropout(probability, seed).draws("web", texts, [True] * len(texts))
    for pattern, raw in RAWS.items():
        found = ENCODERS[pattern].encode(texts, room, draws)
        expected = [
            split_text(raw, MERGES[pattern], text, int(key), int(limit))
            for text, key, limit in zip(texts, *draws, strict=True)
        ]
        assert [each.tolist() for each in found] == expected
        assert [raw.decode(each.tolist(), skip_special_tokens=False) for each in found] == texts


@pytest.mark.parametrize("text", ["a" * 300, "ab" * 150, "internationalization" * 15, "\u6570\u5b66" * 40])
def test_long_words_too(text: str):
    for probability in (0.1, 0.5, 0.9):
        draws = Dropout(probability, 1).draws("web", [text], [True])
        expected = split_text(RAW, MERGES[next(iter(STYLES))], text, int(draws.keys[0]), int(draws.limits[0]))
        assert ENCODER.encode([text], draws=draws)[0].tolist() == expected


def test_who_is_not_chosen_is_encoded_as_ever():
    texts = ["".join(TEXTS), "", "a" * 500, *TEXTS[:3]]
    draws = Dropout(0.5).draws("web", texts, [False] * len(texts))
    assert [ids.tolist() for ids in ENCODER.encode(texts, draws=draws)] == [
        ids.tolist() for ids in ENCODER.encode(texts)
    ]
    some = ENCODER.encode(texts, draws=Dropout(0.5).draws("web", texts, [True, False] * 3))
    assert [a.tolist() == b.tolist() for a, b in zip(some, ENCODER.encode(texts), strict=True)] == [
        *(False, True, False, True, False, True)
    ]


def test_what_is_drawn_follows_from_seed_source_text_and_place():
    def encoded(*texts: str, seed: int = 0, source: str = "web") -> list[list[int]]:
        draws = Dropout(0.5, seed).draws(source, texts, [True] * len(texts))
        return [ids.tolist() for ids in ENCODER.encode(texts, draws=draws)]

    one, other = "".join(TEXTS[:4]), "".join(TEXTS[1:4])
    first, second = encoded(one, other)
    assert encoded(other, one) == [second, first]
    assert encoded(one, seed=1) != [first] != encoded(one, source="notes")
    words = encoded(" model" * 200)[0]
    assert len({tuple(words[at : at + 4]) for at in range(len(words) - 4)}) > 20


def split_as_the_library(tokens: list[int], ranks: Ranks, probability: float, draw: random.Random) -> int:
    """How many tokens its queue leaves: pairs that are gone stay in it, and one that comes up has all offered anew."""
    ends = {at: at + 1 for at in range(len(tokens))}
    ids = dict(enumerate(tokens))

    def found(at: int) -> tuple[int, int, int] | None:
        pair = ranks.get((ids.get(at, -1), ids.get(ends.get(at, -1), -1)))
        return pair and (pair[0], at, pair[1])

    queue, skipped = [pair for at in ids if (pair := found(at))], []
    while queue:
        top = min(queue)
        queue.remove(top)
        if draw.random() < probability:
            skipped.append(top)
            continue
        queue, skipped = queue + skipped, []
        _, at, merged = top
        if found(at) != top:
            continue
        right = ends[at]
        ids[at], ends[at] = merged, ends.pop(right)
        del ids[right]
        before = max((place for place in ids if place < at), default=-1)
        queue += [pair for place in (before, at) if (pair := found(place))]
    return len(ids)


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_as_many_tokens_as_the_library_but_for_what_it_offers_twice(probability: float):
    """Means of 12 seeds: the library's is within 5 standard errors of its algorithm's, ours within 2 % of both."""
    text = "".join(TEXTS[:8]) * 20
    definition = json.loads(RAW.to_str())
    definition["model"]["dropout"] = probability
    library = Tokenizer.from_str(json.dumps(definition))
    ranks, words = words_of(RAW, MERGES[next(iter(STYLES))], text)
    draw, seeds = random.Random(0), range(12)
    theirs = [len(library.encode(text, add_special_tokens=False).ids) for _ in seeds]
    known = [sum(split_as_the_library(word, ranks, probability, draw) for word in words) for _ in seeds]
    ours = [
        len(ENCODER.encode([text], draws=Dropout(probability, seed).draws("web", [text], [True]))[0]) for seed in seeds
    ]
    error = np.sqrt((np.var(known, ddof=1) + np.var(theirs, ddof=1)) / len(seeds))
    assert error < 0.01 * np.mean(theirs)
    assert np.mean(theirs) > 1.3 * len(ENCODER.encode([text])[0])
    assert abs(np.mean(known) - np.mean(theirs)) < 5 * error
    assert -5 * error < np.mean(ours) - np.mean(theirs) < 0.02 * np.mean(theirs) + 5 * error


def test_no_word_takes_quadratic_time():
    def seconds(text: str) -> float:
        draws = Dropout(0.5).draws("web", [text], [True])
        started = time.process_time()
        ENCODER.encode([text], draws=draws)
        return time.process_time() - started

    small, large = (min(seconds("a" * size) for _ in range(3)) for size in (20_000, 200_000))
    assert large < 40 * small + 0.2


def test_the_share_of_words_cut_is_the_probability():
    """A word of one merge is cut with probability p, drawn anew at each place."""
    pair = b"zq"
    first = merges_of(RAW)
    merges = Merges(first.digits, first.byte_ids, [(first.byte_ids[pair[0]], first.byte_ids[pair[1]], 599)])
    text = " zq" * 40_000
    for probability in (0.1, 0.5, 0.9):
        ids = Encoder(merges).encode([text], draws=Dropout(probability).draws("web", [text], [True]))[0]
        whole = np.count_nonzero(ids == 599)
        deviation = np.sqrt(probability * (1 - probability) / 40_000)
        assert abs(1 - whole / 40_000 - probability) < 4 * deviation


def test_documents_begin_with_their_delimiter_and_spell_no_special_token():
    definition = json.loads(RAW.to_str())
    token = {"id": len(definition["model"]["vocab"]), "content": "<|endoftext|>", "special": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    definition["added_tokens"].append(token | plain)
    tokenizer = Documents(json.dumps(definition), None, "<|endoftext|>")
    texts = ["<|endoftext|> the model's page <|endoftext|>", "", "x" * 200]
    found = tokenizer.encode_arrays(texts, Dropout(0.5).draws("web", texts, [True] * 3))
    assert all(ids[0] == tokenizer.end_id and tokenizer.end_id not in ids[1:] for ids in found)
    assert [tokenizer.decode(ids[1:].tolist()) for ids in found] == texts


def test_a_tokenizer_without_merges_is_refused():
    tokenizer = train_wordpiece(WordPiece(vocab=300), [TEXTS[:2]])
    none = Draws(np.zeros(1, np.uint64), np.zeros(1, np.uint64))
    with pytest.raises(UsageError, match=r"text\.bpe_dropout"):
        tokenizer.encode_arrays(["a"], none)
