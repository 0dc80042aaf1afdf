"""Fetch the files of a corpus: they are listed first, and a broken transfer resumes where it stopped.

http(s) goes through the standard library, everything else (hf://, s3://, file://) through fsspec. A file appears
under its name only when it is whole and has the published digest; until then it is hidden from `prepare`.
"""

import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.artifact import read_json
from hornbook.files.durable import TEMPORARY, publish_file, storage_errors, sync_file, write_atomic
from hornbook.progress import Progress
from hornbook.text.ingest.corpora.corpora import PublicCorpus, filled
from hornbook.text.ingest.corpora.remote import (
    PATIENCE,
    RangeError,
    RemoteBody,
    TransferError,
    connect,
    content_encoding,
    http_answer,
    is_http,
    open_remote,
    retry,
    transfers,
)

RECORD = "fetched.json"
_CHUNK = 2**20
_MOST_LISTING = 2**28
_ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256"}
_DIGEST = re.compile(r"([0-9a-fA-F]{32,64})[ *]+(\S+)\s*")
_DATED = re.compile(r"-(?:\d{8}|latest)-")


@dataclass(frozen=True, slots=True)
class Remote:
    """A file to fetch."""

    url: str
    name: str
    """Its name here."""
    size: int | None
    """Bytes, where the server says."""
    digest: str = ""
    """Published hexadecimal md5, sha1 or sha256, if any."""
    options: Mapping[str, Any] | None = None


def plan(corpus: PublicCorpus, given: Mapping[str, str], most: int | None = None) -> tuple[list[Remote], int]:
    """(the first `most` files of a corpus, how many it has in all). Reads lists, sizes and digests, nothing else.

    Raises UsageError (no such file, no access, an extra that is missing).
    """
    values = filled(corpus, given)
    urls = [each for url in corpus.urls for each in _expanded(url.format(**values), corpus.options)]
    if corpus.listing:
        lines = _small(corpus.listing.format(**values)).decode("utf-8", "replace").split()
        urls += [corpus.base + line for line in lines]
    digests = _digests(corpus.checksums.format(**values)) if corpus.checksums else {}
    names = _names(urls)
    chosen = list(zip(urls, names, strict=True))[:most]
    remotes = [
        Remote(url, name, _size(url, corpus.options), digests.get(_undated(_last(url)), ""), corpus.options)
        for url, name in chosen
    ]
    return remotes, len(urls)


def _expanded(url: str, options: Mapping[str, Any]) -> list[str]:
    if "*" not in url:
        return [url]

    def matching() -> list[str]:
        system, pattern = connect(url, options)
        with transfers(url):
            return [system.unstrip_protocol(path) for path in sorted(system.glob(pattern))]

    matches = retry(matching, url, patience=PATIENCE)
    if not matches:
        raise UsageError(f"{url} matches nothing, or may not be listed without an account")
    return matches


def _last(url: str) -> str:
    return url.partition("?")[0].rstrip("/").rpartition("/")[2]


def _names(urls: list[str]) -> list[str]:
    """A name for each address: its last part, with more of the address where several end alike."""
    counts = Counter(map(_last, urls))
    names = []
    for url in urls:
        last = _last(url)
        name = re.sub(r"[^A-Za-z0-9._=-]+", "-", url.partition("://")[2] if counts[last] > 1 else last).lstrip(".-")
        if not name:
            raise UsageError(f"{url} names no file")
        names.append(name)
    return names


def _undated(name: str) -> str:
    """Wikimedia's list beside "latest" names the files by their date."""
    return _DATED.sub("-*-", name)


def _digests(url: str) -> dict[str, str]:
    lines = map(_DIGEST.fullmatch, _small(url).decode("utf-8", "replace").splitlines())
    return {_undated(line.group(2)): line.group(1).lower() for line in lines if line}


def _small(url: str) -> bytes:
    """A whole small file. Raises UsageError."""

    def read() -> bytes:
        with open_remote(url, 0, "", {}) as part:
            data = part.body.read(_MOST_LISTING)
        return gzip.decompress(data) if url.endswith(".gz") else data

    return retry(read, url)


def _size(url: str, options: Mapping[str, Any]) -> int | None:
    def ask() -> int | None:
        if not is_http(url):
            system, path = connect(url, options)
            with transfers(url):
                return system.info(path).get("size")
        with http_answer(url, {}, "HEAD") as answer:
            length = answer.headers.get("Content-Length")
            return int(length) if length and length.isdigit() and not content_encoding(answer, url) else None

    return retry(ask, url, patience=PATIENCE)


def fetch(
    remotes: list[Remote], folder: Path, *, attempts: int = 5, pause: float = 1.0, progress: Progress | None = None
) -> list[Path]:
    """Fetch files into a folder, one after the other; those that are there as recorded are left alone.

    A transfer that breaks is tried again `attempts` times, `pause` seconds apart and then twice as long each time.
    Raises UsageError (no such file, given up), IntegrityError (size or digest is not what it should be), StorageError.
    """
    done = 0
    total = sum(remote.size or 0 for remote in remotes)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    record = read_json(folder / RECORD) or {}
    paths = []
    for remote in remotes:
        path = folder / remote.name
        known = record.get(remote.name)
        if not (
            known and path.is_file() and known["url"] == _recorded(remote.url) and known["size"] == path.stat().st_size
        ):

            def show(size: int, before: int = done) -> None:
                if progress is not None:
                    progress("fetch", before + size, total)

            record[remote.name] = _fetch_one(remote, path, attempts, pause, show)
            write_atomic(folder / RECORD, json.dumps(record, indent=1) + "\n")
        done += remote.size or 0
        paths.append(path)
    return paths


def _fetch_one(remote: Remote, path: Path, attempts: int, pause: float, show: Callable[[int], None]) -> dict[str, Any]:
    partial, tag = (path.with_name(f"{TEMPORARY}{path.name}.{ending}") for ending in ("part", "tag"))
    size = retry(lambda: _transfer(remote, partial, tag, show), remote.url, attempts=attempts, pause=pause)
    algorithm = _ALGORITHMS.get(len(remote.digest), "sha256")
    digests = _hashed(partial, {algorithm, "sha256"})
    if remote.digest and digests[algorithm] != remote.digest:
        partial.unlink()
        raise IntegrityError(
            f"{remote.url}: its {algorithm} is {digests[algorithm]}, published is {remote.digest}; fetch it again"
        )
    with storage_errors(path):
        publish_file(partial, path)
        tag.unlink(missing_ok=True)
    return {"url": _recorded(remote.url), "size": size, "sha256": digests["sha256"]}


def _recorded(url: str) -> str:
    """An address to write down: a query may be a secret, so its digest stands for it."""
    address, mark, query = url.partition("?")
    return f"{address}?sha256={hashlib.sha256(query.encode()).hexdigest()[:16]}" if mark else url


def _transfer(remote: Remote, partial: Path, tag: Path, show: Callable[[int], None]) -> int:
    """Fetch the rest of a file; returns its size. Raises TransferError where it is incomplete."""
    have = partial.stat().st_size if partial.is_file() else 0
    known = tag.read_text() if have and tag.is_file() else ""
    try:
        with open_remote(remote.url, have if known else 0, known, remote.options or {}) as body:
            size = _write(remote.url, body, partial, tag, show)
    except RangeError:
        tag.unlink(missing_ok=True)
        raise
    if body.size is not None and size != body.size:
        raise TransferError(f"{size} of {body.size} bytes came")
    return size


def _write(url: str, body: RemoteBody, partial: Path, tag: Path, show: Callable[[int], None]) -> int:
    """Append the rest of a file to its partial file; returns the size so far. Raises TransferError, StorageError."""
    with storage_errors(partial):
        tag.write_text(body.tag)
        with partial.open("r+b" if body.start else "wb") as file:
            file.truncate(body.start)
            size = file.seek(body.start)
            while data := _read(url, body.body):
                file.write(data)
                size += len(data)
                show(size)
            file.flush()
            sync_file(file.fileno())
        return size


def _read(url: str, body: IO[bytes]) -> bytes:
    """Errors of the network are TransferError, so that they are not taken for those of the disk."""
    with transfers(url):
        return body.read(_CHUNK)


def _hashed(path: Path, algorithms: set[str]) -> dict[str, str]:
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in algorithms}
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            for each in digests.values():
                each.update(data)
    return {name: each.hexdigest() for name, each in digests.items()}
