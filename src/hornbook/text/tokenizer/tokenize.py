"""From clean documents to token shards: train or load the tokenizer, then encode every shard of documents.

As in prepare, the result is a function of the documents and the configuration alone.
"""

import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hornbook.errors import UsageError
from hornbook.files.artifact import digest_of, finish, finished, read_json, write_json
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock
from hornbook.progress import Progress, silent
from hornbook.text.config.labels import Dialogue
from hornbook.text.config.text import SourceConfig, TextConfig, TokenizerFile, Trained
from hornbook.text.pool import choose_workers, run_tasks
from hornbook.text.refinery.pipeline.folder import WORK, read_manifest, read_text_config
from hornbook.text.splits import SUBSETS, LaterCounts, Split, plan_splits, share_held_out
from hornbook.text.tokenizer.bpe.choice import compile_for
from hornbook.text.tokenizer.bpe.tables import Dropout
from hornbook.text.tokenizer.chat_template import read_source
from hornbook.text.tokenizer.dialogues import choose_template, write_template
from hornbook.text.tokenizer.encode import VERSION, EncodeTask, check_documents, encode
from hornbook.text.tokenizer.files import save_tokenizer
from hornbook.text.tokenizer.shards import FILES, LABELS, ShardInfo
from hornbook.text.tokenizer.special_tokens import read_settings, spell_special_tokens
from hornbook.text.tokenizer.token_dtypes import dtype_for
from hornbook.text.tokenizer.tokenizer import Tokenizer
from hornbook.text.tokenizer.train import TrainingTexts, train_tokenizer

_SMALL_BYTES = 2 * 2**20
SPLITS = ("train", "validation")


@dataclass(slots=True)
class SplitCounts:
    """Counts of one source in one split."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0

    @property
    def bytes_per_token(self) -> float:
        """Compression of the tokenizer: UTF-8 bytes per stored token (delimiters count as tokens)."""
        return self.bytes / self.tokens if self.tokens else 0.0

    def add(self, shard: ShardInfo) -> None:
        """Count a shard."""
        self.documents += shard.documents
        self.tokens += shard.tokens
        self.bytes += shard.bytes

    def to_json(self) -> dict[str, Any]:
        """Counts and bytes per token."""
        return {**asdict(self), "bytes_per_token": self.bytes_per_token}


@dataclass(slots=True)
class TokenReport:
    """What tokenize made."""

    vocab: int
    """Token ids of the tokenizer."""
    trained: bool
    """Whether the tokenizer was trained here."""
    shares: dict[tuple[str, str], SplitCounts] = field(default_factory=dict)
    """(source, split) -> counts."""
    notes: list[str] = field(default_factory=list)
    """What a person should know: an empty split, a vocabulary smaller than asked, unknown tokens."""
    seconds: float = 0.0

    def total(self, split: str | None = None) -> SplitCounts:
        """The sum over the sources, of one split or of both."""
        parts = [share for (_, name), share in self.shares.items() if split in (None, name)]
        return SplitCounts(sum(p.documents for p in parts), sum(p.tokens for p in parts), sum(p.bytes for p in parts))

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        sources: dict[str, dict[str, Any]] = {}
        for (source, split), share in self.shares.items():
            sources.setdefault(source, {})[split] = share.to_json()
        return {
            "vocab": self.vocab,
            "trained": self.trained,
            "total": self.total().to_json(),
            **{split: self.total(split).to_json() for split in SPLITS},
            "sources": sources,
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
        }


def tokenize(
    data: Path, config: TextConfig, *, workers: int = 0, overwrite: bool = False, progress: Progress | None = None
) -> TokenReport:
    """Write tokenizer/ and tokens/ of a prepared folder; a killed run goes on where it was.

    Of `config` only `tokenizer`, `validation`, `strict`, `bpe_dropout` and its seed, and of sources `split` and `later`
    matter. `workers` 0 takes one process per core.

    Raises UsageError (not prepared, tokens of other settings, or `bpe_dropout` without merges), IntegrityError (damaged
    documents; with `strict`, no date where sources are split by time), StorageError, InUseError.
    """
    started = time.monotonic()
    _check_dropout(data, config)
    with RunLock(RunDir(data)):
        RunDir(data).clean()
        sources = {name: config.sources.get(name, each) for name, each in read_text_config(data).sources.items()}
        key = _key(config, _documents(data), sources)
        index = read_json(data / "tokens" / "index.json")
        if index is not None and index.get("key") != key:
            if not overwrite:
                raise UsageError(
                    f"{data} already has tokens with other settings; --overwrite replaces its tokenizer and tokens "
                    "(runs trained on them could not be resumed), or prepare another folder"
                )
            index = None
        if index is None:
            index = _tokenize(data, config, sources, key, workers, progress or silent)
    report = _report(config, index, sources)
    report.seconds = time.monotonic() - started
    return report


def _documents(data: Path) -> dict[str, str]:
    """Path below the folder -> digest of each shard of documents, in order."""
    outputs = (read_manifest(data) or {})["outputs"]
    return {path: digest for path, digest in outputs.items() if path.startswith("documents/")}


def _size_of_documents(data: Path) -> int:
    """Bytes of all shards that exist; a missing one is an error where it is read."""
    return sum(path.stat().st_size for path in map(data.joinpath, _documents(data)) if path.exists())


def _key(config: TextConfig, documents: dict[str, str], sources: dict[str, SourceConfig]) -> str:
    """Digest of everything the token shards depend on."""
    splits = {name: source.split for name, source in sources.items() if source.split is not None}
    later = {name: source.later.model_dump() for name, source in sources.items() if source.later is not None}
    tokenizer: dict[str, Any] = config.tokenizer.model_dump(mode="json", exclude={"objectives", "sentinels"})
    if isinstance(config.tokenizer, Trained) and config.tokenizer.roles != ("end",):
        tokenizer["special_tokens"] = spell_special_tokens(config.tokenizer)
    if isinstance(config.tokenizer, TokenizerFile):
        loaded = Tokenizer.load(config.tokenizer.path, config.tokenizer.end_of_text)
        tokenizer = {"kind": "file", "digest": loaded.digest}
    dropout = _dropout(config)
    template = config.chat_template if config.chat_template != "tokenizer" else None
    options = splits, later, dropout and asdict(dropout), template
    return digest_of([VERSION, tokenizer, config.validation, documents, *filter(None, options)])


def _dropout(config: TextConfig) -> Dropout | None:
    return Dropout(config.bpe_dropout, config.bpe_dropout_seed) if config.bpe_dropout else None


def _check_dropout(data: Path, config: TextConfig) -> None:
    """Refuse BPE-dropout that the tokenizer or the folder does not allow, before anything is written."""
    labels = read_text_config(data).labels
    if config.bpe_dropout and labels is not None:
        raise UsageError(f"text.bpe_dropout: {data} is a labelled set, whose labels stand at tokens; leave it out")
    if config.bpe_dropout and isinstance(config.tokenizer, TokenizerFile):
        try:
            Tokenizer.load(config.tokenizer.path, config.tokenizer.end_of_text).require_merges()
        except UsageError as error:
            raise UsageError(f"{config.tokenizer.path}: {error}") from error


def _tokenize(
    data: Path, config: TextConfig, sources: dict[str, SourceConfig], key: str, workers: int, progress: Progress
) -> dict[str, Any]:
    (data / "tokens" / "index.json").unlink(missing_ok=True)
    documents: dict[str, list[Path]] = {name: [] for name in sources}
    for path in _documents(data):
        documents[Path(path).parent.name].append(data / path)
    unique = any(step.kind == "exact_dedup" for step in read_text_config(data).steps)
    share, held_out = share_held_out(documents, sources, config.validation)
    splits, later = plan_splits(documents, sources, share, unique=unique, strict=config.strict)
    tokenizer = _make_tokenizer(data, config, splits, key, progress)
    template, note = _template(data, config, tokenizer)
    dtype = dtype_for(tokenizer.vocab_size)
    labels, dropout = read_text_config(data).labels, _dropout(config)
    tasks = []
    for path, digest in _documents(data).items():
        source, number = Path(path).parent.name, int(Path(path).stem)
        shard = data, source, number, path, digest
        tasks.append(EncodeTask(*shard, tokenizer.digest, dtype, splits[source], labels, dropout, template))
    results = _encode_all(tasks, workers, progress)
    shards = [shard for found, _ in results for shard in found]
    _remove_others(data, {shard.name for shard in shards})
    index = {
        "format": 1,
        "key": key,
        "dtype": dtype,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_digest": tokenizer.digest,
        "delimiter_id": tokenizer.delimiter_id,
        "end_id": tokenizer.end_id,
        "validation": config.validation,
        "unknown_tokens": sum(unknown for _, unknown in results),
        "shards": [shard.to_json() for split in SPLITS for shard in shards if shard.split == split],
    }
    if labels is not None:
        index["labels"] = labels.model_dump(mode="json")
    if dropout is not None:
        index["bpe_dropout"] = asdict(dropout)
    if notes := [each for each in (note, held_out) if each]:
        index["notes"] = notes
    if later:
        index["later"] = {name: asdict(counts) for name, counts in later.items()}
    write_json(data / "tokens" / "index.json", index)
    shutil.rmtree(data / WORK, ignore_errors=True)
    return index


def _template(data: Path, config: TextConfig, tokenizer: Tokenizer) -> tuple[str, str]:
    """(the chat template of a set of conversations, put beside its tokenizer; a note about it); else nothing."""
    if not isinstance(read_text_config(data).labels, Dialogue):
        return "", ""
    source, note = choose_template(config.chat_template, tokenizer, data / "tokenizer")
    write_template(data / "tokenizer", source)
    return source, note


def _encode_all(tasks: list[EncodeTask], workers: int, progress: Progress) -> list[tuple[list[ShardInfo], int]]:
    total, done = sum(task.size for task in tasks), 0
    count = 1 if not workers and total < _SMALL_BYTES else choose_workers(workers, len(tasks))
    results = []
    for task, result in zip(tasks, run_tasks(encode, tasks, count), strict=True):
        results.append(result)
        done += task.size
        progress("encode", done, total)
    return results


def _make_tokenizer(
    data: Path, config: TextConfig, splits: dict[str, Split], key: str, progress: Progress
) -> Tokenizer:
    """The tokenizer in DATA/tokenizer: as a killed run left it, else trained or copied now."""
    folder, done = data / "tokenizer", data / WORK / "tokenizer.json"
    settings = config.tokenizer
    if (folder / "tokenizer.json").is_file():
        left = Tokenizer.load(folder)
        if finished(done, key) == {"tokenizer": left.digest}:
            return left
    if settings.kind == "bpe":
        compile_for(_size_of_documents(data))
    shutil.rmtree(folder, ignore_errors=True)
    if isinstance(settings, Trained):
        progress("train the tokenizer", 0, 1)
        shards = {data / path: digest for path, digest in _documents(data).items()}
        for path, digest in shards.items():
            check_documents(path, digest)
        texts = TrainingTexts({path: splits[path.parent.name] for path in shards}, settings.train_bytes)
        tokenizer = train_tokenizer(settings, texts)
        save_tokenizer(tokenizer, folder)
        progress("train the tokenizer", 1, 1)
    else:
        path = Path(settings.path)
        tokenizer = Tokenizer.load(path, settings.end_of_text)
        if tokenizer.merges is not None:
            compile_for(_size_of_documents(data))
        beside = path if path.is_dir() else path.parent
        save_tokenizer(tokenizer, folder, read_settings(beside))
        if (template := read_source(beside)) is not None:
            write_template(folder, template)
    made = Tokenizer.load(folder)
    finish(done, key, {"tokenizer": made.digest})
    return made


def _remove_others(data: Path, names: set[str]) -> None:
    """Delete shards of an earlier tokenization."""
    wanted = {data / (name + ending) for name in names for ending in (*FILES.values(), LABELS, ".json")}
    for path in (data / "tokens").rglob("*"):
        if path.is_file() and path not in wanted:
            path.unlink()


def _report(config: TextConfig, index: dict[str, Any], sources: dict[str, SourceConfig]) -> TokenReport:
    trained = isinstance(config.tokenizer, Trained)
    report = TokenReport(index["vocab_size"], trained, notes=list(index.get("notes", [])))
    for name, source in sources.items():
        for split, ending in SUBSETS.values():
            if not ending or source.later is not None:
                report.shares[name + ending, split] = SplitCounts()
    for entry in index["shards"]:
        report.shares[entry["source"], entry["split"]].add(ShardInfo(**entry))
    for (name, split), share in report.shares.items():
        wanted = name in sources and sources[name].split in (None, split) and (split == "train" or config.validation)
        if wanted and not share.documents:
            report.notes.append(f"source {name!r} has no {split} documents")
    for name, counts in index.get("later", {}).items():
        report.notes += LaterCounts(**counts).notes(name)
    if isinstance(config.tokenizer, Trained) and index["vocab_size"] < config.tokenizer.vocab:
        report.notes.append(
            f"the vocabulary is {index['vocab_size']}, not {config.tokenizer.vocab}: no more repeats in the text"
        )
    if config.bpe_dropout:
        report.notes.append(
            f"training documents are encoded with BPE-dropout {config.bpe_dropout:g}: more and smaller tokens"
        )
    if index["unknown_tokens"]:
        report.notes.append(f"{index['unknown_tokens']} tokens stand for text that this tokenizer cannot express")
    return report
