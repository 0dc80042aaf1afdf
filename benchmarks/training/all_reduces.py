"""All-reduces written out as messages: which rank sends which elements to which other rank, in which step.

A schedule is data: `ring` and `double_tree` make it for any number of ranks, `all_reduce_` carries it out with sends
and receives, and `bytes_sent` counts it. So what `python -m benchmarks.training.all_reduces [RANKS]` prints is what the
tests run. Training uses the library's own all-reduce.

| schedule | steps | a rank sends, of n bytes over p ranks |
|---|---|---|
| ring (Patarasuk and Yuan 2009) | 2 (p - 1) | 2 (p - 1) / p n |
| double tree (Sanders, Speck and Traeff 2009), k parts | 2 floor(log2 p) + k - 1 | 2 n at most; the same on average |
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]


@dataclass(frozen=True, order=True)
class Message:
    """Elements `start` to `stop` of a flat tensor of n elements, from one rank to another."""

    step: int
    """From 0; messages of a step cross at the same time, and hold what their senders have before it."""
    source: int
    target: int
    start: int
    stop: int
    adds: bool
    """The target adds them to its own; else it puts them in place of its own."""


def ring(ranks: int, size: int) -> list[Message]:
    """A ring all-reduce of `size` elements, in order: p - 1 steps that add, then p - 1 that hand sums around.

    The tensor is cut into p chunks, as even as can be. In step s rank r sends chunk r - s to rank r + 1, so that after
    p - 1 steps rank r has the sum of chunk r + 1.
    """
    cuts = _cuts(0, size, ranks)
    return [
        Message(step, rank, (rank + 1) % ranks, *cuts[(rank - step) % ranks], adds=step < ranks - 1)
        for step in range(2 * (ranks - 1))
        for rank in range(ranks)
    ]


def double_tree(ranks: int, size: int, parts: int = 1) -> list[Message]:
    """An all-reduce of `size` elements along two binary trees, each for half of the elements, in order.

    Sums go up a tree and come down again. A rank that passes on in one tree is a leaf in the other, so that no rank
    sends more than twice the tensor. Halves are cut into `parts`, which follow one another through the tree: with many
    of them every link is busy nearly all the time.
    """
    half, found = (size + 1) // 2, list[Message]()
    for shift, (start, stop) in enumerate(((0, half), (half, size))):
        parents = {(child - shift) % ranks: (parent - shift) % ranks for child, parent in _parents(ranks).items()}
        for number, cut in enumerate(_cuts(start, stop, parts)):
            found += _up_and_down(parents, ranks, cut, first=number)
    return sorted(found)


def _up_and_down(parents: dict[int, int], ranks: int, cut: tuple[int, int], first: int) -> Iterator[Message]:
    """The messages of one part that starts at step `first`: a rank sends up once it has heard from its children."""
    depths = {rank: _depth(parents, rank) for rank in range(ranks)}
    height = ranks.bit_length() - 1
    for rank, parent in parents.items():
        lowest = max(depths[each] for each in range(ranks) if rank in _path(parents, each)) - depths[rank]
        yield Message(first + lowest, rank, parent, *cut, adds=True)
        yield Message(first + height + depths[parent], parent, rank, *cut, adds=False)


def _parents(ranks: int) -> dict[int, int]:
    """Rank -> its parent in a binary tree whose order from left to right is that of the ranks; the root has none.

    The root of ranks 1 to n, counted from 1, is the largest power of two among them; what is left of it and what is
    right of it are such trees. So every odd number is a leaf.
    """
    parents: dict[int, int] = {}

    def build(first: int, last: int, parent: int | None) -> None:
        if first > last:
            return
        root = first - 1 + (1 << (last - first + 1).bit_length() - 1)
        if parent is not None:
            parents[root - 1] = parent - 1
        build(first, root - 1, root)
        build(root + 1, last, root)

    build(1, ranks, None)
    return parents


def _path(parents: dict[int, int], rank: int) -> list[int]:
    """A rank, its parent, and so on to the root."""
    return [rank, *_path(parents, parents[rank])] if rank in parents else [rank]


def _depth(parents: dict[int, int], rank: int) -> int:
    return len(_path(parents, rank)) - 1


def _cuts(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """`count` ranges in a row, as even as can be, the longer ones first."""
    each, more = divmod(stop - start, count)
    ends = [start + number * each + min(number, more) for number in range(count + 1)]
    return list(pairwise(ends))


def bytes_sent(messages: Sequence[Message], element_size: int) -> Counter[int]:
    """Rank -> bytes that it sends."""
    sent = Counter[int]()
    for message in messages:
        sent[message.source] += (message.stop - message.start) * element_size
    return sent


def all_reduce_(tensor: Tensor, messages: Sequence[Message], group: ProcessGroup | None = None) -> int:
    """Sum a contiguous tensor over the ranks of a group (None: all) by a schedule in order; returns the bytes sent."""
    rank, flat, sent = dist.get_rank(group), tensor.view(-1), 0
    for _, together in groupby(messages, key=lambda message: message.step):
        operations, received = list[dist.P2POp](), list[tuple[Message, Tensor]]()
        for tag, message in enumerate(together):
            part = flat[message.start : message.stop]
            if not len(part) or rank not in (message.source, message.target):
                continue
            sends = rank == message.source
            buffer, peer = (part, message.target) if sends else (torch.empty_like(part), message.source)
            call = dist.isend if sends else dist.irecv
            operations.append(dist.P2POp(call, buffer, group=group, tag=tag, group_peer=peer))
            received += [] if sends else [(message, buffer)]
            sent += sends * buffer.nbytes
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        for message, buffer in received:
            part = flat[message.start : message.stop]
            part.add_(buffer) if message.adds else part.copy_(buffer)
    return sent


def main() -> None:
    """Print which rank sends which elements to which rank in each step, for 16 float32 elements a rank."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    size = 16 * ranks
    for name, messages in {"ring": ring(ranks, size), "double tree": double_tree(ranks, size, parts=2)}.items():
        sent = bytes_sent(messages, 4)
        sys.stdout.write(f"{name}: bytes sent by rank {[sent[rank] for rank in range(ranks)]}\n")
        for each in messages:
            verb = "adds" if each.adds else "puts"
            elements = f"{each.start}:{each.stop}"
            sys.stdout.write(f"  step {each.step}: rank {each.source} {verb} {elements} at rank {each.target}\n")


if __name__ == "__main__":
    main()
