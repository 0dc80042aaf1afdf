"""Links between machines: those that are missing are named on every rank. Ranks are threads, machines are addresses."""

import collections
import socket
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from hornbook.errors import UsageError
from hornbook.parallel.world import RankInfo
from hornbook.run.launch import links
from hornbook.run.launch.links import check_links, choose_address, own_address, peers_of


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
    monkeypatch.setattr(links, "choose_address", lambda _, rank_info: (rank_info.host, ""))

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


class Machines:
    """Stands in for the networks of several machines, with a rank on each: what a rank would see is by its thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, routes: list[dict[str, str]], own: list[str]) -> None:
        self._here, self._store = threading.local(), HashStore()
        self._routes, self._own, self.environ = routes, own, [dict[str, str]() for _ in routes]
        monkeypatch.setattr(links, "own_address", lambda host: self._routes[self._here.rank].get(host, ""))
        monkeypatch.setattr(links.psutil, "net_if_addrs", self._interfaces)
        monkeypatch.setattr(links, "os", types.SimpleNamespace(environ=self))

    def _interfaces(self) -> dict[str, list[Any]]:
        kind = collections.namedtuple("Address", ("family", "address"))
        own = kind(socket.AF_INET, self._own[self._here.rank])
        return {"lo": [kind(socket.AF_INET, "127.0.0.1")], "eth7": [kind(socket.AF_PACKET, "02:42"), own]}

    def get(self, name: str, default: str) -> str:
        return self.environ[self._here.rank].get(name, default)

    def __setitem__(self, name: str, value: str) -> None:
        self.environ[self._here.rank][name] = value

    def choose(self) -> list[tuple[str, str]]:
        """What `choose_address` says on each."""

        def one(rank: int) -> tuple[str, str]:
            self._here.rank = rank
            return choose_address(self._store, RankInfo(rank, len(self._own), host="node1"))

        with ThreadPoolExecutor(len(self._own)) as pool:
            return list(pool.map(one, range(len(self._own)), timeout=60))


def test_a_machine_whose_name_is_a_loopback_address_takes_the_route_to_the_others(monkeypatch: pytest.MonkeyPatch):
    """As Debian sets up /etc/hosts: node1 is 127.0.1.1 on node1 itself."""
    routes = [{"node1": "127.0.0.1", "10.0.0.2": "10.0.0.1"}, {"node1": "10.0.0.2"}]
    machines = Machines(monkeypatch, routes, ["10.0.0.1", "10.0.0.2"])
    assert machines.choose() == [("10.0.0.1", ""), ("10.0.0.2", "")]
    assert machines.environ == [{"GLOO_SOCKET_IFNAME": "eth7"}] * 2


def test_an_interface_that_is_named_is_taken_if_it_is_there(monkeypatch: pytest.MonkeyPatch):
    machines = Machines(monkeypatch, [{"node1": "127.0.0.1"}, {"node1": "10.0.0.2"}], ["10.1.0.1", "10.1.0.2"])
    machines.environ = [{"GLOO_SOCKET_IFNAME": "eth7"}, {"GLOO_SOCKET_IFNAME": "ib0,ib1"}]
    first, (_, problem) = machines.choose()
    assert first == ("10.1.0.1", "")
    assert problem == "GLOO_SOCKET_IFNAME is 'ib0', which has no address: this machine has eth7, lo"


def test_a_machine_that_no_network_leads_out_of_is_told(monkeypatch: pytest.MonkeyPatch):
    machines = Machines(monkeypatch, [{"node1": "127.0.0.1"}, {"node1": "10.0.0.2"}], ["10.0.0.1", "10.0.0.2"])
    assert machines.choose()[0] == ("127.0.0.1", "no address of this machine leads to the others")


def test_ranks_of_one_machine_need_no_network(monkeypatch: pytest.MonkeyPatch):
    assert own_address("localhost") in ("127.0.0.1", "::1")
    assert own_address("no such host") == ""
    machines = Machines(monkeypatch, [{"node1": "127.0.0.1"}] * 2, ["10.0.0.1"] * 2)
    assert machines.choose() == [("127.0.0.1", "")] * 2
    assert machines.environ == [{}, {}]
