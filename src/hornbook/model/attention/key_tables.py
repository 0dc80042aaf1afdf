"""An `AttentionMask` as a device's kernels read it: small tables in its memory, made once for a batch.

FlexAttention skips blocks of keys that no query of a block sees, and asks about single pairs in the others
(`BlockMask`; arXiv 2412.05496). Flash attention takes documents as sequences behind one another, by where they begin
(`Documents`). Both follow from the interval of each query, on the host, without a mask of [queries, keys].
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from hornbook.kernels.torch_versions import mark_dynamic
from hornbook.model.attention.mask import AttentionMask, DocumentLengths
from hornbook.model.layers.transfer import to_device

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"""Queries, and keys, of a block of FlexAttention."""


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents of all rows of a batch, behind one another."""

    query_starts: Int[Tensor, " documents_and_1"]
    """int32: where the queries of each document begin, and their number."""
    key_starts: Int[Tensor, " documents_and_1"]
    window: tuple[int, int]
    """Keys seen before and after a query's own position; -1: all."""


@dataclass(frozen=True, eq=False)
class KeyTables:
    """Which keys each query sees."""

    starts: Int[Tensor, "rows queries"]
    """First key each query sees, int32; rows is the batch, or 1 where all rows are alike."""
    ends: Int[Tensor, "rows queries"]
    """One past the last."""
    is_whole: bool
    """All keys are seen, or of each query those up to its own position, of as many."""
    is_causal: bool
    documents: Documents | None
    """None where documents say less than the mask (prefixes, queries behind a cache), and on a CPU."""
    blocks: "BlockMask | None"
    """None on a CPU, whose attention reads no blocks."""
    positions: Int[Tensor, "rows queries"] | None = None
    """Where the queries stand among the keys; None: at their end."""


@lru_cache(maxsize=16)
def key_tables(mask: AttentionMask, batch: int, queries: int, keys: int, device: torch.device) -> KeyTables:
    """The tables of a mask; all layers of a forward pass share them."""
    starts, ends = (each.int() for each in mask.intervals_of_rows(queries, keys, 1 if mask.uniform else batch))
    there = to_device(starts, device), to_device(ends, device)
    causal = mask.kind == "causal"
    # One query at the end of the keys sees all of them; fewer queries than keys are not the triangle that kernels know.
    whole = mask.unbroken and mask.window is None and (not causal or queries in (1, keys))
    whole_causal = whole, causal and queries > 1
    if is_host(device):
        return KeyTables(*there, *whole_causal, None, None)
    documents = _documents(mask, batch, queries, keys, device)
    return KeyTables(*there, *whole_causal, documents, block_mask(starts, ends, keys, there))


def is_host(device: torch.device) -> bool:
    """Whether it is the CPU, whose attention reads intervals alone."""
    return device.type == "cpu"


def with_tables(
    mask: AttentionMask, shape: tuple[int, int, int], device: torch.device, windows: Iterable[int | None] = (None,)
) -> AttentionMask:
    """The mask with its tables for (batch, queries, keys), and those of the windows that single layers have.

    A compiled block must find them ready: what it reads of the mask itself would be part of its code.
    """
    tables = {window: key_tables(mask.narrowed(window), *shape, device) for window in {mask.window, *windows}}
    return replace(mask, tables=tables)


def block_mask(starts: Tensor, ends: Tensor, keys: int, there: tuple[Tensor, Tensor]) -> "BlockMask":
    """Blocks of intervals [rows, queries] on the host; `there` are the same on the device."""
    from torch.nn.attention.flex_attention import BlockMask  # imports the compiler, for a second

    device, queries = there[0].device, starts.shape[1]
    seen = torch.stack(_seen_blocks(starts, ends, keys))[:, :, None]
    fields: dict[str, Any] = {}
    for name, blocks in (("kv", seen), ("q", seen.mT)):  # BlockMask.from_kv_blocks takes twice as long for the second
        for kind, *ordered in zip(("", "full_"), *_in_order(blocks), strict=True):
            names = f"{kind}{name}_num_blocks", f"{kind}{name}_indices"
            fields |= zip(names, (to_device(each, device) for each in ordered), strict=True)
    return BlockMask((queries, keys), **fields, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=sees(*there))


def sees(starts: Tensor, ends: Tensor):
    """FlexAttention's question: whether a query sees a key."""
    if len(starts) == 1:
        first, past = starts[0], ends[0]

        def in_any_row(_b: Tensor, _h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (first[query] <= key) & (key < past[query])

        return in_any_row

    def in_its_row(row: Tensor, _h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (starts[row, query] <= key) & (key < ends[row, query])

    return in_its_row


def _seen_blocks(starts: Tensor, ends: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """[rows, blocks of queries, blocks of keys]: where some pairs may see each other, and where all do.

    The first is of what lies between the first key that a block sees and the last: documents follow one another, so
    that little between them is unseen. A block that the sequence does not fill is never of the second.
    """
    missing = -starts.shape[1] % BLOCK
    starts, ends = (torch.nn.functional.pad(each, (0, missing)).unflatten(1, (-1, BLOCK)) for each in (starts, ends))
    sees_some = starts < ends
    low = torch.where(sees_some, starts, keys).amin(2, keepdim=True)
    high = torch.where(sees_some, ends, 0).amax(2, keepdim=True)
    begin = torch.arange(0, keys, BLOCK)
    full = (starts.amax(2, keepdim=True) <= begin) & (begin + BLOCK <= ends.amin(2, keepdim=True))
    return (begin < high) & (low < begin + BLOCK) & ~full, full


def _in_order(seen: Tensor) -> tuple[Tensor, Tensor]:
    """Number of True in each row, and their columns first: FlexAttention's form, int32."""
    return seen.sum(-1, dtype=torch.int32), (~seen).int().argsort(dim=-1, stable=True).int()


def _documents(mask: AttentionMask, batch: int, queries: int, keys: int, device: torch.device) -> Documents | None:
    """The mask as documents behind one another, if it is no more than that."""
    if mask.prefixes is not None or (mask.kind != "cross" and queries != keys):
        return None
    if mask.kind == "cross" and (mask.lengths is None) != (mask.key_lengths is None):
        return None  # all queries see the first document of keys
    other = mask.key_lengths if mask.kind == "cross" else mask.lengths
    ends = [_starts(lengths, batch, total) for lengths, total in ((mask.lengths, queries), (other, keys))]
    left, right = (-1, 0) if mask.kind == "causal" else (-1, -1)
    if mask.window is not None:
        left, right = (mask.window - 1, 0) if mask.kind == "causal" else (mask.window // 2,) * 2
    query_starts, key_starts = (to_device(each, device) for each in ends)
    for each in (query_starts, key_starts):
        mark_dynamic(each)  # batches differ in their number of documents
    return Documents(query_starts, key_starts, (left, right))


def _starts(lengths: DocumentLengths | None, batch: int, total: int) -> Int[Tensor, " documents_and_1"]:
    rows = lengths or ((total,),) * batch
    return torch.tensor([0, *itertools.accumulate(itertools.chain(*rows))], dtype=torch.int32)


Tables = Mapping[int | None, KeyTables]
"""By the window of a layer."""
