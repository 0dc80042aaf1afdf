"""Every objective on real text: how fast its batches are made, and how much of them is padding.

The objectives are timed in turn (A B C A B C ...) in one process on one thread; medians and their ratio to causal
count. A rate counts positions that hold a token (inputs; for encoder-decoders sources and decoder inputs).

    python -m benchmarks.objectives FILE...
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from pydantic import TypeAdapter

from benchmarks.report import table, write
from hornbook.data.batch import Batch
from hornbook.data.config.data import DataConfig
from hornbook.data.config.objectives import ObjectiveConfig
from hornbook.data.loader.loader import Loader, build_loader
from hornbook.errors import UsageError
from hornbook.text.config.text import SourceConfig, TextConfig, TokenizerFile
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize

SEQUENCE, MICRO_BATCH, SAMPLES, STEPS, ROUNDS, VOCAB = 512, 16, 256, 8, 7, 16384
OBJECTIVES: dict[str, dict[str, Any]] = {
    "causal": {"kind": "causal"},
    "prefix": {"kind": "prefix"},
    "fim": {"kind": "fim"},
    "masked": {"kind": "masked"},
    "masked, whole words": {"kind": "masked", "whole_word": True},
    "span": {"kind": "span"},
    "infill": {"kind": "infill"},
    "ul2": {"kind": "ul2"},
}


def prepare_text(paths: Sequence[str], folder: Path) -> Path:
    """Token shards of the files, with a byte-level tokenizer that has every special token."""
    marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|R|>", "<|S|>", "<|X|>", "<|pad|>", "<|mask|>"]
    specials = ["<|endoftext|>", *marks, *(f"<extra_id_{number}>" for number in range(150))]
    source = {Path(path).name.partition(".")[0]: SourceConfig(paths=[path]) for path in paths}
    data = folder / "data"
    prepare(TextConfig(sources=source), data)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = tokenizers.decoders.ByteLevel()  # pyright: ignore
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_texts(data), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenize(data, TextConfig(sources=source, tokenizer=TokenizerFile(path=str(folder / "tokenizer.json"))))
    return data


def _texts(data: Path, limit: int = 20_000_000) -> list[str]:
    import pyarrow.parquet as pq

    texts, size = [], 0
    for path in sorted(data.glob("documents/*/*.parquet")):
        for text in pq.read_table(path, columns=["text"])["text"].to_pylist()[::4]:
            texts.append(text)
            size += len(text)
            if size > limit:
                return texts
    return texts


def _positions(batch: Batch) -> tuple[int, int]:
    """(positions, positions of padding) of a microbatch, on both sides."""
    held = batch.tokens.numel()
    used = batch.tokens.shape[1] - (batch.tokens == PAD).flip(1).cumprod(1).sum(1)
    padding = held - int(used.sum())
    if batch.source is not None:
        tokens = batch.source.tokens
        held += tokens.numel()
        padding += int((tokens == PAD).flip(1).cumprod(1).sum())
    return held, padding


PAD = 7  # <|pad|> in the order of `prepare_text`; rows of text are padded with the end token, and full but for one


def _time(loader: Loader) -> tuple[float, int, int]:
    """CPU seconds of some steps, and the positions and padding in them."""
    seconds, held, padding = 0.0, 0, 0
    for _ in range(STEPS):
        begin = time.process_time()
        batches = loader.take(SAMPLES).batches
        seconds += time.process_time() - begin
        for batch in batches:
            more, empty = _positions(batch)
            held, padding = held + more, padding + empty
    return seconds, held, padding


def measure(data: Path) -> dict[str, Any]:
    """Rates, ratios and padding of every objective."""
    loaders, opened = {}, {}
    for name, settings in OBJECTIVES.items():
        config = DataConfig(objective=TypeAdapter(ObjectiveConfig).validate_python(settings))
        begin = time.process_time()
        loaders[name] = build_loader(config, data, sequence=SEQUENCE, micro_batch=MICRO_BATCH, seed=1, prefetch=False)
        opened[name] = time.process_time() - begin
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    padding = {name: [0, 0] for name in loaders}
    for round_number in range(ROUNDS + 1):
        for name, loader in loaders.items():
            seconds, held, empty = _time(loader)
            padding[name] = [padding[name][0] + held, padding[name][1] + empty]
            if round_number:  # the first round compiles and fills caches
                rates[name].append((held - empty) / seconds / 1e6)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "million_positions_per_cpu_second": medians,
        "ratio_to_causal": {name: value / medians["causal"] for name, value in medians.items()},
        "padding": {name: empty / held for name, (held, empty) in padding.items()},
        "cpu_seconds_to_open": opened,
        "sequence": SEQUENCE,
        "micro_batch": MICRO_BATCH,
        "samples_per_step": SAMPLES,
        "tokens": sum(stream.tokens for stream in loaders["causal"].corpus.train.values()),
        "documents": sum(stream.documents for stream in loaders["causal"].corpus.train.values()),
        "bytes": sum(stream.bytes for stream in loaders["causal"].corpus.train.values()),
    }


def main(paths: Sequence[str]) -> None:
    """Run, print a table, write results/objectives.json."""
    if not paths:
        raise UsageError("name the files of text to use: python -m benchmarks.objectives FILE...")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(prepare_text(paths, Path(folder)))
    columns = ("million_positions_per_cpu_second", "ratio_to_causal", "padding", "cpu_seconds_to_open")
    rows = [[name, *(figures[column][name] for column in columns)] for name in OBJECTIVES]
    print(table(["objective", "Mpositions / CPU s", "x causal", "padding", "CPU s to open"], rows))
    print(f"{figures['documents']:,} documents, {figures['tokens']:,} tokens, {figures['bytes']:,} bytes")
    print(f"written: {write('objectives', figures)}")


if __name__ == "__main__":
    main(sys.argv[1:])
