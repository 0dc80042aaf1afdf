import gzip
import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hornbook.errors import UsageError
from hornbook.text.config.duplicates import DecontaminateConfig
from hornbook.text.refinery.dedup.decontaminate import Decontaminate
from hornbook.text.refinery.scores.curve import thresholds
from tests.text.refinery.duplicates import documents_of
from tests.text.refinery.running import least_seconds

STOCKS = {
    "en": [f"word{number}" for number in range(400)],
    "de": [f"größe{number}" for number in range(400)],
    "ru": [f"слово{number}" for number in range(400)],
    "el": [f"λέξη{number}" for number in range(400)],
}


def sentence(rng: np.random.Generator, stock: list[str], count: int) -> str:
    return " ".join(stock[number] for number in rng.integers(0, len(stock), count))


def plain(text: str) -> list[str]:
    words = [word.strip(string.punctuation) for word in text.lower().split()]
    return [word for word in words if word]


def grams(text: str, width: int) -> list[tuple[str, ...]]:
    words = plain(text)
    return [tuple(words[start : start + width]) for start in range(len(words) - width + 1)]


def slow(texts: list[str], items: list[str]) -> list[tuple[int, float]]:
    """(exact n-grams, largest share) of every text, by sets of tuples of words."""
    items = list({tuple(plain(item)): item for item in items if len(plain(item)) >= 8}.values())
    widths = {
        width: {gram for item in items if min(len(plain(item)), 13) == width for gram in grams(item, width)}
        for width in range(8, 14)
    }
    found = []
    for text in texts:
        hits = sum(gram in wanted for width, wanted in widths.items() for gram in grams(text, width))
        present = set(grams(text, 5))
        shares = [len(present & set(grams(item, 5))) / len(set(grams(item, 5))) for item in items]
        found.append((hits, max(shares)))
    return found


def write_items(path: Path, items: list[Any]) -> Path:
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")
    return path


def step_of(*paths: Path, **settings: Any) -> Decontaminate:
    return Decontaminate(DecontaminateConfig(paths=[str(path) for path in paths], **settings))


def measured(step: Decontaminate, texts: list[str]) -> dict[str, np.ndarray]:
    return {f"{step.name}.{name}": column for name, column in step.measure(documents_of(texts)).items()}


def made_corpus(seed: int) -> tuple[list[str], list[str]]:
    """Items in four languages, and documents of which some hold one: whole, capitalised, altered, or a part of it."""
    rng = np.random.default_rng(seed)
    items, texts = [], []
    for stock in STOCKS.values():
        mine = [sentence(rng, stock, int(rng.integers(5, 40))) for _ in range(25)]
        items += mine
        for item in mine:
            words = item.split()
            cut = int(rng.integers(len(words)))
            changed = [("x" if rng.random() < 0.08 else word) for word in words]
            for part in (item, item.upper().replace(" ", ", "), " ".join(changed), " ".join(words[cut:]), ""):
                texts.append(f"{sentence(rng, stock, 60)} {part} {sentence(rng, stock, 60)}")
    return items, texts


def test_what_is_found_equals_the_slow_reference(tmp_path: Path) -> None:
    items, texts = made_corpus(0)
    step = step_of(write_items(tmp_path / "test.jsonl", [{"text": item} for item in items]), words="whitespace")
    columns = measured(step, texts)
    wanted = slow(texts, items)
    assert columns["decontaminate.hits"].tolist() == [hits for hits, _ in wanted]
    assert columns["decontaminate.share"].tolist() == pytest.approx([share for _, share in wanted], abs=1e-12)
    reasons = step.decide(columns)
    assert {0, 1, 2} == set(reasons.tolist())
    assert not step_of(tmp_path / "test.jsonl", action="report").decide(columns).any()


def test_whole_items_are_found_and_named_in_every_language(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    items = [sentence(rng, stock, 20) for stock in STOCKS.values() for _ in range(20)]
    file = write_items(tmp_path / "test.jsonl", [{"text": item} for item in items])
    step = step_of(file)
    texts = [f"{sentence(rng, STOCKS['en'], 50)}.\n\n{item.title()}!" for item in items]
    columns = measured(step, texts)
    assert (step.decide(columns) == 1).all()
    assert columns["decontaminate.item"].tolist() == [f"{file}:{number + 1}" for number in range(len(items))]
    clean = [sentence(rng, stock, 300) for stock in STOCKS.values()]
    assert not step.decide(measured(step, clean)).any()


def test_only_what_is_compared_with_columns_is_a_threshold(tmp_path: Path) -> None:
    step = step_of(write_items(tmp_path / "test.jsonl", [{"text": "word " * 8}]))
    assert thresholds(step) == {"max_hits": 0, "max_share": 0.3}


def test_templates_do_not_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    template = " ".join(f"instruction{number}" for number in range(20))
    items = [f"{template} {sentence(rng, STOCKS['en'], 20)}" for _ in range(50)]
    step = step_of(write_items(tmp_path / "test.jsonl", [{"q": item} for item in items]))
    texts = [template, f"{template} {items[7].split(' ', 20)[1]}", items[7], " ".join(items[7].split()[20:])]
    assert step.decide(measured(step, texts)).tolist() == [0, 0, 1, 1]


def test_any_split_into_batches_gives_the_same(tmp_path: Path) -> None:
    items, texts = made_corpus(4)
    step = step_of(write_items(tmp_path / "test.jsonl", [{"text": item} for item in items]))
    whole = measured(step, texts)
    parts = [measured(step, texts[start : start + 7]) for start in range(0, len(texts), 7)]
    for name, column in whole.items():
        assert np.concatenate([part[name] for part in parts]).tolist() == column.tolist()


def test_rows_of_any_layout_are_items(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    first, second, third, fourth = (sentence(rng, STOCKS["en"], 15) for _ in range(4))
    rows = [{"question": first, "choices": {"text": [second, "no"], "label": [1, 2]}}]
    write_items(tmp_path / "a.jsonl", rows)
    (tmp_path / "b.txt").write_text(f"\n{third}\n", encoding="utf-8")
    pq.write_table(pa.table({"question": [fourth], "answer": [7]}), tmp_path / "c.parquet")
    step = step_of(tmp_path)
    columns = measured(step, [first, second, third, fourth])
    assert columns["decontaminate.item"].tolist() == [
        f"{tmp_path}/{name}" for name in ("a.jsonl:1", "a.jsonl:1", "b.txt:2", "c.parquet:1")
    ]
    only = step_of(tmp_path / "a.jsonl", fields=["question"])
    assert only.decide(measured(only, [first, second])).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("a.jsonl", '{"text": "x"\n', {}, r"a\.jsonl:1: not JSON"),
        ("a.jsonl", '{"text": "few words"}\n', {}, "no item of 8 words or more"),
        ("a.jsonl", '{"q": "x"}\n', {"fields": ["text"]}, r"a\.jsonl:1: no key 'text' \(keys: q\)"),
        ("a.csv", "a,b\n", {}, "cannot read csv|cannot tell what"),
    ],
)
def test_bad_test_sets_are_named(
    name: str, content: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        step_of(tmp_path / name, **settings)


@pytest.mark.parametrize("repeat", ["item", "word", "mark", "letter"])
def test_time_is_linear(repeat: str, tmp_path: Path) -> None:
    """A document of one item again and again, of one word, of nothing but marks, of one long word."""
    rng = np.random.default_rng(6)
    items = [sentence(rng, STOCKS["en"], 20) for _ in range(40)] + ["one " * 20]
    step = step_of(write_items(tmp_path / "test.jsonl", [{"text": item} for item in items]))
    piece = {"item": items[0] + " ", "word": "one ", "mark": "!", "letter": "a"}[repeat]

    def seconds(size: int) -> float:
        return least_seconds(lambda: measured(step, [piece * (size // len(piece))]))

    seconds(1000)
    small, large = seconds(250_000), seconds(2_000_000)
    assert large < 40 * max(small, 0.001)


def test_damaged_test_sets_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "' + b"word " * 9000 + b'"}\n')[:-20])
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    for name in ("a.jsonl.gz", "b.parquet"):
        with pytest.raises(UsageError, match=name):
            step_of(tmp_path / name)
