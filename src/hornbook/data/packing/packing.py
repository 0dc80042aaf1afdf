"""Best-fit-decreasing packing of documents into rows (Ding et al. 2024, arXiv 2404.10830).

Documents longer than a row are cut into whole rows and a remainder; no other document is cut. Remainders and
short documents then go, longest first, each into the row where it leaves the least room.
"""

import numpy as np
from jaxtyping import Int64

from hornbook.kernels.compiled import compiled

VERSION = 1
"""Part of every plan's key: raise it when the same documents would be packed differently."""


def _cut(ends: Int64[np.ndarray, " documents"], sequence: int) -> tuple[np.ndarray, np.ndarray]:
    """First token and length of the pieces of all documents, in stream order: int64 [pieces]."""
    sizes = np.diff(ends, prepend=0)
    counts = -(-sizes // sequence)
    # Piece k of a document begins k * sequence after the document; k is counted from the document's first piece.
    begins = np.repeat(ends - sizes - sequence * (np.cumsum(counts) - counts), counts)
    begins += sequence * np.arange(len(begins))
    return begins, np.minimum(np.repeat(ends, counts) - begins, sequence)


@compiled
def _next_room(words, room):
    """Smallest room >= `room` with an open row, or -1; `words` is a bitmap over rooms."""
    word = room >> 6
    bits = words[word] >> np.uint64(room & 63)
    if bits:
        found = room
    else:
        word += 1
        while word < words.size and words[word] == 0:
            word += 1
        if word == words.size:
            return -1
        bits, found = words[word], word << 6
    while not bits & np.uint64(1):
        bits >>= np.uint64(1)
        found += 1
    return found


@compiled
def _fit(order: np.ndarray, lengths: np.ndarray, sequence: int, row_of: np.ndarray) -> int:
    """Give each piece a row, in the given order; returns the number of rows."""
    newest = np.full(sequence + 1, -1, np.int64)  # per room: the row opened last with that room
    older = np.empty(order.size, np.int64)  # per row: the next one with the same room
    words = np.zeros((sequence >> 6) + 1, np.uint64)
    rows = 0
    for k in range(order.size):
        piece = order[k]
        length = lengths[piece]
        room = _next_room(words, length)
        if room < 0:
            row, room = rows, sequence
            rows += 1
        else:
            row = newest[room]
            newest[room] = older[row]
            if newest[room] < 0:
                words[room >> 6] &= ~(np.uint64(1) << np.uint64(room & 63))
        row_of[piece] = row
        left = room - length
        if left > 0:
            older[row] = newest[left]
            newest[left] = row
            words[left >> 6] |= np.uint64(1) << np.uint64(left & 63)
    return rows


def best_fit(ends: Int64[np.ndarray, " documents"], sequence: int) -> Int64[np.ndarray, "3 pieces"]:
    """Pack a stream's documents (END offsets, ascending) into rows of `sequence` tokens.

    Returns one column per piece: row, first token in the stream, length. Rows are numbered by their first piece,
    and the pieces of a row are in stream order.
    """
    begins, lengths = _cut(ends, sequence)
    count = len(begins)
    if count == 0:
        return np.empty((3, 0), np.int64)
    row_of = np.empty(count, np.int64)
    longest_first = np.argsort(-lengths, kind="stable")
    rows = _fit(longest_first, lengths, sequence, row_of)
    first_piece = np.full(rows, count, np.int64)
    np.minimum.at(first_piece, row_of, np.arange(count))
    rank = np.empty(rows, np.int64)
    rank[np.argsort(first_piece, kind="stable")] = np.arange(rows)
    row_of = rank[row_of]
    order = np.argsort(row_of, kind="stable")
    return np.stack([row_of[order], begins[order], lengths[order]])
