"""`hornbook prepare perplexity`, as a person types it, from good text to what the score drops and the curve says."""

import json
from pathlib import Path

import pytest

from hornbook.cli.main import main


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["prepare", *(str(word) for word in words)])
    return code, capsys.readouterr().out


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_train_drop_and_move_the_threshold(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    good = write(tmp_path / "good.jsonl", [f"The scheduler moves task {n} to another queue.\n" * 3 for n in range(60)])
    odd = write(tmp_path / "odd.jsonl", [f"QXZ#{n * 7919}~~{n * 104729}!?^" * 3 for n in range(20)])
    model = tmp_path / "lm.safetensors"
    code, text = call(capsys, "perplexity", "--good", good, "--out", model, "--order", 5)
    assert code == 0
    assert "of up to 5 bytes, of 57 documents" in text
    assert text.count("% at most") == 5
    steps = f'text.steps=[{{kind = "perplexity", model = "{model}", maximum = 2}}]'
    code, text = call(capsys, good, odd, "--out", tmp_path / "data", steps, "--json")
    assert code == 0
    assert json.loads(text)["sources"]["odd"]["dropped"] == {"perplexity of lm too high": {"rows": 20, "bytes": 1221}}
    code, text = call(capsys, "curve", tmp_path / "data", "perplexity.maximum", 0, 2, 20, "--json")
    assert [point["documents"] for point in json.loads(text)["points"]] == [0, 60, 80]


def test_bad_requests_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    few = write(tmp_path / "few.jsonl", ["one", "two"])
    assert call(capsys, "perplexity", "--good", few, "--out", tmp_path / "lm")[0] == 2
    assert call(capsys, "perplexity", "--good", tmp_path / "none", "--out", tmp_path / "lm")[0] == 2
    assert call(capsys, "perplexity", "--good", few, "--out", tmp_path / "lm", "--order", 9)[0] == 2
    assert not (tmp_path / "lm").exists()
    steps = f'text.steps=[{{kind = "perplexity", model = "{few}"}}]'
    assert call(capsys, few, "--out", tmp_path / "data", steps)[0] == 3
