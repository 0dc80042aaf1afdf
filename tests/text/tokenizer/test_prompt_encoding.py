"""Texts with labels as token ids: equal to what the tokenizers library makes of pairs, words and windows."""

from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from hornbook.errors import UsageError
from hornbook.text.tokenizer.prompt_encoding import encode_question, encode_text, encode_words
from hornbook.text.tokenizer.tokenizer import Tokenizer

TEXTS = ["The page says: letters, words!", "who reads the letters of a page?", "", "a", "\u00e9t\u00e9 in Z\u00fcrich"]
CONTEXT = "the letters of the page are read by Ann, and the words of the book by a child of seven years. " * 3


def wordpiece() -> tokenizers.Tokenizer:
    """As BERT's."""
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer: Any = trainers.WordPieceTrainer(vocab_size=120, special_tokens=specials, show_progress=False)
    made.train_from_iterator([*TEXTS, CONTEXT], trainer)
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return made


def byte_level() -> tokenizers.Tokenizer:
    """As RoBERTa's."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer: Any = trainers.BpeTrainer(
        vocab_size=330, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([*TEXTS, CONTEXT], trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=False)
    return made


MAKERS = {"wordpiece": wordpiece, "byte_level": byte_level}


@pytest.fixture(params=MAKERS)
def both(request: pytest.FixtureRequest) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    """The library's and ours."""
    made = MAKERS[request.param]()
    begin, end = ("[CLS]", "[SEP]") if request.param == "wordpiece" else ("<s>", "</s>")
    return made, Tokenizer(made.to_str(), begin, end)


def test_texts_and_pairs_are_those_of_the_tokenizers_own_template(both) -> None:
    theirs, ours = both
    for text in TEXTS:
        stored = ours.encode_arrays([text])[0].tolist()
        assert encode_text(ours, text).tokens == theirs.encode(text).ids == stored
        for pair in TEXTS:
            found, wanted = encode_text(ours, text, pair), theirs.encode(text, pair)
            assert found.tokens == wanted.ids
            assert not found.truncated
            if ours.ends_between == 1:  # RoBERTa has no types
                assert found.types == wanted.type_ids


def test_no_text_makes_a_delimiter_between_the_two(both) -> None:
    _, ours = both
    found = encode_text(ours, f"a {ours.end} b", "c")
    assert found.tokens.count(ours.end_id) == ours.ends_between + 1


def test_a_pair_too_long_loses_of_the_longer_text(both) -> None:
    _, ours = both
    short, long = TEXTS[3], CONTEXT
    for first, second in ((short, long), (long, short)):
        found = encode_text(ours, first, second, longest=20)
        assert len(found.tokens) == 20
        assert found.truncated
        whole = encode_text(ours, first, second).tokens
        assert found.tokens[-1] == whole[-1]
        assert found.tokens.count(ours.end_id) == whole.count(ours.end_id)
        assert ours.encode(short)[0] in found.tokens
    assert encode_text(ours, long, longest=20).tokens[:-1] == encode_text(ours, long).tokens[:19]


def test_words_are_found_where_their_first_pieces_are(both) -> None:
    theirs, ours = both
    words = ["The", "letters", ",", "Z\u00fcrich", "\u0000", "pages", "qq"]
    text = " ".join(words)
    (found,) = encode_words(ours, words)
    assert found.tokens == theirs.encode(text).ids
    spans = [None, *ours.encode_offsets([text])[0][1], None]
    begin = 0
    for number, word in enumerate(words):
        if number in found.positions:
            span = spans[found.positions[number]]
            assert span is not None
            piece = text[span[0] : span[1]].strip()
            assert piece
            assert word.startswith(piece)
            assert begin <= span[1] <= begin + len(word)
        begin += len(word) + 1
    assert found.positions.keys() >= {0, 1, 2, 3, 5, 6}
    assert (4 in found.positions) == (ours.unknown_id is None)  # a control character is dropped, or bytes as any other


def test_long_words_are_read_in_windows_each_word_in_one(both) -> None:
    """The one with most on both sides of it: seen from there, all but the ends have at least half of what is shared."""
    _, ours = both
    words, longest, stride = CONTEXT.split(), 30, 12
    (whole,) = encode_words(ours, words)
    windows = list(encode_words(ours, words, longest, stride))
    assert sorted(word for window in windows for word in window.positions) == sorted(whole.positions)
    for number, window in enumerate(windows):
        assert len(window.tokens) <= longest
        assert (window.tokens[0], window.tokens[-1]) == (ours.delimiter_id, ours.end_id)
        for word, place in window.positions.items():
            assert window.tokens[place] == whole.tokens[whole.positions[word]]
            assert number == 0 or place - 1 >= stride // 2
            assert number == len(windows) - 1 or len(window.tokens) - 1 - place >= stride // 2


def test_windows_are_those_of_the_library(both) -> None:
    theirs, ours = both
    question, longest, stride = TEXTS[1], 60, 12
    theirs.enable_truncation(longest, stride=stride, strategy="only_second")
    first = theirs.encode(question, CONTEXT)
    wanted = [first, *first.overflowing]
    found = list(encode_question(ours, question, CONTEXT, longest, stride))
    assert [window.tokens for window in found] == [each.ids for each in wanted]
    for window, each in zip(found, wanted, strict=True):
        of_context = [s if number == 1 else None for s, number in zip(each.offsets, each.sequence_ids, strict=True)]
        assert window.spans == of_context


def test_a_short_context_is_one_window_and_a_long_question_is_refused(both) -> None:
    _, ours = both
    assert len(list(encode_question(ours, TEXTS[1], "a page", 100))) == 1
    assert [window.spans.count(None) for window in encode_question(ours, "a", "")] == [
        len(encode_text(ours, "a", "").tokens)
    ]
    with pytest.raises(UsageError, match=r"a question of \d+ tokens leaves no room for a context within 20"):
        list(encode_question(ours, CONTEXT, "a page", 20))
