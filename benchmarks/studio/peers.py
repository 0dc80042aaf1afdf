"""The same runs in hornbook, TensorBoard, trackio and aim: from the start of the server to the picture of a loss.

    python -m benchmarks.studio.peers --python PYTHON [--runs 3] [--steps 20000] [--tools tensorboard,trackio,aim]

PYTHON is an interpreter with these tools, such as that of a virtual environment; here Playwright and Chromium are
needed. Each tool has the runs in its own store (`peer_logs.py` writes them) and shows its page of curves as it does by
default. Three rounds, the tools in turn; medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import psutil

from benchmarks import report
from benchmarks.studio.pages import measure_picture, memory_of, serving, write_runs

ROUNDS = 3
LOGS = Path(__file__).with_name("peer_logs.py")


class Tool(NamedTuple):
    """A peer: how its server starts in its folder, its page of curves, and what is there once the picture is."""

    words: list[str]
    address: str
    picture: str


def tools_of(python: Path) -> dict[str, Tool]:
    """The peers by name."""
    show = "import trackio; trackio.show(project='runs', open_browser=False, server_port=7871, block_thread=True)"
    board = [str(python), "-m", "tensorboard.main", "--logdir", ".", "--port", "6123"]
    aim = [str(python.parent / "aim"), "up", "--port", "43801"]
    return {
        "tensorboard": Tool(board, "http://127.0.0.1:6123/#timeseries", "line-chart canvas, line-chart svg"),
        "trackio": Tool([str(python), "-c", show], "http://127.0.0.1:7871/", "canvas.marks"),
        "aim": Tool(aim, "http://127.0.0.1:43801/runs/{run}/metrics", "svg.Visualization path"),
    }


def measure_tool(tool: Tool, folder: Path, run: str) -> dict[str, float]:
    """Seconds until the server answers and until the picture, bytes of the page, and memory."""
    environment = os.environ | {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    began, address = time.perf_counter(), tool.address.format(run=run)
    process = subprocess.Popen(
        tool.words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not _answers(address):
            time.sleep(0.05)
        up = time.perf_counter() - began
        found = measure_picture(address, tool.picture)
        return {
            "seconds": up + found["picture_seconds"],
            "bytes": found["picture_bytes"],
            "memory": memory_of(process.pid),
        }
    finally:
        for each in (*psutil.Process(process.pid).children(recursive=True), process):
            each.kill()
        process.wait()


def _answers(address: str) -> bool:
    try:
        return urlopen(address).status == 200
    except OSError:
        return False


def measure_ours(folder: Path) -> dict[str, float]:
    """The same of `hornbook watch`."""
    with serving(folder) as server:
        link = f"{server.root}/run/run-00?{server.link.partition('?')[2]}"
        found = measure_picture(link, ".uplot canvas")
        seconds = server.start_seconds + found["picture_seconds"]
        return {"seconds": seconds, "bytes": found["picture_bytes"], "memory": memory_of(server.process.pid)}


def write_logs(python: Path, name: str, runs: Path, folder: Path) -> str:
    """What a peer keeps of the runs; the name that it gave the first one."""
    folder.mkdir()
    environment = os.environ | {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    words = [str(python), str(LOGS), name, str(runs)]
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split()[-1]


def main() -> None:
    """Measure, print and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--tools", default="tensorboard,trackio,aim")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        runs, tools = Path(temporary) / "runs", tools_of(given.python)
        write_runs(runs, given.runs, given.steps)
        folders = {name: Path(temporary) / name for name in given.tools.split(",")}
        first = {name: write_logs(given.python, name, runs, folder) for name, folder in folders.items()}
        rounds: list[dict[str, dict[str, float]]] = [
            {"hornbook": measure_ours(runs)}
            | {name: measure_tool(tools[name], folder, first[name]) for name, folder in folders.items()}
            for _ in range(ROUNDS)
        ]
    medians = {
        name: {key: statistics.median(each[name][key] for each in rounds) for key in rounds[0][name]}
        for name in rounds[0]
    }
    found = {"runs": given.runs, "steps": given.steps, **medians}
    report.write("studio_peers", found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
