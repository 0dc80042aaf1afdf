"""A step from outside the package: one file, named in a recipe by its import path."""

import json
import sys
from pathlib import Path

import pytest

from hornbook.errors import UsageError
from hornbook.settings.resolve import resolve
from hornbook.text.config.text import TextConfig
from hornbook.text.refinery.pipeline.folder import read_text_config
from hornbook.text.refinery.report.report import page, read_receipt
from hornbook.text.refinery.report.reviews import read_examples
from hornbook.text.refinery.scores.curve import curve, read_signals
from tests.text.refinery.running import prepare

PAGE = Path(__file__).parents[3] / "docs" / "rules.md"
TEXTS = ["a tree in the open air", "grdl kpt xzw", "an idea of one more aeon", "xyz"]


@pytest.fixture
def vowels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module `vowels` as docs/rules.md prints it, in the path."""
    path = tmp_path / "code" / "vowels.py"
    path.parent.mkdir()
    path.write_text(PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.delitem(sys.modules, "vowels", raising=False)
    return path


def steps_of(folder: Path, *steps: str) -> list:
    recipe = folder / "recipe.toml"
    recipe.write_text(f"[text]\nsteps = [{', '.join(steps)}]\n")
    return resolve(str(recipe), [], {}).recipe.text.steps


@pytest.mark.usefixtures("vowels")
def test_a_decision_with_a_column_of_its_own(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, '{kind = "vowels:Vowels"}', '{kind = "quantiles", column = "vowels.share", high = 0.5}')
    kept, signals = prepare(tmp_path, steps, TEXTS)
    assert kept == [TEXTS[0]]
    assert signals["vowels.share"].to_pylist() == [9 / 17, 0, 12 / 19, 0]
    reasons = ["kept", "too few vowels", "high vowels.share", "too few vowels"]
    assert signals["reason"].to_pylist() == reasons
    data = tmp_path / "data"
    assert json.loads((data / "funnel.json").read_text())["total"]["dropped"]["too few vowels"]["rows"] == 2
    assert {each.reason for each in read_examples(data)} == set(reasons)
    read = read_text_config(data)
    assert read.steps == steps
    step, measured = read_signals(data, read.steps, "vowels")
    assert [point.documents for point in curve(step, measured, "min_share", [0, 0.25, 0.6])] == [4, 2, 1]
    shown = page(read_receipt(data))
    assert "<summary>vowels.min_share = 0.25</summary>" in shown
    assert "too few vowels" in shown


@pytest.mark.usefixtures("vowels")
def test_two_of_one_kind_and_other_settings(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, '{kind = "vowels:Vowels"}', '{kind = "vowels:Vowels", name = "more", min_share = 0.6}')
    _, signals = prepare(tmp_path, steps, TEXTS)
    assert signals["reason"].to_pylist() == ["more: too few vowels", "too few vowels", "kept", "too few vowels"]
    assert signals["more.share"] == signals["vowels.share"]
    with pytest.raises(UsageError, match="min_shares"):
        steps_of(tmp_path, '{kind = "vowels:Vowels", min_shares = 1}')


def test_other_code_makes_another_folder(tmp_path: Path, vowels: Path) -> None:
    steps = steps_of(tmp_path, '{kind = "vowels:Vowels"}')
    prepare(tmp_path, steps, TEXTS)
    vowels.write_text(vowels.read_text() + "\n\nVOWELS = 6\n")
    with pytest.raises(UsageError, match="other settings"):
        prepare(tmp_path, steps, TEXTS)


def test_a_folder_whose_step_is_gone_is_refused(tmp_path: Path, vowels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, steps_of(tmp_path, '{kind = "vowels:Vowels"}'), TEXTS)
    vowels.unlink()
    monkeypatch.delitem(sys.modules, "vowels")
    with pytest.raises(UsageError, match=r"manifest.json: .*vowels:Vowels cannot be imported .* PYTHONPATH"):
        read_text_config(tmp_path / "data")


def test_what_is_no_step_is_refused(vowels: Path) -> None:
    code = [
        "from hornbook.settings.fields import Config",
        "class Part(Config):",
        "    kind: str",
        "    def build(self): ...",
    ]
    vowels.write_text("\n".join(code))
    with pytest.raises(ValueError, match=r"Part is no step: name a subclass of .*EditConfig or .*CutConfig"):
        TextConfig.model_validate({"steps": [{"kind": "vowels:Part"}]})
