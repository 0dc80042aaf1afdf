"""Opening remote files at any place, and trying again what broke: http(s) by the standard library, else fsspec."""

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

AGENT = {"User-Agent": "hornbook (https://pypi.org/project/hornbook)"}
_TIMEOUT = 60
_LATER = (408, 425, 429)
_LONGEST_PAUSE = 30
Result = TypeVar("Result")


class Broken(Exception):
    """A transfer that may work if it is tried again."""


class NoSuchPart(Broken):
    """The file is not as long as the part that is here."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a server sends from some place on."""

    body: IO[bytes]
    start: int
    size: int | None
    """Of the whole file."""
    tag: str
    """Changes when the file changes; empty where the server does not say."""


def is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


@contextmanager
def opened(url: str, start: int, tag: str, options: Mapping[str, Any]) -> Iterator[Part]:
    """A file from a place on, or from the beginning where it has changed since. Raises Broken, UsageError."""
    if is_http(url):
        headers = {"Range": f"bytes={start}-", "If-Range": tag} if start else {}
        with http_answer(urllib.request.Request(url, headers={**AGENT, **headers})) as answer:
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
        raise Broken(str(error)) from error
    with handle:
        start = start if tag == now else 0
        handle.seek(start)
        yield Part(handle, start, size, now)


def _http_part(answer: Any, asked: int) -> Part:
    length = answer.headers.get("Content-Length")
    size = int(length) if length and length.isdigit() else None
    tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    tag = "" if tag.startswith("W/") else tag  # a weak tag cannot vouch for bytes
    if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
        return Part(answer, 0, size, tag)
    place = re.match(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
    if place is None or int(place.group(1)) != asked:
        raise Broken("the server sent another part than was asked for")
    return Part(answer, asked, None if size is None else asked + size, tag)


@contextmanager
def http_answer(request: urllib.request.Request) -> Iterator[Any]:
    url = request.full_url
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        with suppress(OSError):
            error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise NoSuchPart(f"the server says {error.code}") from error
        if error.code in _LATER or error.code >= 500:
            raise Broken(f"the server says {error.code} {error.reason}") from error
        raise UsageError(f"cannot fetch {url}: the server says {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Broken(str(error)) from error
    with answer:
        yield answer


def patient(act: Callable[[], Result], url: str, *, attempts: int, pause: float) -> Result:
    """Try again what broke, with longer and longer pauses. Raises UsageError when the attempts are used up."""
    for attempt in range(attempts):
        try:
            return act()
        except Broken as error:
            if attempt + 1 == attempts:
                raise UsageError(
                    f"cannot fetch {url}: {error} ({attempts} attempts); start the same command again to go on"
                ) from error
            time.sleep(min(pause * 2**attempt, _LONGEST_PAUSE))
    raise AssertionError
