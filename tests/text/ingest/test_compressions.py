"""Compressed streams: members, padding, and what is kept of a damaged one."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable

import pytest
import zstandard

from hornbook.text.ingest import compressions
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


@pytest.mark.parametrize("name", ["bz2", "xz", "zstd"])
def test_a_bomb_is_stopped_at_the_limit_that_is_named(name: str, monkeypatch: pytest.MonkeyPatch):
    bomb = PACK[name](TEXT + bytes(2**26))
    assert len(read(bomb, name)[0]) == len(TEXT) + 2**26  # within what every file may expand to
    monkeypatch.setattr(compressions, "FREE", 2**20)
    text, problem = read(bomb, name)
    assert text.startswith(TEXT)
    assert len(text) < 2**26
    limit = f"{name} bomb: it expands to more than "
    assert problem.startswith(limit)
    assert problem.endswith(" bytes, the larger of 1048576 and 1000 times what was read of it")


def test_repetitive_text_is_no_bomb(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compressions, "FREE", 2**16)
    text = TEXT[:80_000] * 20
    for name, pack in PACK.items():
        assert read(pack(text), name) == (text, "")
