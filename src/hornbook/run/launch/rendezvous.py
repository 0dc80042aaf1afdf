"""The rendezvous of ranks that a launcher started, before the first collective.

Every rank makes these calls in this order (`run/launch/launch.py`):

    store = rank_info.connect()                                the same store at every call
    compare_ranks(store, rank_info, rank_facts(recipe, lock))  returns once all ranks have arrived
    rank 0:  with rank0_first(store, size) as published:       takes the lock, writes the first files of the run
    others:  published = await_rank0(store)                    before they read the run directory

The store is a TCPStore in rank 0's process, new at each start, so it holds no key of a dead rank. torchrun's agent has
a store of its own at MASTER_PORT that outlives its ranks. Its keys cannot be separated by TORCHELASTIC_RESTART_COUNT,
which every machine counts for itself, so it only holds the port of the new store.

A rank that takes the place of one that was lost may arrive while the others still have to notice: it finds the store of
the run that began before, in which `BEGUN` is set, and waits for the next one. Being late, or early, is no error of the
command: a rank that is not met in time is a RankLostError, whose exit code asks for another start.

A plain socket checks for a listener before torch's client connects: the client prints stacks, and waits forever for a
program that accepts and stays silent.
"""

import contextlib
import datetime
import json
import os
import re
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
from hornbook.errors import HornbookError, RankLostError, UsageError
from hornbook.files.run_lock import LEASE_SECONDS, SERVER_SECONDS, SETTLE_SECONDS
from hornbook.parallel.world import SETUP_SECONDS

BEGUN = "begun"
"""Key in the store of a run whose ranks have all arrived: no other can join it."""
LINGER_SECONDS = 3.0
"""Time for which a failing rank 0, which holds the store, waits until the others have read its error."""
_PERIOD = 0.05
_ARRIVAL = "HORNBOOK_ARRIVAL_SECONDS"


def arrival_seconds() -> float:
    """Longest wait for other ranks to arrive: HORNBOOK_ARRIVAL_SECONDS, else SETUP_SECONDS. Raises UsageError."""
    text = os.environ.get(_ARRIVAL, "")
    if text and not re.fullmatch(r"[1-9][0-9]{0,4}", text):
        raise UsageError(f"{_ARRIVAL} is {text!r}: give a number of seconds, such as 600, or leave it out")
    return float(text or SETUP_SECONDS)


@dataclass(frozen=True)
class Address:
    """The address that a launcher gives for the rendezvous."""

    host: str
    port: int
    is_rank0: bool
    """Rank 0 opens the store."""
    agent: bool = False
    """The port belongs to the store of torchrun's agent."""


def open_store(address: Address) -> Store:
    """The store of all ranks.

    Raises UsageError (the port is in use, the host unknown), RankLostError (rank 0 does not come).
    """
    if not address.agent:
        return _serve(address.port) if address.is_rank0 else _reach(address, "rank 0")
    agent = PrefixStore("hornbook", _reach(address, "the agent of torchrun"))
    if address.is_rank0:
        store = _serve(0)
        agent.set("port", str(store.port))
        return store
    return _reach_by_agent(agent, address)


def _serve(port: int) -> TCPStore:
    try:
        return TCPStore("localhost", port, None, True, _timeout(), wait_for_workers=False)
    except DistNetworkError as error:
        reason = "is in use on this machine" if "EADDRINUSE" in str(error) else f"cannot be opened: {error}"
        raise UsageError(
            f"port {port} (MASTER_PORT) {reason}: set MASTER_PORT to a free one, alike on all ranks"
        ) from error


def _reach(address: Address, who: str) -> TCPStore:
    """A client of the store at the address; waits for it."""
    return _await_store(lambda: (address.host, address.port), arrival_seconds(), who)


def _reach_by_agent(agent: Store, address: Address) -> TCPStore:
    """A client of the store whose port rank 0 set in the agent's; ports of a dead rank 0 do not answer."""

    def where() -> tuple[str, int]:
        return address.host, int(agent.get("port")) if agent.check(["port"]) else 0

    return _await_store(where, SETUP_SECONDS, "rank 0")


def _await_store(where: Callable[[], tuple[str, int]], seconds: float, who: str) -> TCPStore:
    """A client of a store whose run has not begun; one that began before is waited out. Raises RankLostError."""
    deadline, why = time.monotonic() + seconds, "nothing answers"
    while (left := deadline - time.monotonic()) > 0 and wait_until(lambda: _is_listening(*where()), left):
        client = _client(*where())
        with contextlib.suppress(DistError):  # the run that began before has ended, so another may open
            if client is not None and not client.check([BEGUN]):
                return client
            if client is not None and _holds(client, deadline):
                why = "a run that began before is still"
    host, port = where()
    raise RankLostError(
        f"{who} did not arrive in {seconds:g} s: {why} at {host}:{port} (MASTER_ADDR, MASTER_PORT); see its own "
        "output, and whether a firewall is between; start all ranks again"
    )


def _holds(client: TCPStore, deadline: float) -> bool:
    """Wait for the end of a store. Raises DistError when it ends; True if it is there at the deadline."""
    return not wait_until(lambda: not client.check([BEGUN]), deadline - time.monotonic())


def _is_listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except socket.gaierror as error:
        if _ARRIVAL in os.environ:  # its name may come with it, as that of a pod does
            return False
        raise UsageError(f"MASTER_ADDR is {host!r}, which no machine is called here: {error.strerror}") from error
    except OSError:
        return False
    return True


def _client(host: str, port: int) -> TCPStore | None:
    """torch's client; None if the listener has gone.

    It is connected in a thread that can be abandoned: it waits forever for a program that stays silent.
    """
    found: list[TCPStore] = []

    def connect() -> None:
        with contextlib.suppress(DistError):
            found.append(TCPStore(host, port, None, False, _timeout(), wait_for_workers=False))

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(SETUP_SECONDS)
    if not found and _is_listening(host, port):
        raise UsageError(
            f"at {host}:{port} (MASTER_ADDR, MASTER_PORT) is a listener that does not answer: another program uses "
            "that port, so set MASTER_PORT to a free one, alike on all ranks; or rank 0 hangs, so start all ranks again"
        )
    return found[0] if found else None


def _timeout() -> datetime.timedelta:
    return datetime.timedelta(seconds=SETUP_SECONDS)


@contextlib.contextmanager
def rank0_first(store: Store, size: int) -> Iterator[dict[str, Any]]:
    """The block that rank 0 runs first; the others then get the dictionary that it filled, or its HornbookError."""
    published: dict[str, Any] = {}
    try:
        yield published
    except HornbookError as error:
        store.set("rank 0", json.dumps({"error": type(error).__name__, "text": str(error)}))
        wait_until(lambda: store.add("read by", 0) >= size - 1, LINGER_SECONDS)
        raise
    store.set("rank 0", json.dumps(published))


def await_rank0(store: Store) -> dict[str, Any]:
    """The dictionary of rank 0, once it has the run directory. Raises the error of rank 0, or RankLostError."""
    with needs_rank0():
        if not wait_until(lambda: store.check(["rank 0"]), _lock_seconds()):
            raise RankLostError(f"rank 0 did not open the run directory in {_lock_seconds():g} s: see its own output")
        published = json.loads(store.get("rank 0"))
        store.add("read by", 1)
    if "error" in published:
        raise getattr(hornbook.errors, published["error"], HornbookError)(f"rank 0: {published['text']}")
    return published


def _lock_seconds() -> float:
    """Longest time for rank 0 to open the run directory: it may watch the lock of a machine that was lost."""
    return SETUP_SECONDS + LEASE_SECONDS + SERVER_SECONDS + SETTLE_SECONDS


@contextlib.contextmanager
def needs_rank0() -> Iterator[None]:
    """Turn a lost store into a RankLostError: rank 0, which holds it, has gone."""
    try:
        yield
    except DistError as error:
        raise RankLostError(
            "rank 0 left before the first step: see its own output, and start all ranks again"
        ) from error


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Poll until `done()` or the time is over; whether it is done. torch's own waits print warnings."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PERIOD)
    return True
