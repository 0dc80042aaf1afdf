"""What the dashboard answers: runs, curves, events, settings, requests of people; and what it does with odd input."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from starlette.testclient import TestClient

from hornbook.errors import Exit
from hornbook.studio.live.app import Dashboard, _news, build_app
from hornbook.studio.live.run_view import Runs
from tests.studio.conftest import MakeRun, score

ORIGIN = "http://127.0.0.1:8765"
EVENTS = [
    {"kind": "start", "step": 0, "recipe": {"secret": 1}},
    {"kind": "rollback", "step": 3, "reason": "a spike"},
    {"kind": "plan", "step": 4, "predicted_bytes": 5, "measured_bytes": 6, "text": "plan said"},
]


def enter(folder: Path, *, read_only: bool = False) -> TestClient:
    client = TestClient(build_app(Dashboard(Runs([folder]), read_only=read_only), "secret"), base_url=ORIGIN)
    assert client.get("/?token=secret").status_code == 200
    return client


def ask(client: TestClient, **wish: Any) -> tuple[int, dict[str, Any]]:
    answer = client.post("/api/runs/a/ask", json=wish, headers={"x-hornbook": "1", "origin": ORIGIN})
    return answer.status_code, answer.json()


@pytest.fixture
def client(make_run: MakeRun, tmp_path: Path) -> TestClient:
    make_run("a", [4.0, None, 3.0, 2.0], events=EVENTS, scores={2: score(2.0), 4: score(1.0)})
    make_run("b", [5.0])
    return enter(tmp_path)


def test_runs_and_one_of_them(client: TestClient, tmp_path: Path) -> None:
    rows = client.get("/api/runs").json()["runs"]
    assert [(row["name"], row["spark"]) for row in rows] == [("a", [4.0, 3.0, 2.0]), ("b", [5.0])]
    run = client.get("/api/runs/a").json()
    assert run["held_out"]["bits_per_byte"] == {"x": [2, 4], "y": [2.0, 1.0]}
    assert run["plan"] == {"predicted_bytes": 5, "measured_bytes": 6}
    assert [(event["kind"], event["facts"]) for event in run["events"][:2]] == [
        ("start", {}),
        ("rollback", {"reason": "a spike"}),
    ]
    curves = client.get("/api/runs/a/curves").json()
    assert curves["curves"]["loss"] == {"x": [1, 2, 3, 4], "y": [4.0, None, 3.0, 2.0]}
    assert (curves["last"], curves["every"], curves["points"]) == (4, 1, 4)
    assert curves["offset"] == (tmp_path / "a" / "metrics.jsonl").stat().st_size


def test_settings_have_their_origins(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "b" / "recipe.toml").write_text(
        'seed = 1   # default\n\n[optim]\nlr = 0.1 # command line\nx = "a # b"\n'
    )
    rows = client.get("/api/runs/b/settings").json()["settings"]
    assert rows[:2] == [
        {"key": "seed", "value": "1", "origin": "default"},
        {"key": "optim.lr", "value": "0.1", "origin": "command line"},
    ]


def test_layers_are_a_row_for_each_moment(client: TestClient, tmp_path: Path) -> None:
    assert client.get("/api/runs/a/layers").json()["layers"] == []
    record = {"attempt": 1, "step": 2, "layers": ["embedding", "norm"], "gradient_norm": [1.0, None], "log_z": 2.0}
    (tmp_path / "a" / "statistics.jsonl").write_text(json.dumps(record) + "\n")
    found = client.get("/api/runs/a/layers").json()
    assert found == {"steps": [2], "layers": ["embedding", "norm"], "statistics": {"gradient_norm": [[1.0, None]]}}


def test_a_request_is_checked_and_then_written_for_the_run(client: TestClient, tmp_path: Path) -> None:
    control = tmp_path / "a" / "control"
    assert ask(client, action="save", reason="before lunch", at="+3", dry_run=True) == (
        200,
        {"changes": [], "written": False},
    )
    assert list(control.iterdir()) == []
    assert ask(client, action="save", reason="before lunch")[0] == 200
    (file,) = control.iterdir()
    assert json.loads(file.read_text()) == {"action": "save", "reason": "before lunch"}


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"action": "save"}, "reason"),
        ({"action": "save", "reason": "  "}, "give a reason"),
        ({"action": "explode", "reason": "x"}, "'save', 'stop' or 'set'"),
        ({"action": "set", "reason": "x"}, "needs some"),
        ({"action": "save", "reason": "x", "at": "soon"}, "--at soon"),
        ({"action": "save", "reason": "x" * 70_000}, "too long"),
        ({"action": "save", "reason": "x", "other": 1}, "other"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(
    client: TestClient, tmp_path: Path, wish: dict[str, Any], text: str
) -> None:
    status, answer = ask(client, **wish)
    assert (status, list((tmp_path / "a" / "control").iterdir())) == (400, [])
    assert text in answer["error"]


def test_a_dashboard_that_only_shows_writes_nothing(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", [4.0])
    status, answer = ask(enter(tmp_path, read_only=True), action="stop", reason="x")
    assert (status, list((tmp_path / "a" / "control").iterdir())) == (400, [])
    assert "--read-only" in answer["error"]


@pytest.mark.parametrize("query", ["low=x", "low=nan", "high=1e999", "low=9&high=3"])
def test_ranges_that_are_none_are_refused(client: TestClient, query: str) -> None:
    answer = client.get(f"/api/runs/a/curves?{query}")
    assert answer.status_code == 400
    assert query.split("=", maxsplit=1)[0] in answer.json()["error"]


def test_a_range_beyond_the_run_and_any_width_are_drawn(client: TestClient) -> None:
    for query in ("low=900&high=1000", "low=-5&high=1e300", "columns=-3", "columns=1e300"):
        assert client.get(f"/api/runs/a/curves?{query}").status_code == 200


def test_a_run_that_is_deleted_or_damaged_meanwhile_is_told(client: TestClient, tmp_path: Path) -> None:
    with (tmp_path / "b" / "events.jsonl").open("a") as file:
        file.write("{torn\n")
    assert any("events.jsonl" in problem for problem in client.get("/api/runs/b").json()["problems"])
    shutil.rmtree(tmp_path / "a")
    answer = client.get("/api/runs/a/curves")
    assert (answer.status_code, "deleted" in answer.json()["error"]) == (400, True)
    assert client.get("/api/runs/..%2fetc").status_code in (400, 404)


def test_new_steps_come_with_the_offset_to_go_on_from(make_run: MakeRun) -> None:
    run = make_run("a", [4.0, 3.0])

    async def first_messages() -> list[str]:
        stream = _news(run, 0, asyncio.Event())
        one = await anext(stream)
        with run.metrics.open("a") as file:
            file.write(json.dumps({"attempt": 1, "step": 3, "tokens": 300, "loss": 2.0}) + '\n{"step": 4')
        return [one, await anext(stream)]

    messages = asyncio.run(first_messages())
    news = [json.loads(message.partition("data: ")[2]) for message in messages]
    assert [[step["step"] for step in each["steps"]] for each in news] == [[1, 2], [3]]
    ids = [int(message.partition("\n")[0].removeprefix("id: ")) for message in messages]
    assert run.metrics.read_bytes()[ids[1] :] == b'{"step": 4'


def test_pages_and_their_parts_come_from_here_alone(client: TestClient) -> None:
    page = client.get("/run/a?tab=events").text
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', page):
        assert client.get(path).status_code in (200, 304), path
    assert not re.search(r'(?:src|href)="https?:', page)


def test_the_command_serves_until_a_signal_without_torch(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", [4.0])
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "hornbook",
        "watch",
        str(tmp_path),
        "--port",
        "0",
        "--no-browser",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        lines = list[str]()
        for line in process.stderr:
            lines.append(line)
            if "token=" in line:
                break
        link = re.search(r"(http://127.0.0.1:\d+)/\?token=\S+", lines[-1])
        assert link is not None
        browser = build_opener(HTTPCookieProcessor())
        assert b"<title>hornbook</title>" in browser.open(link[0], timeout=60).read()
        stream = browser.open(f"{link[1]}/api/runs/a/live", timeout=60)  # a page that stays open
        assert stream.readline().startswith(b"id: ")
        process.send_signal(signal.SIGTERM)
        assert stream.read().startswith(b"data: ")  # and ends with the server
        lines += process.stderr.readlines()
        assert process.wait(60) == Exit.DONE
    assert any("1 run in" in line for line in lines)
    assert not any("Traceback" in line for line in lines)
    assert not any(line.rstrip().endswith("| torch") for line in lines)


def test_the_link_is_printed_under_quiet_too(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", [4.0])
    command = [sys.executable, "-m", "hornbook", "watch", "-q", str(tmp_path / "a"), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert re.fullmatch(
            r"http://127.0.0.1:\d+/run/a\?token=\S+\n", process.stderr.readline()
        )  # its page, not the table
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == Exit.DONE


def test_the_page_of_a_run_to_come_ends_with_its_process(make_run: MakeRun, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from hornbook.cli.studio.watch import watch_beside\n"
        "from hornbook.files.run_directory import RunDir\n"
        "watch_beside(RunDir(pathlib.Path(sys.argv[1])))\n"
        "sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "runs" / "new run")]
    environment = os.environ | {"BROWSER": "true", "HORNBOOK_QUIET": "1"}
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen(words, **pipes) as process:
        assert process.stderr is not None
        assert process.stdin is not None
        line = process.stderr.readline()
        link = re.search(r"(http://127.0.0.1:\d+)/run/new%20run\?token=\S+", line)
        assert link is not None, line
        browser = build_opener(HTTPCookieProcessor())
        assert b"<title>hornbook</title>" in browser.open(link[0], timeout=60).read()
        assert json.loads(browser.open(f"{link[1]}/api/runs", timeout=60).read())["runs"] == []
        make_run("runs/new run", [4.0])
        assert json.loads(browser.open(f"{link[1]}/api/runs/new%20run", timeout=60).read())["name"] == "new run"
        process.stdin.close()
        assert process.wait(60) == 0
    for _ in range(600):
        try:
            browser.open(link[0], timeout=60)
        except OSError:
            return
        time.sleep(0.1)
    pytest.fail("the page is still served")
