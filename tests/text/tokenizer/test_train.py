"""WordPiece and unigram: equal to what the library trains, the same bytes every time, nothing special out of text."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from hornbook.text.config.text import BPE, Trained, Unigram, WordPiece
from hornbook.text.tokenizer.files import save_tokenizer
from hornbook.text.tokenizer.pieces import LONGEST_WORD
from hornbook.text.tokenizer.tokenizer import Tokenizer
from hornbook.text.tokenizer.train import ALWAYS_PIECES, BYTES, PATTERN, TRAINERS, frequent_characters, train_tokenizer

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")

TEXTS = [
    "the model reads the page; the model reads it again",
    "x = 12345\n\n  y\t'll  WE'LL",
    "\u00c9t\u00e9 \u6570\u5b66 \u0442\u0435\u043a\u0441\u0442 <0x41> ##a",
] * 30
TRICKS = ["<pad>", "</s>", "<unk>", "<extra_id_0>", "[CLS]", "[MASK]", "[SEP] x", "<0x41>", "<|R|>", "\u2581", "##a"]
CONFIGS: dict[str, Trained] = {
    "bpe": BPE(vocab=400, objectives=["masked", "fim", "ul2"], sentinels=4),
    "wordpiece": WordPiece(vocab=400, objectives=["masked", "span"], sentinels=4),
    "cased": WordPiece(vocab=400, lowercase=False),
    "unigram": Unigram(vocab=600, objectives=["ul2", "fim", "infill"], sentinels=4),
}
LOSSLESS = ("bpe", "unigram")


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return {name: train_tokenizer(config, [TEXTS[:40], TEXTS[40:]]) for name, config in CONFIGS.items()}


def long_text(count: int = 400) -> list[str]:
    """Words of many lengths with ties between their counts."""
    syllables = ["ba", "ke", "lo", "mi", "nu", "ra", "st", "\u00e9"]
    words = ["".join(syllables[(i // 8**k) % 8] for k in range(2 + i % 3)) for i in range(count)]
    return [" ".join(words[(i * i + j) % count] for j in range(40)) + ".\n" for i in range(count)]


def everywhere(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(st.one_of(st.sampled_from([*TRICKS, *TEXTS[:3]]), texts), max_size=6).map("".join)


def test_every_kind_has_a_trainer():
    assert {config.kind for config in CONFIGS.values()} == set(TRAINERS)


@settings(max_examples=150, deadline=None)
@given(text=everywhere(st.text(max_size=12)))
def test_no_text_makes_a_special_token_and_what_is_lossless_loses_nothing(trained: dict[str, Tokenizer], text: str):
    for name, tokenizer in trained.items():
        ids = tokenizer.encode(text)
        assert (tokenizer.special.ids - {tokenizer.unknown_id}).isdisjoint(ids)
        if name in LOSSLESS:
            assert tokenizer.unknown_id not in ids
            assert tokenizer.decode(ids) == text
            assert int(tokenizer.token_bytes()[ids].sum()) == len(text.encode())
        elif tokenizer.unknown_id not in ids:
            assert tokenizer.encode(tokenizer.decode(ids)) == ids


@pytest.mark.parametrize("name", list(CONFIGS))
def test_the_special_tokens_are_those_of_the_objectives(trained: dict[str, Tokenizer], name: str):
    special, config = trained[name].special, CONFIGS[name]
    assert len(special.ids | {trained[name].unknown_id} - {None}) == config.special_count
    assert special.ids <= set(range(config.special_count))
    assert len(special.sentinels) == (4 if "sentinels" in config.roles else 0)
    assert special.sentinels == tuple(sorted(special.sentinels))
    assert (special.mask is None) == ("mask" not in config.roles)
    assert set(special.modes) == {"R", "S", "X"} & set(config.roles)
    assert (special.prefix, special.middle).count(None) == (0 if "prefix" in config.roles else 2)
    assert special.pad is not None


@pytest.mark.parametrize(("name", "delimiters"), [("wordpiece", ("[CLS]", "[SEP]")), ("unigram", ("</s>", "</s>"))])
def test_documents_are_delimited_as_by_bert_and_t5(
    trained: dict[str, Tokenizer], name: str, delimiters: tuple[str, str]
):
    tokenizer = trained[name]
    assert (tokenizer.begin, tokenizer.end) == delimiters
    body = tokenizer.encode("the page")
    tail = [tokenizer.end_id] if name == "wordpiece" else []
    assert tokenizer.encode_arrays(["the page"])[0].tolist() == [tokenizer.delimiter_id, *body, *tail]


@pytest.mark.parametrize("name", ["wordpiece", "unigram"])
def test_any_process_and_any_number_of_threads_write_the_same_bytes(name: str):
    config = {"wordpiece": WordPiece(vocab=300), "unigram": Unigram(vocab=700)}[name]
    script = (
        "import sys, hashlib; from hornbook.text.tokenizer.train import train_tokenizer\n"
        "from hornbook.text.config.text import *\n"
        f"config = {type(config).__name__}(vocab={config.vocab}); texts = {long_text()!r}\n"
        "sys.stdout.write(train_tokenizer(config, [texts]).definition)"
    )
    here = train_tokenizer(config, [long_text()]).definition
    for threads in ("1", "2", "5"):
        ran = subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            env={**os.environ, "RAYON_NUM_THREADS": threads},
            capture_output=True,
            text=True,
        )
        assert ran.stdout == here


@pytest.mark.parametrize(("name", "vocab"), [("Unigram", 700), ("WordPiece", 300)])
def test_a_long_word_neither_overflows_the_stack_nor_takes_long(name: str, vocab: int):
    """The library overflows its threads' 2 MiB at 200,000 letters; 20,000 are enough for 256 KiB."""
    script = (
        "import random; from hornbook.text.tokenizer.train import train_tokenizer\n"
        "from hornbook.text.config.text import *\n"
        "word = ''.join(random.Random(0).choices([chr(0x0E01 + i) for i in range(46)], k=20_000))\n"
        f"print(train_tokenizer({name}(vocab={vocab}), [[word, 'the quick brown fox ' * 200]]).vocab_size)"
    )
    environment = os.environ | {"RUST_MIN_STACK": str(2**18)}
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, f"{vocab}\n"), ran.stderr


def test_words_are_cut_for_training_alone():
    word = "".join(long_text()).replace(" ", "").replace(".\n", "")[:5000]
    parts = " ".join(word[start : start + LONGEST_WORD] for start in range(0, len(word), LONGEST_WORD))
    config = WordPiece(vocab=300)
    assert train_tokenizer(config, [[word]]).definition == train_tokenizer(config, [[parts]]).definition
    assert "FixedLength" not in train_tokenizer(config, [[word]]).definition


def library_wordpiece(vocab: int) -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=vocab, special_tokens=["[UNK]"], show_progress=False)
    raw.train_from_iterator([long_text()], trainer)
    return raw


def library_unigram(vocab: int) -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer(models.Unigram())
    raw.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(PATTERN), behavior="isolated")
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    raw.train_from_iterator([long_text()], trainer)
    return raw


@pytest.mark.parametrize(
    ("config", "library"),
    [(WordPiece(vocab=600, objectives=["causal"]), library_wordpiece), (Unigram(vocab=900), library_unigram)],
)
def test_the_pieces_are_nearly_those_the_library_learns_alone(
    config: Trained, library: Callable[[int], tokenizers.Tokenizer]
):
    """Not all of them: among equals, the library's own choice differs from process to process."""
    ours = train_tokenizer(config, [long_text()])
    theirs = library(config.vocab - config.special_count + 1 - (len(BYTES) if config.kind == "unigram" else 0))
    mine, others = (
        {
            token
            for token in json.loads(definition)["model"]["vocab"]
            for token in [token if isinstance(token, str) else token[0]]
        }
        for definition in (ours.definition, theirs.to_str())
    )
    shared = mine & others
    assert len(shared) > 0.93 * len(others)
    texts = long_text()[:50]
    lengths = sum(len(ours.encode(text)) for text in texts), sum(len(theirs.encode(text).ids) for text in texts)
    assert abs(lengths[0] / lengths[1] - 1) < 0.03


@pytest.mark.parametrize("name", list(CONFIGS))
def test_transformers_agrees(trained: dict[str, Tokenizer], name: str, tmp_path: Path):
    tokenizer = trained[name]
    save_tokenizer(tokenizer, tmp_path)
    other = AutoTokenizer.from_pretrained(str(tmp_path))
    for text in [*TEXTS[:3], "unseen \t words\n\n  12345678", ""]:
        ids = tokenizer.encode(text)
        assert other.encode(text, add_special_tokens=False) == ids
        assert other.decode(ids) == tokenizer.decode(ids)
    special = tokenizer.special
    assert (other.bos_token_id, other.eos_token_id) == (tokenizer.delimiter_id, tokenizer.end_id)
    assert (other.pad_token_id, other.mask_token_id) == (special.pad, special.mask)
    assert other.unk_token_id == tokenizer.unknown_id
    assert special.ids - {None} <= set(other.all_special_ids)
    assert Tokenizer.load(tmp_path).special == special
    if name == "wordpiece":
        assert other.encode("page") == [special.cls, *tokenizer.encode("page"), special.sep]
    if name == "unigram":
        assert other.encode("page") == [*tokenizer.encode("page"), special.end]


def test_the_smallest_unigram_is_bytes_and_the_letters_that_spell_them():
    assert Unigram(vocab=279, objectives=["causal"]).special_count + len(BYTES) + len(ALWAYS_PIECES) == 279
    tokenizer = train_tokenizer(Unigram(vocab=279, objectives=["causal"]), [TEXTS])
    assert tokenizer.vocab_size == 279
    for text in (*TEXTS[:3], *TRICKS):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    with pytest.raises(ValidationError, match="take at least 279"):
        Unigram(vocab=278, objectives=["causal"])


@pytest.mark.parametrize("texts", [[], [[]], [["a"]], [[""]], [["\u6570"]]])
@pytest.mark.parametrize("name", ["wordpiece", "unigram"])
def test_too_little_text_gives_fewer_tokens_not_an_error(name: str, texts: list[list[str]]):
    tokenizer = train_tokenizer(CONFIGS[name], texts)
    assert CONFIGS[name].special_count <= tokenizer.vocab_size < 600
    assert tokenizer.encode("anything \u6570")
    if name == "unigram":
        assert tokenizer.decode(tokenizer.encode("anything \u6570 <0x41>")) == "anything \u6570 <0x41>"


def test_a_word_of_known_letters_is_never_unknown(trained: dict[str, Tokenizer]):
    letters = sorted({letter for text in TEXTS for letter in text.lower() if letter.isalnum() and letter.isascii()})
    for word in ("".join(letters), "".join(reversed(letters)), *letters):
        assert trained["wordpiece"].unknown_id not in trained["wordpiece"].encode(word)


def test_letters_are_counted_after_normalisation_and_ties_are_ordered():
    assert frequent_characters([["abba", "cc"], ["dE"]], 3) == ["a", "b", "c"]
    assert frequent_characters([["abba", "cc"], ["dE"]], 2) == ["a", "b"]
    assert frequent_characters([["aA", "bb"]], 9, str.lower) == ["a", "b"]
    assert frequent_characters([["once"]], 9) == []


@pytest.mark.parametrize(("config", "most"), [(WordPiece(vocab=300), 300), (Unigram(vocab=600), 600)])
def test_a_text_of_too_many_letters_does_not_fill_the_vocabulary(config: Trained, most: int):
    texts = ["".join(chr(code) for code in range(0x4E00, 0x5600)) * 2 + " reads" * 50]
    tokenizer = train_tokenizer(config, [texts])
    assert tokenizer.vocab_size <= most
    assert tokenizer.encode(" reads")[-1] not in {tokenizer.unknown_id}


@pytest.mark.parametrize("name", ["wordpiece", "unigram"])
def test_long_texts_are_cut_without_effect(trained: dict[str, Tokenizer], name: str):
    text = " ".join(TEXTS * 60)
    tokenizer = trained[name]
    tail = [tokenizer.end_id] if tokenizer.end_id != tokenizer.delimiter_id else []
    assert tokenizer.encode_arrays([text])[0].tolist() == [tokenizer.delimiter_id, *tokenizer.encode(text), *tail]
