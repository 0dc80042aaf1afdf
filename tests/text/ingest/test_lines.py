"""Bytes to lines and pieces: every byte is accounted for, memory is bounded."""

import bz2
import gzip
import io
import lzma

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from hornbook.text.ingest import lines
from hornbook.text.ingest.compressions import DamagedStream, decompressed
from hornbook.text.ingest.lines import HashingFile, read_lines, read_pieces


class Trickle:
    """A stream that gives few bytes at a time, as sockets do."""

    def __init__(self, data: bytes, step: int) -> None:
        self._file = io.BytesIO(data)
        self._step = step

    def read(self, size: int, /) -> bytes:
        return self._file.read(min(size, self._step))


LINES = st.lists(st.sampled_from([b"", b"", b"a", b"bc", b"\r", b"x" * 40, b"{}"]), max_size=30).map(b"\n".join)


@given(LINES, st.integers(3, 50), st.integers(1, 60))
def test_lines_are_those_of_split_whatever_the_chunks(data: bytes, step: int, limit: int):
    expected = data.split(b"\n")
    found: list[bytes] = []
    for line in read_lines(Trickle(data, step), limit):
        assert line.number == len(found) + 1
        assert line.overlong == (line.size > limit)
        if line.overlong:
            assert expected[len(found)].startswith(line.data)
        found += [expected[len(found)] if line.overlong else line.data] * line.count
        assert line.ended == (len(found) < len(expected))
        assert line.size == len(expected[len(found) - 1])
    if expected[-1] == b"":
        expected.pop()
    assert found == expected


def test_a_byte_order_mark_is_not_part_of_the_first_line():
    assert [line.data for line in read_lines(io.BytesIO(b"\xef\xbb\xbfone\ntwo"), 100)] == [b"one", b"two"]


def test_a_run_of_empty_lines_is_one_line_with_a_count():
    found = list(read_lines(io.BytesIO(b"\n" * 10_000_000 + b"a"), 100))
    assert len(found) < 100
    assert sum(line.count for line in found[:-1]) == 10_000_000
    assert (found[-1].number, found[-1].data) == (10_000_001, b"a")


def test_an_overlong_line_is_not_held():
    found = list(read_lines(io.BytesIO(b"x" * 5_000_000 + b"\nshort\n"), 1000))
    assert [(line.number, line.size, line.overlong) for line in found] == [(1, 5_000_000, True), (2, 5, False)]
    assert len(found[0].data) <= 1024


@given(st.text(st.sampled_from("ab\né数😀"), max_size=300), st.integers(4, 40))
def test_pieces_join_to_the_text_and_never_cut_a_character(text: str, limit: int):
    pieces = list(read_pieces(io.BytesIO(text.encode()), limit))
    assert b"".join(data for _, data, _ in pieces) == text.encode()
    assert all(len(data) <= limit for _, data, _ in pieces)
    assert [last for _, _, last in pieces] == [False] * (len(pieces) - 1) + [True]
    for number, (line, data, _) in enumerate(pieces):
        data.decode()
        before = b"".join(each for _, each, _ in pieces[:number])
        assert line == before.count(b"\n") + 1


def test_pieces_end_at_a_line_where_there_is_one():
    pieces = [data for _, data, _ in read_pieces(io.BytesIO(b"one\ntwo\nthree\n"), 9)]
    assert pieces == [b"one\ntwo\n", b"three\n"]


def _read_all(data: bytes, compression: str) -> bytes:
    stream = decompressed(HashingFile(io.BytesIO(data)), compression)
    parts = []
    while part := stream.read(lines.CHUNK):
        parts.append(part)
    return b"".join(parts)


PACK = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("compression", PACK)
def test_compressed_streams_of_one_and_of_many_members(compression: str):
    raw = bytes(range(256)) * 5000
    packed = PACK[compression](raw)
    assert _read_all(packed, compression) == raw
    assert _read_all(packed + packed, compression) == raw + raw
    assert _read_all(PACK[compression](b""), compression) == b""


@pytest.mark.parametrize("compression", PACK)
def test_every_truncation_of_a_compressed_stream_is_noticed(compression: str):
    packed = PACK[compression](b"some text that is compressed\n" * 20)
    for length in range(1, len(packed)):
        with pytest.raises(DamagedStream, match=f"damaged {compression}"):
            _read_all(packed[:length], compression)


@pytest.mark.parametrize("compression", PACK)
def test_what_is_not_compressed_is_noticed(compression: str):
    with pytest.raises(DamagedStream):
        _read_all(b"plain text, whatever its name says", compression)


def test_the_digest_is_that_of_the_stored_bytes_read_or_not():
    import xxhash

    data = bytes(range(256)) * 3000
    half, none = HashingFile(io.BytesIO(data)), HashingFile(io.BytesIO(data))
    half.read(1000)
    assert half.digest() == none.digest() == xxhash.xxh3_128_hexdigest(data)
