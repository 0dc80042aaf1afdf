"""`hornbook prepare bias`, as a person types it."""

import json
from pathlib import Path

import pytest

from hornbook.cli.main import main


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows = [
        f"{who} was a {job}, says letter {n}." for n in range(60) for who, job in (("She", "nurse"), ("He", "judge"))
    ]
    (tmp_path / "letters.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return tmp_path / "letters.jsonl"


def test_what_stands_out(texts: Path, capsys: pytest.CaptureFixture[str]):
    """The interval: 1.96 / sqrt(120) / ln 2, for each document moves ln PMI by 1 / 120."""
    data = texts.parent / "data"
    assert main(["prepare", str(texts), "--out", str(data), 'text.steps=[{kind="mentions", window="sentence"}]']) == 0
    capsys.readouterr()
    assert main(["prepare", "bias", str(data)]) == 0
    assert capsys.readouterr().out == (
        "mentions: terms en; near is the sentence\n\n"
        "letters: 120 documents mention women 60 times (50%), men 60 times (50%)\n"
        "group  with    times  expected  PMI as read  now    95 % interval\n"
        "men    lawyer  60     30.0      +1.00        +1.00  +0.74 to +1.26\n"
        "women  nurse   60     30.0      +1.00        +1.00  +0.74 to +1.26\n"
    )
    assert main(["prepare", "bias", str(data), "--top", "1"]) == 0
    assert capsys.readouterr().out.endswith("and 1 more: --top 2\n")
    assert main(["prepare", "bias", str(data), "--json"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    never = next(each for each in step["sources"][0]["pairs"] if (each["group"], each["attribute"]) == ("men", "nurse"))
    assert (never["together"], never["expected"], never["pmi"], never["npmi"]) == (0, 30, None, -1)


def test_where_nobody_counted(texts: Path, capsys: pytest.CaptureFixture[str]):
    data = texts.parent / "data"
    assert main(["prepare", str(texts), "--out", str(data)]) == 0
    assert main(["prepare", "bias", str(data)]) == 2
    assert 'add {kind = "mentions"} to text.steps' in capsys.readouterr().err


def test_terms_are_looked_at_before_text(texts: Path, capsys: pytest.CaptureFixture[str]):
    wrong = texts.parent / "terms.toml"
    wrong.write_text('[groups]\na = ["x"]\nb = ["x"]\n[attributes]\nc = ["y"]\n')
    step = f'{{kind="mentions", terms="{wrong}"}}'
    assert main(["prepare", str(texts), "--out", str(texts.parent / "data"), f"text.steps=[{step}]"]) == 2
    assert f"{wrong}: 'x' is in groups.a and in groups.b: leave it in one" in capsys.readouterr().err
    gone = '{kind="mentions", terms="eng"}'
    assert main(["prepare", str(texts), "--out", str(texts.parent / "data"), f"text.steps=[{gone}]"]) == 2
    assert "eng" in capsys.readouterr().err
