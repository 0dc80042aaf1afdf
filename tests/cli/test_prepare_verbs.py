"""`hornbook prepare report | review | curve | classifier`, as a person types them."""

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hornbook.cli.main import main

Output = Callable[..., tuple[int, str]]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    """Run a command line: (exit code, what stands on stdout)."""

    def call(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["prepare", *(str(word) for word in words)])
        return code, capsys.readouterr().out

    return call


@pytest.fixture
def data(tmp_path: Path, output: Output) -> Path:
    for kind, words in (("good", "a careful proof of the theorem"), ("bad", "buy cheap pills now")):
        rows = [json.dumps({"text": f"{words} {number}"}) + "\n" for number in range(20)]
        (tmp_path / f"{kind}.jsonl").write_text("".join(rows) + rows[0])
    code, text = output(
        "classifier", "--out", tmp_path / "quality", "--good", tmp_path / "good.jsonl", "--bad", tmp_path / "bad.jsonl"
    )
    assert code == 0
    assert "accuracy 100.0%" in text
    step = f'{{kind = "classifier", model = "{tmp_path / "quality"}"}}'
    words = [tmp_path / "good.jsonl", tmp_path / "bad.jsonl", "--out", tmp_path / "data"]
    assert output(*words, f'text.steps=[{{kind="exact_dedup"}}, {step}]')[0] == 0
    return tmp_path / "data"


def test_report(data: Path, output: Output):
    code, text = output("report", data, "--json")
    assert code == 0
    value = json.loads(text)
    assert "score of quality" in Path(value["page"]).read_text()
    assert Path(value["card"]).read_text().startswith("# Data card: data")
    assert output("report", data.parent)[0] == 2
    assert output(data.parent / "good.jsonl", "--out", data, "--dry-run")[0] == 0


def test_review_keeps_labels(data: Path, output: Output, monkeypatch: pytest.MonkeyPatch):
    assert "nothing is judged yet" in output("review", data)[1]
    said = iter(["y", "?", "n", "y", "q"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(said))
    code, text = output("review", data, "--rule", "score of quality")
    assert code == 0
    assert text.splitlines()[1].split() == ["score", "of", "quality", "3", "2", "67%", "21%", "to", "94%"]
    value = json.loads(output("review", data, "--json")[1])
    assert value["rules"]["score of quality"]["right"] == 2
    assert output("review", data, "--rule", "no rule")[0] == 2


def test_names_in_archives_do_not_steer_the_terminal(
    tmp_path: Path, output: Output, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "400")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("\x1b[2Jnow.txt", "text \x1b[2J")
    assert output(tmp_path / "a.zip", "--out", tmp_path / "data", "text.steps=[]")[0] == 0
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: "q")
    assert main(["prepare", "review", str(tmp_path / "data")]) == 0
    shown = capsys.readouterr()
    assert "now.txt" in shown.err
    assert "\x1b[2J" not in shown.err + shown.out


def test_curve(data: Path, output: Output):
    code, text = output("curve", data, "classifier.threshold", "0", "0.5", "1", "--json")
    assert code == 0
    points = json.loads(text)["points"]
    assert [point["documents"] for point in points] == [40, 20, 0]
    assert points[1]["groups"] == {"source good": 1.0, "source bad": 0.0}
    assert "0.5 (now)" in output("curve", data, "classifier.threshold")[1]
    assert output("curve", data, "threshold")[0] == 2
    assert output("curve", data, "classifier.nothing", "1")[0] == 2


@pytest.mark.parametrize("words", [("classifier", "--bad", "BAD"), ("perplexity",)])
def test_rows_that_cannot_be_read_are_counted_and_named(tmp_path: Path, output: Output, words: tuple[str, ...]):
    for name in ("good", "bad"):
        rows = [json.dumps({"text": f"a {name} row {number}"}) + "\n" for number in range(40)]
        (tmp_path / name).with_suffix(".jsonl").write_text("".join([*rows, *['{"content": "other"}\n'] * 3]))
    given = [str(tmp_path / "bad.jsonl") if word == "BAD" else word for word in words]
    code, text = output(*given, "--good", tmp_path / "good.jsonl", "--out", tmp_path / "made", "--json")
    files, skipped = len(words) // 3 + 1, json.loads(text)["skipped"]
    assert (code, skipped["rows"], skipped["reasons"]) == (0, 3 * files, {"missing text": 3 * files})
    assert skipped["first"].startswith(f"{tmp_path / 'good.jsonl'}:41: missing text: no key 'text'")


def test_too_few_samples_and_a_wrong_word_are_named(tmp_path: Path, output: Output):
    (tmp_path / "few.txt").write_text("one")
    words = ["--out", tmp_path / "c", "--good", tmp_path / "few.txt", "--bad", tmp_path / "few.txt"]
    assert output("classifier", *words)[0] == 2
    assert output("classifier", *words, "--words", "letters")[0] == 2


def test_shares_are_checked(tmp_path: Path, output: Output):
    (tmp_path / "a.txt").write_text("text")
    for words in (["--shard", "0/2"], ["--shard", "3/2"], ["--shard", "x"], ["--phase", "sort"], ["--on", "moon"]):
        assert output(tmp_path / "a.txt", "--out", tmp_path / "data", "--phase", "measure", *words)[0] == 2
    assert output(tmp_path / "a.txt", "--out", tmp_path / "data", "--shard", "1/2")[0] == 2
    for option in ("--dry-run", "--overwrite"):
        assert output(tmp_path / "a.txt", "--out", tmp_path / "data", "--phase", "measure", option)[0] == 2
    assert not (tmp_path / "data").exists()
    for phase in ("measure", "decide", "write"):
        assert output(tmp_path / "a.txt", "--out", tmp_path / "data", "--phase", phase, "--shard", "1/1")[0] == 0
    assert output(tmp_path / "a.txt", "--out", tmp_path / "data")[0] == 0
