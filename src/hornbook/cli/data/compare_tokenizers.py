"""`hornbook tokenize --compare`: parse its arguments and format its tables."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.prepare.prepare import name_sources
from hornbook.cli.result import table
from hornbook.errors import UsageError
from hornbook.progress import progress_bar

if TYPE_CHECKING:
    from hornbook.text.ingest.skipped import SkippedRows
    from hornbook.text.tokenizer.compare.compare import TextSample, TokenizerMetrics
    from hornbook.text.tokenizer.tokenizer import Tokenizer

SAMPLE_BYTES = 2_000_000
"""Bytes read of each text: enough for three significant digits."""
_TRAINED = re.compile(r"(bpe|wordpiece|unigram):(.+)")


def sort_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(tokenizers, texts) among free words; a prepared folder with a tokenizer counts as both.

    A tokenizer is a tokenizer.json, a folder that holds one, or `KIND:SIZE` for one to train.
    """
    tokenizers, texts = [], []
    for word in words:
        is_data = _is_prepared(word)
        if is_data and (Path(word) / "tokenizer" / "tokenizer.json").is_file():
            tokenizers.append(f"{word}/tokenizer")
        is_tokenizer = _TRAINED.fullmatch(word) or word.endswith(".json") or (Path(word) / "tokenizer.json").is_file()
        (tokenizers if is_tokenizer and not is_data else texts).append(word)
    if not tokenizers:
        raise UsageError("name the tokenizers to compare: tokenizer.json files, their folders, or bpe:16k and the like")
    if not texts:
        raise UsageError(
            "name the text to compare them on: a folder that `hornbook prepare` wrote, or files and folders"
        )
    return list(dict.fromkeys(tokenizers)), list(dict.fromkeys(texts))


def _is_prepared(word: str) -> bool:
    return (Path(word) / "manifest.json").is_file() and (Path(word) / "documents").is_dir()


def load_samples(
    texts: Sequence[str], most: int = SAMPLE_BYTES, *, held_out: bool = True, skipped: "SkippedRows | None" = None
) -> "list[TextSample]":
    """A sample of about `most` bytes for each path, and for each source of a prepared folder.

    `skipped` counts rows of files that cannot be read.
    """
    from hornbook.text.tokenizer.compare.compare import sample_path, sample_prepared

    samples: list[TextSample] = []
    for name, path in name_sources(texts).items():
        if _is_prepared(path):
            samples += sample_prepared(Path(path), most, held_out=held_out)
        else:
            samples.append(sample_path(name, path, most, skipped))
    return samples


def load_tokenizers(words: Sequence[str], texts: Sequence[str]) -> "dict[str, Tokenizer]":
    """Name -> tokenizer: loaded, or trained on the one prepared folder among the texts."""
    from hornbook.text.tokenizer.tokenizer import Tokenizer

    found: dict[str, Tokenizer] = {}
    for word in words:
        made = _TRAINED.fullmatch(word)
        short, number = word if made else _short_name(word), 2
        name = short
        while name in found:
            name, number = f"{short}-{number}", number + 1
        found[name] = Tokenizer.load(word) if made is None else _train(word, texts)
    return found


def _short_name(word: str) -> str:
    """The last part of a path, without `tokenizer` and `tokenizer.json`."""
    parts = [part for part in Path(word).resolve().parts if part not in ("tokenizer.json", "tokenizer", "/")]
    return parts[-1].removesuffix(".json") if parts else word


def _train(word: str, texts: Sequence[str]) -> "Tokenizer":
    from hornbook.settings.resolve import resolve
    from hornbook.text.config.text import Trained
    from hornbook.text.refinery.pipeline.folder import read_text_config
    from hornbook.text.splits import Split
    from hornbook.text.tokenizer.train import TrainingTexts, train_tokenizer

    folders = [Path(text) for text in texts if _is_prepared(text)]
    if len(folders) != 1:
        raise UsageError(f"{word} needs text to train on: name one folder that `hornbook prepare` wrote")
    kind, _, size = word.partition(":")
    config = resolve(None, [f"text.tokenizer.kind={kind}", f"text.tokenizer.vocab={size}"]).recipe.text.tokenizer
    assert isinstance(config, Trained)
    split = Split(read_text_config(folders[0]).validation)
    shards = dict.fromkeys(sorted((folders[0] / "documents").rglob("*.parquet")), split)
    with progress_bar() as progress:
        progress(f"train {word}", 0, 1)
        return train_tokenizer(config, TrainingTexts(shards, config.train_bytes))


def figures_table(found: "Sequence[TokenizerMetrics]", tokenizers: "dict[str, Tokenizer]") -> Any:
    """The comparison for people; on each text, the best compression of the lossless tokenizers is bold."""
    from hornbook.text.tokenizer.compare.compare import ROUNDS

    title = f"Tokenizers compared (speed: the fastest of {ROUNDS} rounds, in turns, on all cores)"
    note = "exact: documents that decode to what they were; bold: the best of those that lose nothing"
    numbers = ("vocab", "bytes/\ntoken", "tokens/\nword", "unknown", "vocab\nused", "exact", "MB/s")
    made = table(title, ["text"], numbers, fold=True, caption=note, caption_justify="left")
    for corpus in dict.fromkeys(figures.corpus for figures in found):
        rows = [figures.to_json() for figures in found if figures.corpus == corpus]
        best = max((row["bytes_per_token"] for row in rows if row["exact_share"] == 1), default=None)
        made.add_row(f"[cyan]{corpus}[/]")
        for row in rows:
            made.add_row(*_cells(row, tokenizers[row["tokenizer"]].vocab_size, best))
        made.add_section()
    return made


def _cells(row: dict[str, Any], vocab: int, best: float | None) -> tuple[str, ...]:
    bytes_per_token = f"{row['bytes_per_token']:.3f}"
    return (
        f"  {row['tokenizer']}",
        f"{vocab:,}",
        f"[bold]{bytes_per_token}[/]" if row["bytes_per_token"] == best else bytes_per_token,
        f"{row['tokens_per_word']:.3f}",
        percent(row["unknown_share"]),
        percent(row["vocabulary_used"]),
        percent(row["exact_share"]),
        f"{row['megabytes_per_second']:.1f}",
    )


def percent(share: float) -> str:
    """A share for people; 0 % and 100 % are exact."""
    if share in (0, 1):
        return f"{share:.0%}"
    return f"{share:.1%}" if 0.001 <= share < 0.9995 else f"{min(max(share, 0.0001), 0.9999):.2%}"
