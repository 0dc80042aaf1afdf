"""Lines of metrics.jsonl: the records of steps, some lines of a long file, the place of a step. Without numpy, so that
the table of runs is there at once."""

from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

KEYS = ("tokens", "loss", "gradient_norm", "lr", "tokens_per_second", "seconds", "data_seconds")
"""What is drawn of a step."""
_LINE = 1 << 14
"""Bytes that are read to find one line."""


def record_of(line: bytes) -> dict[str, Any] | None:
    """A record of a step; None where a line is damaged."""
    try:
        record = from_json(line, cache_strings="keys")
    except ValueError:
        return None
    whole = type(record) is dict and type(record.get("step")) is int and type(record.get("attempt")) is int
    return record if whole else None


def sampled_lines(file: Any, begin: int, end: int, count: int) -> list[bytes]:
    """Whole lines that begin near `count` places spread evenly over the bytes [begin, end), and the last one."""
    lines, known = list[bytes](), begin - 1
    places = (begin + (end - begin) * number // count for number in range(count))
    firsts = (next(_lines_at(file, place, end), None) for place in places)
    for found in (*firsts, *newest_lines(file, begin, end)[-1:]):
        if found is not None and found[0] > known:
            known = found[0]
            lines.append(found[1])
    return lines


def newest_lines(file: Any, begin: int, end: int) -> list[tuple[int, bytes]]:
    """(offset, line) of the whole lines in the last 8 KiB of the bytes [begin, end)."""
    return list(_lines_at(file, max(begin, end_of_lines(file, end) - _LINE // 2), end))


def _lines_at(file: Any, place: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of the whole lines in a block that begins at an offset, the first line feed before it aside."""
    begin = max(place - 1, 0)
    file.seek(begin)
    data = file.read(min(_LINE, end - begin))
    at = 0 if begin == 0 and place == 0 else data.find(b"\n") + 1
    while at or place == 0:
        stop = data.find(b"\n", at)
        if stop < 0:
            return
        yield begin + at, data[at:stop]
        at = stop + 1


def end_of_lines(file: Any, size: int) -> int:
    """Offset after the last line feed."""
    begin = max(0, size - _LINE)
    file.seek(begin)
    return begin + file.read(size - begin).rfind(b"\n") + 1


def find_step(file: Any, size: int, step: float) -> int:
    """Offset of the first line whose step is at least `step`, by bisection; of a run that went back, nearly so."""
    low, high = 0, size
    while high - low > _LINE // 2:
        middle = (low + high) // 2
        start, line = next(_lines_at(file, middle, size), (high, b""))
        record = record_of(line)
        if start >= high or record is None or record["step"] >= step:
            high = middle
        else:
            low = start
    for start, line in _lines_at(file, low, size):
        record = record_of(line)
        if record is not None and record["step"] >= step:
            return start
    return high
