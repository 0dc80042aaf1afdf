"""List the input files of a source, sorted by path.

A path may be a file, a folder (walked in sorted order, hidden names left out), a glob or an fsspec URL.
"""

import glob
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from hornbook.errors import UsageError
from hornbook.text.config.text import SourceConfig

CODE = "c cc cpp cs go h hpp java jl js kt lua m php pl py r rb rs scala sh sql swift ts"
"""Endings of source code, which is read as plain text."""

FORMATS = {
    **dict.fromkeys((".txt", ".md", ".rst", *(f".{ending}" for ending in CODE.split())), "text"),
    **{f".{name}": name for name in ("jsonl", "parquet", "arrow", "csv", "tsv", "json", "xml", "tar", "zip")},
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".warc", ".wet"), "warc"),
    ".tex": "latex",
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
SUPPORTED = (
    ".txt .md .rst, code, .html .tex .jsonl .json .csv .tsv .warc .wet .xml .tar (each also .gz .bz2 .xz .zst), "
    ".parquet .arrow .zip"
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
        """The path as valid Unicode, for ids and messages (a file name may be any bytes)."""
        return self.path.encode("utf-8", "backslashreplace").decode()


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
    layout = LABELLED if labelled and config.layout != PARALLEL else config.layout if config.reader is None else OUTSIDE
    by_path: dict[str, InputFile] = {}
    for path in config.paths:
        files = list((_list_url if is_url(path) else _list_local)(source, path, layout))
        if not files:
            raise UsageError(f"source {source!r}: {path} holds no file that can be read ({SUPPORTED})")
        by_path.update((file.path, file) for file in files)
    return [by_path[path] for path in sorted(by_path)]


def _list_local(source: str, path: str, layout: str) -> Iterator[InputFile]:
    expanded = os.path.expanduser(path)
    if os.path.lexists(expanded):
        yield from _local_entry(source, expanded, layout)
        return
    if not any(char in expanded for char in "*?["):
        raise UsageError(f"source {source!r}: {path} does not exist")
    matches = sorted(glob.glob(expanded, recursive=True))
    if not matches:
        raise UsageError(f"source {source!r}: no file matches {path}")
    for match in matches:
        if os.path.isdir(match):
            yield from _walk(source, match, layout)
        elif known := format_of(match, layout):
            yield _local_file(source, match, known)


def _local_entry(source: str, path: str, layout: str) -> Iterator[InputFile]:
    """A path that the user named: anything wrong with it is an error, not a rejected row."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            yield from _walk(source, path, layout)
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


def _walk(source: str, folder: str, layout: str, parents: tuple[tuple[int, int], ...] = ()) -> Iterator[InputFile]:
    """Files below a folder. A linked folder is followed unless it leads back to one we are in."""
    try:
        status = os.stat(folder)
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        if not parents:
            raise UsageError(f"source {source!r}: cannot read {folder}: {error.strerror}") from error
        yield InputFile(source, folder, 0, "", "text", None, problem=f"cannot read: {error.strerror}")
        return
    me = (status.st_dev, status.st_ino)
    if me in parents:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = os.path.join(folder, entry.name)
        if os.path.isdir(path):
            yield from _walk(source, path, layout, (*parents, me))
        elif (known := format_of(path, layout)) and known[0] not in NAMED_ONLY:
            yield _local_file(source, path, known)


def _local_file(source: str, path: str, known: tuple[str, str | None]) -> InputFile:
    try:
        status = os.stat(path)
    except OSError as error:
        return InputFile(source, path, 0, "", *known, problem=f"cannot read: {error.strerror}")
    if not stat.S_ISREG(status.st_mode):
        return InputFile(source, path, 0, "", *known, problem="not a regular file")
    return InputFile(source, path, status.st_size, f"{status.st_size}-{status.st_mtime_ns}", *known)


def _list_url(source: str, url: str, layout: str) -> Iterator[InputFile]:
    try:
        system, path = fsspec.core.url_to_fs(url)
        names = _url_names(system, path)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"source {source!r}: cannot list {url}: {error}") from error
    if not names:
        raise UsageError(f"source {source!r}: {url} does not exist or matches nothing")
    folder = system.isdir(path)
    for name in names:
        kind = format_of(name, layout)
        if kind is None and len(names) == 1 and not folder:
            raise UsageError(f"source {source!r}: cannot tell what {url} is by its ending; {SUPPORTED} are read")
        if kind is None or (folder and kind[0] in NAMED_ONLY):
            continue
        info = system.info(name)
        size = int(info.get("size") or 0)
        yield InputFile(source, system.unstrip_protocol(name), size, _url_stamp(size, info), *kind)


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
    return any(part.startswith(".") for part in Path(relative).parts if part != "/")


def _url_stamp(size: int, info: dict[str, Any]) -> str:
    keys = ("ETag", "etag", "mtime", "LastModified", "last_modified", "created")
    known = [str(info[key]) for key in keys if info.get(key)]
    return "-".join([str(size), *known[:1]])
