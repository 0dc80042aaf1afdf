"""A client of the server in a few lines: one connection for each request, so that it can be broken off anywhere."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


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


@asynccontextmanager
async def _posted(port: int, path: str, body: bytes) -> AsyncIterator[tuple[int, asyncio.StreamReader]]:
    """(status, reader of what follows the headers) of a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    try:
        writer.write(head.encode() + body)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        yield status, reader
    finally:
        writer.close()


async def post(port: int, path: str, body: bytes) -> tuple[int, bytes]:
    """Status and body of an answer."""
    async with _posted(port, path, body) as (status, reader):
        return status, await reader.read()


async def stream(port: int, path: str, body: dict[str, Any], leave_after: int | None = None) -> Answered:
    """A streamed request; leave_after: break off after so many tokens."""
    start = time.perf_counter()
    async with _posted(port, path, json.dumps(body | {"stream": True}).encode()) as (status, reader):
        found = Answered(status)
        while line := await reader.readline():
            data = line.strip()
            if not data.startswith(b"data: {"):
                continue
            chunk = json.loads(data[6:])
            choice = next(iter(chunk.get("choices") or [{}]))
            found.reason = choice.get("finish_reason") or found.reason or chunk.get("error")
            if choice.get("text"):
                found.chunks.append(time.perf_counter() - start)
                found.text += choice["text"]
            if leave_after is not None and len(found.chunks) >= leave_after:
                break
        found.total = time.perf_counter() - start
        found.first = found.chunks[0] if found.chunks else found.total
        return found


async def health(port: int) -> dict[str, Any]:
    """What the server says of itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])
