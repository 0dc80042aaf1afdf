"""What an attack found at the doors where files come in, and the attack itself: short, and long in `make test-all`."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reliability import fuzz
from benchmarks.reliability.fuzz_doors import CONFIG, DOORS, LOCK, QUADRATIC, RECIPE, TOKENIZER, header
from hornbook.errors import HornbookError

QUICK, WHOLE = 300, 6000


def tokenizer(**changed: Any) -> bytes:
    return json.dumps(TOKENIZER | changed).encode()


FOUND = [
    (
        "warc",
        b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain; charset=a\0b\r\nContent-Length: 1\r\n\r\nx",
    ),
    ("gutenberg", b"Character set encoding: a\0b\n*** START OF THE PROJECT GUTENBERG EBOOK T\nx"),
    ("gutenberg", b"Character set encoding: undefined\n*** START OF THE PROJECT GUTENBERG EBOOK T\nx"),
    ("jsonl", b"[" * 100_000),
    ("index.json", b'{"shards": [], "dtype": "uint16", "delimiter_id": 0, "end_id": 0, "vocab_size": 4, "a": "\xe1"}'),
    ("index.json", b'{"shards": [], "dtype": ["uint16"], "delimiter_id": 1e999, "end_id": 0, "vocab_size": 4}'),
    ("index.json", b"[" * 100_000),
    ("00000.json", b"[]"),
    ("00000.json", b'{"tokens": "4", "documents": 1, "bytes": 4, "dtype": [], "digests": 1, "blocks": 3}'),
    ("recipe.toml", RECIPE.replace(b'"cosine"', b'["cosine"]')),
    ("tokenizer.json", b"[" * 100_000),
    ("tokenizer.json", tokenizer(added_tokens=["x"])),
    ("tokenizer.json", tokenizer(added_tokens=[{"id": 0, "special": True}])),
    (
        "tokenizer.json",
        tokenizer(model={**TOKENIZER["model"], "vocab": {"<|endoftext|>": 0, "a": 2**32 - 1}, "merges": []}),
    ),
    ("safetensors", header('{"a":{"dtype":"F32","shape":[Infinity,4],"data_offsets":[0,48]}}')),
    ("safetensors", header('{"a":{"dtype":"F32","shape":[3,4],"data_offsets":[0,1e999]}}')),
    ("config.json", json.dumps(CONFIG | {"head_dim": 2**63}).encode()),
    ("config.json", json.dumps(CONFIG | {"hidden_size": 2**63}).encode()),
    ("config.json", json.dumps(CONFIG | {"max_position_embeddings": 10**400}).encode()),
    ("recipe.toml", RECIPE.replace(b"layers = 2", b"layers = " + b"9" * 5000)),
    ("recipe.toml", RECIPE.replace(b"layers = 2", b"width = 9223372036854775808")),
    ("data.lock", b"[]"),
    ("data.lock", json.dumps(LOCK | {"shards": 5}).encode()),
    ("run.lock", b'{"host": 5, "since": "x"}'),
    ("events.jsonl", b'{"attempt": "1", "step": null}\n{"a": "\\ud800"}\n'),
]


@pytest.mark.parametrize(("door", "data"), FOUND, ids=[f"{door}-{n}" for n, (door, _) in enumerate(FOUND)])
def test_what_was_found_is_handled(tmp_path: Path, door: str, data: bytes):
    DOORS[door].seeds(tmp_path)
    code = 2
    try:
        DOORS[door].enter(data, tmp_path)
    except HornbookError as error:
        code = int(error.exit_code)
    assert code in (2, 3)


@pytest.mark.parametrize(
    ("door", "key"),
    [("data.lock", "tokenizer"), ("run.lock", "host"), ("00000.json", "tokens"), ("index.json", "dtype")],
)
def test_the_file_and_its_key_are_named(tmp_path: Path, door: str, key: str):
    DOORS[door].seeds(tmp_path)
    data = json.dumps({"host": 5, "shards": [], "tokens": "x", "dtype": 1}).encode()
    with pytest.raises(HornbookError, match=rf"{door} is damaged .*{key}"):
        DOORS[door].enter(data, tmp_path)


@pytest.mark.parametrize("name", QUADRATIC)
def test_time_does_not_grow_with_the_square(tmp_path: Path, name: str):
    """Sixteen times the input takes 256 times as long where the time is quadratic, 16 times where it is linear.

    One of three times is enough: a collection of the garbage of all tests before may fall into the others.
    """

    def seconds(count: int) -> float:
        data, begun = QUADRATIC[name](count), time.process_time()
        with fuzz.limited(60), suppress(HornbookError):
            DOORS[name.partition("-")[0]].enter(data, tmp_path)
        return time.process_time() - begun

    seconds(2_000)
    most = 80 * max(seconds(2_000), 0.002)
    assert any(seconds(32_000) < most for _ in range(3))


def sound(tallies: dict[str, fuzz.Tally]) -> None:
    for door, tally in tallies.items():
        assert not tally.uncaught, f"{door}: {tally.examples}"
        assert not tally.large, f"{door}: {tally.examples}"
        assert tally.handled == tally.inputs, f"{door}: {tally.examples}"


def test_some_hundred_mutations_are_handled():
    sound(fuzz.attack(QUICK, 7))


@pytest.mark.slow
def test_some_thousand_mutations_are_handled():
    sound(fuzz.attack(WHOLE, 8))


def test_a_defect_is_counted():
    def enter(data: bytes, folder: Path) -> None:
        del folder
        data.decode("ascii")

    found = fuzz.attack(100, 1, {"a": fuzz.Door(lambda _: [b"text"], enter)})["a"]
    assert found.uncaught
    assert found.uncaught + found.handled == found.inputs == 100
