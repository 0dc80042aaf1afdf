"""Tokenizers: no text produces a special token, whatever kind of tokenizer; round trips; transformers agrees."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from string import ascii_letters

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Raw

from hornbook.errors import IntegrityError, UsageError
from hornbook.text.config.text import BPE
from hornbook.text.tokenizer.bpe.train import train_bpe
from hornbook.text.tokenizer.files import save_tokenizer
from hornbook.text.tokenizer.tokenizer import Tokenizer, choose_delimiters, read_settings

TEXTS = [
    "the model reads a page and says it again",
    "def f(x):\n    return x + 12345\n",
    "\u00e9t\u00e9 \u6570\u5b66 \U0001f600",
] * 20
SPELLINGS = [
    *("<|endoftext|>", "</s>", "<s>", "<unk>", "<pad>", "a</s>b", "<|endoftext|><|endoftext|>"),
    *("<|endof", "text|>", "</s", "<</s>>", "<|<|endoftext|>endoftext|>"),
]


def byte_level() -> str:
    return train_bpe(BPE(vocab=400), [TEXTS]).definition


def byte_level_reachable() -> str:
    """Special tokens inside the model's own vocabulary, and a model that takes whole words without merging."""
    data = json.loads(byte_level())
    data["model"]["ignore_merges"] = True
    data["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return json.dumps(data)


def merged_into_special() -> str:
    """Merges that spell the special token out of text."""
    raw = Raw(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    raw.train_from_iterator(["</s>"] * 50, trainer)
    assert raw.token_to_id("</s>") is not None
    raw.add_special_tokens([AddedToken("</s>", special=True)])
    return raw.to_str()


def llama() -> str:
    """As LLaMA 2: a blank mark before each text, byte fallback, <s> before a text by the post-processor."""
    raw = Raw(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=specials, show_progress=False)
    raw.train_from_iterator(TEXTS, trainer)
    data = json.loads(raw.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
    raw = Raw.from_str(json.dumps(data))
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return raw.to_str()


def unigram() -> str:
    """As T5: </s> is a piece of the vocabulary, and a cheap one."""
    letters = sorted({char for text in [*TEXTS, *SPELLINGS] for char in text} | set(ascii_letters) - {" "})
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -1.0), *((letter, -5.0) for letter in letters)]
    raw = Raw(models.Unigram(pieces, unk_id=2))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    raw.add_special_tokens([AddedToken(name, special=True) for name in ("<pad>", "</s>", "<unk>")])
    return raw.to_str()


KINDS: dict[str, Callable[[], str]] = {
    "byte_level": byte_level,
    "byte_level_reachable": byte_level_reachable,
    "merged_into_special": merged_into_special,
    "llama": llama,
    "unigram": unigram,
}


@pytest.fixture(scope="module")
def definitions() -> dict[str, str]:
    return {name: make() for name, make in KINDS.items()}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def tokenizer(kind: str, definitions: dict[str, str]) -> Tokenizer:
    return load(definitions[kind])


def load(definition: str) -> Tokenizer:
    return Tokenizer(definition, *choose_delimiters(json.loads(definition), {}))


def special_ids(tokenizer: Tokenizer) -> set[int]:
    """All but the unknown token, which stands for letters that a tokenizer without bytes lacks."""
    added = json.loads(tokenizer.definition)["added_tokens"]
    return {token["id"] for token in added if token["special"]} - {tokenizer.unknown_id}


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_text_that_spells_a_special_token_is_ordinary_text(tokenizer: Tokenizer, kind: str, text: str):
    for ids in (tokenizer.encode(text), tokenizer.encode(f"say {text} twice {text}")):
        assert ids
        assert special_ids(tokenizer).isdisjoint(ids)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    if kind != "unigram":
        assert tokenizer.unknown_id not in tokenizer.encode(text)


def test_the_library_itself_would_produce_them(definitions: dict[str, str], kind: str):
    """The cases above are real: without care, every one of these tokenizers makes a special token of the text."""
    raw = Raw.from_str(definitions[kind])
    end = choose_delimiters(json.loads(definitions[kind]), {})[1]
    raw_ids = raw.encode(f"a {end}", add_special_tokens=False).ids
    assert raw.token_to_id(end) in raw_ids
    if kind in ("byte_level_reachable", "merged_into_special", "unigram"):
        raw.encode_special_tokens = True  # the library's own switch does not help here
        assert raw.token_to_id(end) in raw.encode(end, add_special_tokens=False).ids


def test_text_without_specials_is_encoded_as_the_library_does(
    tokenizer: Tokenizer, kind: str, definitions: dict[str, str]
):
    raw = Raw.from_str(definitions[kind])
    for text in ["the model again", "unseen wordings 99", *TEXTS[:3]]:
        assert tokenizer.encode(text) == raw.encode(text, add_special_tokens=False).ids


@given(text=st.one_of(st.sampled_from(TEXTS), st.text(max_size=20)), times=st.integers(1, 40))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_text_that_fits_is_never_called_longer(tokenizer: Tokenizer, text: str, times: int):
    assert not tokenizer.is_longer(text * times, len(tokenizer.encode(text * times)))


def test_a_byte_level_text_beyond_all_bounds_is_longer(definitions: dict[str, str]):
    tokenizer = load(definitions["byte_level"])
    assert tokenizer.is_longer("a" * 100_000, 100)
    assert tokenizer.is_longer("\u2603" * 50_000, 1000)
    assert not load(definitions["unigram"]).is_longer("a" * 100_000, 100)  # blanks, and one unknown token for all


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.sampled_from(SPELLINGS), st.text(max_size=12)), max_size=6).map("".join))
def test_byte_level_round_trip_of_any_text(definitions: dict[str, str], text: str):
    for kind in ("byte_level", "byte_level_reachable", "merged_into_special"):
        tokenizer = load(definitions[kind])
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert special_ids(tokenizer).isdisjoint(ids)
        assert int(tokenizer.token_bytes()[ids].sum()) == len(text.encode())


def test_documents_get_their_delimiters(definitions: dict[str, str]):
    texts = ["one", "", "two words"]
    same = load(definitions["byte_level"])
    assert same.delimiter_id == same.end_id == 0
    assert [ids.tolist() for ids in same.encode_arrays(texts)] == [[0, *same.encode(text)] for text in texts]
    apart = load(definitions["llama"])
    assert (apart.begin, apart.end, apart.delimiter_id, apart.end_id) == ("<s>", "</s>", 1, 2)
    assert [ids.tolist() for ids in apart.encode_arrays(texts)] == [[1, *apart.encode(text), 2] for text in texts]


@pytest.mark.parametrize(
    ("added", "config", "override", "expected"),
    [
        (["<|endoftext|>", "<|im_end|>"], {}, None, (None, "<|endoftext|>")),
        (["<s>", "</s>"], {}, None, ("<s>", "</s>")),
        (["<s>", "</s>"], {"bos_token": None, "eos_token": "</s>"}, None, (None, "</s>")),
        (["<b>", "<e>"], {"bos_token": {"content": "<b>"}, "eos_token": {"content": "<e>"}}, None, ("<b>", "<e>")),
        (["<|begin_of_text|>", "<|end_of_text|>"], {}, None, ("<|begin_of_text|>", "<|end_of_text|>")),
        (["<b>", "<e>"], {}, "<e>", (None, "<e>")),
        (["[CLS]", "[SEP]"], {}, None, ("[CLS]", "[SEP]")),
        (["<|endoftext|>", "[CLS]", "[SEP]"], {"cls_token": "[CLS]", "sep_token": "[SEP]"}, None, ("[CLS]", "[SEP]")),
        (["<s>", "</s>", "<c>"], {"eos_token": "</s>", "cls_token": "<c>", "sep_token": "<s>"}, None, (None, "</s>")),
    ],
)
def test_how_the_delimiters_are_found(
    added: Sequence[str], config: dict[str, object], override: str | None, expected: tuple[str | None, str]
):
    data = {"added_tokens": [{"content": token} for token in added]}
    assert choose_delimiters(data, config, override) == expected


def test_a_tokenizer_without_known_end_asks_for_it():
    with pytest.raises(UsageError, match="end_of_text"):
        choose_delimiters({"added_tokens": [{"content": "[X]"}]}, {})


def test_token_bytes_count_every_byte_of_a_byte_level_text(definitions: dict[str, str]):
    tokenizer = load(definitions["byte_level"])
    sizes = tokenizer.token_bytes()
    assert sizes.dtype == np.int32
    assert sizes.shape == (tokenizer.vocab_size,)
    assert sizes[tokenizer.end_id] == 0
    assert (np.delete(sizes, tokenizer.end_id) > 0).all()
    for text in TEXTS:
        assert int(sizes[tokenizer.encode(text)].sum()) == len(text.encode())


def test_token_bytes_of_other_tokenizers_miss_only_the_first_blank(definitions: dict[str, str]):
    for kind in ("llama", "unigram"):
        tokenizer = load(definitions[kind])
        for text in TEXTS[:2]:
            found = int(tokenizer.token_bytes()[tokenizer.encode(text.replace("\n", " "))].sum())
            assert found - len(text.encode()) in (0, 1)


def test_added_tokens_that_are_not_special_stay_vocabulary(definitions: dict[str, str]):
    raw = Raw.from_str(definitions["byte_level"])
    raw.add_tokens([AddedToken("<\u00e9>", special=False)])
    raw.add_special_tokens([AddedToken("<|last|>", special=True)])
    tokenizer = load(raw.to_str())
    added = raw.token_to_id("<\u00e9>")
    assert added is not None
    assert tokenizer.encode("a<\u00e9>b") == raw.encode("a<\u00e9>b").ids
    assert tokenizer.token_bytes()[added] == 4
    assert raw.token_to_id("<|last|>") not in tokenizer.encode("<|last|>")
    assert tokenizer.vocab_size == raw.token_to_id("<|last|>") + 1  # type: ignore[operator]


def test_ids_may_have_gaps():
    raw = Raw(models.WordLevel({"a": 0, "b": 7, "<unk>": 3, "<eos>": 5}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.add_special_tokens([AddedToken("<eos>", special=True), AddedToken("<unk>", special=True)])
    tokenizer = load(raw.to_str())
    assert tokenizer.vocab_size == 8
    assert len(tokenizer.token_bytes()) == tokenizer.vocab_size


def test_padding_and_truncation_of_a_file_are_ignored(definitions: dict[str, str]):
    raw = Raw.from_str(definitions["byte_level"])
    raw.enable_truncation(4)
    raw.enable_padding(length=50)
    tokenizer = load(raw.to_str())
    assert tokenizer.decode(tokenizer.encode("a longer text than that")) == "a longer text than that"
    assert len(tokenizer.encode_arrays(["a"])[0]) == 2


def test_loading_a_file_or_its_folder(tmp_path: Path, definitions: dict[str, str]):
    (tmp_path / "tokenizer.json").write_text(definitions["llama"])
    by_file, by_folder = Tokenizer.load(tmp_path / "tokenizer.json"), Tokenizer.load(tmp_path)
    assert by_file.digest == by_folder.digest
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": null, "eos_token": "</s>"}')
    assert Tokenizer.load(tmp_path).delimiter_id == 2
    assert Tokenizer.load(tmp_path).digest != by_file.digest
    assert Tokenizer.load(tmp_path, "<s>").end == "<s>"


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, UsageError, "does not exist"),
        ("{", IntegrityError, "is not a tokenizer.json"),
        ("[1]", IntegrityError, "has no model"),
        ('{"model": {"type": "Nonsense"}}', IntegrityError, "is not a tokenizer.json|no end-of-text"),
        ('{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}', UsageError, "end_of_text"),
    ],
)
def test_files_that_are_no_tokenizer(tmp_path: Path, content: str | None, error: type[Exception], message: str):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises((error, UsageError), match=message):
        Tokenizer.load(tmp_path)


def test_an_end_token_that_is_not_there(tmp_path: Path, definitions: dict[str, str]):
    (tmp_path / "tokenizer.json").write_text(definitions["llama"])
    with pytest.raises(UsageError, match="no token '<nope>'"):
        Tokenizer.load(tmp_path, "<nope>")


@pytest.mark.parametrize("kind", ["byte_level", "llama"])
def test_transformers_loads_what_we_save_and_encodes_equally(tmp_path: Path, definitions: dict[str, str], kind: str):
    from transformers import AutoTokenizer

    tokenizer = load(definitions[kind])
    save_tokenizer(tokenizer, tmp_path)
    other = AutoTokenizer.from_pretrained(str(tmp_path))
    for text in [*TEXTS[:3], "unseen \t words\n\n  12345678", ""]:
        assert other.encode(text, add_special_tokens=False) == tokenizer.encode(text)
        assert other.decode(tokenizer.encode(text)) == tokenizer.decode(tokenizer.encode(text))
    assert (other.bos_token_id, other.eos_token_id) == (tokenizer.delimiter_id, tokenizer.end_id)
    again = Tokenizer.load(tmp_path)
    assert (again.digest, again.definition) == (tokenizer.digest, tokenizer.definition)


def test_settings_that_came_with_a_tokenizer_are_kept(tmp_path: Path, definitions: dict[str, str]):
    save_tokenizer(
        load(definitions["llama"]), tmp_path, {"chat_template": "x", "eos_token": "<old>", "bos_token": None}
    )
    kept = read_settings(tmp_path)
    assert (kept["chat_template"], kept["eos_token"], kept["bos_token"]) == ("x", "</s>", "<s>")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(IntegrityError, match="tokenizer_config"):
        read_settings(tmp_path)


def test_special_tokens_are_made_only_where_they_are_meant(definitions: dict[str, str]) -> None:
    for definition in definitions.values():
        tokenizer = load(definition)
        name = tokenizer.end
        assert tokenizer.end_id in tokenizer.special_ids
        meant = tokenizer.encode_parts([("a", True), (name, True), ("b", True)])
        assert [number for number in meant if number in tokenizer.special_ids] == [tokenizer.end_id]
        plain = tokenizer.encode_parts([("a", False), (f"{name}\ufdd0hornbook-special-0\ufdd1", False)])
        assert not (tokenizer.special_ids - {tokenizer.unknown_id}) & set(plain)
        assert tokenizer.encode_parts([("one t", False), ("wo", True)]) == tokenizer.encode("one two")
