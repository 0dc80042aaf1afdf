"""Remote files as inputs: from a local HTTP server that breaks, and from file systems whose errors are their own."""

import gzip
import json
import time
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from fsspec.implementations.memory import MemoryFileSystem

from hornbook.cli.main import main
from hornbook.errors import Exit, UsageError
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.corpora import remote
from hornbook.text.ingest.corpora.corpora import corpus_of
from hornbook.text.ingest.corpora.fetch import plan
from hornbook.text.ingest.corpora.remote_file import RemoteError, RemoteFile
from hornbook.text.ingest.document import Document, ReadOptions
from hornbook.text.ingest.inputs import InputFile, list_inputs
from hornbook.text.ingest.readers import read_file
from tests.text.ingest.corpora.conftest import Site

ROWS = [f"row {number} " * 50 for number in range(2000)]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE", 0)


def parquet(folder: Path) -> bytes:
    pq.write_table(pa.table({"text": ROWS}), folder / "made.parquet", compression="none", row_group_size=500)
    return (folder / "made.parquet").read_bytes()


def jsonl() -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in ROWS).encode()


def arrow() -> bytes:
    table = pa.table({"text": ROWS})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table, max_chunksize=500)
    return sink.getvalue().to_pybytes()


def listed(url: str) -> list[InputFile]:
    return list_inputs("s", SourceConfig(paths=[url]))


def documents(file: InputFile, digests: list[str] | None = None) -> list[Document]:
    """All rows, none of which may be damaged; the hash of the file goes to `digests`."""
    rows = list(read_file(file, ReadOptions(), None if digests is None else digests.append))
    assert not [row for row in rows if not isinstance(row, Document)]
    return [row for row in rows if isinstance(row, Document)]


def texts(url: str) -> list[str]:
    return [row.text for file in listed(url) for row in documents(file)]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.jsonl.gz", "a.arrow"])
@pytest.mark.parametrize("ranges", [True, False])
def test_rows_come_whole_from_servers_that_break(site: Site, tmp_path: Path, name: str, ranges: bool):
    kinds = {
        "a.parquet": parquet(tmp_path),
        "a.jsonl": jsonl(),
        "a.jsonl.gz": gzip.compress(jsonl()),
        "a.arrow": arrow(),
    }
    site.files, site.ranges = {f"/{name}?token=secret": kinds[name]}, ranges
    (file,) = listed(f"{site.address}/{name}?token=secret")
    assert file.size == len(kinds[name])
    site.breaks = 2
    digests: list[str] = []
    assert [row.text for row in documents(file, digests)] == ROWS
    assert digests == [xxhash.xxh3_128_hexdigest(kinds[name])]


def test_a_compressed_transfer_is_read_as_the_file(site: Site):
    site.files, site.encoding = {"/a.jsonl": jsonl()}, "gzip"
    (file,) = listed(f"{site.address}/a.jsonl")
    site.breaks = 2
    assert [row.text for row in documents(file)] == ROWS


def test_a_server_that_goes_away_ends_the_command(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A row of the quarantine would lose the rest of the file without an error."""
    site.files = {"/a.jsonl": jsonl()}
    (file,) = listed(f"{site.address}/a.jsonl")
    site.breaks, site.ranges = remote.ATTEMPTS, False
    with pytest.raises(RemoteError, match=r"a\.jsonl: \d+ of \d+ bytes came \(4 attempts\); start the same command"):
        documents(file)
    site.refusals = [200, *[503] * remote.ATTEMPTS]
    assert main(["prepare", f"{site.address}/a.jsonl", "--out", str(tmp_path / "data"), "--workers", "1"]) == Exit.USAGE
    message = capsys.readouterr().err
    assert "a.jsonl: the server says 503 Service Unavailable (4 attempts)" in message
    assert "Traceback" not in message
    assert main(["prepare", f"{site.address}/a.jsonl", "--out", str(tmp_path / "data"), "--workers", "1"]) == Exit.DONE


def test_a_file_that_changes_while_it_is_read_is_no_file(site: Site):
    site.files = {"/a.jsonl": jsonl()}
    with RemoteFile(f"{site.address}/a.jsonl") as file:
        before = file.read(10)
        site.version, site.files["/a.jsonl"] = "2", jsonl()[::-1]
        file.seek(20)
        with pytest.raises(RemoteError, match="changed while it was read: start the same command again"):
            file.read(10)
    assert before == jsonl()[:10]


@pytest.mark.parametrize("scheme", ["http", "memory"])
def test_offsets_are_those_of_a_local_file(site: Site, scheme: str):
    data = bytes(range(250))
    site.files["/offsets"] = data
    fsspec.filesystem("memory").pipe("/offsets", data)
    with RemoteFile(f"{site.address}/offsets" if scheme == "http" else "memory://offsets") as file:
        assert (file.readable(), file.seekable(), file.read(3), file.tell()) == (True, True, data[:3], 3)
        assert (file.seek(-5, 2), file.read(9), file.read(9)) == (245, data[-5:], b"")
        assert (file.seek(7), file.seek(2, 1), file.read(2)) == (7, 9, data[9:11])
        assert (file.seek(400), file.read(1), file.seek(0), file.read()) == (400, b"", 0, data)


class ClientError(Exception):
    """Like those of aiohttp, botocore and gcsfs: no OSError."""

    def __init__(self, text: str, **facts: Any) -> None:
        super().__init__(text)
        self.__dict__.update(facts)


class NoCredentialsError(Exception):
    """As botocore names it."""


class Shop(MemoryFileSystem):
    """A store whose next requests fail."""

    protocol = "shop"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failures: ClassVar[list[Exception | float]] = []
    asked = 0

    def info(self, path: str, **options: Any) -> Any:
        type(self).asked += 1
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            time.sleep(failure)
        return super().info(path, **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("shop://").strip("/")


@pytest.fixture
def shop() -> type[Shop]:
    fsspec.register_implementation("shop", Shop, clobber=True)
    Shop().pipe("/b/a.jsonl", jsonl())
    Shop.failures, Shop.asked = [], 0
    return Shop


PASSING = [
    ClientError("slow down", status=503),
    ClientError("too many", response={"ResponseMetadata": {"HTTPStatusCode": 429}}),
    ClientError("Server disconnected"),
    OSError("reset by peer"),
    TimeoutError(),
]


@pytest.mark.parametrize("failure", PASSING, ids=str)
def test_a_store_is_asked_again_for_what_passes(shop: type[Shop], failure: Exception):
    shop.failures = [failure, failure]
    assert texts("shop://b/a.jsonl") == ROWS
    shop.failures = [failure, failure]
    assert plan(corpus_of("shop://b/*.jsonl"), {}, None)[0][0].size == len(jsonl())


@pytest.mark.parametrize("url", ["shop://b/a.jsonl", "shop://b/*.jsonl", "shop://b"])
def test_attempts_are_bounded(shop: type[Shop], url: str):
    shop.failures = [ClientError("Could not connect to the endpoint")] * 50
    with pytest.raises(UsageError, match=r"source 's': cannot fetch shop:.*Could not connect.*\(4 attempts\)"):
        listed(url)
    assert shop.asked == 4


def test_no_attempt_begins_after_the_patience(shop: type[Shop], monkeypatch: pytest.MonkeyPatch):
    """An attempt at a store without an endpoint takes botocore 10 s."""
    monkeypatch.setattr("hornbook.text.ingest.inputs.PATIENCE", -1)
    shop.failures = [ClientError("Could not connect to the endpoint")]
    with pytest.raises(UsageError, match=r"Could not connect.*\(1 attempt\)"):
        listed("shop://b/a.jsonl")


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (NoCredentialsError("Unable to locate credentials"), "Unable to locate credentials: set CREDENTIALS"),
        (ClientError("Forbidden", code=403), "a.jsonl: Forbidden: set CREDENTIALS"),
        (ClientError("no", response={"ResponseMetadata": {"HTTPStatusCode": 401}}), "no: set CREDENTIALS"),
        (ClientError("Bad Request", status=400), "a.jsonl: Bad Request"),
        (ImportError("install the shop"), "a.jsonl: install the shop"),
    ],
    ids=str,
)
def test_a_refusal_is_final_and_names_the_remedy(
    shop: type[Shop],
    failure: Exception,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setitem(remote._CREDENTIALS, "shop", "set CREDENTIALS")
    (file,) = listed("shop://b/a.jsonl")
    shop.asked, shop.failures = 0, [failure]
    with pytest.raises(RemoteError, match=message):
        documents(file)
    shop.failures = [failure]
    assert main(["prepare", "shop://b/a.jsonl", "--out", str(tmp_path / "data")]) == Exit.USAGE
    assert message in capsys.readouterr().err
    assert shop.asked == 2


def test_a_store_that_is_silent_is_given_up(shop: type[Shop], monkeypatch: pytest.MonkeyPatch):
    """gcsfs without credentials looks for them for over a minute."""
    monkeypatch.setattr(remote, "PATIENCE", 0.05)
    monkeypatch.setitem(remote._CREDENTIALS, "shop", "set CREDENTIALS")
    shop.failures = [1.0]
    before = time.perf_counter()
    with pytest.raises(UsageError, match=r"no answer within 0\.05 s: check the network, or set CREDENTIALS"):
        listed("shop://b/a.jsonl")
    assert time.perf_counter() - before < 0.9


@pytest.mark.parametrize("scheme", ["s3", "gs", "hf", "http", "https"])
def test_every_store_has_a_remedy(scheme: str):
    error = remote.transfer_error(PermissionError("Forbidden"), f"{scheme}://b/x?token=secret")
    assert isinstance(error, UsageError)
    assert str(error).startswith(f"cannot read {scheme}://b/x")
    assert remote._CREDENTIALS[scheme] in str(error)
    assert ("secret" in str(error)) == (not scheme.startswith("http"))
