"""Cutting long texts: the tokens are those of the whole text, for every kind of tokenizer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Raw

from hornbook.text.config.text import BPE
from hornbook.text.tokenizer import pieces
from hornbook.text.tokenizer.bpe.train import train_bpe
from hornbook.text.tokenizer.pieces import Cutter, can_cut
from hornbook.text.tokenizer.tokenizer import Tokenizer

TEXTS = [
    "the model's page, read twice.\n\nIt says:  12345 (ok)!!\n\tx = f(y)\r\n",
    "\u00e9t\u00e9 \u6570\u5b66\uff0c\u597d\u3002",
] * 20
PARTS = [
    *("the", " model", "'s", "\n", " ", "  ", "\r\n", "12", ",", "!?", "\t", "_", "<k>", "k> "),
    *("\u00e9", "e\u0301", "\u6570", "\uff0c"),
]
TEXT = st.lists(st.sampled_from(PARTS), max_size=60).map("".join)


def ours() -> Raw:
    return Raw.from_str(train_bpe(BPE(vocab=350), [TEXTS]).definition)


def trained(pre: object, normalizer: object = None) -> Raw:
    raw = Raw(models.BPE())
    raw.pre_tokenizer = pre  # type: ignore[assignment]
    raw.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    if normalizer is not None:
        raw.normalizer = normalizer  # type: ignore[assignment]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=350, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(TEXTS, trainer)
    return raw


def with_added_tokens() -> Raw:
    raw = ours()
    raw.add_tokens(
        [AddedToken("<k>", special=False), AddedToken("\n\n", special=False), AddedToken(" m", special=False)]
    )
    return raw


RAWS = {
    "ours": ours(),
    "gpt2": trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "prefix": trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "nfc": trained(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC()),
    "added": with_added_tokens(),
    "metaspace": trained(pre_tokenizers.Metaspace()),
}


@settings(deadline=None)
@pytest.mark.parametrize("kind", list(RAWS))
@given(text=TEXT, size=st.integers(1, 20))
def test_tokens_of_the_pieces_are_the_tokens_of_the_text(kind: str, text: str, size: int):
    raw = RAWS[kind]
    data = json.loads(raw.to_str())
    assert can_cut(data)
    assert raw.pre_tokenizer is not None
    plain = tuple(token["content"] for token in data["added_tokens"] if not token["special"])
    found = list(Cutter(raw.pre_tokenizer, plain).cut(text, size))
    assert "".join(found) == text
    assert [token for piece in found for token in raw.encode(piece).ids] == raw.encode(text).ids


def test_ordinary_text_is_cut_about_where_it_should_be():
    for kind in ("ours", "gpt2", "nfc", "added"):
        splitter = RAWS[kind].pre_tokenizer
        assert splitter is not None
        text = "".join(TEXTS) * 20
        found = list(Cutter(splitter, ()).cut(text, 200))
        assert len(found) > len(text) / 300
        assert max(map(len, found)) < 300


def test_what_treats_whole_texts_is_not_cut():
    plain = json.loads(RAWS["ours"].to_str())
    assert not can_cut({**plain, "normalizer": {"type": "Prepend", "prepend": "_"}})
    assert not can_cut(
        {**plain, "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}}
    )
    assert not can_cut({**plain, "pre_tokenizer": None})
    greedy = [{**plain["added_tokens"][0], "rstrip": True}]
    assert not can_cut({**plain, "added_tokens": greedy})


def test_documents_are_encoded_by_pieces_and_equally(monkeypatch: pytest.MonkeyPatch):
    tokenizer = Tokenizer(RAWS["nfc"].to_str(), None, "<|endoftext|>")
    texts = ["".join(TEXTS) * 3, "", "short", "".join(TEXTS) * 7]
    expected = [[tokenizer.delimiter_id, *tokenizer.encode(text)] for text in texts]
    calls: list[int] = []
    real = Cutter.cut

    def cut(self: Cutter, text: str, size: int = 100) -> object:
        found = list(real(self, text, size))
        calls.append(len(found))
        return found

    monkeypatch.setattr(pieces.Cutter, "cut", cut)
    assert [ids.tolist() for ids in tokenizer.encode_arrays(texts)] == expected
    assert calls[0] > 10
    assert calls[1:3] == [1, 1]
