"""Where ranks that a launcher started meet, and what they tell each other before the first collective.

How it goes, in this order, on every rank (`run/launch/launch.py` does it):

    store = place.connect()                                the same store at every call
    compare_ranks(store, place, rank_facts(recipe, lock))  nobody goes on before all have come this far
    rank 0:  with leading(store, place.size) as told:      takes the lock, writes the first files of the run
    others:  told = await_leader(store)                    before they look at the run directory

The store is a TCPStore in rank 0's process, new at each start: no key of a rank that has died is in it. torchrun's
agent keeps a store of its own at MASTER_PORT, which outlives its ranks and, on several machines, cannot even
be divided by TORCHELASTIC_RESTART_COUNT, which counts for each agent apart; it is only asked where the new one is.
Before torch's own client a plain socket asks whether anybody is there: the client prints stacks, and waits
without end for a stranger that accepts and says nothing.
"""

import contextlib
import datetime
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.distributed import (
    DistError,  # pyright: ignore[reportPrivateImportUsage]
    DistNetworkError,  # pyright: ignore[reportPrivateImportUsage]
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

import hornbook.errors
from hornbook.errors import HornbookError, UsageError
from hornbook.parallel.world import SETUP_SECONDS

LINGER_SECONDS = 3.0
"""How long rank 0, which holds the store, stays for the others to read what is wrong."""
_PERIOD = 0.05


@dataclass(frozen=True)
class Address:
    """Where a launcher wants the ranks to meet."""

    host: str
    port: int
    ours: bool
    """This process is rank 0: it opens the store."""
    agent: bool = False
    """At the port is a store of torchrun's agent."""


def open_store(address: Address) -> Store:
    """The store of all ranks. Raises UsageError: the port is in use, the host unknown, or rank 0 does not come."""
    if not address.agent:
        return _serve(address.port) if address.ours else _reach(address, "rank 0")
    agent = PrefixStore("hornbook", _reach(address, "the agent of torchrun"))
    if address.ours:
        store = _serve(0)
        agent.set("port", str(store.port))
        return store
    return _follow(agent, address)


def _serve(port: int) -> TCPStore:
    try:
        return TCPStore("localhost", port, None, True, _timeout(), wait_for_workers=False)
    except DistNetworkError as error:
        reason = "is in use on this machine" if "EADDRINUSE" in str(error) else f"cannot be opened: {error}"
        raise UsageError(
            f"port {port} (MASTER_PORT) {reason}: set MASTER_PORT to a free one, alike on all ranks"
        ) from error


def _reach(address: Address, who: str) -> TCPStore:
    """A client of the store at the address, as soon as it is there."""
    deadline = time.monotonic() + SETUP_SECONDS
    while not _answers(address.host, address.port):
        if time.monotonic() > deadline:
            raise UsageError(
                f"{who} did not arrive in {SETUP_SECONDS:g} s: nothing answers at {address.host}:{address.port} "
                "(MASTER_ADDR, MASTER_PORT); see what it says itself, and whether a firewall is between"
            )
        time.sleep(_PERIOD)
    return _client(address.host, address.port)


def _follow(agent: Store, address: Address) -> TCPStore:
    """A client of the store whose port rank 0 told the agent; what a rank 0 that has died told leads nowhere."""
    deadline = time.monotonic() + SETUP_SECONDS
    while time.monotonic() < deadline:
        if agent.check(["port"]) and _answers(address.host, port := int(agent.get("port"))):
            return _client(address.host, port)
        time.sleep(_PERIOD)
    raise UsageError(f"rank 0 did not arrive in {SETUP_SECONDS:g} s on {address.host}; see what it says itself")


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except socket.gaierror as error:
        raise UsageError(f"MASTER_ADDR is {host!r}, which no machine is called here: {error.strerror}") from error
    except OSError:
        return False
    return True


def _client(host: str, port: int) -> TCPStore:
    """torch's client, in a thread that may be left behind: it waits without end for one who accepts and is silent."""
    found: list[TCPStore] = []

    def connect() -> None:
        with contextlib.suppress(DistError):
            found.append(TCPStore(host, port, None, False, _timeout(), wait_for_workers=False))

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(SETUP_SECONDS)
    if not found:
        raise UsageError(
            f"at {host}:{port} (MASTER_ADDR, MASTER_PORT) is no store of torch: another program uses that port; "
            "set MASTER_PORT to a free one, alike on all ranks"
        )
    return found[0]


def _timeout() -> datetime.timedelta:
    return datetime.timedelta(seconds=SETUP_SECONDS)


@contextlib.contextmanager
def leading(store: Store, size: int) -> Iterator[dict[str, Any]]:
    """What rank 0 does before the others may look at the run directory.

    They hear what was put into the dictionary, once the block has ended well; or the error that ended it.
    """
    told: dict[str, Any] = {}
    try:
        yield told
    except HornbookError as error:
        store.set("leader", json.dumps({"error": type(error).__name__, "text": str(error)}))
        wait_until(lambda: store.add("heard", 0) >= size - 1, LINGER_SECONDS)
        raise
    store.set("leader", json.dumps(told))


def await_leader(store: Store) -> dict[str, Any]:
    """What rank 0 told, once it has the run directory. Raises the error that kept it from that, or UsageError."""
    with held_by_leader():
        if not wait_until(lambda: store.check(["leader"]), SETUP_SECONDS):
            raise UsageError(f"rank 0 did not open the run directory in {SETUP_SECONDS:g} s: see what it says itself")
        told = json.loads(store.get("leader"))
        store.add("heard", 1)
    if "error" in told:
        raise getattr(hornbook.errors, told["error"], HornbookError)(f"rank 0: {told['text']}")
    return told


@contextlib.contextmanager
def held_by_leader() -> Iterator[None]:
    """A store that has gone means that rank 0 has."""
    try:
        yield
    except DistError as error:
        raise UsageError("rank 0 left before the first step: see what it says itself") from error


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Ask until it is so, or the time is over: torch's own waits write warnings to stderr."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PERIOD)
    return True
