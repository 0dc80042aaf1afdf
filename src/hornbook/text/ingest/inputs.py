"""List the input files of a source, sorted by path.

A path may be a file, a folder (walked in sorted order, hidden names left out), a glob or an fsspec URL.
"""

import glob
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from hornbook.errors import UsageError
from hornbook.files.extras import install_command
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.charsets import codec_of
from hornbook.text.ingest.corpora.remote import PATIENCE, connect, http_facts, is_http, retry, transfers

CODE = "c cc cpp cs go h hpp java jl js kt lua m php pl py r rb rs scala sh sql swift ts"
"""Endings of source code, which is read as plain text."""

FORMATS = {
    **dict.fromkeys((".txt", ".text", ".md", ".markdown", ".rst", *(f".{ending}" for ending in CODE.split())), "text"),
    **{
        f".{name}": name
        for name in ("jsonl", "parquet", "arrow", "csv", "tsv", "json", "xml", "tar", "zip", "pdf", "docx")
    },
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".warc", ".wet"), "warc"),
    ".tex": "latex",
    ".ndjson": "jsonl",
    ".jsonlines": "jsonl",
    ".feather": "arrow",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
SHORT_ENDINGS = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".txz": ".tar.xz"}
AT_RANDOM = ("parquet", "arrow", "zip")
"""Formats that are read at random offsets, so such files cannot be compressed or lie in an archive."""
NAMED_ONLY = ("json", "xml", "conll", "parallel")
"""Formats with many other uses: such files are read where a path or a glob names them, not found in folders."""
ARXIV = {"tar": "arxiv", "latex": "arxiv", None: "arxiv"}
"""With the layout "arxiv" an archive holds one paper or many, and so does a `.gz` without another ending."""
LABELLED = "labelled"
"""The layout of labelled sets, which may also be sentences of words with tags (`.conll`)."""
PARALLEL = "parallel"
"""The layout of files whose lines belong together, whatever their endings."""
OUTSIDE = "outside"
"""The layout of sources that a reader of the user's own reads, whatever the endings of their files."""
_SPLIT = re.compile(
    r"(?:^|[-_.])(train|test|validation|valid|val|dev|eval)(?:[-.]\d{5}-of-\d{5})?(?:-[0-9a-f]{16})?"
    r"\.(?:parquet|arrow|jsonl?)(?:\.(?:gz|zst))?$",
    re.IGNORECASE,
)
"""The split in a name as the Hub, `datasets` and many corpora write it: `train-00000-of-00002.parquet`."""
_CACHED = re.compile(r"cache-[0-9a-f]{8,}(?:_\d+_of_\d+)?\.arrow")
SUPPORTED = (
    ".txt .md .rst, code, .html .tex .docx .pdf (extra documents) .jsonl .ndjson .json .csv .tsv .warc .wet .xml .tar "
    "(each also .gz .bz2 .xz .zst), .parquet .arrow .feather .zip"
)


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read. `problem` is set where it is already known that it cannot be read."""

    source: str
    path: str
    size: int
    stamp: str
    """Changes when the file changes: size and modification time, or what the file system offers."""
    format: str
    compression: str | None
    problem: str = ""
    part: tuple[int, int] = (0, 1)
    """(i, n): part i of n, counted from 0 (`hornbook.text.ingest.parts`)."""
    line: int = 1
    """The number of the first line of a part of lines."""
    beside: tuple[str, ...] = ()
    """Paths of the files whose lines belong to this one's (`hornbook.text.ingest.labels.parallel`)."""

    @property
    def part_size(self) -> int:
        """About how many bytes the part has."""
        return self.size // self.part[1]

    @property
    def name(self) -> str:
        """The path as valid Unicode (a file name may be any bytes), without a query: for ids and messages."""
        return _without_query(self.path).encode("utf-8", "backslashreplace").decode()


def format_of(path: str, layout: str = "auto") -> tuple[str, str | None] | None:
    """(format, compression) by the ending of a name and the layout of the source; None where it is not one of ours."""
    stem, ending = os.path.splitext(path.lower())
    if ending in SHORT_ENDINGS:
        stem, ending = os.path.splitext(stem + SHORT_ENDINGS[ending])
    compression = COMPRESSIONS.get(ending)
    if compression:
        ending = os.path.splitext(stem)[1]
    kind = layout if layout in (OUTSIDE, PARALLEL) else FORMATS.get(ending)
    if layout == "arxiv" and (kind or compression == "gzip"):
        kind = ARXIV.get(kind, kind)
    elif layout == "gutenberg" and kind == "text":
        kind = "gutenberg"
    elif layout == LABELLED and ending == ".conll":
        kind = "conll"
    if kind is None or (compression and kind in AT_RANDOM):
        return None
    return kind, compression


def is_url(path: str) -> bool:
    """Whether fsspec, not the local file system, names this path."""
    return "://" in path


def list_inputs(source: str, config: SourceConfig, *, labelled: bool = False) -> list[InputFile]:
    """All files of a source, sorted by path, each once. `labelled`: rows have labels.

    Raises UsageError where a path names nothing, or nothing that can be read.
    """
    if config.encoding and codec_of(config.encoding) is None:
        known = "give a name like windows-1252, shift_jis or koi8-r"
        raise UsageError(f"source {source!r}: encoding {config.encoding!r} is unknown: {known}")
    layout = LABELLED if labelled and config.layout != PARALLEL else config.layout if config.reader is None else OUTSIDE
    by_path: dict[str, InputFile] = {}
    missing = ("pdf",) if find_spec("pypdfium2") is None else ()
    for path in config.paths:
        listed = _list_url if is_url(path) else _list_local
        choices = ((*NAMED_ONLY, *missing), ("conll", "parallel", *missing))
        files = next(filter(None, (list(listed(source, path, layout, named)) for named in choices)), [])
        if not files:
            raise UsageError(f"source {source!r}: {path} holds no file that can be read ({SUPPORTED})")
        if unread := next((file.name for file in files if file.format in missing), ""):
            raise UsageError(f"source {source!r}: {unread}: pdf needs pypdfium2: {install_command('documents')}")
        by_path.update((file.path, file) for file in files)
    return [by_path[path] for path in sorted(by_path)]


def passed_over(config: SourceConfig, files: Iterable[InputFile]) -> Counter[str]:
    """Number of files below the local folders of a source that are not among its `files`: by ending, hidden ones as one
    group in which a hidden folder counts once.
    """
    read = {name for file in files for name in (file.path, *file.beside)}
    counts: Counter[str] = Counter()
    for path in config.paths:
        matches = [] if is_url(path) else glob.glob(os.path.expanduser(path), recursive=True) or [path]
        for folder, folders, names in (step for match in matches for step in os.walk(match)):
            hidden = [name for name in (*folders, *names) if name.startswith(".")]
            folders[:] = [name for name in folders if not name.startswith(".")]
            counts["hidden"] += len(hidden)
            splits = _other_splits([*folders, *names])
            folders[:] = [name for name in folders if name not in splits]
            for name in {*names, *splits} - set(hidden):
                if os.path.join(folder, name) not in read:
                    ending = os.path.splitext(name)[1].lower() or "without an ending"
                    counts[splits.get(name, ending)] += 1
    return +counts


def _other_splits(names: Collection[str]) -> dict[str, str]:
    """Names in a folder of a published set that are not read beside its train split, and what they are: other splits,
    and results that `datasets` keeps.
    """
    files = {name: match.group(1).lower() for name in names if (match := _SPLIT.search(name)) is not None}
    if "dataset_dict.json" in names:
        files |= {name: name for name in names if "." not in name}
    others = {name: f"split {split}" for name, split in files.items() if split != "train"}
    cached = {name: "cache of datasets" for name in names if _CACHED.fullmatch(name)}
    return cached | (others if "train" in files.values() else {})


def _list_local(source: str, path: str, layout: str, named: Sequence[str]) -> Iterator[InputFile]:
    """The files of a path. named: formats that are read only where a path or a glob names a file."""
    expanded = os.path.expanduser(path)
    if os.path.lexists(expanded):
        yield from _local_entry(source, expanded, layout, named)
        return
    if not any(char in expanded for char in "*?["):
        raise UsageError(f"source {source!r}: {path} does not exist")
    matches = sorted(glob.glob(expanded, recursive=True))
    if not matches:
        raise UsageError(f"source {source!r}: no file matches {path}")
    for match in matches:
        if os.path.isdir(match):
            yield from _walk(source, match, layout, named)
        elif known := format_of(match, layout):
            yield _local_file(source, match, known)


def _local_entry(source: str, path: str, layout: str, named: Sequence[str]) -> Iterator[InputFile]:
    """A path that the user named: anything wrong with it is an error, not a rejected row."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            yield from _walk(source, path, layout, named)
            return
        if stat.S_ISREG(mode):
            with open(path, "rb"):
                pass
    except OSError as error:
        raise UsageError(f"source {source!r}: cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise UsageError(f"source {source!r}: {path} is not a regular file")
    known = format_of(path, layout)
    if known is None:
        raise UsageError(f"source {source!r}: cannot tell what {path} is by its ending; {SUPPORTED} are read")
    yield _local_file(source, path, known)


def _walk(
    source: str, folder: str, layout: str, named: Sequence[str], parents: tuple[tuple[int, int], ...] = ()
) -> Iterator[InputFile]:
    """Files below a folder. A linked folder is followed unless it leads back to one we are in."""
    try:
        status = os.stat(folder)
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        if not parents:
            raise UsageError(f"source {source!r}: cannot read {folder}: {error.strerror}") from error
        yield InputFile(source, folder, 0, "", "text", None, problem=f"cannot read: {error.strerror}")
        return
    splits = _other_splits([entry.name for entry in entries])
    me = (status.st_dev, status.st_ino)
    if me in parents:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in splits:
            continue
        path = os.path.join(folder, entry.name)
        if os.path.isdir(path):
            yield from _walk(source, path, layout, named, (*parents, me))
        elif (known := format_of(path, layout)) and known[0] not in named:
            yield _local_file(source, path, known)


def _local_file(source: str, path: str, known: tuple[str, str | None]) -> InputFile:
    try:
        status = os.stat(path)
    except OSError as error:
        return InputFile(source, path, 0, "", *known, problem=f"cannot read: {error.strerror}")
    if not stat.S_ISREG(status.st_mode):
        return InputFile(source, path, 0, "", *known, problem="not a regular file")
    return InputFile(source, path, status.st_size, f"{status.st_size}-{status.st_mtime_ns}", *known)


def _list_url(source: str, url: str, layout: str, named: Sequence[str]) -> Iterator[InputFile]:
    try:
        if is_http(url) and (kind := format_of(_without_query(url), layout)) and not re.search(r"[*\[]", url):
            size, tag = retry(lambda: http_facts(url), url)
            yield InputFile(source, url, size, f"{size}-{tag}", *kind)
        else:
            yield from retry(lambda: _listed(source, url, layout, named), url, patience=PATIENCE)
    except UsageError as error:
        raise UsageError(f"source {source!r}: {error}") from error


def _listed(source: str, url: str, layout: str, named: Sequence[str]) -> list[InputFile]:
    """The files of a URL, by fsspec. Raises TransferError, UsageError."""
    system, path = connect(url, {})
    with transfers(url):
        names = _url_names(system, path)
        if not names:
            raise UsageError(f"{url} does not exist or matches nothing")
        folder = system.isdir(path)
    splits = _other_splits([os.path.basename(name) for name in names]) if folder else {}
    files = []
    for name in names:
        if os.path.basename(name) in splits:
            continue
        kind = format_of(_without_query(name), layout)
        if kind is None and len(names) == 1 and not folder:
            raise UsageError(f"cannot tell what {url} is by its ending; {SUPPORTED} are read")
        if kind is None or (folder and kind[0] in named):
            continue
        with transfers(url):
            info = system.info(name)
        size = int(info.get("size") or 0)
        files.append(InputFile(source, system.unstrip_protocol(name), size, _url_stamp(size, info), *kind))
    return files


def _without_query(path: str) -> str:
    """An address of the web without its query, which may be a signature; other paths unchanged."""
    return re.split(r"[?#]", path, maxsplit=1)[0] if path.startswith(("http://", "https://")) else path


def _url_names(system: Any, path: str) -> list[str]:
    if any(char in path for char in "*?["):
        names = [name for name in system.glob(path) if not system.isdir(name)]
    elif system.isdir(path):
        names = [name for name in system.find(path) if not is_hidden(name[len(path) :])]
    else:
        names = [path] if system.exists(path) else []
    return sorted(names)


def is_hidden(relative: str) -> bool:
    """Whether a part of a path within a folder or archive is a hidden name."""
    return any(part.startswith(".") and part != "." for part in relative.split("/"))


def _url_stamp(size: int, info: dict[str, Any]) -> str:
    keys = ("ETag", "etag", "mtime", "LastModified", "last_modified", "created")
    known = [str(info[key]) for key in keys if info.get(key)]
    return "-".join([str(size), *known[:1]])
