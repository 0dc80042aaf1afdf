"""A model of random weights, and the servers that answer with it: ours, transformers' and llama.cpp's."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODEL, VOCAB = "model", 8192
TRAIN_BYTES = 2_000_000
"""Of this Python's library, of which the tokenizer is made and prompts are cut."""
PYTHON = "BENCH_SERVE_PYTHON"


@dataclass(frozen=True)
class Server:
    """Where it listens, and how it wants to be asked."""

    port: int
    name: str = MODEL
    """Of the model."""
    before: str = ""
    """What a prompt begins with to have the delimiter, which the others put there themselves."""


def library_text() -> str:
    """Python's own library, which every machine has."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    return "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)[:TRAIN_BYTES]


def make_model(folder: Path) -> Path:
    """The folder of a model whose texts never end by themselves: the row of the end token is zero."""
    import torch

    from hornbook.model.build_model import build_model
    from hornbook.model.config.model_config import ModelConfig
    from hornbook.model.config.position_config import RopeConfig
    from hornbook.model.hf.hf import write_hf
    from hornbook.model.init.init import initialize
    from hornbook.text.config.text import BPE
    from hornbook.text.tokenizer.bpe.train import train_bpe
    from hornbook.text.tokenizer.files import save_tokenizer

    tokenizer = train_bpe(BPE(vocab=VOCAB), [[library_text()]])
    save_tokenizer(tokenizer, folder / "tokenizer")
    config = ModelConfig(layers=8, width=384, heads=6, position=RopeConfig(length=1024))
    model = build_model(config, VOCAB, "cpu")
    initialize(model, config, seed=1)
    assert model.embedding is not None
    with torch.no_grad():
        model.embedding.get_parameter("weight")[tokenizer.end_id] = 0
    write_hf(folder / MODEL, model, config, VOCAB, folder / "tokenizer")
    return folder / MODEL


@contextmanager
def _process(command: Sequence[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed in the end; what it writes to stderr goes to a file, and is told where it fails."""
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=log, text=True, env=os.environ | environment
        ) as process,
    ):
        try:
            yield process
        except BaseException:
            log.seek(0)
            print(log.read()[-3000:], file=sys.stderr)
            raise
        finally:
            process.kill()


@contextmanager
def hornbook(model: Path, *words: str) -> Iterator[Server]:
    """Ours; it must end by SIGTERM with exit code 0."""
    command = [sys.executable, "-m", "hornbook", "serve", str(model), "--device", "cpu", "--port", "0", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, "")
            port = next(int(found[1]) for line in lines if (found := re.search(r"127\.0\.0\.1:(\d+)/v1", line)))
            yield Server(port)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, "the server did not end as it should"
        finally:
            process.kill()


@contextmanager
def transformers(model: Path, *words: str) -> Iterator[Server]:
    """`transformers serve` on the same folder."""
    port = _free_port()
    run = "from transformers.cli.transformers import app; app()"
    command = [os.environ[PYTHON], "-c", run, "serve", str(model), "--port", str(port), "--host", "127.0.0.1"]
    command += ["--device", "cpu", "--dtype", "float32", *words]
    with _process(command, HF_HUB_OFFLINE="1") as process:
        _wait(process, f"http://127.0.0.1:{port}/health")
        yield Server(port, str(model), "<|endoftext|>")


def continuous(model: Path):
    """The same with continuous batching."""
    return transformers(model, "--continuous-batching")


@contextmanager
def llama_cpp(model: Path) -> Iterator[Server]:
    """llama.cpp's server in Python on our GGUF file of the model, which answers one request at a time."""
    port, out = _free_port(), model.parent / "gguf"
    if not out.exists():
        command = [sys.executable, "-m", "hornbook", "export", str(model), "--to", "gguf", "--out", str(out)]
        subprocess.run([*command, "--no-certificate"], check=True, capture_output=True)
    command = [os.environ[PYTHON], "-m", "llama_cpp.server", "--model", str(out / "model.gguf"), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--model_alias", MODEL, "--n_ctx", "1024", "--interrupt_requests", "false"]
    threads = os.environ.get("OMP_NUM_THREADS", str(os.cpu_count()))
    command += ["--n_threads", threads, "--n_threads_batch", threads]
    with _process(command) as process:
        _wait(process, f"http://127.0.0.1:{port}/v1/models")
        yield Server(port)


SERVERS: dict[str, tuple[Callable[..., contextlib.AbstractContextManager[Server]], str]] = {
    "hornbook": (hornbook, ""),
    "transformers serve": (transformers, "fastapi, transformers"),
    "transformers serve, continuous batching": (continuous, "fastapi, transformers"),
    "llama.cpp": (llama_cpp, "llama_cpp.server.app"),
}
"""By name: what starts it, and what the peers' interpreter must be able to import."""


def left_out() -> dict[str, str]:
    """Peers that cannot be measured, and why."""
    python, found = os.environ.get(PYTHON), {}
    for name, (_, needed) in SERVERS.items():
        if needed and python is None:
            found[name] = f"{PYTHON} names no interpreter"
        elif needed and python is not None:
            ran = subprocess.run([python, "-c", f"import {needed}"], capture_output=True, text=True, check=False)
            if ran.returncode:
                found[name] = ran.stderr.strip().splitlines()[-1]
    return found


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def _wait(process: subprocess.Popen[str], address: str) -> None:
    """Until it answers; five minutes at most, in which it may load and import."""
    for _ in range(600):
        assert process.poll() is None, "the server ended before it answered"
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.5)
    raise TimeoutError(address)
