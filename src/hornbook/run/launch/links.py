"""Whether ranks on several machines reach each other, before the first collective would wait for those that do not.

That all of them reach rank 0 is known by then. Collectives also need links between the others, at ports that the system
chooses: a firewall or a missing route would otherwise show as a time-out that names nobody. Every rank connects to some
others, in small worlds to all, and all ranks raise the same error.
"""

import json
import os
import socket

import psutil
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from hornbook.errors import UsageError
from hornbook.parallel.world import SETUP_SECONDS, RankInfo
from hornbook.run.launch.rendezvous import LINGER_SECONDS, needs_rank0, wait_until

LINK_SECONDS = 5.0
"""Longest wait for a connection to another machine."""
ALL_PAIRS = 16
"""Up to so many ranks every pair is tried; of more, each rank tries those 1, 2, 4, 8 ... ranks away."""


def own_address(host: str) -> str:
    """The address of this machine on the network that leads to a host. Raises OSError if none does."""
    family, kind, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # of a datagram socket: chooses a route, and sends nothing
        return probe.getsockname()[0]


def use_interface(host: str) -> None:
    """Have gloo use the network that leads to rank 0, unless GLOO_SOCKET_IFNAME names one.

    By itself it takes the one that this machine's name resolves to, which is often the loopback of each machine.
    """
    own = own_address(host)
    names = [name for name, found in psutil.net_if_addrs().items() if any(each.address == own for each in found)]
    if names and not own.startswith("127.") and own != "::1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])


def peers_of(rank: int, size: int) -> list[int]:
    """Ranks that a rank connects to; connections work both ways, so each pair needs one."""
    if size <= ALL_PAIRS:
        return list(range(rank + 1, size))
    return [(rank + 2**power) % size for power in range(size.bit_length() - 1)]


def check_links(store: Store, rank_info: RankInfo) -> None:
    """Return on every rank if those on other machines are reached, else raise on every rank a UsageError.

    All ranks call it together, after they were found to be there.
    """
    assert rank_info.host is not None
    own = own_address(rank_info.host)
    with needs_rank0(), socket.create_server((own, 0), family=_family(own), backlog=128) as server:
        store = PrefixStore("links", store)
        store.set(f"at/{rank_info.rank}", json.dumps([own, server.getsockname()[1], socket.gethostname()]))
        _together(store, "there", rank_info)
        if problem := _first_problem(store, own, rank_info):
            store.set(f"problem/{store.add('problems', 1)}", problem)
        _together(store, "tried", rank_info)
        problems = [store.get(f"problem/{n + 1}").decode() for n in range(min(store.add("problems", 0), 8))]
        store.add("read", 1)
        if rank_info.is_rank0 and problems:  # the store is in this process, which is about to raise
            wait_until(lambda: store.add("read", 0) >= rank_info.size, LINGER_SECONDS)
    if problems:
        remedy = "see to routes and firewalls between them; GLOO_SOCKET_IFNAME names the network interface to use"
        raise UsageError("\n  ".join(["machines do not reach each other", *sorted(problems), remedy]))


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _together(store: Store, name: str, rank_info: RankInfo) -> None:
    store.add(name, 1)
    if not wait_until(lambda: store.add(name, 0) >= rank_info.size, SETUP_SECONDS):
        raise UsageError(f"a rank left before the first step, in {SETUP_SECONDS:g} s: see its own output")


def _first_problem(store: Store, own: str, rank_info: RankInfo) -> str:
    """The first rank on another machine that is not reached, as a line; "" if all are."""
    for peer in peers_of(rank_info.rank, rank_info.size):
        address, port, name = json.loads(store.get(f"at/{peer}"))
        if address == own:
            continue
        try:
            socket.create_connection((address, port), LINK_SECONDS).close()
        except OSError as error:
            here = f"rank {rank_info.rank} on {socket.gethostname()} ({own})"
            return f"{here} does not reach rank {peer} on {name} ({address}): {error.strerror or error}"
    return ""
