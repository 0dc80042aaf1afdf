"""Users' files that name our modules as they were called before."""

import importlib.util
from pathlib import Path

import pytest

from hornbook.errors import UsageError
from hornbook.settings.fields import outside_part
from hornbook.settings.moved import import_outside, moved_modules
from hornbook.text.refinery.steps.python_step import load_function


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("from hornbook.text.document import Document", "hornbook.text.ingest.document"),  # no such module any more
        ("from hornbook.model.linear import Linear", "hornbook.model.layers.linear"),
        ("from hornbook.model.attention import Attention", "hornbook.model.attention.attention"),  # a folder now
        ("from hornbook.text.sources.html import read", "hornbook.text.ingest.formats"),  # no such folder any more
    ],
)
def test_a_former_name_is_answered_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, new: str
) -> None:
    module = f"outside_{new.replace('.', '_')}"
    (tmp_path / f"{module}.py").write_text(f"{line}\n\n\ndef step(document):\n    return document\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=f"is now {new}: import that in {module}"):
        load_function(f"{module}:step")
    with pytest.raises(ValueError, match=f"is now {new}: import that in {module}"):
        outside_part(f"{module}:Part")


def test_what_else_is_missing_is_said_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_misspelled.py").write_text("import hornbook.nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'hornbook.nowhere'$"):
        import_outside("outside_misspelled")


def test_every_new_name_is_a_module() -> None:
    assert [new for new in moved_modules().values() if importlib.util.find_spec(f"hornbook.{new}") is None] == []
