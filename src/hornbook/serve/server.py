"""The server: uvicorn over the application, from its start to a signal that ends it."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from hornbook.errors import UsageError
from hornbook.serve.hosts import LOCAL, is_local


@dataclass(frozen=True)
class Address:
    """Where to listen, and under which names."""

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    """Names under which others call this machine, besides `host`."""

    @property
    def is_local(self) -> bool:
        """Other machines cannot reach it."""
        return is_local(self.host)

    @property
    def hosts(self) -> frozenset[str]:
        """Names that a Host header may have."""
        return LOCAL | {self.host.lower(), *(name.lower() for name in self.names)}


class _Server(uvicorn.Server):
    """Ends on SIGTERM or SIGINT once what is under way has ended; on a second one at once."""

    def __init__(self, config: uvicorn.Config, started: Callable[[int], None], ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._report, self._ending = started, ending

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the server runs, without raising them again at its end, which is none of failure."""
        loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._end)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._ending()

    async def startup(self, sockets: "list | None" = None) -> None:
        """Say where it listens, once it does."""
        await super().startup(sockets=sockets)
        if self.started:
            self._report(self.servers[0].sockets[0].getsockname()[1])


def serve_app(
    app: ASGIApp,
    address: Address,
    started: Callable[[int], None],
    *,
    drain_seconds: float,
    ending: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal comes. started: called with the port once it listens. Raises UsageError.

    Port 0 is any that is free. drain_seconds: how long answers that are under way may still take after the signal.
    ending: called in the loop when the signal comes, to end answers that would never end.
    """
    config = uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        log_config=None,  # uvicorn's own closes the logging handlers of everybody else in the process, some with stderr
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(drain_seconds),
        backlog=2048,
        lifespan="on",
    )
    try:
        _Server(config, started, ending).run()
    except SystemExit as error:  # uvicorn has logged the cause: the address is taken, or not of this machine
        other = "" if address.is_local else ", or a --host of this machine"
        raise UsageError(
            f"cannot listen on {address.host} port {address.port}: choose another --port{other}"
        ) from error
