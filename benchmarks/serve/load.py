"""The server under load: tokens per second and latency with 1, 8 and 32 clients, and 10,000 requests of all sorts.

    python -m benchmarks.serve.load                the figures: benchmarks/results/serve.json
    python -m benchmarks.serve.load --requests 500 --rounds 1      a short look; writes nothing

A model of random weights (8 layers, 384 wide, 8,192 rows of embedding, 1,024 positions) is served to clients that ask
for 64 tokens behind prompts of 16 to 128 bytes, each one request after the other, as streams. Beside it transformers
generates the same from the same folder, without any server: one prompt after the other, as a simple server would, and
all prompts of the clients as one padded batch, which is the best it could do. `transformers serve` runs with
BENCH_SERVE_PYTHON=INTERPRETER, one that has transformers[serving]; without it the figures say that it was left out.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks import report
from benchmarks.serve import client

TOKENS, CLIENTS, MODEL = 64, (1, 8, 32), "model"
ALONE = 16
"""Prompts of which the speed of one after the other is measured, at most: it is the same for more."""
PATH = "/v1/completions"


def make_model(folder: Path) -> Path:
    """The folder of a model with random weights and a tokenizer of bytes."""
    from hornbook.model.build import build_model
    from hornbook.model.config.model import ModelConfig
    from hornbook.model.config.position import RopeConfig
    from hornbook.model.hf.hf import write_hf
    from hornbook.model.init.init import initialize
    from tests.conftest import write_tokenizer

    write_tokenizer(folder / "tokenizer")
    config = ModelConfig(layers=8, width=384, heads=6, position=RopeConfig(length=1024))
    model = build_model(config, 8192, "cpu")
    initialize(model, config, seed=1)
    write_hf(folder / MODEL, model, config, 8192, folder / "tokenizer")
    return folder / MODEL


def prompts(count: int, seed: int) -> list[str]:
    """Prompts of 16 to 128 letters."""
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefgh ", k=draw.randrange(16, 129))) for _ in range(count)]


@contextmanager
def serving(model: Path, *words: str) -> Iterator[tuple[int, psutil.Process]]:
    """(port, process) of a server; it must end by SIGTERM with exit code 0."""
    command = [sys.executable, "-m", "hornbook", "serve", str(model), "--port", "0", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, "")
            port = next(int(found[1]) for line in lines if (found := re.search(r"127\.0\.0\.1:(\d+)/v1", line)))
            yield port, psutil.Process(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, "the server did not end as it should"
        finally:
            process.kill()


async def load(port: int, clients: int, each: int) -> list[client.Answered]:
    """Requests of so many clients at once, `each` of every one of them."""

    async def ask(number: int) -> list[client.Answered]:
        body = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0}
        return [await client.stream(port, PATH, body | {"prompt": each}) for each in prompts(each, number)]

    return [answer for answers in await asyncio.gather(*map(ask, range(clients))) for answer in answers]


def measure(port: int, clients: int, rounds: int) -> dict[str, Any]:
    """Tokens per second and latencies of one number of clients."""
    start = time.perf_counter()
    found = asyncio.run(load(port, clients, rounds))
    seconds = time.perf_counter() - start
    assert {each.status for each in found} == {200}
    gaps = [b - a for each in found for a, b in zip(each.chunks, each.chunks[1:], strict=False)]
    firsts = [each.first for each in found]
    return {
        "requests": len(found),
        "tokens_per_second": sum(len(each.text) for each in found) / seconds,
        "first_ms": {"p50": 1e3 * statistics.median(firsts), "p95": 1e3 * quantile(firsts, 0.95)},
        "token_ms": {"p50": 1e3 * statistics.median(gaps), "p95": 1e3 * quantile(gaps, 0.95)},
    }


def quantile(values: list[float], share: float) -> float:
    """The value below which this share lies."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def peer(model: Path, clients: int, rounds: int) -> dict[str, Any]:
    """Tokens per second of transformers' generate, in a process of its own."""
    asked = {"model": str(model), "tokens": TOKENS, "prompts": [prompts(rounds, number) for number in range(clients)]}
    code = "from benchmarks.serve.load import generate_with_transformers as run; run()"
    ran = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    return json.loads(ran.stdout.splitlines()[-1])


def generate_with_transformers() -> None:
    """Reads a request from stdin, writes the speeds to stdout."""
    import torch
    import transformers

    asked = json.loads(sys.stdin.read())
    model = transformers.AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(asked["model"], padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    columns = list(zip(*asked["prompts"], strict=True))
    batches = {
        "one after the other": [[text] for texts in columns for text in texts][:ALONE],
        "one batch": list(map(list, columns)),
    }
    speeds = {}
    for name, parts in batches.items():
        for warm in (True, False):
            start, tokens = time.perf_counter(), 0
            for part in parts[:1] if warm else parts:
                given = tokenizer(part, return_tensors="pt", padding=True)
                options = {"max_new_tokens": asked["tokens"], "min_new_tokens": asked["tokens"], "do_sample": False}
                made = model.generate(**given, **options, pad_token_id=tokenizer.pad_token_id)
                tokens += len(part) * (made.shape[1] - given["input_ids"].shape[1])
            speeds[name] = tokens / (time.perf_counter() - start)
    print(json.dumps(speeds))


MALFORMED: list[bytes] = [
    b"",
    b"{",
    b"[1, 2]",
    b"\xff\xfe",
    b'{"model": "model"}',
    b'{"model": "model", "prompt": 5}',
    b'{"model": "model", "prompt": "a", "max_tokens": -1}',
    b'{"model": "model", "prompt": "a", "max_tokens": 100000}',
    b'{"model": "model", "prompt": "a", "temperature": "hot"}',
    b'{"model": "model", "prompt": "\\ud800"}',
    b'{"model": "model", "prompt": [[]]}',
    b'{"model": "model", "prompt": [999999]}',
    b'{"model": "model", "prompt": "a", "n": 100000}',
    b'{"model": "model", "prompt": "a", "nonsense": 1}',
    b'{"model": "model", "prompt": "a", "prompt": "b"}',
    b'{"model": "model", "prompt": "a", "top_p": NaN}',
    b'{"model": "another", "prompt": "a"}',
    b"[" * 50_000,
    b'{"model": "model", "prompt": "' + b"x" * 5_000 + b'"}',
    b'{"model": "model", "prompt": "' + b"x" * 3_000_000 + b'"}',
]


async def storm(port: int, count: int) -> dict[str, Any]:
    """Requests of all sorts, 64 at a time: malformed, cancelled, whole; more than the queue takes."""
    statuses: collections.Counter[str] = collections.Counter()
    numbers = iter(range(count))

    async def one(number: int) -> None:
        draw = random.Random(number)
        body = {"model": MODEL, "prompt": "a" * draw.randrange(60), "max_tokens": draw.randrange(1, 24), "seed": number}
        kind = draw.choices(["malformed", "cut", "cancelled", "whole", "many"], [50, 5, 15, 20, 10])[0]
        try:
            if kind == "malformed":
                statuses[f"malformed {(await client.post(port, PATH, draw.choice(MALFORMED)))[0]}"] += 1
            elif kind == "cut":  # half a request
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
                await writer.drain()
                writer.close()
                statuses["cut off by the client"] += 1
            elif kind == "cancelled":
                found = await client.stream(port, PATH, body | {"max_tokens": 500}, leave_after=draw.randrange(1, 4))
                statuses[f"cancelled stream {found.status}"] += 1
            else:
                body |= {"n": 8} if kind == "many" else {}
                statuses[f"{kind} {(await client.post(port, PATH, json.dumps(body).encode()))[0]}"] += 1
        except (OSError, IndexError, ValueError) as error:  # no answer at all
            statuses[f"{kind}: {type(error).__name__}"] += 1

    async def worker() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(worker() for _ in range(64)))
    for _ in range(600):
        left = await client.health(port)
        if left["running"] == left["waiting"] == 0:
            break
        await asyncio.sleep(0.1)
    return {"statuses": dict(sorted(statuses.items())), "left": left}


def robustness(model: Path, count: int) -> dict[str, Any]:
    """The storm, and what it left: places, memory, the same answer as before."""
    with serving(model, "--slots", "8", "--queue", "24") as (port, process):
        asked = {"model": MODEL, "prompt": "the page", "max_tokens": 32, "temperature": 0}
        before = asyncio.run(client.stream(port, PATH, asked))
        first = asyncio.run(storm(port, max(count // 20, 1)))  # fills caches and pools
        resident = process.memory_info().rss
        found = asyncio.run(storm(port, count))
        after = asyncio.run(client.stream(port, PATH, asked))
        assert first["left"]["running"] == 0
        return {
            "requests": count,
            **found,
            "same_answer_after": before.text == after.text,
            "grown_mib": (process.memory_info().rss - resident) / 2**20,
        }


def left_out() -> dict[str, str]:
    """Peers that are not measured, and why."""
    python = os.environ.get("BENCH_SERVE_PYTHON")
    if python is None:
        return {"transformers serve": "BENCH_SERVE_PYTHON names no interpreter that has transformers[serving]"}
    ran = subprocess.run([python, "-c", "import fastapi, transformers"], capture_output=True, text=True, check=False)
    if ran.returncode:
        return {"transformers serve": ran.stderr.strip().splitlines()[-1]}
    return {"transformers serve": "this benchmark does not start it yet"}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=4, help="requests of each client")
    words = parser.parse_args()
    found: dict[str, Any] = {"clients": {}, "transformers": {}, "left_out": left_out()}
    found["load_average_before"] = os.getloadavg()[0]  # other work on the machine, which these figures do not stand
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder))
        with serving(model, "--slots", "32") as (port, _):
            measure(port, 2, 1)
            for clients in CLIENTS:
                found["clients"][clients] = measure(port, clients, words.rounds)
                print(clients, json.dumps(found["clients"][clients]), flush=True)
        for clients in CLIENTS:
            found["transformers"][clients] = peer(model, clients, words.rounds)
            print(clients, json.dumps(found["transformers"][clients]), flush=True)
        found["robustness"] = robustness(model, words.requests)
        print(json.dumps(found["robustness"]), flush=True)
    if words.requests >= 10_000:
        print(report.write("serve", found))


if __name__ == "__main__":
    main()
