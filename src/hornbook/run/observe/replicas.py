"""Compares what data-parallel ranks hold in common: bits that went wrong after the gradients were summed.

Weights and moments of replicas are equal to the bit, unless memory or a processor is faulty. Every rank hashes its own,
and only hashes cross ranks. Before a save and before a copy in memory the hashes are compared too, so that a state to
go back to is one that the ranks agreed on.
"""

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor

from hornbook.parallel.parameter_shard import Shard
from hornbook.parallel.world import AXES, World
from hornbook.run.checkpoints.state import State
from hornbook.run.ledger.ledger import Ledger

NAMED = 5
"""Tensors that a record of the ledger names."""
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReplicasDifferError(RuntimeError):
    """Ranks that must hold the same do not, and nobody can tell whose bits are right: go back to an earlier state."""


@dataclass(frozen=True)
class Difference:
    """Ranks that hold the same shards, with different bits."""

    ranks: list[int]
    """Those that hold other bits than the majority; without a majority all of them."""
    source: int | None
    """A rank of the majority; None: there is none."""
    tensors: list[str]
    """Names of what differs."""


def digests(tensors: Sequence[Tensor]) -> list[int]:
    """A number of 64 bits of each tensor, which a flipped bit changes: XXH3, on a GPU the sum of its words."""
    if any(tensor.is_cuda for tensor in tensors):
        sums = [each.detach().view(_WORDS[each.element_size()]).sum(dtype=torch.int64) for each in tensors]
        return torch.stack(sums).tolist()
    return [xxhash.xxh3_64_intdigest(_bytes(tensor)) for tensor in tensors]


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def combined(numbers: Sequence[int]) -> int:
    """One number of many."""
    return xxhash.xxh3_64_intdigest(struct.pack(f"={len(numbers)}Q", *(each % 2**64 for each in numbers)))


def layout_of(shards: Mapping[str, Shard]) -> int:
    """A number that is the same on ranks which hold the same parts of the same tensors."""
    places = [(name, each.start, tuple(each.tensor.shape), str(each.tensor.dtype)) for name, each in shards.items()]
    return xxhash.xxh3_64_intdigest(repr(places).encode())


def differences(found: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Of (layout, digest) of each rank: the ranks of each layout that occurs with several digests."""
    layouts = dict.fromkeys(layout for layout, _ in found)
    groups = [[rank for rank, each in enumerate(found) if each[0] == layout] for layout in layouts]
    return [ranks for ranks in groups if len({found[rank][1] for rank in ranks}) > 1]


def blame(ranks: Sequence[int], names: Sequence[str], found: Mapping[int, Sequence[int]]) -> Difference:
    """Who is wrong, and where. `found`: of each of the ranks, the digests of the tensors `names`."""
    counts = Counter(tuple(found[rank]) for rank in ranks)
    right, votes = counts.most_common(1)[0]
    majority = votes * 2 > len(ranks)
    wrong = [rank for rank in ranks if not majority or tuple(found[rank]) != right]
    source = next(rank for rank in ranks if rank not in wrong) if majority else None
    tensors = [name for i, name in enumerate(names) if len({found[rank][i] for rank in ranks}) > 1]
    return Difference(wrong, source, tensors)


class ReplicaCheck:
    """Compares the replicas of a run. Every rank makes the same calls in the same order."""

    def __init__(self, every: int, world: World, ledger: Ledger, say: Callable[[str], None]) -> None:
        """`every`: steps between two comparisons; 0: none."""
        self._every = every if world.size > 1 else 0
        self._world, self._ledger, self._say = world, ledger, say
        if every and world.size == 1:
            say("warning: guard.hash_every: one rank has no replica to compare with")
        self._agreed: int | None = None
        """Newest step at which the ranks agreed."""

    def compare_if_due(self, state: State, *, saving: bool) -> None:
        """Compare after a step that is due, or whose state is about to be saved.

        Where most replicas agree, the others get their bits; else raises ReplicasDifferError on every rank.
        """
        if not self._every or not (saving or state.step % self._every == 0):
            return
        for kind, shards in (("weights", state.engine.shards), ("moments", state.moments())):
            mine = {name: each.tensor.detach() for name, each in shards.items() if each.tensor.numel()}
            numbers = digests(list(mine.values())) if mine else []
            found = self._world.all_gather_values((layout_of(shards), combined(numbers)), AXES)
            if different := differences(found):
                self._mend(state, kind, mine, self._blamed(different, list(mine), numbers))
        self._agreed = state.step

    def _blamed(self, groups: list[list[int]], names: list[str], numbers: list[int]) -> list[Difference]:
        every = self._world.all_gather_values((names, numbers), AXES)
        return [blame(ranks, every[ranks[0]][0], {rank: every[rank][1] for rank in ranks}) for ranks in groups]

    def _mend(self, state: State, kind: str, mine: Mapping[str, Tensor], found: list[Difference]) -> None:
        for each in found:
            record = {"ranks": each.ranks, "tensors": each.tensors[:NAMED], "differing": len(each.tensors)}
            act = "restart" if each.source is None else "copy"
            self._ledger.note(
                "replicas_differ", state, part=kind, agreed=self._agreed, source=each.source, act=act, **record
            )
            whose = ", ".join(map(str, each.ranks))
            text = f"{kind} of ranks {whose} differ from their replicas: {', '.join(each.tensors[:NAMED])}"
            self._say(f"warning: {text}; the run does: {act}")
            if each.source is None:
                raise ReplicasDifferError(f"{text}: the run goes back to a state that the ranks agreed on")
            for name in each.tensors:
                self._copy(mine, name, each)

    def _copy(self, mine: Mapping[str, Tensor], name: str, difference: Difference) -> None:
        """Send a tensor from the source to the ranks that are wrong."""
        assert difference.source is not None
        for rank in difference.ranks:
            if self._world.rank == difference.source:
                dist.send(mine[name].contiguous(), rank)
            elif self._world.rank == rank:
                dist.recv(mine[name], difference.source)
