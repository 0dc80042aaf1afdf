"""Terms of a domain: counted by hand."""

import json
import math
from pathlib import Path

import pytest
import tokenizers

from hornbook.cli.main import main
from hornbook.model.surgery.grown_vocabulary import write_extended_tokenizer
from hornbook.text.tokenizer.compare.terms import mine_terms
from hornbook.text.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Knows `the`, `rate` and `swap`, and single bytes."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"]
    )
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator([" the rate swap" * 50], trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    return folder


TEXTS = ["the swaption rate"] * 6 + ["collateral, swaption; the collateral's rate"] * 3 + ["rare word"]


def test_terms_are_what_saves_most(tokenizer: Path):
    known = Tokenizer.load(tokenizer)
    found = {term.text: term for term in mine_terms(TEXTS, known, least=3)}
    assert list(found) == [" swaption", " collateral's", "collateral"]
    swaption = found[" swaption"]
    assert (swaption.count, swaption.pieces) == (9, len(known.encode(" swaption")))
    assert swaption.saved == 9 * (swaption.pieces - 1)
    assert [term.text for term in mine_terms(TEXTS, known, least=3, top=1)] == [" swaption"]


@pytest.mark.parametrize("text", ["the rate; swaption, swaption", "(swaption) swaption\tswaption", "the swap"])
def test_a_term_saves_what_it_says_once_it_is_a_token(tokenizer: Path, tmp_path: Path, text: str):
    known = Tokenizer.load(tokenizer)
    found = mine_terms([text], known, least=1)
    assert bool(found) == ("swaption" in text)
    for term in found:
        write_extended_tokenizer(tokenizer, [term.text], tmp_path)
        larger = Tokenizer.load(tmp_path)
        assert len(known.encode(text)) - len(larger.encode(text)) == term.saved
        assert larger.decode(larger.encode(text)) == text


def test_words_that_are_as_common_elsewhere_are_no_terms(tokenizer: Path):
    known = Tokenizer.load(tokenizer)
    found = mine_terms(TEXTS, known, ["the collateral"] * 30 + ["collateral's rate"], least=3)
    assert [term.text for term in found] == [" swaption", " collateral's"]
    expected = 35 * 9 / (35 + 62)  # of 35 words in the domain and 62 elsewhere, 9 and none are swaptions
    assert found[0].keyness == pytest.approx(2 * 9 * math.log(9 / expected))


def test_the_verb_writes_a_list_of_tokens(tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "domain.txt").write_text("\n".join(TEXTS))
    words = ["tokenize", "terms", str(tmp_path / "domain.txt"), "--tokenizer", str(tokenizer), "--least", "3"]
    assert main([*words, "--out", str(tmp_path / "terms.txt"), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (tmp_path / "terms.txt").read_text().splitlines() == [term["text"] for term in value["terms"]]
    assert value["saved"] == sum(term["saved"] for term in value["terms"])
    assert main(words) == 0
    assert "terms would save" in capsys.readouterr().out
    assert main(["tokenize", "terms", str(tmp_path / "absent"), "--tokenizer", str(tokenizer)]) == 2
