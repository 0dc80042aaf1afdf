"""The receipt: examples, judgements and their precision, the page, the data card, the curve."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from hornbook.errors import IntegrityError, UsageError
from hornbook.text.config.rules import GopherQualityConfig
from hornbook.text.config.scores import ClassifierConfig
from hornbook.text.config.text import DropEmptyConfig, ExactDedupConfig
from hornbook.text.refinery.pipeline.folder import clear
from hornbook.text.refinery.report.report import card, page, read_receipt
from hornbook.text.refinery.report.reviews import Precision, judge, judged, precisions, read_examples
from hornbook.text.refinery.scores.classifier import train
from hornbook.text.refinery.scores.curve import curve, read_signals
from tests.text.refinery.running import prepare

TEXTS = [f"document {number} <script>alert(1)</script>" for number in range(30)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [{"text": text, "licence": "MIT" if number % 3 else None} for number, text in enumerate(TEXTS * 2 + [""])]
    prepare(tmp_path, [DropEmptyConfig(), ExactDedupConfig()], rows)
    return tmp_path / "data"


def test_examples_are_of_every_reason(data: Path):
    examples = read_examples(data)
    count = {reason: sum(each.reason == reason for each in examples) for reason in {each.reason for each in examples}}
    assert count == {"kept": 20, "exact duplicate": 20, "empty": 1}
    assert all(each.text in TEXTS for each in examples if each.reason != "empty")


def test_the_last_judgement_counts(data: Path):
    shown = [each for each in read_examples(data) if each.reason == "exact duplicate"]
    for number, each in enumerate(shown):
        judge(data, each, right=number < 10)
    judge(data, shown[0], right=False)
    assert precisions(data) == {"exact duplicate": Precision(9, 11)}


def test_wilsons_interval():
    low, high = Precision(9, 1).interval  # Wilson 1927; values by R's binom.wilson(9, 10)
    assert (low, high) == (pytest.approx(0.59585, abs=1e-4), pytest.approx(0.98212, abs=1e-4))
    assert Precision(10, 0).interval[1] == 1.0


class Parser(HTMLParser):
    """Counts tags and gathers text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_documents_and_runs_nothing_of_theirs(data: Path):
    example = next(each for each in read_examples(data) if each.reason == "empty")
    judge(data, example, right=True)
    parser = Parser()
    parser.feed(page(read_receipt(data)))
    assert "script" not in parser.tags
    assert parser.text.count("<script>alert(1)</script>") == 40
    assert "61 rows were read, 30 documents are left (49.2%)" in parser.text
    assert "empty: right in 100% of 1 judged" in parser.text


def test_the_card_counts_what_the_funnel_counts(data: Path):
    text = card(read_receipt(data))
    assert "30 documents, " in text
    size = sum(map(len, TEXTS))
    assert f"| exact duplicate | 30 | 49.18% | {size:,} | 50.00% | not judged |" in text
    assert "| unknown | 30 |" in text


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Few rows of many bytes are dropped, and 25 rows are damaged."""
    texts = ["a" * 9000, "a" * 9000, *(f"text {number}" for number in range(60))]
    prepare(tmp_path, [ExactDedupConfig()], [*texts, *[{"body": "<b>"}] * 25])
    return tmp_path / "data"


def test_bars_are_of_bytes_and_damaged_rows_are_examples(damaged: Path):
    text = page(read_receipt(damaged))
    (funnel,) = re.findall(r"<table>.*</table>", text)[:1]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in funnel.split("<tr>")[2:]]
    assert [row[0] for row in rows] == ["read", "exact duplicate", "damaged: missing text", "kept"]
    assert [row[1:5] for row in rows[1:3]] == [["1", "1.1%", "9,000", "47.9%"], ["25", "28.7%", "375", "2.0%"]]
    assert [re.findall(r"width:(.*?)%", row[5]) for row in rows[1:3]] == [["47.91"], ["2.00"]]
    assert "<summary>damaged: missing text (20 examples)</summary>" in text
    assert "000.jsonl:63, 15 bytes" in text
    assert "{&quot;body&quot;: &quot;&lt;b&gt;&quot;}</pre>" in text
    assert "damaged" not in {each.reason for each, _ in judged(damaged)}


def test_the_card_names_damaged_rows_and_bytes(damaged: Path):
    text = card(read_receipt(damaged))
    assert "| exact duplicate | 1 | 1.15% | 9,000 | 47.91% | not judged |\n| damaged: missing text | 25 |" in text


def test_a_damaged_quarantine_is_named(damaged: Path):
    (damaged / "quarantine.jsonl").write_text("[]\n")
    with pytest.raises(IntegrityError, match=r"quarantine.jsonl is damaged"):
        read_receipt(damaged)


def test_what_documents_say_of_themselves_is_no_markdown(tmp_path: Path):
    said = "MIT | <b>\n## [all](x) `free`" + "\u2028" * 200
    prepare(tmp_path, [], [{"text": "a", "licence": said}])
    (line,) = [line for line in card(read_receipt(tmp_path / "data")).splitlines() if "MIT" in line]
    assert line.startswith("| MIT &#124; &#60;b&#62; ## &#91;all&#93;&#40;x&#41; &#96;free&#96;")
    assert line.count("|") == 3


def test_damaged_examples_are_named(data: Path):
    (data / "samples.jsonl").write_text("{")
    with pytest.raises(IntegrityError, match=r"samples.jsonl is damaged"):
        read_examples(data)
    (data / "samples.jsonl").unlink()
    with pytest.raises(UsageError, match="prepare the folder"):
        read_examples(data)


def test_judgements_of_another_form_are_named(data: Path):
    (data / "reviews.jsonl").write_text('{"reason": "exact duplicate", "origin": "a.jsonl:1"}\n')
    with pytest.raises(IntegrityError, match=r"reviews.jsonl: a line has no 'right'"):
        precisions(data)


def test_a_curve_is_what_prepare_would_keep(tmp_path: Path):
    good = [f"careful proof {number} of the theorem" for number in range(40)]
    bad = [f"buy cheap pills {number} now now" for number in range(40)]
    train(good, bad, "whitespace")[0].save(tmp_path / "quality")
    texts = [*good[:10], *bad[:10], *good[:5]]
    step = ClassifierConfig(model=str(tmp_path / "quality"), threshold=0.5)
    prepare(tmp_path, [ExactDedupConfig(), step], texts)
    decision, signals = read_signals(tmp_path / "data", [ExactDedupConfig(), step], "classifier")
    values = [0.0, 0.02, 0.5, 0.95]
    points = curve(decision, signals, "threshold", values)
    for number, (value, point) in enumerate(zip(values, points, strict=True)):
        kept, _ = prepare(
            tmp_path / str(number), [ExactDedupConfig(), step.model_copy(update={"threshold": value})], texts
        )
        assert point.documents == len(kept)
        assert point.bytes == sum(map(len, kept))
        assert point.groups == {"source s": pytest.approx(len(kept) / 20)}
    assert np.ptp([point.documents for point in points]) > 0
    with pytest.raises(UsageError, match="has no threshold 'nothing': it has threshold"):
        curve(decision, signals, "nothing", values)
    with pytest.raises(UsageError, match=r"has no step exact_dedup with a threshold: there are: classifier"):
        read_signals(tmp_path / "data", [ExactDedupConfig(), step], "exact_dedup")
    with pytest.raises(UsageError, match=r"has no step gopher_quality .*: add it to text.steps and prepare again"):
        read_signals(tmp_path / "data", [ExactDedupConfig(), step], "gopher_quality")


def test_judgements_outlive_the_folder(data: Path):
    judge(data, read_examples(data)[0], right=True)
    lines = (data / "reviews.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["right"] is True

    clear(data)
    assert (data / "reviews.jsonl").exists()


LENGTHS = [f"{number:03d} " + "word " * (number % 50) for number in range(500)]
"""Texts of 1 to 50 words."""


def judge_all(data: Path, least: int, count: int | None = None) -> None:
    """Say what is true: it is right to drop what has fewer than `least` words."""
    open_ = [each for each, right in judged(data) if right is None and each.reason != "kept"]
    for each in open_[:count]:
        judge(data, each, right=len(each.text.split()) < least)


def dropped_below(root: Path, least: int) -> Path:
    """The folder of `root`, prepared again with another threshold; what was said of it stays."""
    shutil.rmtree(root / "raw", ignore_errors=True)
    if (root / "data").exists():
        clear(root / "data")
    prepare(root, [GopherQualityConfig(min_words=least, min_stop_words=0, min_alphabetic_words=0)], LENGTHS)
    return root / "data"


def test_precision_is_of_what_the_present_settings_drop(tmp_path: Path):
    reason = "Gopher: too few words"
    data = dropped_below(tmp_path, 40)
    judge_all(data, least=10)
    assert precisions(data)[reason].share < 0.5
    data = dropped_below(tmp_path, 10)
    kept_labels = [right for each, right in judged(data) if right is not None and each.reason == reason]
    assert 0 < len(kept_labels) < 20  # of documents that both settings drop
    judge_all(data, least=10)
    assert precisions(data) == {reason: Precision(20, 0)}


def test_labels_of_other_settings_do_not_choose_what_counts(tmp_path: Path):
    """Those of a stricter rule are all right; what the present one drops besides is not looked at yet."""
    reason = "Gopher: too few words"
    data = dropped_below(tmp_path, 30)
    judge_all(data, least=30)
    data = dropped_below(tmp_path, 40)
    known = [right for each, right in judged(data) if each.reason == reason]
    first = known.index(None)
    assert first > 0
    assert any(right is not None for right in known[first:])
    assert precisions(data) == {reason: Precision(first, 0)}


def test_the_order_of_asking_is_the_same_wherever_the_files_lie(tmp_path: Path):
    here, there = (dropped_below(tmp_path / name, 40) for name in ("here", "there"))
    assert [each.text for each, _ in judged(here)] == [each.text for each, _ in judged(there)]


def test_a_judgement_is_about_the_text_it_was_made_of(tmp_path: Path):
    data = dropped_below(tmp_path, 10)
    judge_all(data, least=10)
    clear(data)
    prepare(tmp_path, [GopherQualityConfig(min_words=12, min_stop_words=0)], [f"{text} more" for text in LENGTHS])
    assert all(right is None for _, right in judged(data))


def test_a_part_of_the_judgements_is_of_a_random_part_of_the_examples(tmp_path: Path):
    data = dropped_below(tmp_path, 40)
    in_order = [each.origin for each, _ in judged(data)]
    assert in_order != [each.origin for each in read_examples(data)]
    judge_all(data, least=10, count=5)
    assert sum(each.right + each.wrong for each in precisions(data).values()) == 5
