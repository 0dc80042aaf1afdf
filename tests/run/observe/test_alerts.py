"""Alerts reach file, command and webhook, and what fails or hangs there neither stops nor slows the run."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import DivergedError, Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.job.job import Start
from hornbook.run.job.run_inputs import open_inputs
from hornbook.run.job.signals import StopSignals
from hornbook.run.launch.launch import _follow
from hornbook.run.ledger.ledger import At
from hornbook.run.observe.alerts import LAST_SECONDS, Alerts, await_deliveries, event_of, name_of
from hornbook.settings.resolve import resolve
from hornbook.settings.training import CommandAlert, FileAlert, TerminalAlert, WebhookAlert
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
RECORD = {"kind": "finish", "attempt": 1, "step": 12, "tokens": 1450, "time": 1.0}


@pytest.fixture
def server() -> Iterator[Any]:
    """A web server that keeps what is posted."""
    posted: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.path, json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    found = HTTPServer(("127.0.0.1", 0), Handler)
    found.posted = posted  # pyright: ignore[reportAttributeAccessIssue]
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def wait_for(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := what()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_each_kind_is_told_of_the_events_it_asks_for(
    tmp_path: Path, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_port}/hook")
    got, run = tmp_path / "got.json", RunDir(tmp_path)
    copy = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"
    alerts = Alerts(
        [
            FileAlert(),
            CommandAlert(argv=[sys.executable, "-c", copy, str(got)]),
            WebhookAlert(url="env:HOOK", events=["finish"]),
        ],
        run,
    )
    alerts({**RECORD, "kind": "save"})
    alerts(RECORD)
    expected = {"event": "finish", "run": tmp_path.name, "step": 12, "tokens": 1450, "text": ""}
    assert wait_for(lambda: server.posted)
    assert server.posted[0][0] == "/hook"
    command = json.loads(wait_for(lambda: got.exists() and got.read_text()))
    line = json.loads((tmp_path / "alerts.jsonl").read_text())
    for found in (server.posted[0][1], command, line):
        assert expected.items() <= found.items()
    assert len(server.posted) == 1


def test_what_fails_is_told_once_and_what_hangs_is_not_waited_for(tmp_path: Path) -> None:
    shown: list[str] = []
    broken = CommandAlert(argv=[str(tmp_path / "no-such-program")])
    slow = CommandAlert(argv=[sys.executable, "-c", "import time; time.sleep(5)"])
    alerts = Alerts([broken, slow, FileAlert(path="no/such/folder")], RunDir(tmp_path))
    alerts.show = shown.append
    started = time.monotonic()
    alerts(RECORD)
    assert time.monotonic() - started < 2
    assert wait_for(lambda: (alerts({**RECORD, "kind": "save"}), len(shown) == 2)[1])
    alerts(RECORD)
    time.sleep(0.5)
    alerts(RECORD)
    assert [text.partition(":")[0] for text in shown] == ["warning"] * 2
    assert "no/such/folder" in shown[0]
    assert f"(command {tmp_path / 'no-such-program'}): exit code 127" in shown[1]


def test_what_fails_is_named_by_program_or_host_alone() -> None:
    assert name_of(CommandAlert(argv=["mail-me", "--to", "a"])) == "command mail-me"
    assert name_of(WebhookAlert(url="https://me:word@hooks.example:8443/T0/secret?a=b")) == (
        "webhook https://hooks.example:8443"
    )
    assert name_of(WebhookAlert(url="env:HOOK")) == "webhook env:HOOK"
    assert name_of(FileAlert()) == "file"


def test_an_event_without_a_text_ends_without_a_colon(tmp_path: Path) -> None:
    shown: list[str] = []
    alerts = Alerts([TerminalAlert(events=["finish", "spike"])], RunDir(tmp_path / "a"))
    alerts.show = shown.append
    alerts(RECORD)
    alerts({**RECORD, "kind": "spike", "text": "loss 9"})
    assert shown == ["alert: finish at step 12 of a", "alert: spike at step 12 of a: loss 9"]


def test_the_alert_of_the_last_event_is_told_to_have_failed(
    tmp_path: Path, launch_run: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = json.dumps([sys.executable, "-c", "raise SystemExit(3)"])
    on = f'log.alerts=[{{kind = "command", argv = {argv}}}]'
    told = f"warning: an alert could not be given (command {sys.executable}): exit code 3"
    assert launch_run(tmp_path / "good", on) == Exit.DONE
    assert told in capsys.readouterr().err
    with pytest.raises(DivergedError):
        launch_run(tmp_path / "bad", on.replace("argv =", 'events = ["fail"], argv ='), "optim.lr=1e30", "optim.clip=0")
    assert told in capsys.readouterr().err


def test_the_end_of_a_run_waits_two_seconds_for_deliveries_in_all(tmp_path: Path) -> None:
    hangs = CommandAlert(argv=[sys.executable, "-c", "import time; time.sleep(6)"])
    alerts = Alerts([hangs, hangs, hangs], RunDir(tmp_path))
    started = time.monotonic()
    alerts(RECORD)
    await_deliveries()
    await_deliveries()
    assert LAST_SECONDS <= time.monotonic() - started < LAST_SECONDS + 1.5


def test_a_run_alerts_of_its_end_and_of_its_failure(tmp_path: Path, launch_run: Launch) -> None:
    on = 'log.alerts=[{kind = "file"}, {kind = "terminal"}]'
    assert launch_run(tmp_path / "good", on) == Exit.DONE
    with pytest.raises(DivergedError):
        launch_run(tmp_path / "bad", on, "optim.lr=1e30", "optim.clip=0", "guard.max_skips=1")
    events = [
        [json.loads(line)["event"] for line in (tmp_path / name / "alerts.jsonl").read_text().splitlines()]
        for name in ("good", "bad")
    ]
    assert events == [["finish"], ["pause", "fail"]]
    assert "alert: finish at step 12" in RunDir(tmp_path / "good").log.read_text()


def test_a_rank_that_joins_an_attempt_alerts_too(tmp_path: Path, launch_run: Launch) -> None:
    """One that waited on standby opens the ledger itself."""
    assert launch_run(tmp_path / "run", "log.alerts=[{kind = 'file'}]") == Exit.DONE
    run = RunDir(tmp_path / "run")
    inputs = open_inputs(resolve(str(run.recipe), environ={}))
    job = _follow(inputs, run, Start("resume"), StopSignals(), 1, silent=False)
    with job.ledger:
        job.ledger.note("spike", At(1, 128), text="a test")
    told = [json.loads(line)["event"] for line in (run.path / "alerts.jsonl").read_text().splitlines()]
    assert told == ["finish", "spike"]


def test_the_supervisor_alerts_of_restarts_and_failures(
    tmp_path: Path, launcher: Launcher, tiny_settings: tuple[str, ...]
) -> None:
    on = ('log.alerts=[{kind = "file", events = ["restart", "fail", "finish"]}]', "checkpoint.background=false")
    kill = {"rank": 1, "phase": "clip", "step": 6, "generation": 0, "do": "SIGKILL"}
    error = {**kill, "step": 7, "generation": 1, "do": "KeyError"}
    words = ["train", "--out", str(tmp_path / "run"), *tiny_settings, "parallel.data=2", *on, "guard.max_restarts=1"]
    started = launcher.start(words, tmp_path / "log", faults=[kill, error])
    assert started.wait() == Exit.RETRIES_SPENT, started.text
    lines = (tmp_path / "run" / "alerts.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["restart", "fail"]


def test_rank_0_of_several_tells_of_the_last_alert(
    tmp_path: Path, launcher: Launcher, tiny_settings: tuple[str, ...]
) -> None:
    on = 'log.alerts=[{kind = "command", argv = ["false"], events = ["finish"]}]'
    words = ["train", "--out", str(tmp_path / "run"), *tiny_settings, "parallel.data=2", on]
    started = launcher.start(words, tmp_path / "log")
    assert started.wait() == Exit.DONE, started.text
    assert "warning: an alert could not be given (command false): exit code 1" in started.text


def test_a_recovery_is_no_alert_and_a_failed_save_is_one_of_the_disk() -> None:
    assert event_of({"kind": "straggler", "ended": True}) == ""
    assert event_of({"kind": "straggler"}) == "straggler"
    assert event_of({"kind": "warning", "text": "the save failed: no space"}) == "disk"
    assert event_of({"kind": "warning", "text": "recipe.toml was edited"}) == "warning"
