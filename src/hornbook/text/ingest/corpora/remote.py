"""Open remote files at any offset, and retry transfers that broke: http(s) by the standard library, else fsspec."""

import gzip
import http.client
import math
import re
import threading
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
ATTEMPTS = 4
PAUSE = 1.0
"""Seconds before the second attempt; each later pause is twice as long."""
_LONGEST_PAUSE = 30
PATIENCE = 20.0
"""Seconds that a store may take to find credentials and to answer the first request."""
_CREDENTIALS = {
    "s3": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for a public bucket FSSPEC_S3_ANON=true",
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to the file of a key; "
    "for a public bucket FSSPEC_GS_TOKEN=anon",
    "hf": "set HF_TOKEN",
    **dict.fromkeys(("http", "https"), "give an address that needs no account, or one whose signature is valid"),
}
"""Remedies where a store refuses access, by scheme."""
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


def shown(url: str) -> str:
    """The address for messages: without a query, which may be a secret."""
    return url.partition("?")[0] if is_http(url) else url


def transfer_error(error: Exception, url: str) -> Exception:
    """TransferError for an error of a file system that may pass, UsageError with the remedy for another.

    Each implementation of fsspec raises errors of its own library, many of which are no OSError.
    """
    text = f"{error or type(error).__name__}"
    if isinstance(error, UsageError | TransferError):
        return error
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{shown(url)} does not exist")
    status = _status_of(error)
    if isinstance(error, PermissionError) or status in (401, 403) or "Credential" in type(error).__name__:
        remedy = _CREDENTIALS.get(url.partition(":")[0], "check the credentials")
        return UsageError(f"cannot read {shown(url)}: {text}: {remedy}")
    is_refusal = status is not None and 400 <= status < 500 and status not in _LATER
    if is_refusal or isinstance(error, ValueError | ImportError | NotImplementedError):
        return UsageError(f"cannot read {shown(url)}: {text}")
    return TransferError(text)


def _status_of(error: Any) -> int | None:
    """The HTTP status in an error of aiohttp, gcsfs, botocore or huggingface_hub."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    codes = (getattr(error, "status", None), getattr(error, "code", None), getattr(response, "status_code", None))
    return next((code for code in codes if isinstance(code, int)), None)


@contextmanager
def transfers(url: str) -> Iterator[None]:
    """Errors of a file system become TransferError or UsageError."""
    try:
        yield
    except Exception as error:
        raise transfer_error(error, url) from error


def connect(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """(file system, path in it) of a URL, once the store has answered. Raises TransferError, UsageError.

    Libraries look for credentials for minutes, so this is done in a thread that is left after `PATIENCE` seconds.
    """
    results: list[tuple[Any, str] | Exception] = []

    def ask() -> None:
        try:
            system, path = fsspec.core.url_to_fs(url, **options)
            root = re.split(r"[*?\[]", path, maxsplit=1)[0]
            with suppress(FileNotFoundError, PermissionError, NotImplementedError):  # listing may work all the same
                system.info(root if root == path else root.rpartition("/")[0])
            results.append((system, path))
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread
            results.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if not results:
        remedy = _CREDENTIALS.get(url.partition(":")[0], "check the address")
        raise UsageError(f"cannot read {shown(url)}: no answer within {PATIENCE:g} s: check the network, or {remedy}")
    if isinstance(results[0], Exception):
        raise transfer_error(results[0], url) from results[0]
    return results[0]


@contextmanager
def open_remote(url: str, start: int, tag: str, options: Mapping[str, Any]) -> Iterator[RemoteBody]:
    """A file from `start` on, or from its beginning where it has changed since. Raises TransferError, UsageError."""
    if is_http(url):
        headers = {"Range": f"bytes={start}-", "If-Range": tag} if start else {}
        with http_answer(url, headers) as answer:
            yield _http_part(answer, start, url)
        return
    with transfers(url):
        system, path = fsspec.core.url_to_fs(url, **options)
        size = system.info(path).get("size")
        now = f"fsspec {system.ukey(path)}"
        handle: Any = system.open(path, "rb")
    with handle:
        start = start if tag == now else 0
        handle.seek(start)
        yield RemoteBody(handle, start, size, now)


def _http_part(answer: Any, start: int, url: str) -> RemoteBody:
    encoding = content_encoding(answer, url)
    if encoding == "gzip":  # of the file that is meant nobody knows the size or an offset
        body: Any = gzip.GzipFile(fileobj=answer)
        return RemoteBody(body, 0, None, "")
    if encoding:
        raise UsageError(
            f"cannot read {shown(url)}: it is sent with Content-Encoding {encoding}, though none was asked for"
        )
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


def content_encoding(answer: Any, url: str) -> str:
    """The compression that was added for the transfer; "" for none.

    Servers also label a file that is stored with gzip so; its name says that it is to stay as it is.
    """
    encoding = answer.headers.get("Content-Encoding", "").lower().removeprefix("x-")
    is_own = encoding == "gzip" and shown(url).lower().endswith((".gz", ".tgz"))
    return "" if is_own or encoding == "identity" else encoding


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
        remedy = f": {_CREDENTIALS['http']}" if error.code in (401, 403) else ""
        raise UsageError(f"cannot fetch {shown(url)}: the server says {error.code} {error.reason}{remedy}") from error
    except (OSError, http.client.HTTPException) as error:
        raise TransferError(str(error) or type(error).__name__) from error
    with answer:
        yield answer


def http_facts(url: str) -> tuple[int, str]:
    """(size in bytes or 0, tag that changes with the file), as the server says. Raises TransferError, UsageError.

    The body is not read. HEAD is not used: a signed address is often signed for GET alone.
    """
    with open_remote(url, 0, "", {}) as part:
        return part.size or 0, part.tag


def retry(
    act: Callable[[], Result],
    url: str,
    *,
    attempts: int = ATTEMPTS,
    pause: float | None = None,
    patience: float = math.inf,
) -> Result:
    """Retry a transfer that broke, with longer and longer pauses. Raises UsageError when the attempts are used up.

    patience: seconds after which no attempt begins; libraries have attempts of their own in each of ours.
    """
    begun, pause = time.monotonic(), PAUSE if pause is None else pause
    for attempt in range(1, attempts + 1):
        try:
            return act()
        except TransferError as error:
            if attempt == attempts or time.monotonic() - begun > patience:
                tried = f"{attempt} attempt{'s' if attempt > 1 else ''}"
                raise UsageError(
                    f"cannot fetch {shown(url)}: {error} ({tried}); start the same command again to go on"
                ) from error
            time.sleep(min(pause * 2 ** (attempt - 1), _LONGEST_PAUSE))
    raise AssertionError
