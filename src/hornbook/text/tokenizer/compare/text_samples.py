"""Texts on which tokenizers are compared: a sample of a folder, of files, or of the held-out part of prepared data."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hornbook.errors import UsageError
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.document import Document, Rejected
from hornbook.text.ingest.inputs import InputFile, list_inputs
from hornbook.text.ingest.readers import ReadOptions, read_file
from hornbook.text.refinery.pipeline.folder import read_text_config
from hornbook.text.splits import is_validation
from hornbook.text.store import read_batches


@dataclass(frozen=True, slots=True)
class TextSample:
    """Documents of one corpus, or the beginnings of them."""

    name: str
    texts: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Their UTF-8 bytes."""
        return sum(len(text.encode()) for text in self.texts)


def sample_path(name: str, path: str, most: int) -> TextSample:
    """About `most` bytes of the text that a path names, evenly over its files.

    Raises UsageError where nothing can be read.
    """
    source = SourceConfig(paths=[path])
    files = list_inputs(name, source)
    total = max(sum(file.size for file in files), 1)
    refused: list[Rejected] = []
    texts: list[str] = []
    for file in files:
        texts += _first(_documents(file, source, refused), max(1, most * file.size // total))
    if not texts:
        why = f": {refused[0].reason} (line {refused[0].line} of {refused[0].path})" if refused else ""
        raise UsageError(f"{path} holds no text{why}")
    return TextSample(name, tuple(texts))


def sample_prepared(data: Path, most: int, *, held_out: bool) -> list[TextSample]:
    """About `most` bytes of each source of a prepared folder: of its held-out documents where that is asked for.

    A source without held-out documents gives any. Raises UsageError where the folder is not prepared.
    """
    config = read_text_config(data)
    shares = (config.validation, 1.0) if held_out else (1.0,)
    samples = [_sample_source(data, source, shares, most) for source in config.sources]
    return [sample for sample in samples if sample.texts]


def _sample_source(data: Path, source: str, shares: tuple[float, ...], most: int) -> TextSample:
    shards = sorted((data / "documents" / source).glob("*.parquet"))
    for share in shares:
        texts = [text for shard in shards for text in _first(_held_out(shard, share), most // len(shards))]
        if texts:
            return TextSample(source, tuple(texts))
    return TextSample(source, ())


def _held_out(shard: Path, share: float) -> Iterator[str]:
    for rows in read_batches(shard, ["text", "cluster"]):
        texts, clusters = rows.columns
        for text, cluster in zip(texts, clusters.to_pylist(), strict=True):
            if is_validation(cluster, share):
                yield text.as_py()


def _documents(file: InputFile, source: SourceConfig, refused: list[Rejected]) -> Iterator[str]:
    """Texts of a file; rows that are damaged are put into `refused`."""
    for row in read_file(file, ReadOptions.of(source)):
        if isinstance(row, Document) and row.text.strip():
            yield row.text
        elif isinstance(row, Rejected) and row.damaged:
            refused.append(row)


def _first(texts: Iterator[str], most: int) -> Iterator[str]:
    """Texts until their bytes are `most`; the last one is cut."""
    for text in texts:
        part = text.encode()[:most].decode("utf-8", "ignore")
        if not part:
            return
        yield part
        most -= len(part.encode())
