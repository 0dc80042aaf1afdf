"""The engine of the refinery: the order of steps, a user's own, cuts, examples, what is counted."""

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from pydantic import ValidationError

from hornbook.errors import UsageError
from hornbook.text.config.content import LanguageConfig
from hornbook.text.config.rules import GopherQualityConfig
from hornbook.text.config.step import CutConfig, DecisionConfig
from hornbook.text.config.text import DropEmptyConfig, ExactDedupConfig, NormalizeConfig, PythonStepConfig, TextConfig
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.pipeline import decide as deciding
from hornbook.text.refinery.pipeline import plan as planning
from hornbook.text.refinery.pipeline.decide import remove
from hornbook.text.refinery.scores.curve import curve, read_signals
from hornbook.text.refinery.step import Columns, CorpusView, Cut, Decision, build
from hornbook.text.refinery.steps.basics import ExactDedup, Sizes
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

    def cuts(self, corpus: CorpusView) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        seen: dict[int, int] = {}
        found = []
        for sketch, begin in zip(corpus.sketches, corpus.firsts, strict=True):
            for row, start, end, line in sketch.tolist():
                if corpus.alive[begin + row] and seen.setdefault(line, begin + row) != begin + row:
                    found.append((begin + row, start, end))
        return tuple(np.array(found, np.int64).reshape(-1, 3).T)  # type: ignore[return-value]


class LinesConfig(CutConfig):
    kind: Literal["lines"] = "lines"

    def build(self) -> LinesSeenBefore:
        return LinesSeenBefore(self)


def own_step(document: Document) -> str | None:
    return None if "drop" in document.text else document.text.replace("old", "new")


OWN = PythonStepConfig(call="tests.text.refinery.test_engine:own_step")


def test_edits_come_first_and_names_are_unique():
    with pytest.raises(ValidationError, match="step 'normalize' comes too late"):
        TextConfig(steps=[DropEmptyConfig(), NormalizeConfig()])
    with pytest.raises(ValidationError, match="two steps are named 'python'"):
        TextConfig(steps=[OWN, OWN])
    with pytest.raises(ValidationError, match="no step can be named 'kept'"):
        TextConfig(steps=[OWN.model_copy(update={"name": "kept"})])
    assert TextConfig(steps=[OWN, OWN.model_copy(update={"name": "again"})]).steps[1].label == "again"


def test_a_step_of_ones_own_changes_drops_and_is_counted(tmp_path: Path):
    kept, signals = prepare(tmp_path, [OWN, ExactDedupConfig()], ["old", "drop this", "new", "other"])
    assert kept == ["new", "other"]
    reason = "tests.text.refinery.test_engine:own_step"
    assert signals["reason"].to_pylist() == ["kept", reason, "exact duplicate", "kept"]
    funnel = json.loads((tmp_path / "data" / "funnel.json").read_text())["sources"]["s"]
    assert funnel["changed"] == {"python.changed": [1, 1]}
    assert funnel["in"]["rows"] == 4


@pytest.mark.parametrize("call", ["no_such_module:f", "tests.text.refinery.test_engine:nothing", "json:__name__"])
def test_a_function_that_is_none_is_named(tmp_path: Path, call: str):
    with pytest.raises(UsageError, match=call):
        prepare(tmp_path, [PythonStepConfig(call=call)], ["a"])


def test_a_function_that_fails_names_the_document(tmp_path: Path):
    with pytest.raises(UsageError, match=r"json:loads failed on document .*000.jsonl:1"):
        prepare(tmp_path, [PythonStepConfig(call="json:loads")], ["a"])


def test_cuts_are_the_same_however_tasks_are_cut():
    texts = ["one\ntwo\n", "two\none\n", "zwei\u00e9\none\nthree", "two\n \u200b\n"]
    for cut in range(5):
        reasons, verdicts = judge([DropEmptyConfig(), LinesConfig()], texts[:cut], texts[cut:])
        assert reasons == ["kept"] * 4  # what is left is looked at when it is written
        spans = [(row + (cut if n else 0), a, b) for n, each in enumerate(verdicts) for row, a, b in each.cuts.tolist()]
        assert spans == [(1, 0, 8), (2, 7, 11), (3, 0, 4)]
    assert remove(texts[2].encode(), [(7, 11)]).decode() == "zwei\u00e9\nthree"


def test_examples_for_each_reason_are_the_same_however_tasks_are_cut():
    texts = [f"text {number}" for number in range(100)] * 2
    shown = []
    for cut in (0, 3, 150):
        _, verdicts = judge([ExactDedupConfig()], texts[:cut], texts[cut:])
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


def test_a_document_with_nothing_left_is_dropped(tmp_path: Path):
    texts = ["one\ntwo\n", "two\none\n", "zwei\u00e9\none\nthree", "two\n \u200b\n"]
    kept, signals = prepare(tmp_path, [DropEmptyConfig(), LinesConfig()], texts)
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
    step = PythonStepConfig(call="own_steps_of_a_test:step")
    assert prepare(tmp_path, [step], ["a"])[0] == ["A"]
    code.write_text("def step(document):\n    return document.text + '!'\n")
    with pytest.raises(UsageError, match="other settings"):
        prepare(tmp_path, [step], ["a"])


def surrogate(document: Document) -> str:
    return document.text + "\ud800"


def test_text_that_is_no_unicode_names_the_function_and_the_document(tmp_path: Path):
    call = "tests.text.refinery.test_engine:surrogate"
    with pytest.raises(UsageError, match=f"{call} gave text with a lone surrogate for document .*000.jsonl:1"):
        prepare(tmp_path, [PythonStepConfig(call=call)], ["a"])


def test_the_code_of_a_package_is_read_where_it_is_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, here = tmp_path / "first", tmp_path / "here"
    (first / "own").mkdir(parents=True)
    here.mkdir()
    (first / "own" / "__init__.py").write_text("")
    (here / "own.py").write_text("")
    monkeypatch.syspath_prepend(str(first))
    monkeypatch.chdir(here)
    assert PythonStepConfig(call="own:step").reads() == [str(first / "own" / "__init__.py")]


def test_a_name_that_another_measurement_has_is_refused():
    steps = [DropEmptyConfig(), LanguageConfig(name="text", detector="script")]
    with pytest.raises(UsageError, match="step 'text': 'text' is measured by another step"):
        build(steps)


def test_two_steps_of_one_kind_have_reasons_of_their_own(tmp_path: Path):
    steps = [GopherQualityConfig(min_stop_words=0), GopherQualityConfig(name="strict", min_stop_words=0, min_words=60)]
    texts = [f"{number} " + "word " * count for number, count in enumerate([10, 55, 55, 70])]
    _, signals = prepare(tmp_path, steps, texts)
    few, strict = "Gopher: too few words", "strict: Gopher: too few words"
    assert signals["reason"].to_pylist() == [few, strict, strict, "kept"]
    examples = [json.loads(line) for line in (tmp_path / "data" / "samples.jsonl").read_text().splitlines()]
    assert [each["reason"] for each in examples] == [few, strict, strict, "kept"]
    step, reached = read_signals(tmp_path / "data", steps, "strict")
    assert len(reached.bytes) == 3  # what the first dropped does not come to the second
    assert curve(step, reached, "min_words", [50, 60])[1].documents == 1


def test_reasons_that_two_steps_share_are_refused():
    steps = [DropEmptyConfig(), PythonStepConfig(name="empty", call="json:loads")]
    with pytest.raises(UsageError, match="steps 'empty' and 'drop_empty' both drop documents as 'empty'"):
        build(reversed(steps))


def test_all_kinds_have_different_reasons():
    """So that two steps without a name never share one."""
    names = ("personal", "gopher_quality", "gopher_repetition", "fineweb", "c4", "mc4", "code", "near_dedup")
    kinds = {kind: {"kind": kind} for kind in names} | {"language": {"kind": "language", "detector": "script"}}
    built = build(TextConfig.model_validate({"steps": list(kinds.values())}).steps)
    assert len(built.decisions) == 8


class ManyReasons(Decision):
    """Drops document k of a task for reason k."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.reasons = tuple(f"reason {number}" for number in range(config.count))
        self.needs = ("text.visible",)
        self.measurers = (Sizes(),)

    def decide(self, columns: Columns) -> np.ndarray:
        rows = np.arange(len(columns["text.visible"])) - self.config.skip + 1
        return np.where((rows > 0) & (rows <= self.config.count), rows, 0).astype(np.uint8)


class ManyReasonsConfig(DecisionConfig):
    kind: Literal["many"] = "many"
    count: int = 200
    skip: int = 0

    def build(self) -> ManyReasons:
        return ManyReasons(self)


def test_more_reasons_than_a_byte_can_name():
    steps = [ManyReasonsConfig(), ManyReasonsConfig(name="b", skip=200), ManyReasonsConfig(name="c", skip=400)]
    texts = [f"text {number}" for number in range(610)]
    reasons, _ = judge(steps, texts)
    names = [f"{prefix}reason {number}" for prefix in ("", "b: ", "c: ") for number in range(200)]
    assert reasons == [*names, *["kept"] * 10]
    with pytest.raises(UsageError, match="step 'many' has 256 reasons to drop documents, more than 255"):
        build([ManyReasonsConfig(count=256)])
    with pytest.raises(ValidationError, match="at most 255 items"):
        TextConfig(steps=[DropEmptyConfig(name=f"n{number}") for number in range(256)])


@pytest.fixture
def many_rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    """50 tasks of 20,000 documents, each hash ten times; read from nowhere."""
    hashes = np.random.default_rng(0).integers(0, 2**63, (20_000, 2)).astype(np.uint64)
    columns = {"hash": hashes, "edited_out": np.zeros(len(hashes), np.uint8), "bytes": np.ones(len(hashes), np.int64)}

    def read(task: int, names: Sequence[str]) -> dict[str, np.ndarray]:
        other = np.uint64(task % 5)
        return {name: columns[name] + other if name == "hash" else columns[name].copy() for name in names}

    monkeypatch.setattr(deciding, "read_columns", read)
    return range(50)


def test_memory_of_decisions_is_a_few_bytes_a_document(tmp_path: Path, many_rows: Any, monkeypatch: pytest.MonkeyPatch):
    found = {}
    for budget in (2**40, 2**22):
        monkeypatch.setattr(ExactDedup, "budget", budget)
        tracemalloc.start()
        _, verdicts = deciding.decide(many_rows, build([ExactDedupConfig()]), tmp_path / "scratch")
        found[budget] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        kept = np.concatenate([each.reasons == 0 for each in verdicts])
        assert np.flatnonzero(kept).tolist() == list(range(100_000))
    assert found[2**40] > 40 * 1_000_000
    assert found[2**22] < 2**22 + 6 * 1_000_000


def test_columns_of_all_rows_are_held_once(tmp_path: Path, many_rows: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ExactDedup, "needs", ("hash", "bytes"))
    monkeypatch.setattr(ExactDedup, "decide_all", lambda _, corpus: np.zeros(len(corpus.alive), np.uint8))
    tracemalloc.start()
    deciding.decide(many_rows, build([ExactDedupConfig()]), tmp_path / "scratch")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (24 + 6) * 1_000_000


def write_code(folder: Path, files: dict[str, str]) -> None:
    for name, code in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code)


def test_what_a_module_imports_of_its_place_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = {
        "own_steps.py": "import json, numpy\nfrom own_package.inner import deep\nimport own_helper as h\n",
        "own_helper.py": "def f():\n    from own_package import late\n",
        "own_package/__init__.py": "from . import beside\n",
        "own_package/beside.py": "import own_steps\n",
        "own_package/late.py": "",
        "own_package/inner/__init__.py": "",
        "own_package/inner/deep.py": "from ..up import x\nfrom .missing import y\n",
        "own_package/up.py": "broken(",
        "not_imported.py": "",
    }
    write_code(tmp_path, code)
    monkeypatch.syspath_prepend(str(tmp_path))
    first, *others = PythonStepConfig(call="own_steps:step").reads()
    assert first == str(tmp_path / "own_steps.py")
    assert others == sorted(str(tmp_path / name) for name in code.keys() - {"own_steps.py", "not_imported.py"})
    (_, *within) = PythonStepConfig(call="own_package.inner.deep:step").reads()
    assert str(tmp_path / "own_package" / "__init__.py") in within  # which is imported before it


def test_of_an_installed_package_its_own_modules_are_read():
    files = PythonStepConfig(call="json.decoder:step").reads()
    assert {Path(file).parent.name for file in files} == {"json"}
    assert PythonStepConfig(call="no_such_module:step").reads() == []


def test_other_code_of_a_helper_makes_another_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_code(tmp_path, {"own_a.py": "from own_b import step\n", "own_b.py": "def step(document):\n    return 'a'\n"})
    monkeypatch.syspath_prepend(str(tmp_path))
    step = PythonStepConfig(call="own_a:step")
    assert prepare(tmp_path, [step], ["x"])[0] == ["a"]
    write_code(tmp_path, {"own_b.py": "def step(document):\n    return 'b'\n"})
    with pytest.raises(UsageError, match="other settings"):
        prepare(tmp_path, [step], ["x"])


def test_the_version_of_lingua_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch):
    versions = {"lingua-language-detector": "1.0"}
    monkeypatch.setattr(planning.metadata, "version", versions.__getitem__)
    before = planning.read_by_steps([LanguageConfig()])
    assert before == ["lingua-language-detector 1.0"]
    versions["lingua-language-detector"] = "2.0"
    assert planning.read_by_steps([LanguageConfig()]) != before
    assert planning.read_by_steps([LanguageConfig(detector="script")]) == []


class Interrupted(LinesSeenBefore):
    """Ends as it is told to, with files in its folder."""

    ends: ClassVar[list[type[BaseException]]] = []

    def cuts(self, corpus: CorpusView) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        assert not any(corpus.scratch.iterdir())
        (corpus.scratch / "run.bin").write_text("half")
        if self.ends:
            raise self.ends.pop()
        return super().cuts(corpus)


class InterruptedConfig(LinesConfig):
    def build(self) -> Interrupted:
        return Interrupted(self)


def test_interrupted_while_it_decides_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    texts = ["one\ntwo\n", "two\none\n", "zwei\u00e9\none\nthree"]
    monkeypatch.setattr(Interrupted, "ends", [KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, [DropEmptyConfig(), InterruptedConfig()], texts)
    scratch = tmp_path / "data" / "work" / "scratch"
    assert not scratch.exists()
    scratch.mkdir()
    (scratch / "run.bin").write_text("what kill -9 leaves")
    kept, _ = prepare(tmp_path, [DropEmptyConfig(), InterruptedConfig()], texts)
    assert kept == ["one\ntwo\n", "zwei\u00e9\nthree"]
    assert not (tmp_path / "data" / "work").exists()
