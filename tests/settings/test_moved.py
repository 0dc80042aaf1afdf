"""Users' files that name our modules as they were called before."""

import importlib.util
import re
from pathlib import Path

import pytest

from hornbook.errors import UsageError
from hornbook.model.context import Context
from hornbook.settings.fields import outside_part
from hornbook.settings.moved import import_outside, moved_names
from hornbook.text.config.modules import load_function


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("from hornbook.text.document import Document", "hornbook.text.ingest.document"),  # no such module any more
        ("from hornbook.model.linear import Linear", "hornbook.model.layers.linear"),
        ("from hornbook.model.attention import Attention", "hornbook.model.attention.attention"),  # a folder now
        ("from hornbook.text.sources.html import read", "hornbook.text.ingest.formats"),  # no such folder any more
        ("from hornbook.model.config.mlp import GLU", "hornbook.model.config.mlp.GLUConfig"),
        ("from hornbook.model.config_mlp import GLU", "hornbook.model.config.mlp"),  # the folder first, then the name
        ("from hornbook.model.config import model; model.RMSNorm()", "hornbook.model.config.norm.RMSNormConfig"),
        ("from hornbook.model.sight import Sight", "hornbook.model.attention.mask"),
    ],
)
def test_a_former_name_is_answered_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, new: str
) -> None:
    module = re.sub(r"\W+", "_", f"outside {line}")
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


def test_a_former_attribute_of_what_parts_are_given_is_answered() -> None:
    with pytest.raises(UsageError, match=r"^Context\.sight is now Context\.mask$"):
        hasattr(Context(), "sight")
    assert not hasattr(Context(), "nowhere")


def test_every_new_name_is_there_and_no_former_one() -> None:
    for former, new in moved_names().items():
        assert importlib.util.find_spec(f"hornbook.{new.partition(':')[0]}") is not None, new
        if ":" in former:
            assert found(new), new
            assert not found(former), former


def found(name: str) -> bool:
    """Whether `module:Name`, or `module:Class.field` of a dataclass, is there."""
    module, _, path = name.partition(":")
    owner, _, field = path.partition(".")
    there = getattr(importlib.import_module(f"hornbook.{module}"), owner, None)
    return there is not None and (not field or field in there.__dataclass_fields__)
