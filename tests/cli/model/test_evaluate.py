"""`hornbook eval`: figures of a run and of files, and what it refuses to score."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.text.tokenizer.tokenizer import Tokenizer

Launch = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, launch_run: Launch, tiny_corpus: Path) -> Path:
    """A finished run over its own copy of the corpus."""
    shutil.copytree(tiny_corpus, tmp_path / "data")
    launch_run(tmp_path / "run", f"data.path={tmp_path / 'data'}")
    return tmp_path / "run"


def figures(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_a_run_is_scored_per_source_and_in_all(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--baselines", "--json"]) == 0
    found = figures(capsys)
    assert set(found["sources"]) == {"notes", "prose"}
    for key in ("tokens", "bytes"):
        assert found[key] == sum(source[key] for source in found["sources"].values())
    assert found["bits_per_byte"] > 0
    assert set(found["baselines"]) == {"gzip_per_document", "gzip_concatenated", "unigram"}


@pytest.mark.parametrize("words", [(), ("data.objective.kind=prefix",)], ids=["causal", "prefix"])
def test_the_last_checkpoint_has_one_figure(
    tmp_path: Path, launch_run: Launch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """`eval`, the run's own last evaluation, `train --json` and `runs ls` say the same, to the last bit, on the same
    number of threads: `eval` takes all, and matrix products of one thread and of two differ in rounding on some CPUs.
    """
    launch_run(tmp_path / "run", "train.threads=0", "eval.tokens=96", "eval.every=6", *words)
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--json"]) == 0
    found = figures(capsys)
    record = json.loads((tmp_path / "run" / "evals" / "step-00000012.json").read_text())
    assert record["whole"]["all"].items() <= found.items()
    assert record["whole"]["sources"] == found["sources"]
    assert record["whole"]["rows"] == found["rows"]
    assert record["all"]["read"] <= 2 * 96 < found["read"] == found["of"] == record["all"]["of"]
    assert main(["runs", "ls", str(tmp_path), "--json"]) == 0
    (row,) = figures(capsys)["runs"]
    assert row["bits_per_byte"] == found["bits_per_byte"]
    assert row["coverage"] == f"all {found['of']:,} tokens"
    assert main(["resume", str(tmp_path / "run"), "--json"]) == 0  # a finished run: it is not scored again
    assert figures(capsys)["evaluation"]["bits_per_byte"] == found["bits_per_byte"]
    assert json.loads((tmp_path / "run" / "evals" / "step-00000012.json").read_text()) == record


def test_files_are_scored_by_path_or_glob(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["one two three four", "five six seven eight nine"]
    for number, text in enumerate(texts):
        (tmp_path / f"text-{number}.txt").write_text(text)
    assert main(["eval", str(run), "--data", str(tmp_path / "text-0.txt"), "--json"]) == 0
    one = figures(capsys)
    assert one["bytes"] == len(texts[0])
    assert set(one["sources"]) == {"text-0"}
    assert main(["eval", str(run), "--data", str(tmp_path / "*.txt"), "--json"]) == 0
    assert figures(capsys)["bytes"] == sum(map(len, texts))


def test_rows_that_cannot_be_read_are_counted_and_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"text": "one two three"}\n' * 2 + b'{"content": "four"}\n' * 3 + b'{"text": "caf\xe9"}\n')
    for words in ((), ("--compare", str(run))):
        assert main(["eval", str(run), "--data", str(bad), *words]) == 0
        text = " ".join(capsys.readouterr().err.split())
        assert "rows that cannot be read, left out: 4: " in text
        assert "bad.jsonl:3: missing text" in text
        assert main(["eval", str(run), "--data", str(bad), *words, "--json"]) == 0
        found = figures(capsys)
        assert found["skipped"]["rows"] == sum(found["skipped"]["reasons"].values()) == 4
        assert found["skipped"]["first"].startswith(f"{bad}:3: ")
    assert main(["eval", str(run), "--json"]) == 0
    assert "skipped" not in figures(capsys)


def test_tokens_of_another_tokenizer_are_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = tmp_path / "data" / "tokens" / "index.json"
    changed = json.loads(index.read_text()) | {"tokenizer_digest": "0" * 32}
    index.write_text(json.dumps(changed))
    assert main(["eval", str(run), "--json"]) == 3
    assert "another tokenizer" in capsys.readouterr().err
    assert Tokenizer.load(tmp_path / "data" / "tokenizer").digest != "0" * 32


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err


def test_tasks_are_named_by_kind_or_written_as_in_a_recipe(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["eval", str(run), "--tasks", "copy, arithmetic", "--json"]) == 0
    by_kind = figures(capsys)["tasks"]
    assert main(["eval", str(run), "--tasks", '[{kind = "copy"}, {kind = "arithmetic", items = 4}]', "--json"]) == 0
    written = figures(capsys)["tasks"]
    assert by_kind["copy"] == written["copy"]
    assert (by_kind["arithmetic"]["items"], written["arithmetic"]["items"]) == (100, 4)
    assert main(["eval", str(run), "--tasks", "cloze"]) == 0
    assert "cloze: accuracy 0." in capsys.readouterr().err
    assert main(["eval", str(run), "--tasks", "no_such"]) == 2
    assert "eval.tasks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            ["--harness", "x", "--tasks", "copy", "--data", "f"],
            "with --harness, --data and --tasks would change nothing",
        ),
        (["--bos"], "with no --harness, --bos would change nothing"),
        (["--compare", "b", "--baselines"], "with --compare, --baselines would change nothing"),
    ],
)
def test_options_that_would_change_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    assert main(["eval", str(tmp_path), *words]) == 2
    assert named in " ".join(capsys.readouterr().err.split())
