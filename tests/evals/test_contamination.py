"""Items of tasks that occur in the training text: whole, altered, and neither."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hornbook.cli.main import main
from hornbook.cli.model.subject import open_subject
from hornbook.data.config.data import ReplayConfig
from hornbook.data.corpus import Corpus
from hornbook.evals import contamination
from hornbook.evals.contamination import find_in_corpus, find_items
from hornbook.evals.documents import training_texts
from hornbook.text.tokenizer.tokenizer import Tokenizer

WORDS = [f"{a}{b}{c}" for a in "bcdfg" for b in "aeiou" for c in "lmnrst"]


def passage(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words))


def test_whole_and_altered_items_are_found_and_others_are_not() -> None:
    draw = random.Random(0)
    whole, altered, other, short, eight = (passage(draw, size) for size in (20, 30, 20, 4, 8))
    changed = altered.split()
    changed[11] = changed[23] = "zzz"  # pieces of 11, 11 and 6 words are left: no 13-gram, most 5-grams
    documents = [passage(draw, 50), f"{passage(draw, 9)} {whole.upper()}!", " ".join(changed), f"{short} {eight}"]
    found = find_items([whole, altered, other, short, eight], documents)
    assert found.seen.tolist() == [True, True, False, False, True]
    assert found.judged.tolist() == [True, True, True, False, True]
    again = find_items([whole, altered, other, short, eight], reversed(documents))
    assert np.array_equal(found.seen, again.seen)


def test_an_item_is_found_by_any_of_its_texts() -> None:
    draw = random.Random(1)
    question, first, second, other = (passage(draw, 14) for _ in range(4))
    items = [[f"{question} {first}", second], [f"{other} x", "short"], other[:4]]
    found = find_items(items, [passage(draw, 50), f"so {second} it is"])
    assert found.seen.tolist() == [True, False, False]
    assert found.judged.tolist() == [True, True, False]


def test_without_long_items_nothing_is_judged() -> None:
    assert not find_items(["7+5=12"], ["7+5=12"]).judged.any()


def test_an_item_in_many_rows_is_no_template() -> None:
    item = passage(random.Random(1), 20)
    assert find_items([item] * 40, [item]).seen.all()


def test_the_training_text_is_read_again_only_for_other_items_or_another_text(
    tmp_path: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    shutil.copytree(tiny_corpus, root)
    corpus, tokenizer, reads = Corpus.open(root), Tokenizer.load(root / "tokenizer"), []

    def counted(*given: Any) -> Any:
        reads.append(given)
        return training_texts(*given)

    monkeypatch.setattr(contamination, "training_texts", counted)
    known = next(text for text in training_texts(corpus, tokenizer) if len(text.split()) > 14)
    texts = [known[:90], passage(random.Random(0), 12), "short"]

    def find(texts: list[str], corpus: Corpus = corpus) -> tuple[list[list[bool]], int]:
        found = find_in_corpus(texts, corpus, tokenizer)
        return [found.seen.tolist(), found.judged.tolist()], len(reads)

    expected = [[True, False, False], [True, True, False]]
    assert find(texts) == (expected, 1)
    assert find(texts) == (expected, 1)
    assert find(texts[::-1]) == ([each[::-1] for each in expected], 2)
    assert find([*texts[:2], "shorter"]) == (expected, 3)
    streams = {"train": {"other": next(iter(corpus.validation.values()))}, "validation": {}}
    assert find(texts, Corpus(root, corpus.index, streams))[1] == 4
    assert find(texts) == (expected, 4), "each of them stays"
    for path in (root / "plans").glob("contamination-*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert find(texts) == (expected, 5), "what is damaged is made again"
    shutil.rmtree(root / "plans")
    (root / "plans").touch()
    assert find(texts) == (expected, 6), "where nothing can be written nothing is kept"


def test_a_planted_item_is_told_beside_the_score(
    tmp_path: Path, launch_run: Callable[..., Any], tiny_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = Tokenizer.load(tiny_corpus / "tokenizer")
    known = next(text for text in training_texts(Corpus.open(tiny_corpus), tokenizer) if len(text.split()) > 14)
    fresh = [passage(random.Random(seed), 12) for seed in range(3)]
    ends = (" page", " page", " and says more of it", " it")
    rows = [{"context": text, "continuation": end} for text, end in zip((known[:90], *fresh), ends, strict=True)]
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    launch_run(tmp_path / "run", "train.sequence=128")
    capsys.readouterr()
    words = ["eval", str(tmp_path / "run"), "--tasks", f'[{{kind = "continuation", path = "{path}"}}]', "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)["tasks"]["continuation"]
    assert (found["contaminated"], found["judged"], found["items"]) == (1, 4, 4)
    assert found["loss_clean"] != found["loss"]
    clean = tmp_path / "clean.jsonl"
    clean.write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    assert main([*(word.replace(str(path), str(clean)) for word in words)]) == 0
    alone = json.loads(capsys.readouterr().out)["tasks"]["continuation"]
    for name in ("loss", "bits_per_byte", "bits_per_byte_se"):
        assert found[name.replace("_se", "") + "_clean" + "_se" * name.endswith("_se")] == pytest.approx(alone[name])
    assert main([*words, "--no-contamination"]) == 0
    assert "contaminated" not in json.loads(capsys.readouterr().out)["tasks"]["continuation"]
    subject, other = open_subject(tmp_path / "run"), cast(Any, SimpleNamespace(digest="of another"))
    assert subject.training_corpus() is not None
    assert replace(subject, tokenizer=other).training_corpus() is None, "its tokens mean something else"

    def replaying(folder: Path) -> Corpus | None:
        data = subject.recipe.data.model_copy(update={"replay": ReplayConfig(path=str(folder))})
        return replace(subject, recipe=subject.recipe.model_copy(update={"data": data})).training_corpus()

    both = replaying(tiny_corpus)
    assert both is not None
    assert any(name.startswith("replay-") for name in both.train), "what it read again was its training text too"
    assert replaying(tmp_path / "gone") is None
