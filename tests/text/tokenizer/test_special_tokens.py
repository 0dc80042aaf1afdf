"""Roles of special tokens: found in the spellings of published tokenizers, and never produced by text."""

from typing import Any

import pytest
from tokenizers import AddedToken

from hornbook.text.config.text import BPE
from hornbook.text.tokenizer.bpe.train import train_bpe
from hornbook.text.tokenizer.special_tokens import SpecialTokens, find_special_tokens
from hornbook.text.tokenizer.tokenizer import Tokenizer

NONE = SpecialTokens(None, None, None, None, None, None, (), None, None, None, {})
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
T5 = ["<pad>", "</s>", "<unk>", *(f"<extra_id_{number}>" for number in range(99, -1, -1))]
STARCODER = ["<|endoftext|>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>"]
CODELLAMA = ["<unk>", "<s>", "</s>", "\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>", "\u2581<EOT>"]


def definition(tokens: list[str], **model: Any) -> dict[str, Any]:
    added = [{"content": token, "id": number, "special": True} for number, token in enumerate(tokens)]
    return {"added_tokens": added, "model": model}


def found(tokens: list[str], settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """What was found, without what was not."""
    special = find_special_tokens(definition(tokens), settings)
    return {name: value for name in special.__slots__ if (value := getattr(special, name)) not in (None, (), {})}


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], {}),
        (BERT, {"begin": 2, "end": 3, "pad": 0, "cls": 2, "sep": 3, "mask": 4}),
        (ROBERTA, {"begin": 0, "end": 2, "pad": 1, "cls": 0, "sep": 2, "mask": 4}),
        (T5, {"begin": 1, "end": 1, "pad": 0, "sep": 1, "sentinels": tuple(range(102, 2, -1))}),
        (STARCODER, {"begin": 0, "end": 0, "prefix": 1, "middle": 2, "suffix": 3}),
        (CODELLAMA, {"begin": 1, "end": 2, "cls": 1, "sep": 2, "prefix": 3, "middle": 4, "suffix": 5}),
        (["</s>", "[S2S]", "[NLG]", "[NLU]"], {"begin": 0, "end": 0, "sep": 0, "modes": {"R": 3, "S": 1, "X": 2}}),
        (["<|sentinel_1|>", "<|sentinel_0|>", "<|sentinel_3|>"], {"sentinels": (1, 0)}),
        (["<extra_id_1>"], {}),
        (["<|endoftext|>", "</s>", "<mask>", "<|mask|>"], {"begin": 0, "end": 0, "sep": 1, "mask": 3}),
    ],
)
def test_roles_by_spelling(tokens: list[str], expected: dict[str, Any]):
    assert found(tokens) == expected


def test_settings_go_before_the_table_but_invent_nothing():
    tokens = ["<|endoftext|>", "[MASK]", "<blank>", "<c>", "<x>"]
    settings = {"mask_token": {"content": "<blank>"}, "cls_token": "<c>", "sep_token": "<x>", "pad_token": "<nowhere>"}
    assert found(tokens, settings) == {"begin": 3, "end": 4, "mask": 2, "cls": 3, "sep": 4}
    assert found(tokens, {"eos_token": "<x>"}) == {"begin": 4, "end": 4, "mask": 1}


def test_a_token_of_the_vocabulary_that_text_can_make_has_no_role():
    assert find_special_tokens({"added_tokens": [], "model": {"vocab": {"[MASK]": 0, "</s>": 1}}}) == NONE


def test_all_ids():
    assert find_special_tokens(definition(T5)).ids == {0, 1, *range(3, 103)}
    assert NONE.ids == frozenset()


def test_text_never_makes_a_token_with_a_role():
    """Qwen's tokens for filling in are added but not marked special: the library matches them in text."""
    import tokenizers

    raw = tokenizers.Tokenizer.from_str(train_bpe(BPE(vocab=300), [["some text"] * 9]).definition)
    raw.add_tokens([AddedToken("<|fim_prefix|>", special=False), AddedToken("<think>", special=False)])
    tokenizer = Tokenizer(raw.to_str(), None, "<|endoftext|>")
    prefix, other = raw.token_to_id("<|fim_prefix|>"), raw.token_to_id("<think>")
    assert raw.encode("a<|fim_prefix|>").ids[-1] == prefix == tokenizer.special.prefix
    assert prefix not in tokenizer.encode("a<|fim_prefix|>")
    assert tokenizer.decode(tokenizer.encode("a<|fim_prefix|>")) == "a<|fim_prefix|>"
    assert tokenizer.encode("a<think>")[-1] == other
    assert tokenizer.token_bytes()[prefix] == 0
