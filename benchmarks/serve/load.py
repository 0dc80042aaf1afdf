"""Servers under load: speed and latency with 1, 8 and 32 clients, ours beside transformers' and llama.cpp's.

    BENCH_SERVE_PYTHON=INTERPRETER python -m benchmarks.serve.load      benchmarks/results/serve.json, "speed"
    python -m benchmarks.serve.load --clients 8 --rounds 1 --requests 1     a short look; writes nothing

INTERPRETER has transformers[serving] and llama-cpp-python[server]; what it lacks is left out, and the figures say so.

A model of random weights (8 layers, 384 wide, a vocabulary of 8,192, 1,024 positions, float32) is served to clients
that ask one request after the other for 64 tokens behind 50 to 400 characters of Python, greedily, as streams. All
servers run on as many threads as OMP_NUM_THREADS says, each for itself, and are asked in turn: a round is one turn of
each. What they answer is compared. Beside them transformers generates for the prompts of all clients as one padded
batch, without a server: the best that it could do.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.serve.servers import SERVERS, Server, left_out, library_text, make_model

TOKENS = 64
REQUESTS = {1: 6, 8: 2, 32: 1}
"""Of each client in a round, by the number of clients."""
PATH, OURS, BATCH = "/v1/completions", "hornbook", "transformers, one padded batch"


def prompts(count: int, seed: int) -> list[str]:
    """Pieces of 50 to 400 characters."""
    draw, text = random.Random(seed), library_text().encode("ascii", "ignore").decode()
    starts = [draw.randrange(len(text) - 400) for _ in range(count)]
    return [text[start : start + draw.randrange(50, 401)] for start in starts]


@dataclass
class Answered:
    """What came of a streamed request, in seconds from its start."""

    status: int
    first: float = 0.0
    """Until the first token."""
    total: float = 0.0
    chunks: list[float] = field(default_factory=list)
    """When each token came."""
    text: str = ""
    reason: str | None = None
    """Why the text ended, as the server says."""


async def stream(port: int, path: str, body: dict[str, Any]) -> Answered:
    """Send a request for a stream over a connection of its own, and time its tokens."""
    start, data = time.perf_counter(), json.dumps(body | {"stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    with closing(writer):
        writer.write(head.encode() + data)
        await writer.drain()
        found = Answered(int((await reader.readline()).split()[1]))
        while (await reader.readline()).strip():
            pass
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            choice = next(iter(chunk.get("choices") or [{}]))
            found.reason = choice.get("finish_reason") or found.reason or chunk.get("error")
            if choice.get("text"):
                found.chunks.append(time.perf_counter() - start)
                found.text += choice["text"]
        found.total = time.perf_counter() - start
        found.first = found.chunks[0] if found.chunks else found.total
        return found


async def load(server: Server, texts: list[list[str]]) -> list[Answered]:
    """Answers to the prompts of each client, which asks one after the other."""

    async def ask(mine: list[str]) -> list[Answered]:
        body = {"model": server.name, "max_tokens": TOKENS, "temperature": 0}
        return [await stream(server.port, PATH, body | {"prompt": server.before + each}) for each in mine]

    return [answer for answers in await asyncio.gather(*map(ask, texts)) for answer in answers]


def measure(server: Server, texts: list[list[str]]) -> tuple[dict[str, Any], list[str]]:
    """Tokens per second and latencies of one turn, and the texts."""
    start = time.perf_counter()
    found = asyncio.run(load(server, texts))
    seconds = time.perf_counter() - start
    assert {(each.status, each.reason) for each in found} == {(200, "length")}, found[0]
    gaps = [b - a for each in found for a, b in zip(each.chunks, each.chunks[1:], strict=False)]
    times = {"first_ms": [each.first for each in found], "token_ms": gaps, "whole_ms": [each.total for each in found]}
    speed = {"tokens_per_second": TOKENS * len(found) / seconds}
    return speed | {name: _quantiles(values) for name, values in times.items()}, [each.text for each in found]


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(1e3 * each for each in seconds)
    return {"p50": statistics.median(ordered), "p95": ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)]}


def measure_batch(model: Path, texts: list[list[str]]) -> dict[str, Any]:
    """The same by transformers' generate in a process of its own, without the time of its start."""
    asked = {"model": str(model), "tokens": TOKENS, "prompts": texts}
    code = "from benchmarks.serve.load import generate_with_transformers as run; run()"
    ran = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    return {"tokens_per_second": json.loads(ran.stdout.splitlines()[-1])}


def generate_with_transformers() -> None:
    """Reads prompts from stdin, writes tokens per second to stdout."""
    import torch
    import transformers

    asked = json.loads(sys.stdin.read())
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(asked["model"], padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    options = {"min_new_tokens": asked["tokens"], "max_new_tokens": asked["tokens"], "do_sample": False}
    batches = list(map(list, zip(*asked["prompts"], strict=True)))
    start, tokens = 0.0, 0
    for number, batch in enumerate([batches[0], *batches]):
        if number == 1:  # the first time warms up
            start, tokens = time.perf_counter(), 0
        given = tokenizer([f"<|endoftext|>{each}" for each in batch], return_tensors="pt", padding=True)
        made = model.generate(**given, **options, pad_token_id=tokenizer.pad_token_id)
        tokens += len(batch) * (made.shape[1] - given["input_ids"].shape[1])
    print(json.dumps(tokens / (time.perf_counter() - start)))


def compare(model: Path, clients: list[int], rounds: int, requests: int | None) -> dict[str, Any]:
    """Every server in turn, for each number of clients."""
    missing = left_out()
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(start(model, *(["--slots", "32"] if name == OURS else [])))
            for name, (start, _) in SERVERS.items()
            if name not in missing
        }
        for server in running.values():
            asyncio.run(load(server, [[text] for text in prompts(2, 0)]))
        for count in clients:
            texts = [prompts(requests or REQUESTS[count], 1 + number) for number in range(count)]
            turns: dict[str, list[dict[str, Any]]] = {}
            answers: dict[str, list[str]] = {}
            for _ in range(rounds):
                for name, server in running.items():
                    turn, answers[name] = measure(server, texts)
                    turns.setdefault(name, []).append(turn)
                    print(count, name, json.dumps(turn), flush=True)
                turns.setdefault(BATCH, []).append(measure_batch(model, texts))
                print(count, BATCH, json.dumps(turns[BATCH][-1]), flush=True)
            found[str(count)] = _summary(turns, answers)
    return {"clients": found, "left_out": missing}


def _summary(turns: dict[str, list[dict[str, Any]]], answers: dict[str, list[str]]) -> dict[str, Any]:
    """Of each server medians over the rounds, ours over it within a round, and how many of its answers are ours."""
    found: dict[str, Any] = {}
    for name, mine in turns.items():
        speeds = [each["tokens_per_second"] for each in mine]
        ratios = [ours["tokens_per_second"] / speed for ours, speed in zip(turns[OURS], speeds, strict=True)]
        found[name] = {"tokens_per_second": _spread(speeds), "ours_over": _spread(ratios)}
        if name in answers:
            pairs = zip(answers[name], answers[OURS], strict=True)
            found[name]["equal_answers"] = f"{sum(a == b for a, b in pairs)} of {len(answers[OURS])}"
        for kind in ("first_ms", "token_ms", "whole_ms"):
            if kind in mine[0]:
                found[name][kind] = {
                    share: statistics.median(each[kind][share] for each in mine) for share in ("p50", "p95")
                }
    return found


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=list(REQUESTS), choices=list(REQUESTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, help="of each client in a round")
    words = parser.parse_args()
    before = os.getloadavg()[0]  # other work on the machine, which these figures do not stand
    with tempfile.TemporaryDirectory() as folder:
        found = compare(make_model(Path(folder)), words.clients, words.rounds, words.requests)
    found |= {"load_average_before": before, "rounds": words.rounds}
    print(json.dumps(found, indent=1))
    if words.rounds > 1 and words.requests is None and words.clients == list(REQUESTS):
        print(report.write("serve", report.known("serve") | {"speed": found}))


if __name__ == "__main__":
    main()
