"""Figures of the studio: how fast runs and explorers are on the page, and what the server takes.

    python -m benchmarks.studio.pages [--runs 50] [--steps 100000] [--folder FOLDER]

Makes runs with random walks as their curves, starts `hornbook watch` in a process of its own, and asks it as a browser
does: the table of runs, a run's curves at once and after a zoom, a run that grows ten steps a second, and answers of
every explorer to random questions. With Playwright and Chromium it also measures from a slider's event to the drawn
picture. `benchmarks.studio.peers` compares with other tools.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

import psutil

from benchmarks import report
from hornbook.studio.explore.explorer import Control, controls, explorer_names, load_explorer, value_text

QUESTIONS = 60
"""Random questions to each explorer."""
LIVE_SECONDS = 20
RATE = 10
"""Steps a second of the run that grows."""
SLIDES = 30


def write_runs(folder: Path, runs: int, steps: int) -> None:
    """Runs as a trainer leaves them, whose losses fall with noise; equal lines but for their numbers."""
    for number in range(runs):
        run = folder / f"run-{number:02d}"
        run.mkdir(parents=True)
        (run / "recipe.toml").write_text('name = "random"\n')
        draw, loss = random.Random(number), 10.0
        with (run / "metrics.jsonl").open("w") as file:
            for step in range(1, steps + 1):
                loss += 0.0001 * (3 - loss) + 0.01 * draw.gauss(0, 1)
                file.write(line_of(step, loss))
        state = {"status": "finished", "step": steps, "tokens": 256 * steps, "loss": loss, "time": time.time()}
        (run / "state.json").write_text(json.dumps(state))


def line_of(step: int, loss: float) -> str:
    """A record of metrics.jsonl with the fields that a run of one process writes."""
    row = {"attempt": 1, "step": step, "tokens": 256 * step, "loss": loss, "gradient_norm": 1 + 0.1 * loss, "lr": 1e-3}
    row |= {"tokens_per_second": 3000.5, "seconds": 0.085, "data_seconds": 0.0005, "step_tokens": 256}
    row |= {"token_hash": "59cdc96b56bde104", "first_sample": 4 * step, "num_samples": 4, "skipped": False}
    return json.dumps(row | {"time": 1.79e9 + step}) + "\n"


class Server:
    """`hornbook watch` of a folder, and a client that has its token."""

    def __init__(self, folder: Path) -> None:
        words = [sys.executable, "-m", "hornbook", "watch", str(folder), "--no-browser", "--port", "0"]
        started = time.perf_counter()
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert self.process.stderr is not None
        text = ""
        while (found := re.search(r"http://\S+/\?token=\S+", text)) is None:
            text += self.process.stderr.readline()
        self.link = found[0]
        self.start_seconds = time.perf_counter() - started
        self.root = self.link.split("/?")[0]
        self._opener: OpenerDirector = build_opener(HTTPCookieProcessor(CookieJar()))
        self._opener.open(self.link).read()

    def get(self, path: str) -> bytes:
        """The body of an answer."""
        return self._opener.open(self.root + path).read()

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return psutil.Process(self.process.pid).memory_info().rss

    @property
    def cpu_seconds(self) -> float:
        """User and system time so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server that ends with the block."""
    server = Server(folder)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait()


def seconds_of(act: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds, result)."""
    started = time.perf_counter()
    found = act()
    return time.perf_counter() - started, found


def measure_runs(folder: Path) -> dict[str, Any]:
    """The dashboard of many long runs."""
    with serving(folder) as server:
        start, idle = server.start_seconds, server.memory
        table, body = seconds_of(lambda: server.get("/api/runs"))
        first, curves = seconds_of(lambda: server.get("/api/runs/run-00/curves?columns=900"))
        again, _ = seconds_of(lambda: server.get("/api/runs/run-00/curves?columns=900"))
        zoom, _ = seconds_of(lambda: server.get("/api/runs/run-00/curves?columns=900&low=1000&high=3000"))
        found = {"start_seconds": start, "table_seconds": table, "table_bytes": len(body), "curves_bytes": len(curves)}
        found |= {"first_seconds": first, "again_seconds": again, "zoom_seconds": zoom}
        found |= {"memory_at_start": idle, "memory_after": server.memory}
        found |= measure_picture(f"{server.root}/run/run-00?{server.link.partition('?')[2]}", ".uplot canvas")
        return found | measure_live(server, folder / "run-01")


def measure_live(server: Server, run: Path) -> dict[str, float]:
    """CPU of the server while a page follows a run that grows."""
    lines = (run / "metrics.jsonl").read_bytes()
    step, offset = lines.count(b"\n"), len(lines)
    server.get(f"/api/runs/{run.name}/curves?columns=900")
    stream = server._opener.open(f"{server.root}/api/runs/{run.name}/live?after={offset}", timeout=60)
    before, began, news = server.cpu_seconds, time.perf_counter(), 0
    with (run / "metrics.jsonl").open("a") as file:
        for number in range(LIVE_SECONDS * RATE):
            file.write(line_of(step + number + 1, 3.0))
            file.flush()
            time.sleep(max(0.0, began + (number + 1) / RATE - time.perf_counter()))
    share = (server.cpu_seconds - before) / (time.perf_counter() - began)
    while news < LIVE_SECONDS * RATE:
        line = stream.readline()
        if line.startswith(b"data: "):
            news += len(json.loads(line[6:])["steps"])
    stream.close()
    return {"live_cpu_share": share, "live_steps_shown": float(news)}


def random_value(control: Control, draw: random.Random) -> Any:
    """A value that a person could choose."""
    if control.kind in ("integer", "number"):
        low, high = control.low or 0.0, control.high or 1.0
        value = low * (high / low) ** draw.random() if control.logarithmic and low > 0 else draw.uniform(low, high)
        return round(value) if control.kind == "integer" else value
    if control.kind == "choice":
        return draw.choice(control.choices)
    if control.kind == "several":
        return ",".join(draw.sample(list(control.choices), 3))
    return draw.random() < 0.5 if control.kind == "switch" else control.default


def measure_explorers(folder: Path) -> dict[str, Any]:
    """Seconds of answers to random changes of one value, as a person makes them; refused questions count too."""
    found: dict[str, Any] = {}
    with serving(folder) as server:
        for name in explorer_names():
            draw, times = random.Random(name), list[float]()
            offered = controls(load_explorer(name))
            server.get(f"/api/explore/{name}/answer")
            for _ in range(QUESTIONS):
                control = draw.choice(offered)
                query = urllib.parse.urlencode({control.name: value_text(random_value(control, draw))})
                times.append(_seconds_of_answer(server, f"/api/explore/{name}/answer?{query}"))
            times.sort()
            found[name] = {"median": statistics.median(times), "p95": times[int(0.95 * len(times))]}
        found["bytes of the server"] = server.memory
    return found


def _seconds_of_answer(server: Server, path: str) -> float:
    started = time.perf_counter()
    with contextlib.suppress(OSError):  # a refusal, such as ranks that do not divide the heads
        server.get(path)
    return time.perf_counter() - started


SLIDE = """async value => {
    const input = document.querySelector('#c-microbatches'), place = document.querySelector('.answer');
    const began = performance.now(), watched = {subtree: true, childList: true, attributes: true, characterData: true};
    const drawn = new Promise(done => new MutationObserver((_, watcher) => {
        watcher.disconnect();
        requestAnimationFrame(() => done(performance.now() - began));
    }).observe(place, watched));
    input.value = value;
    input.dispatchEvent(new Event('input', {bubbles: true}));
    return await drawn;
}"""
"""Moves a slider, and waits until the picture is another."""


@contextmanager
def browsing() -> Iterator[Any]:
    """A page of Chromium; None without it or without Playwright."""
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None or importlib.util.find_spec("playwright") is None:
        yield None
        return
    with importlib.import_module("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def measure_page(folder: Path) -> dict[str, float]:
    """Seconds from a slider's event to a picture that has changed, in Chromium; {} without it."""
    with serving(folder) as server, browsing() as page:
        if page is None:
            return {}
        page.goto(server.link)
        page.goto(f"{server.root}/explore/pipeline?ranks=8")
        page.wait_for_selector("svg rect")
        times = []
        for number in range(SLIDES):
            page.wait_for_timeout(400)  # the slower part of the answer before has come
            times.append(page.evaluate(SLIDE, 8 + number) / 1000)
    times.sort()
    return {"median": statistics.median(times), "p95": times[int(0.95 * len(times))]}


def measure_picture(address: str, picture: str) -> dict[str, float]:
    """Seconds until Chromium shows a picture, and bytes that it got for it; {} without it."""
    with browsing() as page:
        if page is None:
            return {}
        sizes, session = list[float](), page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
        began = time.perf_counter()
        page.goto(address)
        page.wait_for_selector(picture, state="attached", timeout=120_000)
        return {"picture_seconds": time.perf_counter() - began, "picture_bytes": sum(sizes)}


def memory_of(process: int) -> float:
    """Resident bytes of a process and its children."""
    parent = psutil.Process(process)
    return float(sum(each.memory_info().rss for each in (parent, *parent.children(recursive=True))))


def main() -> None:
    """Measure, print and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary) / "runs"
        if not folder.exists():
            write_runs(folder, given.runs, given.steps)
        found: dict[str, Any] = {"runs": given.runs, "steps": given.steps, "watch": measure_runs(folder)}
        empty = Path(temporary) / "none"
        empty.mkdir()
        found["explorers"], found["page"] = measure_explorers(empty), measure_page(empty)
    report.write("studio", found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
