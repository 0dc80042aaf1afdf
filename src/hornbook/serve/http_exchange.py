"""The events of one HTTP request as they come, until all its texts have ended or the client has left."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hornbook.serve.http_errors import ApiError
from hornbook.serve.requests import Event, Failed, Finished, Request
from hornbook.serve.serving_engine import Engine

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # `json.dumps` makes one for each call


class ClientLeft(Exception):
    """Nobody waits for the answer."""


class Exchange:
    """Requests to the engine and the queue in which their events arrive; a context that ends them."""

    def __init__(self, engine: Engine, receive: Receive) -> None:
        self._engine, self._receive = engine, receive
        self._queue = asyncio.Queue[tuple[int, Event] | None]()
        self._requests: list[Request] = []
        self._texts = 0
        self._watch: asyncio.Task[None] | None = None

    def deliver(self, event: tuple[int, Event] | None) -> None:
        """Called by the loop for each event (number of the prompt, event)."""
        self._queue.put_nowait(event)

    def begin(self, requests: list[Request]) -> None:
        """Wait for the events of requests that the engine has taken on, and for the client's leaving."""
        self._requests, self._texts = requests, sum(len(each.samplings) for each in requests)
        self._watch = asyncio.create_task(self._watch_client())

    def end(self) -> None:
        """Nobody waits any more: what is unfinished is cancelled."""
        if self._watch is not None:
            self._watch.cancel()
        if self._texts:
            self._engine.cancel(*self._requests)

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """All events. Raises ApiError where a request failed, ClientLeft."""
        while self._texts:
            found = await self._queue.get()
            if found is None:
                raise ClientLeft
            if isinstance(found[1], Failed):
                failed = found[1]
                raise ApiError(failed.status, failed.message, retry=2 if failed.status == 503 else None)
            self._texts -= isinstance(found[1], Finished)
            yield found

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.deliver(None)


Chunks = Callable[[AsyncIterator[tuple[int, Event]]], AsyncIterator[dict[str, Any]]]


class EventStream(Response):
    """Chunks as server-sent events, each as soon as it is there; `[DONE]` at the end.

    A failure before the first event is an answer with its status; a later one is an event with the error.
    """

    def __init__(self, exchange: Exchange, chunks: Chunks) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._exchange, self._chunks = exchange, chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks."""
        started = False
        try:
            async for chunk in self._chunks(self._exchange.events()):
                if not started:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    started = True
                await _send(send, chunk)
            await _send(send, "[DONE]")
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ApiError as error:
            if not started:
                await error.response()(scope, receive, send)
                return
            await _send(send, error.body())
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientLeft, OSError):
            pass
        finally:
            self._exchange.end()


async def _send(send: Send, data: dict[str, Any] | str) -> None:
    text = data if isinstance(data, str) else _encode(data)
    await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})
