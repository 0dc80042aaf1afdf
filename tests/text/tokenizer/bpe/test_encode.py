"""The kernel's tokens are those of the tokenizers library: on any text, of any tokenizer it takes on."""

import json
import threading
import time
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from hornbook.text.tokenizer.bpe.encode import Encoder
from hornbook.text.tokenizer.bpe.merge_word import pair_table
from hornbook.text.tokenizer.bpe.tables import STYLES, byte_characters, find_merges
from hornbook.text.tokenizer.tokenizer import Tokenizer as Documents

TEXTS = [
    "the model's page, read twice; the reader reads it AGAIN.\n\nIt says:  12345 (ok)!!\n\tx = f(y)\r\n",
    "    def reads(self):\n        return self.internationalization  # ---------------------------- ====\n",
    "\u00e9t\u00e9 \u6570\u5b66\u6a21\u578b\u6570\u5b66 aaaaaaa e\u0301e\u0301",
    "\u043c\u043e\u0434\u0435\u043b\u044c \u0447\u0438\u0442\u0430\u0435\u0442 \u0447\u0438\u0442\u0430\u0435\u0442",
] * 20
PARTS = [
    *("the", " model", "'s", "\n", " ", "  ", "\r\n", "12", "12345", ",", "!?", "\t", "_", "----", "aaaa", "AGAIN"),
    *("\u00e9", "e\u0301", "\u6570\u5b66", "\u0447\u0438\u0442", "\U0001f600", "\x00", "<|endoftext|>", "ion" * 9),
]
TEXT = st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=5)), max_size=30).map("".join)


def trained(pattern: str, vocab: int = 600) -> Tokenizer:
    raw = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.pre_tokenizer = pre_tokenizers.Sequence([split, levels])  # type: ignore[assignment]
    raw.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(TEXTS, trainer)
    return raw


def kernel(raw: Tokenizer) -> Encoder:
    merges = find_merges(json.loads(raw.to_str()))
    assert merges is not None
    return Encoder(merges)


RAWS = {pattern: trained(pattern) for pattern in STYLES}
KERNELS = {pattern: kernel(raw) for pattern, raw in RAWS.items()}
RAW, KERNEL = next(iter(RAWS.values())), next(iter(KERNELS.values()))


def ids(raw: Tokenizer, text: str) -> list[int]:
    return raw.encode(text, add_special_tokens=False).ids


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(TEXT, max_size=4), room=st.integers(3, 40))
def test_tokens_are_those_of_the_library(texts: list[str], room: int):
    """`room` makes the kernel stop and go on at every kind of place; words longer than it double it."""
    for pattern, raw in RAWS.items():
        found = KERNELS[pattern].encode(texts, room)
        assert [each.tolist() for each in found] == [ids(raw, text) for text in texts]
        assert all(each.dtype == np.uint32 for each in found)


ADVERSARIAL = {
    "one letter": "a" * 20_000,
    "two letters": "ab" * 10_000,
    "spaces": " " * 5_000,
    "line ends": "\n" * 3_000,
    "dashes": "-" * 5_000,
    "accents": "e" + "\u0301" * 5_000,
    "joined emoji": "\U0001f468\u200d\U0001f469\u200d" * 800,
    "ideographs": "\u6570\u5b66\u6a21\u578b" * 2_000,
    "identifier": "internationalization" * 700,
    "digits": "1" * 5_000,
    "unassigned": "\U000e0001" * 1_000,
}


@pytest.mark.parametrize("name", list(ADVERSARIAL))
@pytest.mark.parametrize("size", [1, 15, 16, 23, 24, 63, 64, 65, 66, 129, 20_000])
def test_adversarial_texts_have_the_same_tokens(name: str, size: int):
    text = ADVERSARIAL[name].encode()[:size].decode(errors="ignore")
    assert KERNEL.encode([text])[0].tolist() == ids(RAW, text)


def test_every_code_point_is_encoded_as_the_library_does():
    texts = ["".join(map(chr, range(block, block + 0x400))) for block in range(0, 0x30000, 0x400) if block >> 11 != 27]
    assert [each.tolist() for each in KERNEL.encode(texts)] == [ids(RAW, text) for text in texts]


def test_later_ranks_may_come_first():
    """Merges in an order that no training gives: a merge of merges ranks before its parts, one stands twice."""
    letters = byte_characters()
    tokens = [*letters, "ab", "abab", "ba", "aa", "aaa", "aab"]
    vocab = {token: len(tokens) - 1 - number for number, token in enumerate(tokens)}
    pairs = [("ab", "ab"), ("b", "a"), ("a", "ab"), ("a", "b"), ("aa", "a"), ("a", "a"), ("b", "a")]
    raw = Tokenizer(models.BPE(vocab, pairs))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    encoder = kernel(raw)
    for number in range(1, 2**9):
        text = f"{number:b}".replace("0", "a").replace("1", "b") * 12
        for part in (text[:40], text):
            assert encoder.encode([part])[0].tolist() == ids(raw, part)


def seconds(text: str) -> float:
    started = time.process_time()
    KERNEL.encode([text])
    return time.process_time() - started


@pytest.mark.parametrize("name", list(ADVERSARIAL))
def test_no_text_takes_quadratic_time(name: str):
    small, large = (ADVERSARIAL[name] * times for times in (5, 50))
    least, whole = (min(seconds(text) for _ in range(3)) for text in (small, large))
    assert whole < 40 * least + 0.2


def test_threads_share_an_encoder():
    texts = [["".join(TEXTS[i::7])] * 20 for i in range(7)]
    expected = [KERNEL.encode(each)[0].tolist() for each in texts]
    wrong: list[int] = []

    def work(number: int) -> None:
        wrong.extend(number for found in KERNEL.encode(texts[number]) if found.tolist() != expected[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_documents_that_spell_special_tokens_are_the_same_by_kernel_and_library():
    definition = json.loads(RAW.to_str())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for number, name in enumerate(("<|endoftext|>", "<|pad|>"), len(definition["model"]["vocab"])):
        definition["added_tokens"].append({"id": number, "content": name, **plain})
    tokenizer = Documents(json.dumps(definition), None, "<|endoftext|>")
    texts = [
        *TEXTS[:3],
        "a<|endoftext|>b <|pad|>",
        "",
        "<|endoftext|>" * 9,
        "\ufdd0hornbook-special-0\ufdd1",
        "x" * 200,
    ]
    by_kernel = tokenizer.encode_arrays(texts)
    assert [ids.tolist() for ids in by_kernel] == [[tokenizer.end_id, *tokenizer.encode(text)] for text in texts]
    assert all(tokenizer.end_id not in ids[1:] for ids in by_kernel)
    assert "_kernel" in vars(tokenizer)


def changed(**changes: Any) -> dict[str, Any]:
    definition = json.loads(RAW.to_str())
    for key, value in changes.items():
        part, _, option = key.partition("__")
        if option:
            definition[part][option] = value
        else:
            definition[part] = value
    return definition


def split_by(pattern: dict[str, str], **changes: Any) -> dict[str, Any]:
    splitter = json.loads(RAW.to_str())["pre_tokenizer"]
    splitter["pretokenizers"][0] |= {"pattern": pattern, **changes}
    return splitter


def test_what_the_kernel_does_not_know_is_left_to_the_library():
    assert find_merges(changed()) is not None
    known = {"Regex": next(iter(STYLES))}
    takes_blanks = [
        json.loads(with_added(AddedToken("<k>", **{each: True})).to_str())["added_tokens"] for each in STRIPS
    ]
    for definition in (
        changed(model__dropout=0.1),
        changed(model__unk_token="a"),
        changed(model__end_of_word_suffix="</w>"),
        changed(model__continuing_subword_prefix="##"),
        changed(model__byte_fallback=True),
        changed(model__ignore_merges=True),
        changed(model__type="WordPiece"),
        changed(normalizer={"type": "NFC"}),
        *(changed(added_tokens=each) for each in takes_blanks),
        changed(model__vocab=json.loads(RAW.to_str())["model"]["vocab"] | {"<far>": 2**21 - 1}),
        changed(pre_tokenizer=None),
        changed(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}),
        changed(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}),
        changed(pre_tokenizer={"type": "Metaspace"}),
        changed(pre_tokenizer=split_by({"Regex": r"\w+"})),
        changed(pre_tokenizer=split_by({"String": " "})),
        changed(pre_tokenizer=split_by(known, behavior="Removed")),
        changed(pre_tokenizer=split_by(known, invert=True)),
        changed(model__vocab={k: v for k, v in json.loads(RAW.to_str())["model"]["vocab"].items() if k != "a"}),
    ):
        assert find_merges(definition) is None


def test_another_library_may_know_other_letters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenizers, "__version__", "0.99.0")
    assert find_merges(changed()) is None


STRIPS = ("lstrip", "rstrip", "single_word")


def with_added(*tokens: AddedToken) -> Tokenizer:
    raw = Tokenizer.from_str(RAW.to_str())
    raw.add_tokens(list(tokens))
    return raw


ADDED = (
    *(
        AddedToken(name, special=False, normalized=False)
        for name in (" model", " models", "  ", "    ", "dels", "\n\n")
    ),
    *(AddedToken(name, special=False, normalized=True) for name in ("mod", "the models", "é", "aa")),
)
WITH_ADDED = with_added(*ADDED)
OF_ADDED = kernel(WITH_ADDED)
ADDED_TEXT = st.lists(st.sampled_from([*PARTS, *(token.content for token in ADDED), "s", "the", "mode"]), max_size=30)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(ADDED_TEXT.map("".join), max_size=4), room=st.integers(3, 40))
def test_added_tokens_are_found_as_the_library_finds_them(texts: list[str], room: int):
    found = OF_ADDED.encode(texts, room)
    assert [each.tolist() for each in found] == [ids(WITH_ADDED, text) for text in texts]


def test_a_pair_table_finds_what_is_in_it():
    triples = [(n % 7, n, 1000 + n) for n in range(300)]
    table, shift = pair_table(triples)
    assert len(table) >= 4 * len(triples)
    slots = table.reshape(-1, 2)
    kept = slots[slots[:, 0] > 0]
    assert {(int(key) - 1, int(value)) for key, value in kept} == {
        (a << 32 | b, rank << 32 | merged) for rank, (a, b, merged) in enumerate(triples)
    }
    assert shift == 64 - (len(slots) - 1).bit_length()
