"""Whether ranks on several machines reach each other, before the first collective would wait for those that do not.

That all of them reach rank 0 is known by then. Collectives also need links between the others, at ports that the system
chooses: a firewall or a missing route would otherwise show as a time-out that names nobody. Every rank connects to some
others, in small worlds to all, and all ranks raise the same error.
"""

import ipaddress
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import psutil
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from hornbook.errors import RankLostError, UsageError
from hornbook.parallel.world import SETUP_SECONDS, RankInfo
from hornbook.run.launch.rendezvous import LINGER_SECONDS, needs_rank0, wait_until

LINK_SECONDS = 5.0
"""Longest wait for a connection to another machine."""
ALL_PAIRS = 16
"""Up to so many ranks every pair is tried; of more, each rank tries those 1, 2, 4, 8 ... ranks away."""
_INTERFACE = "GLOO_SOCKET_IFNAME"
_LOOPBACK = "127.0.0.1"


def own_address(host: str) -> str:
    """The address of this machine on the network that leads to a host; "" if none does."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of a datagram socket: chooses a route, and sends nothing
            return probe.getsockname()[0]
    except OSError:
        return ""


def choose_address(store: Store, rank_info: RankInfo) -> tuple[str, str]:
    """(The address of this machine for ranks on others, what is wrong with it or ""); gloo is told its interface.

    It is that of GLOO_SOCKET_IFNAME, or else of the network that leads to rank 0. The machine of rank 0, whose own name
    often resolves to a loopback address (127.0.1.1), takes the network that leads to a rank elsewhere. By itself gloo
    takes the address that this machine's name resolves to. All ranks call it together.
    """
    assert rank_info.host is not None
    interfaces, named = psutil.net_if_addrs(), os.environ.get(_INTERFACE, "").split(",")[0]
    own = _address_of(interfaces, named) if named else own_address(rank_info.host)
    if not _is_local(own):
        store.set("outside", own)
    _together(store, "chosen", rank_info)
    if named:
        has = f"this machine has {', '.join(sorted(interfaces))}"
        return own or _LOOPBACK, "" if own else f"{_INTERFACE} is {named!r}, which has no address: {has}"
    if not _is_local(own):
        outside = own
    elif store.check(["outside"]):
        outside = own_address(store.get("outside").decode())
    else:
        return own or _LOOPBACK, ""  # all ranks are on this machine
    found = [name for name in interfaces if outside in _addresses(interfaces, name)]
    if _is_local(outside) or not found:
        return _LOOPBACK, "no address of this machine leads to the others"
    os.environ[_INTERFACE] = found[0]
    return outside, ""


def _addresses(interfaces: Mapping[str, Sequence[Any]], name: str) -> list[str]:
    return [each.address for each in interfaces.get(name, ())]


def _address_of(interfaces: Mapping[str, Sequence[Any]], name: str) -> str:
    """The first IP address of an interface; "" if it has none, or is not there."""
    found = [each.address for each in interfaces.get(name, ()) if each.family in (socket.AF_INET, socket.AF_INET6)]
    return found[0] if found else ""


def _is_local(address: str) -> bool:
    return not address or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def peers_of(rank: int, size: int) -> list[int]:
    """Ranks that a rank connects to; connections work both ways, so each pair needs one."""
    if size <= ALL_PAIRS:
        return list(range(rank + 1, size))
    return [(rank + 2**power) % size for power in range(size.bit_length() - 1)]


def check_links(store: Store, rank_info: RankInfo) -> None:
    """Return on every rank if those on other machines are reached, else raise on every rank a UsageError.

    gloo then uses the interfaces that were tried. All ranks call it together, after they were found to be there. Raises
    RankLostError if one leaves.
    """
    store = PrefixStore("links", store)
    with needs_rank0():
        own, problem = choose_address(store, rank_info)
        problems = _try_links(store, rank_info, own, problem)
    if problems:
        remedy = f"see to routes and firewalls between them; {_INTERFACE} names the network interface to use"
        raise UsageError("\n  ".join(["machines do not reach each other", *sorted(problems), remedy]))


def _try_links(store: Store, rank_info: RankInfo, own: str, problem: str) -> list[str]:
    """What all ranks found wrong, one line each, eight at most. `problem`: what this one knows before it tries."""
    here = f"rank {rank_info.rank} on {socket.gethostname()}"
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    with socket.create_server((own, 0), family=family, backlog=128) as server:
        store.set(f"at/{rank_info.rank}", json.dumps([own, server.getsockname()[1], socket.gethostname()]))
        _together(store, "there", rank_info)
        if problem := f"{here}: {problem}" if problem else _first_problem(store, own, rank_info):
            store.set(f"problem/{store.add('problems', 1)}", problem)
        _together(store, "tried", rank_info)
        problems = [store.get(f"problem/{n + 1}").decode() for n in range(min(store.add("problems", 0), 8))]
        store.add("read", 1)
        if rank_info.is_rank0 and problems:  # the store is in this process, which is about to raise
            wait_until(lambda: store.add("read", 0) >= rank_info.size, LINGER_SECONDS)
    return problems


def _together(store: Store, name: str, rank_info: RankInfo) -> None:
    store.add(name, 1)
    if not wait_until(lambda: store.add(name, 0) >= rank_info.size, SETUP_SECONDS):
        raise RankLostError(f"a rank left before the first step, in {SETUP_SECONDS:g} s: see its own output")


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
