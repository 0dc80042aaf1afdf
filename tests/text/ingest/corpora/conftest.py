"""A local HTTP server that breaks, changes, compresses, and refuses ranges."""

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Site:
    """What a server has, and how it misbehaves."""

    address: str
    files: dict[str, bytes]
    breaks: int = 0
    """How many of the next answers end in the middle."""
    refusals: list[int] = field(default_factory=list)
    """Codes of the next answers."""
    asked: list[str] = field(default_factory=list)
    """Method and Range of every request."""
    ranges: bool = True
    version: str = "1"
    encoding: str = ""
    """Content-Encoding of the answers, which are compressed by gzip then."""


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site("", {})

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            wanted = self.headers.get("Range", "") if self.headers.get("If-Range") == f'"{state.version}"' else ""
            state.asked.append(f"{self.command} {self.headers.get('Range', '')}".strip())
            data = state.files.get(self.path)
            code = state.refusals.pop(0) if state.refusals and body else 404 if data is None else 200
            if data is not None and state.encoding:
                data = gzip.compress(data, 1)
            start = int(wanted[6:-1]) if wanted and state.ranges else 0
            if data is None or code != 200 or start > len(data) - bool(start):
                self.send_response(code if code != 200 else 416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            if state.encoding:
                self.send_header("Content-Encoding", state.encoding)
            self.send_header("Content-Length", str(len(data) - start))
            self.send_header("ETag", f'"{state.version}"')
            breaks = body and state.breaks > 0
            state.breaks -= breaks  # before the answer: the test may go on as soon as that is there
            self.end_headers()
            with suppress(ConnectionError):  # who lists files reads no body
                if breaks:
                    self.wfile.write(data[start : start + (len(data) - start) // 2])
                    self.close_connection = True
                elif body:
                    self.wfile.write(data[start:])

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()
