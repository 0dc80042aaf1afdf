"""Stores of ranks under a launcher: every wait ends, with a name for who did not come. Ranks are threads here."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from hornbook.errors import InUseError, RankLostError, UsageError
from hornbook.run.launch import rendezvous
from hornbook.run.launch.rendezvous import BEGUN, Address, await_rank0, open_store, rank0_first
from tests.processes import free_port


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for."""
    monkeypatch.setattr(rendezvous, "SETUP_SECONDS", 1.0)
    monkeypatch.setattr(rendezvous, "_lock_seconds", lambda: 1.0)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A program that listens at a port and never says a word."""
    with socket.create_server(("localhost", 0)) as taken:
        yield taken


def together(*functions: Callable[[], Any]) -> list[Any]:
    """What each returns or raises, run at the same time."""

    def result(function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - it is the result
            return error

    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(120) for future in [pool.submit(result, function) for function in functions]]


def test_rank_0_opens_the_store_and_the_others_find_it_whoever_comes_first():
    port = free_port()

    def late() -> Any:
        time.sleep(0.3)
        return open_store(Address("localhost", port, is_rank0=True))

    other, first = together(lambda: open_store(Address("localhost", port, is_rank0=False)), late)
    first.set("key", "value")
    assert other.get("key") == b"value"


def test_a_port_in_use_is_named(listener: socket.socket):
    port = listener.getsockname()[1]
    with pytest.raises(UsageError, match=rf"port {port} \(MASTER_PORT\) is in use"):
        open_store(Address("localhost", port, is_rank0=True))


@pytest.mark.usefixtures("short")
def test_a_rank_0_that_does_not_come_is_named():
    port = free_port()
    with pytest.raises(RankLostError, match=f"rank 0 did not arrive in 1 s: nothing answers at localhost:{port}"):
        open_store(Address("localhost", port, is_rank0=False))


def test_a_rank_that_comes_while_another_run_is_there_joins_the_next_one():
    """It takes the place of one that was lost, and the others have yet to notice."""
    port = free_port()
    before = [open_store(Address("localhost", port, is_rank0=True))]
    before[0].set(BEGUN, "")

    def lead() -> Any:
        time.sleep(0.5)
        before.clear()  # the old rank 0 ends
        return open_store(Address("localhost", port, is_rank0=True))

    other, first = together(lambda: open_store(Address("localhost", port, is_rank0=False)), lead)
    first.set("key", "value")
    assert other.get("key") == b"value"
    assert not other.check([BEGUN])


@pytest.mark.usefixtures("short")
def test_a_run_that_began_before_and_does_not_end_is_named():
    port = free_port()
    before = open_store(Address("localhost", port, is_rank0=True))
    before.set(BEGUN, "")
    with pytest.raises(RankLostError, match="in 1 s: a run that began before is still at localhost"):
        open_store(Address("localhost", port, is_rank0=False))


def test_a_host_that_does_not_exist_is_named_at_once(monkeypatch: pytest.MonkeyPatch):
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(UsageError, match="MASTER_ADDR is 'nohost', which no machine is called here"):
        open_store(Address("nohost", 29400, is_rank0=False))


@pytest.mark.usefixtures("short")
def test_a_stranger_at_the_port_who_says_nothing_is_told(listener: socket.socket):
    """torch's client would wait for ever. Its thread ends when the stranger hangs up."""
    port = listener.getsockname()[1]
    with pytest.raises(UsageError, match=f"at localhost:{port} .* is a listener that does not answer"):
        open_store(Address("localhost", port, is_rank0=False))


def agent_store() -> TCPStore:
    return TCPStore("localhost", 0, None, True, wait_for_workers=False)


def test_the_agent_of_torchrun_tells_the_port_and_a_store_of_the_dead_is_passed_by():
    agent = agent_store()
    PrefixStore("hornbook", agent).set("port", str(free_port()))  # of an incarnation that has died
    addresses = [Address("localhost", agent.port, is_rank0=rank == 0, agent=True) for rank in range(2)]

    def late() -> Any:
        time.sleep(0.3)
        return open_store(addresses[0])

    other, first = together(lambda: open_store(addresses[1]), late)
    first.set("key", "value")
    assert other.get("key") == b"value"
    assert not agent.check(["key"])


@pytest.mark.usefixtures("short")
def test_a_rank_0_that_tells_the_agent_nothing_is_named():
    agent = agent_store()
    with pytest.raises(RankLostError, match="rank 0 did not arrive in 1 s: nothing answers at localhost:0"):
        open_store(Address("localhost", agent.port, is_rank0=False, agent=True))


def test_the_others_wait_until_rank_0_is_ready():
    store = HashStore()
    ready = threading.Event()

    def lead() -> None:
        with rank0_first(store, 2) as told:
            time.sleep(0.2)
            ready.set()
            told["attempt"] = 7

    def follow() -> Any:
        return await_rank0(store), ready.is_set()

    assert together(follow, lead) == [({"attempt": 7}, True), None]


def test_what_keeps_rank_0_from_the_run_directory_is_raised_by_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, "LINGER_SECONDS", 1e6)  # rank 0 stays only until all have heard
    store = HashStore()

    def lead() -> None:
        with rank0_first(store, 3):
            raise InUseError("runs/a is in use by process 7")

    first, second, third = together(lead, lambda: await_rank0(store), lambda: await_rank0(store))
    assert str(first) == "runs/a is in use by process 7"
    assert [type(error) for error in (first, second, third)] == [InUseError] * 3
    assert str(second) == str(third) == "rank 0: runs/a is in use by process 7"


@pytest.mark.usefixtures("short")
def test_a_rank_0_that_never_gets_the_directory_is_named():
    with pytest.raises(RankLostError, match="rank 0 did not open the run directory in 1 s"):
        await_rank0(HashStore())
