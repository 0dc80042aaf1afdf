"""Megatron-LM's GPTDataset behind torch's DataLoader. Usage: megatron_loader.py BIN IDX FOLDER.

BIN: uint16 tokens; IDX: uint64 ends of documents; both are written again in its own format in FOLDER. Reads lines
`WORK ROWS SEQUENCE SAMPLES` and answers CPU seconds. WORK: `rows`, or `documents`, whose positions begin anew with each
document and whose ends have no loss. Neither makes the square of who sees whom, which its fused attention does without.
"""

# pyright: reportMissingImports=false

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import Split

EPOCHS = 3


class Tokenizer(SimpleNamespace):
    """What the dataset asks of one."""

    unique_identifiers = {"kind": "none"}  # noqa: RUF012 - read as an attribute


def write(binary: Path, ends: Path, prefix: Path) -> int:
    """Its own .bin and .idx of the same documents; how many there are."""
    tokens, stops = np.fromfile(binary, np.uint16), np.fromfile(ends, np.uint64).astype(np.int64)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for document in np.split(tokens, stops[:-1]):
        builder.add_document(document, [len(document)])
    builder.finalize(f"{prefix}.idx")
    return len(stops)


def loader(prefix: Path, documents: int, work: str, rows: int, sequence: int) -> Iterator[Any]:
    """Batches without end."""
    cut = work == "documents"
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=sequence,
        split="1,0,0",
        path_to_cache=str(prefix.parent / work),
        tokenizer=Tokenizer(eod=0, pad=-1, vocab_size=50_000),
        reset_position_ids=cut,
        reset_attention_mask=cut,
        eod_mask_loss=cut,
        create_attention_mask=False,
    )
    mapped = IndexedDataset(str(prefix), mmap=True)
    samples = EPOCHS * len(np.memmap(f"{prefix}.bin", np.uint16, mode="r")) // sequence
    dataset = GPTDataset(mapped, str(prefix), np.arange(documents, dtype=np.int32), samples, Split.train, config)
    while True:
        yield from torch.utils.data.DataLoader(dataset, batch_size=rows, drop_last=True)


def main() -> None:
    binary, ends, folder = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    prefix = folder / "megatron"
    documents, streams = write(binary, ends, prefix), {}
    print("ready", flush=True)
    for line in sys.stdin:
        work, rows, sequence, samples = line.split()[0], *map(int, line.split()[1:])
        if work not in streams:
            streams[work] = loader(prefix, documents, work, rows, sequence)
        batch, begin = dict[str, torch.Tensor](), time.process_time()
        for _ in range(samples // rows):
            batch = next(streams[work])
        seconds = time.process_time() - begin
        assert batch["tokens"].shape == (rows, sequence)
        print(seconds, flush=True)


main()
