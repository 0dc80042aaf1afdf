"""Links between machines: those that are missing are named on every rank. Ranks are threads, machines are addresses."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from hornbook.errors import UsageError
from hornbook.parallel.world import RankInfo
from hornbook.run.launch import links
from hornbook.run.launch.links import check_links, own_address, peers_of, use_interface


def test_every_pair_is_tried_in_small_worlds_and_none_is_left_out_of_large_ones():
    pairs = {(rank, peer) for rank in range(5) for peer in peers_of(rank, 5)}
    assert pairs == {(a, b) for a in range(5) for b in range(a + 1, 5)}
    for rank in range(40):
        assert rank not in peers_of(rank, 40)
        assert len(set(peers_of(rank, 40))) == 5


def checked(monkeypatch: pytest.MonkeyPatch, broken: set[tuple[str, str]]) -> list[object]:
    """What each of three ranks on machines 127.0.0.1 to 3 comes to, where some cannot reach others."""
    store = HashStore()
    connect = socket.create_connection
    monkeypatch.setattr(links, "own_address", lambda host: host)

    def run(rank: int) -> object:
        own = f"127.0.0.{rank + 1}"
        try:
            return check_links(store, RankInfo(rank, 3, host=own))
        except UsageError as error:
            return error

    def reach(address: tuple[str, int], timeout: float) -> socket.socket:
        if any(address[0] == target for _, target in broken):
            raise OSError(113, "No route to host")
        return connect(address, timeout)

    monkeypatch.setattr(links.socket, "create_connection", reach)
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(run, range(3), timeout=60))


def test_machines_that_all_reach_each_other(monkeypatch: pytest.MonkeyPatch):
    assert checked(monkeypatch, set()) == [None] * 3


def test_a_missing_link_is_named_on_every_rank(monkeypatch: pytest.MonkeyPatch):
    for found in checked(monkeypatch, {("127.0.0.2", "127.0.0.3")}):
        assert "rank 1 on " in str(found)
        assert "(127.0.0.2) does not reach rank 2" in str(found)
        assert "(127.0.0.3): No route to host" in str(found)


def test_the_interface_is_that_of_the_route_unless_it_is_named(monkeypatch: pytest.MonkeyPatch):
    assert own_address("localhost") in ("127.0.0.1", "::1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # so that what is set below is undone
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    use_interface("localhost")
    assert "GLOO_SOCKET_IFNAME" not in links.os.environ
    monkeypatch.setattr(links, "own_address", lambda _: "10.1.2.3")
    addresses = {"lo": [], "eth7": [type("Address", (), {"address": "10.1.2.3"})]}
    monkeypatch.setattr(links.psutil, "net_if_addrs", lambda: addresses)
    use_interface("node1")
    assert links.os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    use_interface("node1")
    assert links.os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
