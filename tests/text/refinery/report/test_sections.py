"""The part of the receipt's page that shows what moves with each threshold."""

from pathlib import Path

import pytest

from hornbook.text.config.rules import FineWebConfig, MC4Config
from hornbook.text.config.scores import ClassifierConfig, VocabularyConfig
from hornbook.text.config.text import DropEmptyConfig
from hornbook.text.refinery.report import sections
from hornbook.text.refinery.report.report import page, read_receipt
from hornbook.text.refinery.report.sections import curves_page
from hornbook.text.refinery.scores.classifier import train
from tests.text.refinery.running import prepare

TEXTS = [f"careful proof {number} of the theorem.\n" * 6 + "word " * number for number in range(40)]


def test_every_threshold_has_its_table(tmp_path: Path) -> None:
    rules = FineWebConfig(max_duplicate_characters=None, max_short_lines=None)
    steps = [VocabularyConfig(one_in=1), MC4Config(min_line_length=30), rules]
    prepare(tmp_path, steps, TEXTS)
    text = curves_page(tmp_path / "data", steps)
    assert text.count("<details>") == text.count("<th>different words</th>") == 3
    for shown in ("mc4.min_line_length = 30", "fineweb.min_terminal_lines = 0.12", "fineweb.max_newlines = 0.3"):
        assert f"<summary>{shown}</summary>" in text
    assert "<td>30 (now)</td>" in text
    assert text in page(read_receipt(tmp_path / "data"))


def test_a_folder_without_thresholds_has_no_such_part(tmp_path: Path) -> None:
    prepare(tmp_path, [DropEmptyConfig(), VocabularyConfig()], TEXTS)
    assert curves_page(tmp_path / "data", [DropEmptyConfig(), VocabularyConfig()]) == ""


def test_a_model_that_is_gone_is_said(tmp_path: Path) -> None:
    model = tmp_path / "quality"
    train(TEXTS, [f"buy pills {number} <now>" for number in range(40)], "whitespace")[0].save(model)
    step = ClassifierConfig(model=str(model))
    prepare(tmp_path, [step], TEXTS)
    model.unlink()
    assert "cannot be shown:" in curves_page(tmp_path / "data", [step])
    assert "no such classifier" in page(read_receipt(tmp_path / "data"))


def test_a_large_folder_is_left_to_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, [MC4Config(min_line_length=30)], TEXTS)
    assert curves_page(tmp_path / "data", [MC4Config(min_line_length=30)])
    monkeypatch.setattr(sections, "_MOST_ROWS", 39)
    assert curves_page(tmp_path / "data", [MC4Config(min_line_length=30)]) == ""
