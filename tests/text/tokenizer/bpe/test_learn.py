"""Training by the kernels gives what the trainer of the tokenizers library gives: the same file, byte for byte."""

import itertools
import random
from collections import Counter

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from hornbook.text.config.text import BPE
from hornbook.text.tokenizer.bpe.count import WordCounts
from hornbook.text.tokenizer.bpe.learn import learn_merges
from hornbook.text.tokenizer.bpe.tables import PATTERN, STYLES
from hornbook.text.tokenizer.bpe.train import _train_by_kernels, _train_by_library, train_bpe
from hornbook.text.tokenizer.pieces import LONGEST_WORD
from hornbook.text.tokenizer.special_tokens import spell_special_tokens


def library(config: BPE, texts: list[str]) -> str:
    raw = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    cut = pre_tokenizers.FixedLength(LONGEST_WORD)
    raw.pre_tokenizer = pre_tokenizers.Sequence([split, levels, cut])  # type: ignore[assignment]
    raw.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab,
        min_frequency=2,
        special_tokens=spell_special_tokens(config),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator([texts], trainer)
    raw.pre_tokenizer = pre_tokenizers.Sequence([split, levels])  # type: ignore[assignment]
    return raw.to_str(pretty=True)


def words(count: int, letters: str, seed: int) -> list[str]:
    """Words of few letters: many ties and overlaps."""
    chance = random.Random(seed)
    return ["".join(chance.choices(letters, k=chance.randint(1, 12))) for _ in range(count)]


@settings(max_examples=80, deadline=None)
@given(
    texts=st.lists(st.text(alphabet="aab\u00e9 '\n1-", max_size=60), max_size=12),
    vocab=st.integers(257, 400),
)
@example(texts=["aaaaaaa aaaaa aaa aa", "------- ----- ---", "abababa babab"] * 3, vocab=300)
def test_small_texts_with_many_ties(texts: list[str], vocab: int):
    config = BPE(vocab=vocab)
    assert train_bpe(config, [texts[::2], texts[1::2]]).definition == library(config, texts[::2] + texts[1::2])


@pytest.mark.parametrize("letters", ["a", "ab", "aab", "-=", "abcdefgh", "a\u00e9\u6570\U0001f600"])
@pytest.mark.parametrize("seed", [0, 1])
def test_words_of_few_letters(letters: str, seed: int):
    config = BPE(vocab=1200, objectives=["masked", "fim"])
    texts = [" ".join(words(60, letters, seed + 10 * n)) for n in range(40)]
    assert train_bpe(config, [texts]).definition == library(config, texts)


@pytest.mark.parametrize("letters", ["ab", "a\u00e9\u6570", "="])
def test_a_long_word_counts_as_several_by_kernels_and_by_the_library(letters: str):
    """The library alone takes time with the square of a word's length."""
    texts = ["".join(random.Random(size).choices(letters, k=size)) for size in (1023, 1024, 1025, 5000)]
    config = BPE(vocab=500)
    definition = library(config, texts)
    assert _train_by_library(config, [texts]).definition == _train_by_kernels(config, [texts]).definition == definition


def test_the_lowest_pair_of_bytes_is_first_among_equals():
    """With bytes as ids the order is that of rustbpe and of Sennrich's reference, judged by a plain implementation."""
    texts = [" ".join(words(50, "abcde", seed)) for seed in range(8)]
    counts = WordCounts(STYLES[PATTERN])
    counts.add(texts)
    found = learn_merges(counts, list(range(256)), 330, 2)
    assert found == plain_merges(Counter(word for text in texts for word in regex.findall(PATTERN, text)), 330)


def plain_merges(counted: Counter[str], vocab: int) -> list[tuple[int, int]]:
    split = {word: list(word.encode()) for word in counted}
    merges: list[tuple[int, int]] = []
    while 256 + len(merges) < vocab:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, ids in split.items():
            for pair in itertools.pairwise(ids):
                pairs[pair] += counted[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        split = {word: replaced(ids, best, 256 + len(merges)) for word, ids in split.items()}
        merges.append(best)
    return merges


def replaced(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    result: list[int] = []
    place = 0
    while place < len(ids):
        together = tuple(ids[place : place + 2]) == pair
        result.append(new if together else ids[place])
        place += 2 if together else 1
    return result


def test_words_are_counted_as_the_regex_finds_them_and_tables_grow():
    texts = ["".join(words(200, "ab\u00e9 1-\n\t'", seed)) for seed in range(20)] + ["x" * 5000, "", "y"]
    counts = WordCounts(STYLES[PATTERN], capacity=2)
    for text in texts:
        counts.add([text, text])
    data, starts, times = counts.words
    found = {bytes(data[starts[i] : starts[i + 1]]): int(times[i]) for i in range(len(times))}
    encoded_words = [word.encode() for text in texts for word in regex.findall(PATTERN, text)]
    expected = Counter(part for word in encoded_words for part in regex.findall(rb"(?s).{1,%d}" % LONGEST_WORD, word))
    assert found == {word: 2 * count for word, count in expected.items() if len(word) > 1}
