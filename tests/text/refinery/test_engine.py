"""The engine of the refinery: stretches of steps, a user's own, cuts, examples, what is counted."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from pydantic import ValidationError

from hornbook.errors import UsageError
from hornbook.text.config import DropEmpty, ExactDedup, Normalize, PythonStep, TextConfig
from hornbook.text.config_content import Language
from hornbook.text.config_step import CutConfig
from hornbook.text.decide import remove
from hornbook.text.document import Document
from hornbook.text.refinery import table
from hornbook.text.refinery.step import Corpus, Cut
from tests.text.refinery.running import judge, prepare


class LinesSeenBefore(Cut):
    """A slow cut: every line that an earlier document has."""

    def sketch(self, documents: Sequence[Document], first: int) -> np.ndarray:
        rows = []
        for number, document in enumerate(documents):
            place = 0
            for line in document.text.splitlines(keepends=True):
                rows.append((first + number, place, place + len(line.encode()), hash(line) & 0xFFFF))
                place += len(line.encode())
        return np.array(rows, np.int64).reshape(-1, 4)

    def cuts(self, corpus: Corpus) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        seen: dict[int, int] = {}
        found = []
        for sketch, begin in zip(corpus.sketches, corpus.firsts, strict=True):
            for row, start, end, line in sketch.tolist():
                if corpus.alive[begin + row] and seen.setdefault(line, begin + row) != begin + row:
                    found.append((begin + row, start, end))
        return tuple(np.array(found, np.int64).reshape(-1, 3).T)  # type: ignore[return-value]


class LinesConfig(CutConfig):
    kind: Literal["lines"] = "lines"


def own_step(document: Document) -> str | None:
    return None if "drop" in document.text else document.text.replace("old", "new")


OWN = PythonStep(call="tests.text.refinery.test_engine:own_step")


def test_edits_come_first_and_names_are_unique():
    with pytest.raises(ValidationError, match="step 'normalize' stands too late"):
        TextConfig(steps=[DropEmpty(), Normalize()])
    with pytest.raises(ValidationError, match="two steps are named 'python'"):
        TextConfig(steps=[OWN, OWN])
    with pytest.raises(ValidationError, match="no step can be named 'kept'"):
        TextConfig(steps=[OWN.model_copy(update={"name": "kept"})])
    assert TextConfig(steps=[OWN, OWN.model_copy(update={"name": "again"})]).steps[1].label == "again"


def test_a_step_of_ones_own_changes_drops_and_is_counted(tmp_path: Path):
    kept, signals = prepare(tmp_path, [OWN, ExactDedup()], ["old", "drop this", "new", "other"])
    assert kept == ["new", "other"]
    reason = "tests.text.refinery.test_engine:own_step"
    assert signals["reason"].to_pylist() == ["kept", reason, "exact duplicate", "kept"]
    funnel = json.loads((tmp_path / "data" / "funnel.json").read_text())["sources"]["s"]
    assert funnel["changed"] == {"python.changed": [1, 1]}
    assert funnel["in"]["rows"] == 4


@pytest.mark.parametrize("call", ["no_such_module:f", "tests.text.refinery.test_engine:nothing", "json:__name__"])
def test_a_function_that_is_none_is_named(tmp_path: Path, call: str):
    with pytest.raises(UsageError, match=call):
        prepare(tmp_path, [PythonStep(call=call)], ["a"])


def test_a_function_that_fails_names_the_document(tmp_path: Path):
    with pytest.raises(UsageError, match=r"json:loads failed on document .*000.jsonl:1"):
        prepare(tmp_path, [PythonStep(call="json:loads")], ["a"])


def test_cuts_are_the_same_however_tasks_are_cut(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(table.STEPS, "lines", f"{__name__}:LinesSeenBefore")
    texts = ["one\ntwo\n", "two\none\n", "zwei\u00e9\none\nthree", "two\n \u200b\n"]
    for cut in range(5):
        reasons, verdicts = judge([DropEmpty(), LinesConfig()], texts[:cut], texts[cut:])
        assert reasons == ["kept"] * 4  # what is left is looked at when it is written
        spans = [(row + (cut if n else 0), a, b) for n, each in enumerate(verdicts) for row, a, b in each.cuts.tolist()]
        assert spans == [(1, 0, 8), (2, 7, 11), (3, 0, 4)]
    assert remove(texts[2].encode(), [(7, 11)]).decode() == "zwei\u00e9\nthree"


def test_examples_for_each_reason_are_the_same_however_tasks_are_cut():
    texts = [f"text {number}" for number in range(100)] * 2
    shown = []
    for cut in (0, 3, 150):
        _, verdicts = judge([ExactDedup()], texts[:cut], texts[cut:])
        shown.append(
            {
                row + (cut if number else 0): names
                for number, each in enumerate(verdicts)
                for row, names in each.samples.items()
            }
        )
    assert shown[0] == shown[1] == shown[2]
    counts = [names for names in shown[0].values() if names == ["kept"]]
    assert len(counts) == 20
    assert len(shown[0]) == 40


def test_a_document_with_nothing_left_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(table.STEPS, "lines", f"{__name__}:LinesSeenBefore")
    monkeypatch.setattr(TextConfig, "model_dump", lambda *_, **__: {})
    texts = ["one\ntwo\n", "two\none\n", "zwei\u00e9\none\nthree", "two\n \u200b\n"]
    kept, signals = prepare(tmp_path, [DropEmpty(), LinesConfig()], texts)
    assert kept == ["one\ntwo\n", "zwei\u00e9\nthree"]
    assert signals["reason"].to_pylist() == ["kept", "nothing left", "kept", "nothing left"]
    funnel = json.loads((tmp_path / "data" / "funnel.json").read_text())["sources"]["s"]
    assert funnel["changed"] == {"cut": [1, 4]}
    lines = (tmp_path / "data" / "samples.jsonl").read_text().splitlines()
    examples = {json.loads(line)["text"]: json.loads(line)["reason"] for line in lines}
    assert list(examples.values()) == ["kept", "nothing left", "kept", "nothing left"]


def test_other_code_makes_another_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    code = tmp_path / "own_steps_of_a_test.py"
    code.write_text("def step(document):\n    return document.text.upper()\n")
    step = PythonStep(call="own_steps_of_a_test:step")
    assert prepare(tmp_path, [step], ["a"])[0] == ["A"]
    code.write_text("def step(document):\n    return document.text + '!'\n")
    with pytest.raises(UsageError, match="other settings"):
        prepare(tmp_path, [step], ["a"])


def surrogate(document: Document) -> str:
    return document.text + "\ud800"


def test_text_that_is_no_unicode_names_the_function_and_the_document(tmp_path: Path):
    call = "tests.text.refinery.test_engine:surrogate"
    with pytest.raises(UsageError, match=f"{call} gave text with a lone surrogate for document .*000.jsonl:1"):
        prepare(tmp_path, [PythonStep(call=call)], ["a"])


def test_the_code_of_a_package_is_read_where_it_is_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, here = tmp_path / "first", tmp_path / "here"
    (first / "own").mkdir(parents=True)
    here.mkdir()
    (first / "own" / "__init__.py").write_text("")
    (here / "own.py").write_text("")
    monkeypatch.syspath_prepend(str(first))
    monkeypatch.chdir(here)
    assert PythonStep(call="own:step").reads() == [str(first / "own" / "__init__.py")]


def test_a_name_that_another_measurement_has_is_refused():
    steps = [DropEmpty(), Language(name="text", detector="script")]
    with pytest.raises(UsageError, match="step 'text': 'text' is what another step measures"):
        table.build(steps)
