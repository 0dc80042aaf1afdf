"""A planted corpus in which 90 % of nurses are she: what the report says, and what thinning and swapping make of it."""

import json
import random
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from hornbook.errors import UsageError
from hornbook.text.config.content import MentionsConfig, RebalanceConfig, SwapConfig
from hornbook.text.config.text import DropEmptyConfig, ExactDedupConfig, SourceConfig, TextConfig
from hornbook.text.refinery.bias.associations import Association
from hornbook.text.refinery.bias.bias import ALL, MentionReport, read_bias, standing_out
from hornbook.text.refinery.bias.rebalance import REASON, Sparse, find_chances
from hornbook.text.refinery.pipeline.decide import KEPT
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.refinery.report.report import card, page, read_receipt
from hornbook.text.refinery.step import build
from tests.text.refinery.running import judge

NURSES, SHE = 1000, 900
PMI = log2(SHE / NURSES / 0.5)


def planted() -> list[str]:
    """As many nurses as engineers; 90 % of nurses are she, 10 % of engineers; so is half of all."""
    rows = [
        f"{who} is a {job} of the town of number {number}, and likes it."
        for job, she in (("nurse", SHE), ("engineer", NURSES - SHE))
        for number, who in enumerate(["She"] * she + ["He"] * (NURSES - she))
    ]
    return random.Random(0).sample(rows, len(rows))


def run(root: Path, steps: list[Any], sources: dict[str, list[list[str]]], workers: int = 1) -> Path:
    """Prepare sources, each of files of texts, each file a task."""
    configs = {}
    for name, files in sources.items():
        (root / name).mkdir(parents=True)
        for number, texts in enumerate(files):
            lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
            (root / name / f"{number}.jsonl").write_text(lines)
        configs[name] = SourceConfig(paths=[str(root / name)])
    prepare(TextConfig(sources=configs, steps=steps, shard_bytes=100_000), root / "data", workers=workers)
    return root / "data"


def pair(report: MentionReport, attribute: str = "nurse", source: int = -1) -> tuple[Association, Association]:
    """Women with the attribute: now and before."""
    found = {(each.group, each.attribute): each for each in report.sources[source].pairs}
    return found["women", attribute], report.sources[source].before["women", attribute]


def kept_texts(data: Path) -> list[str]:
    tables = [pq.read_table(path, columns=["text"]) for path in sorted((data / "documents").rglob("*.parquet"))]
    return sorted(text for table in tables for text in table["text"].to_pylist())


def left(config: RebalanceConfig, texts: list[str]) -> list[str]:
    """What the step keeps."""
    return [text for text, reason in zip(texts, judge([config], texts)[0], strict=True) if reason == KEPT]


def count(texts: list[str], words: str) -> int:
    return sum(words in text for text in texts)


@pytest.fixture(scope="module")
def thinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("thinned"), [RebalanceConfig()], {"s": [planted()]})


def test_the_report_says_what_was_planted(tmp_path: Path):
    steps = [DropEmptyConfig(), MentionsConfig()]
    even = [f"{who} is a nurse, says note {n}" for n in range(100) for who in ("She", "He")]
    report = read_bias(run(tmp_path, steps, {"odd": [planted()], "even": [even]}), steps)[0]
    assert [each.name for each in report.sources] == ["even", "odd", ALL]
    for found in pair(report, source=1):
        assert (found.together, found.expected) == (SHE, NURSES / 2)
        assert found.pmi == pytest.approx(PMI)
        assert found.low < PMI < found.high < found.low + 0.12
    assert pair(report, source=0)[0].pmi == 0
    assert standing_out(report.sources[0]) == []
    stand_out = [(each.group, each.attribute) for each in standing_out(report.sources[1])]
    assert stand_out == [("men", "engineer"), ("women", "nurse")]
    assert report.sources[2].mentions == {"women": NURSES + 100, "men": NURSES + 100}
    assert pair(report)[0].pmi == pytest.approx(log2((SHE + 100) / (NURSES + 200) / 0.5))


def test_thinning_evens_out(thinned: Path):
    report = read_bias(thinned, [RebalanceConfig()])[0]
    for attribute, planted_pmi in (("nurse", PMI), ("engineer", log2((NURSES - SHE) / NURSES / 0.5))):
        now, before = pair(report, attribute)
        assert before.pmi == pytest.approx(planted_pmi)
        assert abs(now.pmi) < 0.2  # the draw's own deviation is 0.07
        assert now.low < 0 < now.high
    texts = kept_texts(thinned)
    assert len(texts) == len(set(texts))
    assert set(texts) <= set(planted())
    assert count(texts, "He is a nurse") == count(texts, "She is a engineer") == NURSES - SHE
    assert count(texts, "She is a nurse") == pytest.approx(NURSES - SHE, abs=30)


def test_page_and_card_tell_it(thinned: Path):
    receipt = read_receipt(thinned)
    for text in (page(receipt), card(receipt)):
        assert "Who is mentioned with what" in text
        assert f"{PMI:+.2f}" in text
    none = replace(receipt, bias=[])
    assert "mentioned" not in page(none) + card(none)


def test_a_floor_keeps_its_share():
    texts = left(RebalanceConfig(floor=0.5, attributes=["nurse"]), planted())
    assert count(texts, "She is a nurse") == pytest.approx(SHE / 2, abs=60)
    assert count(texts, "engineer") == NURSES
    assert count(texts, "He is a nurse") == NURSES - SHE
    with pytest.raises(UsageError, match=r"en.toml has no attribute 'pilot': it has nurse, doctor"):
        build([RebalanceConfig(attributes=["pilot"])])


def test_the_draw_is_the_texts_own():
    texts = planted()
    once = left(RebalanceConfig(), texts)
    assert sorted(once) == sorted(left(RebalanceConfig(), texts[::-1]))
    assert len(set(once) - set(left(RebalanceConfig(seed=1), texts))) > 50
    assert len(set(once) - set(left(RebalanceConfig(name="other"), texts))) > 50


def test_swapping_evens_out_too(tmp_path: Path):
    steps = [SwapConfig(), MentionsConfig()]
    data = run(tmp_path, steps, {"s": [planted()]})
    now, _ = pair(read_bias(data, steps)[0])
    assert abs(now.pmi) < 0.1
    assert now.low < 0 < now.high
    assert len(kept_texts(data)) == 2 * NURSES


@pytest.mark.slow
def test_what_stays_depends_on_nothing_but_the_texts(tmp_path: Path):
    texts = planted()
    steps = [ExactDedupConfig(), RebalanceConfig()]
    one = run(tmp_path / "1", steps, {"a": [texts[:500] * 2], "b": [texts[500:]]})
    other = run(tmp_path / "2", steps, {"b": [texts[900:], texts[500:900]], "a": [texts[:500]]}, workers=2)
    assert len(kept_texts(one)) < NURSES
    assert kept_texts(one) == kept_texts(other)
    assert read_bias(one, steps) == read_bias(other, steps)


def keep_chances(values: np.ndarray, mentions: np.ndarray, chosen: np.ndarray, floor: float) -> np.ndarray:
    """Of documents in two parts."""
    parts = [Sparse.of(values[: len(values) // 3]), Sparse.of(values[len(values) // 3 :])]
    found = find_chances(lambda: parts, mentions, chosen, floor)
    return np.concatenate([found(part) for part in parts])


def test_documents_of_many_pairs():
    """What is expected of the draw is even."""
    draw = np.random.default_rng(3)
    groups, attributes = 3, 4
    pairs = draw.poisson(draw.uniform(0.1, 0.6, (groups, attributes)), (5000, groups, attributes))
    values = np.concatenate([pairs.sum(axis=2) + draw.integers(0, 3, (5000, groups)), pairs.reshape(5000, -1)], axis=1)
    values = values[values[:, groups:].any(axis=1)].astype(np.float64)
    mentions = values[:, :groups].sum(axis=0) + np.array([1000, 0, 500])
    chosen = np.array([True, True, False, True])
    chances = keep_chances(values, mentions, chosen, 0.01)
    assert 0.01 <= chances.min() < chances.max() == 1
    stay = mentions - ((1 - chances) @ values)[:groups]
    after = (chances @ values)[groups:].reshape(groups, attributes)
    expected = np.outer(stay / stay.sum(), after.sum(axis=0))
    assert np.abs(np.log2(after / expected))[:, chosen].max() < 0.001
    assert np.abs(np.log2(after / expected))[:, ~chosen].max() > 0.1


def test_rare_pairs_are_left_alone():
    values = np.zeros((20, 4))
    values[:, 0] = values[:, 2] = 1  # 20 women with the attribute, no man, of whom there are 4 elsewhere
    assert keep_chances(values, np.array([20.0, 4.0]), np.array([True]), 0.1).tolist() == [1.0] * 20
    many = keep_chances(values, np.array([20.0, 20.0]), np.array([True]), 0.1)
    assert many.tolist() == [0.1] * 20  # no man ever: nothing evens that out


def test_counts_are_the_same_on_disk(tmp_path: Path):
    counts = np.array([[0, 3, 0], [0, 0, 0], [2**31, 0, 1]])
    Sparse.of(counts).save(tmp_path / "part.npz")
    back = Sparse.load(tmp_path / "part.npz")
    assert back.shape == (3, 3)
    assert back.by_column(np.array([1.0, 10.0, 100.0])).tolist() == [100 * 2.0**31, 3, 100]
    assert back.by_document(np.array([1.0, 10.0, 100.0])).tolist() == [30, 0, 2.0**31 + 100]


def test_two_steps_have_reasons_of_their_own(tmp_path: Path):
    steps = [RebalanceConfig(floor=0.5), RebalanceConfig(name="again", window="sentence")]
    data = run(tmp_path, steps, {"s": [planted()]})
    reasons = pq.read_table(data / "signals" / "00000.parquet")["reason"].to_pylist()
    assert set(reasons) == {"kept", REASON, f"again: {REASON}"}
    first, again = read_bias(data, steps)
    for report in (first, again):
        now, before = pair(report)
        assert now.pmi < before.pmi - 0.1
