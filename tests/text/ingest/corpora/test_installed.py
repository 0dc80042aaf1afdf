"""The demo corpus: real text, planted truth, the same every time."""

import json
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from hornbook.errors import UsageError
from hornbook.text.config.text import ExactDedupConfig, SourceConfig, TextConfig
from hornbook.text.ingest.corpora import installed
from hornbook.text.ingest.corpora.installed import SOURCES, Planted, join_docstrings, score, write_installed_corpus
from hornbook.text.refinery.pipeline.prepare import prepare

SIZE = 1_500_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Planted]:
    folder = tmp_path_factory.mktemp("installed")
    return folder, write_installed_corpus(folder, max_bytes=SIZE, seed=3)


def rows_of(folder: Path, source: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / f"{source}.jsonl").read_text(encoding="utf-8").splitlines()]


def config_of(folder: Path) -> TextConfig:
    return TextConfig(sources={source: SourceConfig(paths=[str(folder / f"{source}.jsonl")]) for source in SOURCES})


def test_real_text_within_the_bound(corpus: tuple[Path, Planted]):
    folder, planted = corpus
    for source in SOURCES:
        rows = rows_of(folder, source)
        assert len(rows) == planted.documents[source] == len({row["id"] for row in rows})
        assert planted.bytes[source] == sum(len(row["text"].encode()) for row in rows)
    real = [
        row
        for source in SOURCES
        for row in rows_of(folder, source)
        if "#" not in row["id"] and "/blank-" not in row["id"]
    ]
    assert 0.8 * SIZE < sum(len(row["text"].encode()) for row in real) <= SIZE
    assert any("import" in row["text"] for row in real)


def test_the_truth_equals_a_comparison_of_every_text(corpus: tuple[Path, Planted]):
    """Written here once more and plainly: equal after normalisation, and not blank."""
    folder, planted = corpus
    seen: set[str] = set()
    later = set()
    for source in SOURCES:
        for row in rows_of(folder, source):
            text = unicodedata.normalize("NFC", row["text"].replace("\r\n", "\n").replace("\r", "\n"))
            text = "".join(char for char in text if unicodedata.category(char) != "Cc" or char in "\n\t")
            if not text.strip(" \n\t\u200b"):
                assert row["id"] in planted.blank
            elif text in seen:
                later.add(row["id"])
            seen.add(text)
    assert planted.duplicates == later
    assert planted.natural == len(later) - sum(planted.copies.values()) >= 0
    assert all(count > 0 for count in planted.copies.values())
    assert planted.near
    assert planted.near.isdisjoint(later)


def test_the_refinery_is_scored_against_the_truth(corpus: tuple[Path, Planted], tmp_path: Path):
    folder, planted = corpus
    funnel = prepare(config_of(folder), tmp_path / "data")
    assert score(tmp_path / "data", planted) == (1.0, 1.0)
    assert funnel.total().dropped["exact duplicate"].rows == len(planted.duplicates)
    assert funnel.total().dropped["empty"].rows == len(planted.blank)


def test_a_worse_refinery_gets_a_worse_score(corpus: tuple[Path, Planted], tmp_path: Path):
    folder, planted = corpus
    config = config_of(folder).model_copy(update={"steps": [ExactDedupConfig()]})
    prepare(config, tmp_path / "data")
    precision, recall = score(tmp_path / "data", planted)
    assert precision < 1.0  # blank documents are no duplicates, yet without drop_empty they are removed as such
    assert 0.1 < recall < 0.9  # without normalisation the disguised copies stay


def test_without_any_removal_the_score_is_no_recall(corpus: tuple[Path, Planted], tmp_path: Path):
    folder, planted = corpus
    prepare(config_of(folder).model_copy(update={"steps": []}), tmp_path / "data")
    assert score(tmp_path / "data", planted) == (0.0, 0.0)


def test_the_same_installation_and_seed_give_the_same_bytes(corpus: tuple[Path, Planted], tmp_path: Path):
    folder, _ = corpus
    script = (
        "import sys; from pathlib import Path\n"
        "from hornbook.text.ingest.corpora.installed import write_installed_corpus\n"
        f"write_installed_corpus(Path(sys.argv[1]), max_bytes={SIZE}, seed=int(sys.argv[2]))\n"
    )
    for name, seed, same in (("again", "3", True), ("other", "4", False)):
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / name), seed], check=True, env={"PYTHONHASHSEED": seed}
        )
        for file in ("code.jsonl", "docstrings.jsonl", "planted.json"):
            assert ((folder / file).read_bytes() == (tmp_path / name / file).read_bytes()) is same


def test_the_truth_is_written_too(corpus: tuple[Path, Planted]):
    folder, planted = corpus
    data = json.loads((folder / "planted.json").read_text())
    assert data["duplicates"] == sorted(planted.duplicates)
    assert Counter(data["copies"]) == Counter(planted.copies)


SOURCE = '''"""Module."""
if True:
    class A:
        """A."""
        async def f(self):
            """f.
            more"""
try:
    pass
except OSError:
    def g():
        """g."""
'''


def test_docstrings_in_the_order_of_the_text():
    assert join_docstrings(SOURCE) == "Module.\n\nA.\n\nf.\nmore\n\ng."
    assert join_docstrings("def broken(:") == ""
    assert join_docstrings("x = 1") == ""


def test_an_installation_without_sources_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(installed.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(UsageError, match="no source files"):
        write_installed_corpus(tmp_path / "out", max_bytes=1000, seed=1)
    assert not (tmp_path / "out").exists()
