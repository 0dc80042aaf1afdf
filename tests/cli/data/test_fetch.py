"""`hornbook fetch` from file://: the table, what would be fetched, what was, and the section that reads it."""

import json
import tomllib
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.text.ingest.corpora.corpora import CORPORA, PublicCorpus


def test_the_table_names_every_corpus(capsys: pytest.CaptureFixture[str]):
    assert main(["fetch"]) == 0
    text = capsys.readouterr().out
    assert all(f"{name}  " in text and corpus.size in text for name, corpus in CORPORA.items())
    assert main(["fetch", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["corpora"]] == list(CORPORA)


def test_a_dry_run_says_what_would_come_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.txt").write_text("x" * 1500)
    out = tmp_path / "out"
    assert main(["fetch", f"file://{tmp_path}/*.txt", "--out", str(out), "-n"]) == 0
    shown = capsys.readouterr()
    assert f"file://{tmp_path}/a.txt  1.5 kB" in shown.err
    assert "1 of 1 files" in shown.err
    assert not out.exists()


def test_what_was_fetched_is_prepared_with_the_printed_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"text number {number}")
    out = tmp_path / "out"
    assert main(["fetch", f"file://{tmp_path}/*.txt", "--out", str(out), "--files", "2"]) == 0
    section = capsys.readouterr().out
    assert tomllib.loads(section)["text"]["sources"]["fetched"]["paths"] == [str(out)]
    (tmp_path / "r.toml").write_text(section)
    assert main(["prepare", str(tmp_path / "r.toml"), "--out", str(tmp_path / "data"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["kept"]["rows"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "there is no corpus 'nowhere'"),
        (["wikipedia", "de"], "'de': write KEY=VALUE"),
        (["wikipedia", "tongue=de"], "wikipedia has no variable 'tongue'"),
    ],
)
def test_errors_name_the_remedy(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["fetch", *words, "-n"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("corpus", CORPORA.values(), ids=CORPORA)
def test_the_page_says_what_the_table_says(corpus: PublicCorpus):
    page = (Path(__file__).parents[3] / "docs" / "sources.md").read_text().partition("## Public corpora")[2]
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{corpus.name}` |"))
    assert all(text in row for text in (corpus.what, corpus.size, corpus.licence, corpus.note))
    assert all(f"<{cite}>" in row for cite in corpus.cites.split(", "))
