"""Time of collectives by latency and bandwidth (alpha-beta), on devices in groups that a fast link joins.

A ring moves (p - 1) / p of the bytes through each device for a gather or a reduce-scatter, twice that for a sum
(Thakur et al. 2005). Of a group of which k devices lie in each domain, a ring through all domains crosses between them
once for each of k rings, so that a device has min(link, k x network).
"""

from dataclasses import dataclass
from math import ceil, gcd, log2

from hornbook.plan.devices.hardware import Cluster

LINK_LATENCY = 6e-6
"""Seconds that a step of a collective takes at least, within a domain."""
NETWORK_LATENCY = 15e-6
"""The same between domains."""
LINK_HOP = 3.4e-6
"""Seconds in which the first bytes of a ring pass a rank, within a domain (NCCL's latencies, simple protocol)."""
NETWORK_HOP = 14e-6
"""The same between domains."""


@dataclass(frozen=True)
class Group:
    """Ranks that exchange something."""

    ranks: int
    inside: int
    """Of them, in one domain."""
    bandwidth: float
    """Bytes per second of each in a ring."""
    link: float
    """Bytes per second of each within its domain."""
    network: float
    """The same to other domains, by its own card."""

    @property
    def across(self) -> int:
        """Domains."""
        return ceil(self.ranks / self.inside)

    @property
    def latency(self) -> float:
        """Seconds of one call, however few bytes."""
        return LINK_LATENCY * ceil(log2(max(self.inside, 1)) + 1) + NETWORK_LATENCY * ceil(log2(self.across))

    @property
    def lap(self) -> float:
        """Seconds in which the first bytes go round the ring: gathers and scatters have no tree."""
        hops = self.across if self.across > 1 else 0
        return LINK_HOP * (self.ranks - max(self.across, 1)) + NETWORK_HOP * hops

    def gather(self, num_bytes: float) -> float:
        """Seconds to gather so many bytes in all, or to sum and scatter them."""
        if self.ranks == 1:
            return 0.0
        return self.latency + (self.ranks - 1) / self.ranks * num_bytes / self.bandwidth

    def all_reduce(self, num_bytes: float) -> float:
        """Seconds to sum so many bytes."""
        return 2 * self.gather(num_bytes)

    def exchange(self, num_bytes: float, copies: int, *, once: bool = False) -> float:
        """Seconds in which each rank sends `copies` ranks so many bytes, evenly to all of them; those of other domains
        share the device's own network card. once: a domain gets the same bytes once (Zhao et al. 2025, DeepEP)."""
        if self.ranks == 1:
            return 0.0
        far = copies * (1 - 1 / self.across)
        if once:
            far = (self.across - 1) * (1 - (1 - 1 / self.across) ** copies)
        near = copies * (self.inside - 1) / self.inside if once else copies * (self.inside - 1) / self.ranks
        return self.latency + num_bytes * max(near / self.link, far / self.network)

    def send(self, num_bytes: float) -> float:
        """Seconds of a message to the next rank."""
        return 0.0 if self.ranks == 1 else self.latency + num_bytes / self.bandwidth


def group(cluster: Cluster, ranks: int, stride: int, link: float, network: float) -> Group:
    """A group of `ranks` whose numbers are `stride` apart; link, network: bytes per second that are reached.

    Machines are filled in order: of groups of 3 ranks on machines of 8 some have a rank alone on the next machine, and
    a ring is as fast as the network cards of its smallest part. Of a rack a run takes as many devices as groups fill.
    """
    span, domain = ranks * stride, cluster.domain
    filled = domain if domain > cluster.device.node else gcd(span, domain)
    inside = max(min(ranks, filled // max(stride, 1)), 1)
    bandwidth = link if inside >= ranks else min(link, network * inside)
    return Group(ranks, inside, bandwidth, link, network)
