"""The dashboard's server: pages, JSON of runs, a stream of new steps, and what people ask of a run.

It reads the files of runs and writes nothing but requests (`hornbook.run.job.ask`), so that training never waits for
it. No part of it imports torch, and what only some answers need is imported for these: the page is there at once.
"""

import asyncio
import contextlib
import json
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from hornbook.errors import HornbookError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.studio.live.explore_routes import ExplorerRoutes, body_of
from hornbook.studio.live.gate import Gate
from hornbook.studio.live.metric_lines import KEYS, record_of
from hornbook.studio.live.run_view import Runs, describe, layers, settings

if TYPE_CHECKING:
    from hornbook.studio.live.step_columns import StepColumns

PAGE = Path(__file__).parent / "page"
KEPT = 8
"""Runs whose columns stay in memory."""
MOST_COLUMNS = 4_000
"""Parts of a picture that a page may ask for."""
MOST_BODY = 1 << 16
SECONDS = 0.5
"""Between two looks at a file that grows."""
QUIET = 30
"""Looks without news after which a stream shows that it lives."""
MOST_NEWS = 1 << 20
"""Bytes of new steps in one message; a page that was away longer asks for its curves again."""


class Wish(BaseModel):
    """What a person asks of a run."""

    model_config = ConfigDict(extra="forbid")

    action: str
    settings: list[str] = Field(default=[], max_length=50)
    reason: str = Field(min_length=1, max_length=1000)
    at: str | None = Field(default=None, max_length=20)
    dry_run: bool = False


class Dashboard:
    """The answers, one method for each path."""

    def __init__(self, runs: Runs, *, read_only: bool) -> None:
        self.runs, self._read_only = runs, read_only
        self.ending = asyncio.Event()
        """Set when the server ends, so that streams do."""
        self._columns, self._lock = OrderedDict[Path, "StepColumns"](), Lock()

    def list(self, _: Request) -> Response:
        """The table of runs."""
        return JSONResponse({"runs": self.runs.rows(), "read_only": self._read_only})

    def run(self, request: Request) -> Response:
        """A run without its curves."""
        return JSONResponse(describe(self._run(request)) | {"read_only": self._read_only})

    def curves(self, request: Request) -> Response:
        """The curves between two steps, thinned to the width of the picture."""
        run, parts = self._run(request), int(min(max(_number(request, "columns", 800), 10), MOST_COLUMNS))
        with self._lock:  # answers are made in threads, and each reads what was appended
            return JSONResponse(self._curves(self._columns_of(run), request, parts))

    def _curves(self, columns: "StepColumns", request: Request, parts: int) -> dict[str, Any]:
        last = float(columns.steps[-1]) if len(columns) else 0.0
        low, high = _number(request, "low", 0.0), _number(request, "high", last)
        if high < low:
            raise UsageError(f"high={high:g} is less than low={low:g}: give a range of steps")
        zoomed = columns if (low, high) == (0.0, last) else columns.detail(low, high)
        found = {"curves": zoomed.curves(KEYS, low, high, parts), "last": int(last), "offset": columns.offset}
        return found | {"every": zoomed.every, "damaged": columns.damaged, "points": len(zoomed)}

    def layers(self, request: Request) -> Response:
        """Statistics of layers."""
        return JSONResponse(layers(self._run(request)))

    def settings(self, request: Request) -> Response:
        """Settings with their origins."""
        return JSONResponse({"settings": settings(self._run(request))})

    def doctor(self, request: Request) -> Response:
        """What `hornbook doctor RUN` says."""
        from hornbook.run.doctor.run_report import diagnose_run

        return JSONResponse(diagnose_run(self._run(request)).to_json())

    async def ask(self, request: Request) -> Response:
        """Check a request and, unless it is only tried, write it for the run."""
        from hornbook.run.job.ask import ask

        if self._read_only:
            raise UsageError("this dashboard only shows (--read-only): start it without, or use `hornbook tell`")
        try:
            wish = Wish.model_validate_json(await body_of(request, MOST_BODY))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise UsageError(f"{'.'.join(map(str, first['loc'])) or 'request'}: {first['msg']}") from None
        if not wish.reason.strip():
            raise UsageError("give a reason: the ledger keeps it")
        words = wish.model_dump(include={"reason", "at", "dry_run"})
        asked = await run_in_threadpool(ask, self._run(request), wish.action, wish.settings, **words)
        return JSONResponse({"changes": [str(each) for each in asked.changes], "written": asked.file is not None})

    async def live(self, request: Request) -> Response:
        """New steps and the state of a run as server-sent events; the id of each is the offset in metrics.jsonl."""
        run = self._run(request)
        offset = request.headers.get("last-event-id") or request.query_params.get("after", "0")
        if not offset.isdecimal():
            raise UsageError("after: give an offset in bytes")
        return StreamingResponse(_news(run, int(offset), self.ending), media_type="text/event-stream")

    def _run(self, request: Request) -> RunDir:
        return self.runs.get(request.path_params["name"])

    def _columns_of(self, run: RunDir) -> "StepColumns":
        from hornbook.studio.live.step_columns import StepColumns

        key = run.path.resolve()
        columns = self._columns.pop(key, None) or StepColumns(run.metrics)
        columns.update()
        self._columns[key] = columns
        while len(self._columns) > KEPT:
            self._columns.popitem(last=False)
        return columns


async def _news(run: RunDir, offset: int, ending: asyncio.Event) -> AsyncIterator[str]:
    """Messages until the browser leaves, or the server ends."""
    state, quiet = None, 0
    while not ending.is_set():
        now = run.read_state()
        lines, end = await run_in_threadpool(_new_lines, run.metrics, offset)
        if lines or now != state or quiet >= QUIET:
            rows = [record for line in lines if (record := record_of(line)) is not None]
            news = {"steps": [{key: row.get(key) for key in ("step", "attempt", *KEYS)} for row in rows]}
            news |= {"state": now, "again": end < offset or end - offset > MOST_NEWS}
            yield f"id: {end}\ndata: {json.dumps(news)}\n\n"
            state, offset, quiet = now, end, 0
        quiet += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), SECONDS)


def _new_lines(path: Path, offset: int) -> tuple[list[bytes], int]:
    """(whole lines behind an offset, the offset after them); no lines where there are too many, or the file shrank."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < offset or size - offset > MOST_NEWS:
                return [], size
            file.seek(offset)
            data = file.read(size - offset)
    except OSError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    return whole.splitlines(), offset + len(whole)


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{name}={text[:20]}: give a number")
    return value


def _failed(_: Request, error: Exception) -> Response:
    """An error as the page shows it."""
    told = str(error) if isinstance(error, HornbookError | OSError) else f"its records are damaged ({error!r})"
    return JSONResponse({"error": told}, 400 if isinstance(error, UsageError) else 500)


def build_app(dashboard: Dashboard, token: str) -> Starlette:
    """The application; token: what the link that opens it has."""
    views: dict[str, Callable] = {
        "": dashboard.run,
        "/curves": dashboard.curves,
        "/layers": dashboard.layers,
        "/settings": dashboard.settings,
        "/doctor": dashboard.doctor,
        "/live": dashboard.live,
    }
    return Starlette(
        routes=[
            Route("/api/runs", dashboard.list),
            *(Route(f"/api/runs/{{name}}{path}", view) for path, view in views.items()),
            Route("/api/runs/{name}/ask", dashboard.ask, methods=["POST"]),
            *ExplorerRoutes(dashboard.runs.get).routes(),
            Route("/api/{path:path}", lambda _: JSONResponse({"error": "there is no such answer"}, 404)),
            Mount("/page", StaticFiles(directory=PAGE)),
            Route("/{path:path}", lambda _: FileResponse(PAGE / "index.html")),
        ],
        middleware=[Middleware(Gate, token=token)],
        exception_handlers=dict.fromkeys((HornbookError, OSError, LookupError, TypeError, ValueError), _failed),
    )
