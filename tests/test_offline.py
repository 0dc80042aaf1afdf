"""A whole run, from raw text to an exported model, asks nobody on a network, and no file of it has a secret."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TINY_RUN, WORDS

PROGRAM = """
import json, os, sys
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
ASKS = {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname",
        "socket.gethostbyaddr", "urllib.Request", "http.client.connect"}
def watch(event, arguments):
    if event in ASKS and not (event != "socket.getaddrinfo" and isinstance(arguments[-1], str)):
        os.write(log, f"{event} {arguments}\\n".encode(errors="replace"))
sys.addaudithook(watch)
from hornbook.cli.main import main
for words in json.loads(sys.argv[2]):
    code = main(words)
    assert code == 0, (words, code)
"""
"""Forks inherit the hook and the log; sockets of the file system (a text as address) are no network."""

SECRETS = {
    "HF_TOKEN": "hf_" + "abcdefgHIJKLMNopqrstuvwxyzABCDEFGH",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY0123456789",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HORNBOOK_TEST_PASSWORD": "hunter2hunter2hunter2",
}


def commands(folder: Path) -> list[list[str]]:
    """prepare, tokenize, train with an evaluation, generate and export."""
    draw = random.Random(1)
    rows = [{"text": " ".join(draw.choices(WORDS, k=draw.randint(20, 60)))} for _ in range(120)]
    (folder / "notes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data, run = str(folder / "data"), str(folder / "run")
    recipe = [f"--{word}" for word in TINY_RUN if not word.startswith("train.tokens")]
    steps = [
        ["prepare", str(folder / "notes.jsonl"), "--out", data, "--workers", "1"],
        ["tokenize", data, "--vocab", "300"],
        ["train", "tiny", "--data", data, "--out", run, "--train.tokens=640", *recipe],
        ["generate", run, "-p", "the model", "--greedy", "--tokens", "4"],
    ]
    return [*steps, ["export", run, "--out", str(folder / "model")]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("offline")


def run_all(folder: Path, before: tuple[str, ...] = ()) -> list[str]:
    """Run the commands in one process behind `before`; returns what they asked of a network."""
    words = [*before, sys.executable, "-c", PROGRAM, str(folder / "asked"), json.dumps(commands(folder))]
    done = subprocess.run(words, env=os.environ | SECRETS, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return (folder / "asked").read_text().splitlines()


def test_nobody_is_asked_and_no_file_has_a_secret(folder: Path) -> None:
    assert run_all(folder) == []
    texts = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert any(path.name == "env.json" for path in texts)
    assert any(path.parent.name == "model" for path in texts)
    found = [(path, name) for path, text in texts.items() for name, value in SECRETS.items() if value.encode() in text]
    assert found == []


def test_the_hook_sees_a_connection(tmp_path: Path) -> None:
    """The test above can fail."""
    code = PROGRAM[: PROGRAM.index("from hornbook")] + (
        "import socket\n"
        "try: socket.create_connection(('127.0.0.1', 9), 0.1)\n"
        "except OSError: pass\n"
        "try: socket.socket(socket.AF_UNIX).connect('/nowhere')\n"
        "except OSError: pass\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "asked")], check=True)
    asked = (tmp_path / "asked").read_text()
    assert "socket.connect" in asked
    assert "socket.getaddrinfo" in asked
    assert "/nowhere" not in asked


@pytest.mark.slow
def test_the_system_sees_no_connection_either(tmp_path: Path) -> None:
    """What native code does, which no hook of Python sees: `connect` by strace, in a namespace without a network."""
    if shutil.which("strace") is None or shutil.which("unshare") is None:
        pytest.skip("strace or unshare is not installed")
    trace = tmp_path / "trace"
    before = ("unshare", "-rn", "strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg", "-o", str(trace))
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespaces, or no tracing, here")
    assert run_all(tmp_path, before) == []
    assert [line for line in trace.read_text().splitlines() if "AF_INET" in line] == []
