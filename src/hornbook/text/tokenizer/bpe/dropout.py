"""BPE-dropout: training texts are encoded with merges left out by chance (Provilkov et al. 2020, arXiv 1910.13267).

What is drawn for a text follows from (seed, source, text), and within it from (place of the word, step, place of the
pair): not from the order of documents, from workers or from what ran before. A text that stands in two sources is cut
in two ways.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import xxhash
from jaxtyping import UInt64


class Draws(NamedTuple):
    """What decides in each of some texts which merges are left out (`heap.merge_by_heap`)."""

    keys: UInt64[np.ndarray, " texts"]
    """What the draws of each text start from."""
    limits: UInt64[np.ndarray, " texts"]
    """A merge is left out where its draw, uniform in 64 bits, is less; 0 leaves out none."""


@dataclass(frozen=True, slots=True)
class Dropout:
    """How often merges are left out."""

    probability: float
    """Of each possible merge at each step, 0 < probability < 1."""
    seed: int = 0

    def draws(self, source: str, texts: Sequence[str], chosen: Sequence[bool]) -> Draws:
        """The draws of texts of a source; of texts that are not chosen no merge is left out."""
        seed = xxhash.xxh3_64_intdigest(source.encode(), seed=self.seed)
        keys = [xxhash.xxh3_64_intdigest(text.encode(), seed=seed) for text in texts]
        limit = int(self.probability * 2**64)
        return Draws(np.array(keys, np.uint64), np.where(chosen, np.uint64(limit), np.uint64(0)))

    def to_json(self) -> dict[str, Any]:
        """For keys and tokens/index.json."""
        return asdict(self)
