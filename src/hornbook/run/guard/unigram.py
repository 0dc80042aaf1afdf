"""Entropy of single training tokens: the loss of a model that has learned frequencies, and nothing of order."""

import json
from pathlib import Path

import numpy as np

from hornbook.files.filesystem import is_folder, list_folder
from hornbook.settings.recipe import Recipe

SAMPLED_TOKENS = 2_000_000
"""Training tokens whose frequencies give the unigram entropy."""


def unigram_loss(recipe: Recipe) -> float | None:
    """Entropy of single training tokens in nats, over the first `SAMPLED_TOKENS` of the shards in turn.

    None where the objective is not the next token of plain text, or the data is not there any more. The sample's
    entropy is raised by (kinds - 1) / 2n (Miller 1955), for it has not met all rare tokens.
    """
    if recipe.data.objective.kind != "causal" or recipe.data.path is None or recipe.model.head.kind != "lm":
        return None
    counts = _token_counts(Path(recipe.data.path))
    total = int(counts.sum())
    if not total:
        return None
    shares = counts[counts > 0] / total
    return float(-(shares * np.log(shares)).sum() + (len(shares) - 1) / (2 * total))


def _token_counts(data: Path) -> np.ndarray:
    folder, counts = data / "tokens" / "train", np.zeros(0, dtype=np.int64)
    shards = [
        path for each in (list_folder(folder) if is_folder(folder) else []) for path in list_folder(each, "*.bin")
    ]
    for path in shards:
        wide = _shard_dtype(data) == "uint32"
        size = 4 if wide else 2
        with path.open("rb") as file:
            tokens = np.frombuffer(file.read(SAMPLED_TOKENS // max(len(shards), 1) * size), "<u4" if wide else "<u2")
        found = np.bincount(tokens)
        counts = np.pad(counts, (0, max(len(found) - len(counts), 0)))
        counts[: len(found)] += found
    return counts


def _shard_dtype(data: Path) -> str:
    return str(json.loads((data / "tokens" / "index.json").read_bytes())["dtype"])
