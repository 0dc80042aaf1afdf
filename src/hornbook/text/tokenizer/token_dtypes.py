"""Types in which shards store tokens."""

import numpy as np

DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


def dtype_for(vocab: int) -> str:
    """Name of the smallest stored type that holds every token id."""
    return "uint16" if vocab <= 2**16 else "uint32"
