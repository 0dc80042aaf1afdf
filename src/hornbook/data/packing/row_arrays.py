"""Rows of text as the kernels of objectives see them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from hornbook.data.packing.rows import Rows


class RowArrays(NamedTuple):
    """The memory behind `Rows`: what is written here is what the batch holds."""

    tokens: np.ndarray  # int64 [rows, sequence]
    targets: np.ndarray
    weights: np.ndarray  # float32 [rows, sequence]
    positions: np.ndarray
    ids: np.ndarray  # int32 [rows, sequence]: the tokens once more, which are hashed
    pieces: np.ndarray  # int32: lengths of the pieces of all rows, padding among them
    bounds: np.ndarray  # int64 [rows + 1]: where those of each row begin
    used: np.ndarray  # int64 [rows]: tokens of each row, padding not counted
    prefixes: np.ndarray  # int32: as `pieces`, leading tokens that are seen in both directions


def row_arrays(rows: Rows, used: Int64[np.ndarray, " rows"]) -> RowArrays:
    """Views of the tensors of `rows`, without prefixes."""
    tokens, targets, weights, positions = (
        each.numpy() for each in (rows.tokens, rows.targets, rows.weights, rows.positions)
    )
    prefixes = np.zeros(rows.bounds[-1], np.int32)
    return RowArrays(tokens, targets, weights, positions, rows.ids, rows.pieces, rows.bounds, used, prefixes)
