"""`hornbook rehearse`: what it prints and how it ends; the rehearsal itself is in tests/run/diagnose/rehearsal."""

import json
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.cli.train import rehearse
from hornbook.errors import Exit
from hornbook.run.diagnose.rehearsal.play import Played

GOOD = Played("kill -9", "ranks restart, equal", "exit 0; 1 restart", 1.5, (2,))
BAD = Played("a full disk", "goes on, equal", "exit 7", 0.0, (28,), ["exit codes 7 instead of 0"])
SKIPPED = Played("kill -9 of both", "ranks restart, equal", skipped="needs 2 ranks, the run has 1")


@pytest.mark.parametrize(("played", "code"), [([GOOD, SKIPPED], Exit.DONE), ([GOOD, BAD], Exit.INTEGRITY)])
def test_a_case_that_fails_is_in_the_table_and_in_the_exit_code(
    tmp_path: Path,
    tiny_corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    played: list[Played],
    code: Exit,
) -> None:
    monkeypatch.setattr(rehearse, "_play", lambda *_, **__: iter(played))
    words = ["rehearse", "tiny", "--data", str(tiny_corpus), "--out", str(tmp_path / "out"), "--json"]
    assert main(words) == code
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["passed"], found["skipped"], found["failed"]) == (1, int(SKIPPED in played), int(BAD in played))
    assert found["cases"][0]["seconds_lost"] == 1.5
    assert ("FAILED" in err) == (BAD in played)
    assert ("skipped" in err) == (SKIPPED in played)
    assert found["cases"][-1]["skipped"] == played[-1].skipped


def test_a_recipe_that_is_not_there_is_told_before_anything_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", "tinny"]) == Exit.USAGE
    assert "there is no recipe tinny" in capsys.readouterr().err
