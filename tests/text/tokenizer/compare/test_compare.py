"""Figures of tokenizers against a count by hand; samples of texts."""

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import UsageError
from hornbook.text.config.text import BPE, SourceConfig, TextConfig, Unigram, WordPiece
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.compare.compare import TextSample, TokenizerMetrics, compare, sample_path, sample_prepared
from hornbook.text.tokenizer.tokenizer import Tokenizer
from hornbook.text.tokenizer.train import train_tokenizer

TRAINING = ["the model reads a page and says it again; the page says so"] * 20
SAMPLES = [
    TextSample("english", ("the model reads", "The page,\n\nagain", "")),
    TextSample("other", ("\u6570\u5b66 reads\t\u00e9t\u00e9", "a b  c")),
]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    configs = {"bpe": BPE(vocab=300), "wordpiece": WordPiece(vocab=300), "unigram": Unigram(vocab=420)}
    return {name: train_tokenizer(config, [TRAINING]) for name, config in configs.items()}


def by_hand(tokenizer: Tokenizer, samples: list[TextSample]) -> dict[str, Any]:
    """Token by token, with the plainest of loops."""
    tokens, words, size, unknown, exact, documents, seen = 0, 0, 0, 0, 0, 0, set()
    for text in (text for sample in samples for text in sample.texts):
        ids = tokenizer.encode(text)
        documents += 1
        tokens += len(ids)
        size += len(text.encode())
        inside = False
        for letter in text:
            words += not inside and letter not in string.whitespace
            inside = letter not in string.whitespace
        for number in ids:
            if number == tokenizer.unknown_id:
                unknown += 1
            else:
                seen.add(number)
        exact += tokenizer.decode(ids) == text
    specials = {token["id"] for token in json.loads(tokenizer.definition)["added_tokens"]}
    return {
        "bytes": size,
        "tokens": tokens,
        "bytes_per_token": size / tokens,
        "tokens_per_word": tokens / words,
        "unknown_share": unknown / tokens,
        "vocabulary_used": len(seen) / (tokenizer.vocab_size - len(specials)),
        "exact_share": exact / documents,
    }


def test_the_figures_are_those_counted_by_hand(tokenizers: dict[str, Tokenizer]):
    found = compare(tokenizers, SAMPLES)
    assert [(each.corpus, each.tokenizer) for each in found] == [
        (corpus, name) for corpus in ("english", "other", "all") for name in tokenizers
    ]
    for figures in found:
        samples = [sample for sample in SAMPLES if figures.corpus in (sample.name, "all")]
        shown = figures.to_json()
        for name, value in by_hand(tokenizers[figures.tokenizer], samples).items():
            assert shown[name] == pytest.approx(value, rel=1e-12), (figures.corpus, figures.tokenizer, name)
        assert shown["megabytes_per_second"] > 0


def test_what_is_lost_and_unknown_shows(tokenizers: dict[str, Tokenizer]):
    found: dict[tuple[str, str], TokenizerMetrics] = {
        (each.tokenizer, each.corpus): each for each in compare(tokenizers, SAMPLES)
    }
    assert found["wordpiece", "other"].unknown > 0
    assert found["wordpiece", "all"].exact == 2  # "the model reads" and the empty one
    for name in ("bpe", "unigram"):
        assert (found[name, "all"].exact, found[name, "all"].unknown) == (5, 0)


def test_one_text_has_no_total(tokenizers: dict[str, Tokenizer]):
    assert {each.corpus for each in compare(tokenizers, SAMPLES[:1])} == {"english"}


def test_a_sample_of_files_is_even_over_them(tmp_path: Path):
    (tmp_path / "a.txt").write_text("\u00e9" * 1000)
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(200)))
    sample = sample_path("both", str(tmp_path), 400)
    assert sample.name == "both"
    assert 300 < sample.bytes <= 400
    assert sample.texts[0] == "\u00e9" * (len(sample.texts[0]))
    assert 40 < len(sample.texts[0].encode()) < 200
    assert "row 3" in sample.texts
    whole = sample_path("both", str(tmp_path), 10**9)
    assert (len(whole.texts), whole.bytes) == (201, 2000 + sum(len(f"row {number}") for number in range(200)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"no": 1}\n', "holds no text: .*x.jsonl:1: missing text"),
        ("x.txt", b"", "holds no text"),
        ("x.bin", b"", "ending"),
    ],
)
def test_a_path_without_text_is_an_error(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        sample_path("x", str(tmp_path / name), 100)
    with pytest.raises(UsageError, match="does not exist"):
        sample_path("x", str(tmp_path / "nowhere"), 100)


def test_a_prepared_folder_gives_its_held_out_documents(tmp_path: Path, make_texts: Callable[..., list[str]]):
    texts = sorted(set(make_texts(80)))
    for name, some in (("web", texts), ("few", ["a single document"])):
        rows = "".join(json.dumps({"text": text}) + "\n" for text in some)
        (tmp_path / f"{name}.jsonl").write_text(rows)
    sources = {name: SourceConfig(paths=[str(tmp_path / f"{name}.jsonl")]) for name in ("web", "few")}
    prepare(TextConfig(sources=sources, validation=0.2, steps=[]), tmp_path / "data", workers=1)
    held_out = {sample.name: sample for sample in sample_prepared(tmp_path / "data", 10**9, held_out=True)}
    every = {sample.name: sample for sample in sample_prepared(tmp_path / "data", 10**9, held_out=False)}
    assert set(every["web"].texts) == set(texts)
    assert 0 < len(held_out["web"].texts) < 40
    assert set(held_out["web"].texts) < set(texts)
    assert held_out["few"].texts == ("a single document",)
    with pytest.raises(UsageError, match="not prepared"):
        sample_prepared(tmp_path, 100, held_out=True)
