"""How predictable a document is to a language model of good text: bits per byte, as CCNet (Wenzek et al. 2020) filters.

One step of `perplexity_model.py` for each byte gives the column; thresholds are moved without reading text.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.text.ingest.document import Document
from hornbook.text.refinery.scores.perplexity_model import LanguageModel, read_facts
from hornbook.text.refinery.step import Columns, Decision


class BitsPerByte:
    """Measures documents with a model, which is read from its file when the first ones come."""

    columns = {"bits_per_byte": "float64"}  # noqa: RUF012 - read only

    def __init__(self, name: str, path: Path) -> None:
        read_facts(path)
        self.name, self._path = name, path

    @cached_property
    def _model(self) -> LanguageModel:
        return LanguageModel.load(self._path)

    def measure(self, documents: Sequence[Document]) -> Columns:
        """Bits per byte of each document; 0 where it is empty."""
        return {"bits_per_byte": self._model.bits_per_byte([document.text for document in documents])}


class Perplexity(Decision):
    """Drops documents above the maximum or below the minimum."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        model = Path(config.model)
        self.reasons = (f"perplexity of {model.stem} too high", f"perplexity of {model.stem} too low")
        self.measurers = (BitsPerByte(self.name, model),)
        self.needs = (f"{self.name}.bits_per_byte",)

    def decide(self, columns: Columns) -> np.ndarray:
        """1 above the maximum, 2 below the minimum."""
        bits = columns[f"{self.name}.bits_per_byte"]
        low = np.where(bits < self.config.minimum, 2, 0)
        return np.where(bits > self.config.maximum, 1, low).astype(np.uint8)
