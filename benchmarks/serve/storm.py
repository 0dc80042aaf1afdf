"""10,000 requests of all sorts to one server: malformed ones, streams that are broken off, more than the queue takes.

    python -m benchmarks.serve.storm               benchmarks/results/serve.json, "robustness"
    python -m benchmarks.serve.storm --requests 500        a short look; writes nothing

Every malformed one must get a 4xx status, what meets a full queue 503; nothing may be left running, and the process
must not grow.
"""

import argparse
import asyncio
import collections
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.serve import client
from benchmarks.serve.servers import MODEL, hornbook, make_model

PATH = "/v1/completions"

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
    left = await client.health(port)
    for _ in range(600):
        if left["running"] == left["waiting"] == 0:
            break
        await asyncio.sleep(0.1)
        left = await client.health(port)
    return {"statuses": dict(sorted(statuses.items())), "left": left}


def robustness(model: Path, count: int) -> dict[str, Any]:
    """The storm, and what it left: places, memory, the same answer as before."""
    with hornbook(model, "--slots", "8", "--queue", "24") as server:
        port, process = server.port, server.process
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


def main() -> None:
    """Send, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    count = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder:
        found = robustness(make_model(Path(folder)), count)
    print(json.dumps(found, indent=1), flush=True)
    if count >= 10_000:
        print(report.write("serve", report.known("serve") | {"robustness": found}))


if __name__ == "__main__":
    main()
