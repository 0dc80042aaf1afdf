"""tar and zip: members as in folders; links, traversal, bombs, nesting and damage are refused or bounded."""

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hornbook.text.ingest.document import Document, Rejected
from hornbook.text.ingest.formats.archives import archives

Pack = Callable[[dict[str, bytes]], bytes]


def tar(members: dict[str, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def packed(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


PACKS = {"a.tar": tar, "a.zip": packed}
each_kind = pytest.mark.parametrize(("name", "pack"), PACKS.items())


def outcomes(rows: list[Document | Rejected]) -> list[str]:
    return [row.kind if isinstance(row, Rejected) else row.text for row in rows]


@each_kind
def test_members_are_read_as_in_a_folder(read_bytes: Any, name: str, pack: Pack):
    members = {
        "a.txt": b"one",
        "sub/b.jsonl.gz": gzip.compress(b'{"text": "two", "id": "x"}\n{"text": 3}\n'),
        "image.png": b"\x89PNG",
        ".hidden.txt": b"no",
        "sub/.git/c.txt": b"no",
        "long/" + "x" * 200 + "/c.md": "dr\u00e9i".encode(),
        "\u00e9.csv": b"text\nfour\n",
        "empty.txt": b"",
    }
    rows = read_bytes(name, pack(members))
    assert outcomes(rows) == [
        "one",
        "two",
        "text is not a string",
        "dr\u00e9i",
        "four",
        "",
        *["not read in the archive"] * 2,
    ]
    passed = [(row.reason.rpartition(" ")[2], row.rows, row.bytes) for row in rows[-2:]]
    assert passed == [(".png", 1, 4), ("hidden", 2, 4)]
    assert not any(row.damaged for row in rows[-2:])
    assert rows[0].origin.endswith(f"{name}!/a.txt")
    assert (rows[1].id, rows[2].line) == ("x", 2)
    assert rows[2].path.endswith(f"{name}!/sub/b.jsonl.gz")


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("a.tar.gz", gzip.compress),
        ("a.tgz", gzip.compress),
        ("a.tar.bz2", bz2.compress),
        ("a.tar.xz", lzma.compress),
        ("a.tar.zst", zstandard.ZstdCompressor().compress),
    ],
)
@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_compressed_tars_of_every_format(read_bytes: Any, name: str, compress: Callable[[bytes], bytes], kind: int):
    members = {f"{'d' * 60}/{'e' * 60}/{number}.txt": b"text %d" % number for number in range(5)}
    rows = read_bytes(name, compress(tar(members, kind)))
    assert outcomes(rows) == [data.decode() for data in members.values()]
    assert rows[0].origin.endswith("!/" + next(iter(members)))


def test_stored_zips_are_read(read_bytes: Any):
    assert outcomes(read_bytes("a.zip", packed({"a.txt": b"x" * 600_000}, zipfile.ZIP_STORED))) == ["x" * 600_000]


@each_kind
@pytest.mark.parametrize("member", ["../a.txt", "a/../../b.txt", "/etc/a.txt", "C:\\a.txt", "..\\a.txt", "C:/a.txt"])
def test_names_that_lead_outside_are_refused(read_bytes: Any, name: str, pack: Pack, member: str):
    rows = read_bytes(name, pack({member: b"evil", "good.txt": b"good"}))
    assert outcomes(rows) == ["unsafe name in the archive", "good"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_links_and_devices_in_tars_are_refused(read_bytes: Any, kind: bytes):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("a.txt")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    (row,) = read_bytes("a.tar", file.getvalue())
    assert row.kind == "not a plain file in the archive"


def test_links_and_unread_methods_in_zips_are_refused(read_bytes: Any):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        link = zipfile.ZipInfo("a.txt")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("b.txt", b"x", zipfile.ZIP_LZMA)
    rows = read_bytes("a.zip", file.getvalue())
    assert [row.reason.partition(": ")[2] for row in rows] == ["a symbolic link", "compressed by method 14"]


def test_an_encrypted_member_is_named(read_bytes: Any):
    data = bytearray(packed({"a.txt": b"x"}))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    assert read_bytes("a.zip", bytes(data))[0].reason.endswith("encrypted")


@each_kind
def test_what_cannot_be_read_inside_is_named(read_bytes: Any, name: str, pack: Pack):
    rows = read_bytes(name, pack({"a.zip": b"PK", "b.tar.gz": b"", "c.parquet": b"PAR1", "d.txt": b"d"}))
    assert outcomes(rows) == ["archive in an archive", "archive in an archive", "parquet in an archive", "d"]


@each_kind
def test_an_archive_without_files_says_so(read_bytes: Any, name: str, pack: Pack):
    first, row = read_bytes(name, pack({"image.png": b"x"}))
    assert first.reason == "not read in the archive: .png"
    assert (row.kind, row.damaged) == ("empty archive", False)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_a_bomb_is_stopped_at_the_limit_that_is_named(read_bytes: Any, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr(archives, "FREE", 2**20)
    bomb = {f"{number}.jsonl": b" " * 2**22 for number in range(10)}
    data = gzip.compress(tar(bomb)) if name == "a.tar.gz" else packed(bomb)
    tracemalloc.start()
    rows = read_bytes(name, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows[-1].reason.startswith("archive bomb: it expands to more than ")
    assert len(rows) < 8
    assert peak < 2**24


def test_ten_thousand_members_are_not_held(read_bytes: Any):
    members = {f"{number}.png": b"" for number in range(10_000)} | {"last.txt": b"last"}
    for name, pack in PACKS.items():
        data = pack(members)
        tracemalloc.start()
        rows = read_bytes(name, data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert outcomes(rows) == ["last", "not read in the archive"]
        assert rows[1].rows == 10_000
        assert peak < 2**21


def test_a_header_that_claims_gigabytes_is_refused(read_bytes: Any):
    data = bytearray(tar({"x" * 200 + ".txt": b"a"}))
    size = b"77777777777\0"
    data[124:136] = size
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + sum(data[156:512]) + 256)
    (row,) = read_bytes("a.tar", bytes(data))
    assert row.reason.startswith("damaged tar: a header of 8589934591 bytes")


@each_kind
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_archives_are_flagged(read_bytes: Any, name: str, pack: Pack, share: float):
    noise = bytes(range(33, 123)) * 100
    data = pack({f"{number}.txt": noise[number:] for number in range(8)})
    length = len(data.rstrip(b"\0"))
    rows = read_bytes(name, data[: int(share * length)])
    assert isinstance(rows[-1], Rejected)
    assert rows[-1].damaged


def test_a_wrong_checksum_is_noticed(read_bytes: Any):
    data = bytearray(packed({"a.txt": b"some text", "b.txt": b"other"}, zipfile.ZIP_STORED))
    data[data.index(b"some text")] ^= 1
    assert outcomes(read_bytes("a.zip", bytes(data))) == ["damaged zip", "other"]


def test_a_name_in_unicode_beside_that_of_old_archivers_is_taken(read_bytes: Any):
    def field(version: int, name: bytes, text: str) -> bytes:
        return struct.pack("<HHBI", 0x7075, 5 + len(text.encode()), version, zlib.crc32(name)) + text.encode()

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("a.txt", "b.txt", "c.txt"):
            info = zipfile.ZipInfo(name)
            info.extra = field(1, b"a.txt", "") + field(2, b"a.txt", "z.txt") + field(1, b"a.txt", "七.txt")
            info.extra += field(1, b"c.txt", "../d.txt")
            archive.writestr(info, "x")
    rows = read_bytes("a.zip", file.getvalue())
    assert [row.id.partition("!/")[2] for row in rows if isinstance(row, Document)] == ["七.txt", "b.txt"]
    assert rows[2].reason == "unsafe name in the archive: it leads outside"


@pytest.mark.parametrize(("packed_bytes", "size"), [(9, 5), (2**31 - 1, 2**31 - 1), (5, 9)])
def test_a_stored_member_with_sizes_that_are_not_its_own_is_damaged(read_bytes: Any, packed_bytes: int, size: int):
    data = bytearray(packed({"a.txt": b"hello", "b.txt": b"other"}, zipfile.ZIP_STORED))
    entry = data.index(b"PK\x01\x02")
    data[entry + 20 : entry + 28] = struct.pack("<II", packed_bytes, size)
    reason = "truncated archive: the member's end is missing"
    if packed_bytes < 2**31 - 1:
        reason = f"damaged zip: the member is stored, with sizes {packed_bytes} and {size}"
    rows = read_bytes("a.zip", bytes(data))
    assert (rows[0].reason, rows[1].text) == (reason, "other")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([*PACKS.items()]),
    st.lists(st.text(max_size=40), max_size=6),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
)
def test_fuzz_members_in_are_rows_out(
    read_bytes: Any, form: tuple[str, Pack], texts: list[str], flips: list[tuple[int, int]]
):
    name, pack = form
    data = bytearray(pack({f"{number}.txt": text.encode() for number, text in enumerate(texts)}))
    assert outcomes(read_bytes(name, bytes(data))) == (texts or ["empty archive"])
    for place, value in flips:
        data[place % len(data)] = value
    for row in read_bytes(name, bytes(data)):
        assert isinstance(row, Document) or row.reason


@pytest.mark.parametrize("zip64", [False, True])
@pytest.mark.parametrize("before", [b"", b"#!/bin/sh\nexec unzip $0\n", b"PK\5\6" * 30])
@pytest.mark.parametrize("comment", [b"", b"a PK\5\6 in it", b"PK\5\6" + bytes(18), b"PK\5\6" + b"\xff" * 18])
def test_a_zip_may_have_bytes_before_it_and_any_comment(read_bytes: Any, zip64: bool, before: bytes, comment: bytes):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = comment
        with archive.open("a.txt", "w", force_zip64=zip64) as member:
            member.write(b"one")
        archive.writestr("b.txt", b"two")
    assert outcomes(read_bytes("a.zip", before + file.getvalue())) == ["one", "two"]


@each_kind
def test_a_colon_in_a_name_leads_nowhere(read_bytes: Any, name: str, pack: Pack):
    members = {"Chapter 1: Intro.txt": b"a", "2024-01-01T10:00.txt": b"b", "Talk:X/c.txt": b"c", "C:/d.txt": b"d"}
    assert outcomes(read_bytes(name, pack(members))) == ["a", "b", "c", "unsafe name in the archive"]
