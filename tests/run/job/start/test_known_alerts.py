"""A run that somebody else made runs no command, posts nothing and writes nowhere else when it is resumed or forked."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.job import Start
from hornbook.run.job.start.known_alerts import KEY, keep_alerts, refuse_unknown_alerts
from hornbook.run.launch.launch import check_start
from hornbook.run.ledger.interventions import Intervention, SettingChange
from hornbook.run.ledger.ledger import At, Ledger
from hornbook.settings.resolve import Resolved, resolve

Launch = Callable[..., Exit]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home of this user, where no alert is known."""
    monkeypatch.setenv("HORNBOOK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def settings(alert: str, origin: str = "run/recipe.toml:7") -> Resolved:
    found = resolve(None, [f"{KEY}=[{alert}]"], environ={})
    return Resolved(found.recipe, found.origins | {KEY: origin})


@pytest.mark.parametrize(
    "alert",
    [
        '{kind = "command", argv = ["touch", "/elsewhere"]}',
        '{kind = "webhook", url = "http://localhost/hook"}',
        '{kind = "file", path = "/elsewhere"}',
        '{kind = "file", path = "../elsewhere"}',
        '{kind = "file", path = "link.jsonl"}',
    ],
)
def test_what_reaches_out_of_the_folder_must_be_known(tmp_path: Path, home: Path, alert: str) -> None:
    run, environ = RunDir(tmp_path / "run").create(), {"HORNBOOK_HOME": str(home)}
    (run.path / "link.jsonl").symlink_to(tmp_path / "outside")
    foreign = settings(alert)
    with pytest.raises(UsageError, match=r"log\.alerts \(run/recipe\.toml:7\) names .*HORNBOOK_TRUST_PARTS=1"):
        refuse_unknown_alerts(foreign, run, environ)
    refuse_unknown_alerts(foreign, run, environ | {"HORNBOOK_TRUST_PARTS": "1"})
    for origin in ("command line", "environment HORNBOOK_SET", "environment HORNBOOK__LOG__ALERTS"):
        refuse_unknown_alerts(settings(alert, origin), run, environ)
    with pytest.raises(UsageError):
        refuse_unknown_alerts(settings(alert, "environment HORNBOOK_SET/recipe.toml:3"), run, environ)
    keep_alerts(foreign, run, environ)
    refuse_unknown_alerts(foreign, run, environ)


@pytest.mark.parametrize("alert", ['{kind = "terminal"}', '{kind = "file"}', '{kind = "file", path = "sub/a.jsonl"}'])
def test_what_stays_in_the_folder_is_taken(tmp_path: Path, home: Path, alert: str) -> None:
    refuse_unknown_alerts(settings(alert), RunDir(tmp_path / "run"), {"HORNBOOK_HOME": str(home)})


def test_a_home_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    keep_alerts(settings('{kind = "command", argv = ["a"]}'), RunDir("run"), {"HORNBOOK_HOME": str(tmp_path / "file")})


def test_a_command_in_the_recipe_of_a_foreign_run_does_not_run(
    tmp_path: Path, home: Path, launch_run: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    touched, run = tmp_path / "touched", RunDir(tmp_path / "run").create()
    write_request(run, Request(action="stop", at_step=5))
    assert launch_run(run.path) == Exit.RESUMABLE
    text, alert = run.recipe.read_text(), f'alerts = [{{ kind = "command", argv = ["touch", "{touched}"] }}]'
    assert "\nalerts = []" in text
    run.recipe.write_text(text.replace("\nalerts = []", f"\n{alert}"))
    line = run.recipe.read_text().partition(alert)[0].count("\n") + 1
    for command in (["resume", str(run.path)], ["resume", str(run.path), "-n"]):
        assert main(command) == Exit.USAGE
        assert f"log.alerts ({run.recipe}:{line}) names" in capsys.readouterr().err
    assert main(["resume", str(run.path), "--log.alerts", "[]"]) == Exit.DONE
    assert not touched.exists()
    assert not (home / "alerts").exists()


def test_the_ledger_of_a_foreign_run_names_no_alerts_either(tmp_path: Path, launch_run: Launch) -> None:
    """Where a run was told settings, it goes on from the recipe in its ledger: alerts are those that were checked."""
    run = RunDir(tmp_path / "run").create()
    write_request(run, Request(action="stop", at_step=5))
    alerts = [{"kind": "command", "argv": ["mail-me"], "events": ["fail"]}]
    on = 'log.alerts=[{kind = "command", argv = ["mail-me"], events = ["fail"]}]'
    assert launch_run(run.path, on) == Exit.RESUMABLE
    with Ledger(run) as ledger:
        ledger.attempt -= 1
        fields = Intervention(5, 640, (SettingChange(KEY, alerts, []),)).fields()
        ledger.note("intervention", At(5, 640), **fields)
    resolved = resolve(str(run.recipe), [f"{KEY}=[]"], environ={})
    assert check_start(resolved, run, Start("resume"))[1].recipe.log.alerts == []


def test_ones_own_run_goes_on_and_is_forked_without_a_word(
    tmp_path: Path, home: Path, tiny_settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    got, run = tmp_path / "got.json", RunDir(tmp_path / "run").create()
    copy = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"
    alert = json.dumps([sys.executable, "-c", copy, str(got)])
    write_request(run, Request(action="stop", at_step=5))
    on = f'log.alerts=[{{kind = "command", argv = {alert}, events = ["finish"]}}]'
    assert main(["train", "--out", str(run.path), *tiny_settings, on]) == Exit.RESUMABLE
    assert [each.stat().st_size for each in (home / "alerts").iterdir()] == [0]
    capsys.readouterr()
    assert main(["resume", str(run.path)]) == Exit.DONE
    assert "alerts" not in capsys.readouterr().err
    assert main(["fork", str(run.path), "--at", "5", "--out", str(tmp_path / "fork")]) == Exit.DONE
    next((home / "alerts").iterdir()).unlink()
    assert main(["fork", str(run.path), "--at", "5", "--out", str(tmp_path / "fork2")]) == Exit.USAGE
