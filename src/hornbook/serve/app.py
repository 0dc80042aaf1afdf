"""The HTTP interface: OpenAI's models, completions and chat completions, and /health."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hornbook.serve.bodies import Body, ChatBody, CompletionBody, parse_body
from hornbook.serve.chunks import ChatChunks, CompletionChunks
from hornbook.serve.guards import Guard
from hornbook.serve.http_errors import ApiError
from hornbook.serve.http_exchange import ClientLeft, EventStream, Exchange
from hornbook.serve.limits import Limits
from hornbook.serve.requests import Event
from hornbook.serve.requests import Request as EngineRequest
from hornbook.serve.service import Prompt, Service
from hornbook.serve.serving_engine import Engine

SWITCH_SECONDS = 5e-4
"""How long the thread that writes answers may keep the interpreter from the engine's, which asks for it after every
operation of the model; Python's own 5 ms would hold up each of them."""
DRAINED = 4
"""A body up to so many times too large is read to its end: a client that is still writing reads no answer."""


def build_app(service: Service, *, hosts: frozenset[str] | None = None, key: str | None = None) -> Starlette:
    """The application; its lifespan starts and closes the engine.

    hosts: names under which it may be called, None: any. key: what requests must bring, if it is set.
    """
    routes = _Routes(service)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        _publish_in_loop(service.engine)
        service.engine.start()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            yield
        finally:
            sys.setswitchinterval(interval)
            await asyncio.to_thread(service.engine.close)

    return Starlette(
        routes=[
            Route("/health", routes.health),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.model),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, hosts=hosts, key=key)],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, Exception: _defect},
        lifespan=lifespan,
    )


class _Routes:
    """What answers each path."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, _: Request) -> Response:
        """How much is under way."""
        engine = self._service.engine
        counts = {"slots": engine.limits.slots, "running": engine.running, "waiting": engine.waiting}
        return JSONResponse({"status": "ok", **counts, "steps": engine.steps})

    async def models(self, _: Request) -> Response:
        """The one model that there is."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """A model by its name."""
        self._service.require_model(request.path_params["name"])
        return JSONResponse(self._model())

    async def completions(self, request: Request) -> Response:
        """Continuations of prompts."""
        arrived = time.monotonic()
        body = parse_body(CompletionBody, await read_body(request, self._service.limits))
        self._service.require_model(body.model)
        prompts = await asyncio.to_thread(self._service.read_prompts, body)
        return await self._answer(request, body, prompts, arrived, CompletionChunks(self._service, body, prompts))

    async def chat(self, request: Request) -> Response:
        """The next turn of a conversation."""
        arrived = time.monotonic()
        body = parse_body(ChatBody, await read_body(request, self._service.limits))
        self._service.require_model(body.model)
        prompts = await asyncio.to_thread(self._service.read_chat, body)
        return await self._answer(request, body, prompts, arrived, ChatChunks(self._service, body, prompts))

    async def _answer(
        self,
        request: Request,
        body: Body,
        prompts: Sequence[Prompt],
        arrived: float,
        chunks: CompletionChunks | ChatChunks,
    ) -> Response:
        exchange = Exchange(self._service.engine, request.receive)
        asked = self._service.requests(body, prompts, arrived, exchange.deliver)
        self._service.submit(asked)
        exchange.begin(asked)
        if body.stream:
            return EventStream(exchange, chunks.stream)
        try:
            return JSONResponse(await chunks.collect(exchange.events()))
        except ClientLeft:
            return Response(status_code=499)  # nobody reads it
        finally:
            exchange.end()

    def _model(self) -> dict[str, Any]:
        service = self._service
        return {
            "id": service.name,
            "object": "model",
            "created": service.created,
            "owned_by": "hornbook",
            "max_model_len": service.limits.context,
        }


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of a request. Raises ApiError: 415 where it does not say that it is JSON, 413, 408."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "the header Content-Type must be application/json")
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size <= limits.body_bytes:
                    parts.append(part)
                elif size > DRAINED * limits.body_bytes:
                    break
    except TimeoutError as error:
        raise ApiError(408, f"the body took longer than {limits.body_seconds:g} seconds") from error
    except ClientDisconnect as error:
        raise ApiError(400, "the body is not whole") from error
    if size > limits.body_bytes:
        raise ApiError(413, f"the body is larger than {limits.body_bytes:,} bytes")
    return b"".join(parts)


def _publish_in_loop(engine: Engine) -> None:
    """Events of a step reach the loop's thread by one call."""
    loop = asyncio.get_running_loop()
    deliver = engine.publish

    def publish(events: list[tuple[EngineRequest, Event]]) -> None:
        if events:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(deliver, events)

    engine.publish = publish


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    messages = {404: f"there is no {path!a} here", 405: f"{request.method[:20]!a} is not allowed for {path!a}"}
    found = ApiError(error.status_code, messages.get(error.status_code, str(error.detail))).response()
    found.headers.update(error.headers or {})
    return found


async def _defect(_: Request, error: Exception) -> Response:
    return ApiError(500, f"this is a defect of hornbook: {type(error).__name__}").response()
