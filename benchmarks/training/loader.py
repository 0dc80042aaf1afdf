"""Tokens per CPU second of the loader against torch's DataLoader over the same memory map and against Megatron-LM's
dataset, and the time of a seek.

All give shuffled rows, 8 x 2048 int64 inputs and targets. Ours also makes weights, positions, the lengths of
documents, the names of the samples and the hash of the batch; the DataLoader makes none of these, Megatron-LM's dataset
weights and positions. The forms are timed in turn (A B C A B C ...) on one thread, ours and the DataLoader in one
process, Megatron-LM's in one of its own; medians and their ratio count.

    python -m benchmarks.training.loader [--cpu native|avx2]
"""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import cpus
from benchmarks.peers.environment import ROOT, peer_python
from benchmarks.report import show
from hornbook.data.config.data import DataConfig
from hornbook.data.corpus import Corpus
from hornbook.data.loader.loader import Loader, build_loader
from hornbook.files.artifact import write_json
from hornbook.text.tokenizer.shards import describe_shard, writing_shard

ROWS, SEQUENCE, TOKENS, ROUNDS, SAMPLES, VOCAB = 8, 2048, 30_000_000, 9, 4096, 50_000

MEGATRON = {"Megatron-LM's GPTDataset, rows": "rows", "Megatron-LM's GPTDataset, cut at documents": "documents"}


def write_corpus(data: Path, tokens: int, sources: dict[str, float]) -> None:
    """Token shards of random ids in documents of log-normal length (median 350 tokens, mean about 720)."""
    rng = np.random.default_rng(0)
    shards = []
    for source, share in sources.items():
        folder = data / "tokens" / "train" / source
        folder.mkdir(parents=True)
        with writing_shard(folder / "00000", "uint16") as shard:
            while not shard.ends or shard.ends[-1] < tokens * share:
                length = max(2, int(rng.lognormal(np.log(350), 1.2)))
                ids = rng.integers(1, VOCAB, length)
                ids[0] = 0
                shard.add(ids, f"{len(shard.ends)}", "made", 4 * length)  # pyright: ignore[reportArgumentType]
        shards.append(describe_shard(data, "train", source, 0).to_json())
    index = {
        "dtype": "uint16",
        "delimiter_id": 0,
        "end_id": 0,
        "vocab_size": VOCAB,
        "tokenizer_digest": "",
        "shards": shards,
    }
    write_json(data / "tokens" / "index.json", index)


class MapDataset(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows of the memory map, as most training scripts read them."""

    def __init__(self, data: np.ndarray) -> None:
        self._data = data

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of one row."""
        window = torch.from_numpy(self._data[row * SEQUENCE : (row + 1) * SEQUENCE + 1].astype(np.int64))
        return window[:-1], window[1:]


def peer(data: Path) -> Iterator[None]:
    """torch.utils.data.DataLoader without worker processes, which are slower for a memory map."""
    mapped = np.memmap(data / "tokens/train/all/00000.bin", np.uint16, mode="r")
    order = torch.randperm(len(mapped) // SEQUENCE - 1, generator=torch.Generator().manual_seed(1)).tolist()
    loader = torch.utils.data.DataLoader(MapDataset(mapped), batch_size=ROWS, sampler=order)
    while True:
        for inputs, targets in loader:
            assert inputs.shape == targets.shape == (ROWS, SEQUENCE) or len(inputs) < ROWS
            yield


def ours(
    data: Path, samples: int = ROWS, prefetch: bool = False, checked: bool = True, **config: Any
) -> Iterator[None]:
    """This package's loader; a step of the iterator is one microbatch. Not `checked`: checksums are never compared."""
    loader = build_loader(DataConfig(**config), data, sequence=SEQUENCE, micro_batch=ROWS, seed=1, prefetch=prefetch)
    if not checked:
        for stream in loader.corpus.streams:
            for shard in stream.shards:
                shard.sound[:] = 1
    while True:
        for _ in loader.take(samples).batches:
            yield


def _first_pass(data: Path, checked: bool) -> float:
    """CPU seconds of one pass over data that this process has not read yet, in steps of 64 rows."""
    batches = ours(data, samples=64, checked=checked)
    count = TOKENS // SEQUENCE // ROWS
    begin = time.process_time()
    for _ in range(count):
        next(batches)
    return time.process_time() - begin


def first_pass(data: Path) -> dict[str, float]:
    """What comparing blocks with their checksums adds to the first pass over the data: the median of pairs in turn."""
    pairs = [(_first_pass(data, True), _first_pass(data, False)) for _ in range(ROUNDS)]
    checked, unchecked = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {
        "checked": checked,
        "not_checked": unchecked,
        "added_nanoseconds_per_token": (checked - unchecked) / TOKENS * 1e9,
    }


@contextmanager
def megatron(data: Path, scratch: Path) -> Iterator[Callable[[str], float]]:
    """A function that times rows, or documents, of Megatron-LM's dataset behind a DataLoader, like `_rate`."""
    shard = data / "tokens/train/all/00000"
    program = ROOT / "benchmarks" / "peers" / "megatron_loader.py"
    command = [str(peer_python()), str(program), f"{shard}.bin", f"{shard}.idx", str(scratch)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout
        assert answers.readline() == "ready\n"

        def rate(work: str) -> float:
            requests.write(f"{work} {ROWS} {SEQUENCE} {SAMPLES}\n")
            requests.flush()
            return SAMPLES * SEQUENCE / float(answers.readline()) / 1e6

        try:
            yield rate
        finally:
            process.terminate()


def _rate(batches: Iterator[None]) -> float:
    """Million tokens per CPU second (all threads of the process) over SAMPLES rows."""
    begin = time.process_time()
    for _ in range(SAMPLES // ROWS):
        next(batches)
    return SAMPLES * SEQUENCE / (time.process_time() - begin) / 1e6


def _seek_milliseconds(loader: Loader) -> float:
    """Seek to sample one billion and take a global batch of 8 there: the best of 20, from the wall clock."""
    times = []
    for attempt in range(20):
        begin = time.perf_counter()
        loader.seek(10**9 + attempt)
        loader.take(ROWS)
        times.append((time.perf_counter() - begin) * 1e3)
    return min(times)


def _verify_rate(corpus: Corpus) -> float:
    """GB per CPU second of checking all checksums."""
    begin = time.process_time()
    corpus.verify()
    return (
        sum(shard.data.nbytes for stream in corpus.streams for shard in stream.shards)
        / (time.process_time() - begin)
        / 1e9
    )


def run() -> dict[str, Any]:
    """All figures, printed as a table and written to benchmarks/results/loader.json."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            figures = _run(Path(folder))
    finally:
        torch.set_num_threads(threads)
    show("loader", figures)
    return figures


def _run(folder: Path) -> dict[str, Any]:
    one, three = folder / "one", folder / "three"
    write_corpus(one, TOKENS, {"all": 1.0})
    write_corpus(three, TOKENS, {"web": 0.6, "code": 0.3, "books": 0.1})
    mixture = {"web": 0.5, "code": 0.3, "books": 0.2}
    forms: dict[str, Callable[[], Iterator[None]]] = {
        "torch DataLoader, num_workers=0": lambda: peer(one),
        "ours, causal rows": lambda: ours(one, document_mask=False),
        "ours, document masks": lambda: ours(one),
        "ours, document masks, best fit": lambda: ours(one, packing="best_fit"),
        "ours, document masks, 3 sources": lambda: ours(three, weights=mixture),
        "ours, causal rows, 64 rows a step": lambda: ours(one, samples=64, document_mask=False),
        "ours, document masks, 64 rows a step": lambda: ours(one, samples=64),
        "ours, document masks, 64 rows a step, prefetched": lambda: ours(one, samples=64, prefetch=True),
        "ours, document masks, no checksums": lambda: ours(one, checked=False),
        "ours, document masks, 64 rows a step, no checksums": lambda: ours(one, samples=64, checked=False),
    }
    streams = {name: form() for name, form in forms.items()}
    rates: dict[str, list[float]] = {name: [] for name in (*forms, *MEGATRON)}
    (folder / "megatron").mkdir()
    with megatron(one, folder / "megatron") as megatron_rate:
        for round_number in range(ROUNDS + 1):
            found = {name: _rate(stream) for name, stream in streams.items()}
            found |= {name: megatron_rate(work) for name, work in MEGATRON.items()}
            for name, rate in found.items() if round_number else ():  # the first round compiles and fills caches
                rates[name].append(rate)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    base = medians["torch DataLoader, num_workers=0"]
    with_masks = build_loader(DataConfig(), three, sequence=SEQUENCE, micro_batch=ROWS, seed=1, prefetch=False)
    return {
        "million_tokens_per_cpu_second": medians,
        "spread": {name: [min(values), max(values)] for name, values in rates.items()},
        "ratio_to_dataloader": {name: value / base for name, value in medians.items()},
        "seek_to_sample_1e9_milliseconds": _seek_milliseconds(with_masks),
        "first_pass_cpu_seconds": first_pass(one),
        "verify_gigabytes_per_cpu_second": _verify_rate(with_masks.corpus),
        "rows": ROWS,
        "sequence": SEQUENCE,
    }


if __name__ == "__main__":
    cpus.main("benchmarks.training.loader", run)
