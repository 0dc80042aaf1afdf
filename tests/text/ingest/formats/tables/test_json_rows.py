"""`.json`: arrays row by row, objects line by line."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hornbook.text.ingest.document import Document, Rejected


def outcomes(rows: list[Document | Rejected]) -> list[str]:
    return [row.reason if isinstance(row, Rejected) else row.text for row in rows]


def test_an_array_is_read_row_by_row(read_bytes: Any):
    data = json.dumps([{"text": "a", "id": "x"}, 3, {"body": 1}, {"text": "\u00e9" * 300_000}], indent=2)
    rows = read_bytes("a.json", b"\xef\xbb\xbf \n" + data.encode(), max_bytes=2**22)
    assert outcomes(rows)[:2] == ["a", "not an object: the row is a JSON number"]
    assert outcomes(rows)[2].startswith("missing text")
    assert outcomes(rows)[3] == "\u00e9" * 300_000
    assert rows[0].origin.endswith("a.json:1")


def test_objects_on_lines_are_read_too(read_bytes: Any):
    rows = read_bytes("c4.json", b'{"text": "a"}\n{"text": \n{"text": "b"}\n')
    assert (outcomes(rows)[0], rows[1].line, outcomes(rows)[2]) == ("a", 2, "b")


@pytest.mark.parametrize(
    ("data", "reasons"),
    [
        (b"[]", []),
        (b" [ ] ", []),
        (b"[", ["invalid JSON: the array is not closed"]),
        (b'[{"text": "a"}', ["a", "invalid JSON: the array is not closed"]),
        (b'[{"text": "a"} {"text": "b"}]', ["a", "invalid JSON: instead of ',' there is '{'"]),
        (b'[{"text": "a"},]', ["a", "invalid JSON: Expecting value"]),
        (b'[{"text": "a"}] x', ["a", "invalid JSON: something follows the array"]),
        (b'[{"text": "a", "text": "b"}]', ["invalid JSON: text"]),
        (b'[{"text": "\\ud800"}]', ["lone surrogate"]),
        (b'["\xff"]', ["invalid UTF-8: byte 0xff"]),
        (b"[" * 100_000, ["invalid JSON: nested too deep"]),
        (b'[{"text": "' + b"x" * 5_000_000 + b'"}, {"text": "b"}]', ["row longer than the limit"]),
    ],
)
def test_damage_is_named_once(read_bytes: Any, data: bytes, reasons: list[str]):
    found = outcomes(read_bytes("a.json", data))
    assert len(found) == len(reasons)
    assert all(text.startswith(reason) for text, reason in zip(found, reasons, strict=True))


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.fixed_dictionaries({}, optional={"text": VALUES, "other": VALUES}) | VALUES), st.integers(0, 3))
def test_fuzz_rows_in_are_rows_out(read_bytes: Any, values: list[Any], indent: int):
    rows = read_bytes("a.json", json.dumps(values, indent=indent or None).encode())
    assert len(rows) == len(values)
    for row, value in zip(rows, values, strict=True):
        good = isinstance(value, dict) and isinstance(value.get("text"), str)
        assert isinstance(row, Document) is (good and value["text"].encode("utf-8", "replace") is not None)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv"])
def test_lines_may_end_with_cr_alone(read_bytes: Any, name: str):
    lines = ["text", "one", "two"] if name[2] in "ct" else ['{"text": "one"}', '{"text": "two"}']
    rows = read_bytes(name, "\r".join([*lines, ""]).encode())
    assert [row.text for row in rows if isinstance(row, Document)] == ["one", "two"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_number_of_thousands_of_digits_is_no_damage(read_bytes: Any, name: str):
    row = '{"n": -%s, "text": "one"}' % ("9" * 5000)
    (document,) = read_bytes(name, (f"[{row}]" if name == "a.json" else row).encode())
    assert isinstance(document, Document)
    assert (document.text, document.metadata["n"]) == ("one", "-" + "9" * 5000)
