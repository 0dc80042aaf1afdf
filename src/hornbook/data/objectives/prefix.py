"""Prefix language modelling: a leading part of each piece is seen in both directions, the rest is predicted.

The length of the prefix is uniform in [1, n) for a piece of n tokens (1 for one token). A token whose successor lies
in the prefix predicts nothing: it sees its successor (Raffel et al. 2020, arXiv 1910.10683, section 3.2.1).
"""

import numpy as np
from jaxtyping import Int64, UInt64

from hornbook.data.order.random_keys import STEP, below
from hornbook.data.packing.rows import RowArrays
from hornbook.data.packing.text_rows import ObjectiveTransform
from hornbook.kernels.compiled import compiled, mix


@compiled
def _cut_rows(rows, which, keys):
    for i in range(which.size):
        row, state = which[i], keys[which[i]]
        column = np.int64(0)
        for p in range(rows.bounds[row], rows.bounds[row + 1]):
            length = min(np.int64(rows.pieces[p]), rows.used[row] - column)  # a row of one piece may end with padding
            if length > 0:
                state += STEP
                prefix = 1 + below(mix(state), max(length - 1, 1))
                rows.weights[row, column : column + prefix - 1] = 0.0
                rows.prefixes[p] = prefix
            column += rows.pieces[p]


class Prefixing(ObjectiveTransform):
    """Gives pieces of rows prefixes, in place."""

    gives_prefixes = True

    def apply(self, rows: RowArrays, which: Int64[np.ndarray, " some"], keys: UInt64[np.ndarray, " rows"]) -> None:
        """Cut the pieces of the rows numbered `which`; `keys` has one for each row."""
        _cut_rows(rows, which, keys)
