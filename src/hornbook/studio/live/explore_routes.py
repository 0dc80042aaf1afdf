"""The explorers' answers for the page. The explorers are imported when the first page of them is opened."""

import asyncio
import json
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from hornbook.errors import UsageError
from hornbook.files.run_directory import RunDir

if TYPE_CHECKING:
    from hornbook.studio.explore.explorer import Explorer

MOST_BODY = 200_000
"""Bytes of a question's values."""
PARTS = "answer", "further"
"""Parts of an explorer's answer; the second takes longer."""


class ExplorerRoutes:
    """One method for each path; run: a run by its name on the page."""

    def __init__(self, run: Callable[[str], RunDir]) -> None:
        self._run = run
        self._one_at_a_time = asyncio.Semaphore(1)

    def routes(self) -> list[BaseRoute]:
        """The routes below `/api/explore`."""
        return [
            Route("/api/explore", self.list),
            Route("/api/explore/{name}", self.describe),
            *(Route(f"/api/explore/{{name}}/{part}", self.answer, methods=["GET", "POST"]) for part in PARTS),
            Route("/api/explore/{name}/load", self.load),
            Route("/api/explore/{name}/measure", self.measure, methods=["POST"]),
        ]

    def list(self, _: Request) -> Response:
        """All explorers."""
        return JSONResponse({"explorers": _pages().list_explorers()})

    def describe(self, request: Request) -> Response:
        """An explorer's controls and texts."""
        return JSONResponse(_pages().describe(_explorer(request)))

    async def answer(self, request: Request) -> Response:
        """The answer, or its further part, to the question in the query, or in the body where it has a long text."""
        name, part, values = request.path_params["name"], request.url.path.rpartition("/")[2], await _values(request)
        return JSONResponse(await run_in_threadpool(lambda: _pages().replied(name, part, values)))

    def load(self, request: Request) -> Response:
        """The question that a run asks."""
        explorer, values = _explorer(request), request.query_params
        if not explorer.loads or "run" not in values:
            raise UsageError(f"{explorer.name} cannot be loaded from a run, or no run is named")
        question, left = explorer.from_run(self._run(values["run"]).path)
        return JSONResponse({"question": question, "left": left})

    async def measure(self, request: Request) -> Response:
        """What the explorer measures in a child process; one at a time."""
        from hornbook.studio.explore.measure import measured

        explorer = _explorer(request)
        question = explorer.ask(await _values(request))
        async with self._one_at_a_time:
            return JSONResponse({"answer": _pages().with_texts(await run_in_threadpool(measured, explorer, question))})


def _pages() -> ModuleType:
    from hornbook.studio.explore import page_answer

    return page_answer


def _explorer(request: Request) -> "Explorer":
    from hornbook.studio.explore.explorer import load_explorer

    return load_explorer(request.path_params["name"])


async def body_of(request: Request, most: int) -> bytes:
    """The body of a request of at most `most` bytes. Raises UsageError."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise UsageError(f"the request is too long: it may have {most:,} bytes")
    return body


async def _values(request: Request) -> dict[str, Any]:
    """The values of the query, or those of the JSON object in the body. Raises UsageError."""
    if request.method == "GET":
        return dict(request.query_params)
    values = json.loads(await body_of(request, MOST_BODY) or b"{}")
    if not isinstance(values, dict):
        raise UsageError("write the settings as a JSON object")
    return values
