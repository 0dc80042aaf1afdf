"""Open remote files at any offset, and retry transfers that broke: http(s) by the standard library, else fsspec."""

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import fsspec

from hornbook.errors import UsageError

_AGENT = {"User-Agent": "hornbook (https://pypi.org/project/hornbook)"}
_TIMEOUT = 60
_LATER = (408, 425, 429)
_LONGEST_PAUSE = 30
Result = TypeVar("Result")


class TransferError(Exception):
    """A transfer broke, and may work if it is tried again."""


class RangeError(TransferError):
    """The file is shorter than the part that was fetched before."""


@dataclass(frozen=True, slots=True)
class RemoteBody:
    """What a server sends of a file, from `start` on."""

    body: IO[bytes]
    start: int
    size: int | None
    """Of the whole file."""
    tag: str
    """Changes when the file changes; empty where the server does not say."""


def is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


@contextmanager
def open_remote(url: str, start: int, tag: str, options: Mapping[str, Any]) -> Iterator[RemoteBody]:
    """A file from `start` on, or from its beginning where it has changed since. Raises TransferError, UsageError."""
    if is_http(url):
        headers = {"Range": f"bytes={start}-", "If-Range": tag} if start else {}
        with http_answer(url, headers) as answer:
            yield _http_part(answer, start)
        return
    try:
        system, path = fsspec.core.url_to_fs(url, **options)
        size = system.info(path).get("size")
        now = f"fsspec {system.ukey(path)}"
        handle: Any = system.open(path, "rb")
    except FileNotFoundError as error:
        raise UsageError(f"{url} does not exist") from error
    except (ValueError, ImportError, PermissionError) as error:
        raise UsageError(f"cannot read {url}: {error}") from error
    except OSError as error:
        raise TransferError(str(error)) from error
    with handle:
        start = start if tag == now else 0
        handle.seek(start)
        yield RemoteBody(handle, start, size, now)


def _http_part(answer: Any, start: int) -> RemoteBody:
    length = answer.headers.get("Content-Length")
    size = int(length) if length and length.isdigit() else None
    tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    tag = "" if tag.startswith("W/") else tag  # a weak tag cannot vouch for bytes
    if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
        return RemoteBody(answer, 0, size, tag)
    content_range = re.match(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
    if content_range is None or int(content_range.group(1)) != start:
        raise TransferError("the server sent another part than was asked for")
    return RemoteBody(answer, start, None if size is None else start + size, tag)


@contextmanager
def http_answer(url: str, headers: Mapping[str, str], method: str = "GET") -> Iterator[Any]:
    """What a server answers. Raises TransferError, UsageError."""
    request = urllib.request.Request(url, method=method, headers={**_AGENT, **headers})
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        with suppress(OSError):
            error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise RangeError(f"the server says {error.code}") from error
        if error.code in _LATER or error.code >= 500:
            raise TransferError(f"the server says {error.code} {error.reason}") from error
        raise UsageError(f"cannot fetch {url}: the server says {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise TransferError(str(error)) from error
    with answer:
        yield answer


def retry(act: Callable[[], Result], url: str, *, attempts: int, pause: float) -> Result:
    """Retry a transfer that broke, with longer and longer pauses. Raises UsageError when the attempts are used up."""
    for attempt in range(attempts):
        try:
            return act()
        except TransferError as error:
            if attempt + 1 == attempts:
                raise UsageError(
                    f"cannot fetch {url}: {error} ({attempts} attempts); start the same command again to go on"
                ) from error
            time.sleep(min(pause * 2**attempt, _LONGEST_PAUSE))
    raise AssertionError
