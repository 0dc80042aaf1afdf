"""Compressed streams: members, padding, and what is kept of a damaged one."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable

import pytest
import zstandard

from hornbook.text.ingest.compressions import DamagedStream, decompressed

TEXT = b"".join(b"line %d of a text\n" % number for number in range(20_000))
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def read(data: bytes, name: str, size: int = 1 << 18) -> tuple[bytes, str]:
    """(bytes that came, why no more came)."""
    stream, parts = decompressed(io.BytesIO(data), name), []
    try:
        while part := stream.read(size):
            assert len(part) <= size
            parts.append(part)
    except DamagedStream as error:
        return b"".join(parts), str(error)
    return b"".join(parts), ""


@pytest.mark.parametrize("name", PACK)
@pytest.mark.parametrize("size", [1000, 1 << 18])
def test_members_and_zeros_between_and_behind_them(name: str, size: int):
    one, other = PACK[name](TEXT), PACK[name](b"more\n")
    assert read(one, name, size) == (TEXT, "")
    assert read(one + other, name, size) == (TEXT + b"more\n", "")
    assert read(one + bytes(512), name, size) == (TEXT, "")
    assert read(one + bytes(100_000) + other + bytes(7), name, size) == (TEXT + b"more\n", "")


@pytest.mark.parametrize("name", PACK)
def test_all_before_garbage_is_kept(name: str):
    text, problem = read(PACK[name](TEXT) + b"garbage", name)
    assert text == TEXT
    assert problem.startswith(f"damaged {name}: what follows its 1 members is not {name}")


@pytest.mark.parametrize("name", PACK)
def test_a_cut_stream_says_so(name: str):
    data = PACK[name](TEXT)
    text, problem = read(data[:-5], name)
    assert TEXT.startswith(text)
    assert problem == f"damaged {name}: it ends early"


def test_gzip_keeps_all_before_a_wrong_checksum():
    data = bytearray(gzip.compress(TEXT))
    data[-5] ^= 1
    assert read(bytes(data), "gzip") == (TEXT, "damaged gzip: Error -3 while decompressing data: incorrect data check")


def test_an_empty_file_is_no_damage():
    assert read(b"", "gzip") == (b"", "")
