import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from hornbook.data.vocabulary import Vocabulary

TEXT = "unstoppable Stra\u00dfe, 42km (twice) ago. End."
SPECIALS = ["<|endoftext|>", "<mask>", "[UNK]"]


def train(kind: str) -> tokenizers.Tokenizer:
    """A tokenizer that knows little more than letters, so that words are of many tokens."""
    common: dict[str, Any] = {"special_tokens": SPECIALS, "show_progress": False}
    if kind == "bpe":
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
        tokenizer.decoder = tokenizers.decoders.ByteLevel()  # pyright: ignore
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = tokenizers.trainers.BpeTrainer(vocab_size=266, initial_alphabet=alphabet, **common)
    elif kind == "wordpiece":
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))  # pyright: ignore
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()  # pyright: ignore
        trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=60, **common)
    else:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()  # pyright: ignore
        trainer = tokenizers.trainers.UnigramTrainer(vocab_size=40, unk_token="[UNK]", **common)
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return tokenizer


def words(vocabulary: Vocabulary, ids: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for place, token in enumerate(ids):
        if place and vocabulary.begins_inside[token] and vocabulary.ends_inside[ids[place - 1]]:
            found[-1].append(token)
        else:
            found.append([token])
    return found


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_words_and_sentences_of_every_kind_of_tokenizer(tmp_path: Path, kind: str) -> None:
    tokenizer = train(kind)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary(tmp_path, tokenizer.get_vocab_size())
    ids = vocabulary.tokenizer.encode(TEXT)
    parts = words(vocabulary, ids)

    def spell(part: list[int]) -> str:
        if kind == "bpe":
            return vocabulary.tokenizer.decode(part).strip()
        tokens = [str(tokenizer.id_to_token(token)) for token in part]
        return "".join(token.removeprefix("##") for token in tokens).replace("\u2581", "")

    expected = ["unstoppable", "Stra\u00dfe", ",", "42km", "(", "twice", ")", "ago", ".", "End", "."]
    assert [word for word in map(spell, parts) if word] == expected
    assert max(map(len, parts)) > 2
    stops = [place for place, token in enumerate(ids) if vocabulary.ends_sentence[token]]
    assert len(stops) == 2
    assert stops[-1] == len(ids) - 1
    special = set(vocabulary.is_special.nonzero()[0].tolist())
    assert special == {tokenizer.token_to_id(token) for token in SPECIALS}
    assert set(vocabulary.ordinary.tolist()) == set(tokenizer.get_vocab().values()) - special
    assert vocabulary.special.mask == tokenizer.token_to_id("<mask>")
    assert vocabulary.pad_id == vocabulary.end_id
    assert vocabulary.begin_id is None


MIXED = (
    "\u7121\u5b57 \u3068\u3001\u30ab\u30ca\u3002abc\u4e2d1"
    " \u0e44\u0e17\u0e22 \u043c\u0438\u0440, e\u0301t \u2014 \uff0cx\u20ac \uc11c\uc6b8"
)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_a_character_of_a_script_without_blanks_is_a_word_and_punctuation_is_no_letter(
    tmp_path: Path, kind: str
) -> None:
    """Of bytes alone: three tokens to a character, which are one word and no part of the next."""
    tokenizer = train(kind)
    if kind != "bpe":
        names = {
            token: number for number, token in enumerate([*SPECIALS, *sorted({*MIXED} - {" "}), "##b", "##\u5b57"])
        }
        model: Any = tokenizers.models.WordLevel(names, unk_token="[UNK]")  # pyright: ignore
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")  # pyright: ignore
        tokenizer.add_special_tokens(SPECIALS)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    if kind == "wordpiece":  # the marks of such a file, whose text is cut into characters here
        data = json.loads((tmp_path / "tokenizer.json").read_text())
        data["model"]["continuing_subword_prefix"] = "##"
        (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    vocabulary = Vocabulary(tmp_path, tokenizer.get_vocab_size())
    if kind == "wordpiece":
        inside = {token for token, number in vocabulary.spellings.items() if vocabulary.begins_inside[number]}
        assert inside == {"##b"}  # of ideographs each is a word, marked or not
        return
    ids = tokenizer.encode(MIXED, add_special_tokens=False).ids
    found = ["".join(tokenizer.decode(part).split()) for part in words(vocabulary, ids)]
    expected = ["\u7121", "\u5b57", "\u3068", "\u3001", "\u30ab", "\u30ca", "\u3002", "abc", "\u4e2d", "1"]
    expected += ["\u0e44", "\u0e17", "\u0e22", "\u043c\u0438\u0440", ",", "e\u0301t", "\u2014", "\uff0c", "x", "\u20ac"]
    if kind == "bpe":
        # a last byte does not tell of what: letters that follow it without a blank go on
        expected[6:10] = ["\u3002abc", "\u4e2d1"]
        expected[-3:] = ["\uff0cx", "\u20ac"]
    assert [word for word in found if word] == [*expected, "\uc11c\uc6b8"]
