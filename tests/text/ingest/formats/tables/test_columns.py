"""Arrow as datasets keep it on disk, nested fields, and the way of licence, url and date into every document."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.document import Document, ReadOptions, Rejected
from hornbook.text.ingest.formats.tables import decoder
from hornbook.text.ingest.inputs import list_inputs
from hornbook.text.ingest.readers import read_file

ROWS = [
    {"text": "a", "id": "x", "meta": {"url": "https://a", "licences": ["MIT", "BSD"]}, "date": "2020"},
    {"text": "b", "id": None, "meta": None, "date": None},
]


def written(table: pa.Table, form: str) -> bytes:
    sink = pa.BufferOutputStream()
    if form == "parquet":
        pq.write_table(table, sink)
    else:
        with (pa.ipc.new_file if form == "file" else pa.ipc.new_stream)(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=1)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(("form", "name"), [("parquet", "a.parquet"), ("stream", "a.arrow"), ("file", "a.arrow")])
def test_fields_within_fields_are_found(read_bytes: Any, form: str, name: str):
    data = written(pa.Table.from_pylist(ROWS), form)
    rows = read_bytes(name, data, url_field="meta.url", licence_field="meta.licences", licence="unknown")
    assert [row.text for row in rows] == ["a", "b"]
    assert [row.metadata.get("url") for row in rows] == ["https://a", None]
    assert [row.metadata.get("licence") for row in rows] == ["MIT, BSD", "unknown"]
    assert [row.metadata.get("date") for row in rows] == ["2020", None]
    assert rows[0].id == "x"
    assert rows[1].id.endswith(f"{name}:2")


@pytest.mark.parametrize("form", ["parquet", "stream"])
def test_text_may_lie_within_a_field(read_bytes: Any, form: str):
    table = pa.Table.from_pylist([{"doc": {"body": "a"}}, {"doc": {"body": None}}])
    name = {"parquet": "a.parquet", "stream": "a.arrow"}[form]
    rows = read_bytes(name, written(table, form), text_field="doc.body")
    assert [row.text if isinstance(row, Document) else row.reason for row in rows] == [
        "a",
        "text is not a string: it is null",
    ]
    (row,) = read_bytes(name, written(table, form), text_field="doc.text")
    assert row.reason.startswith("missing text: no column 'doc.text'")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_a_truncated_arrow_stream_keeps_what_came_before(read_bytes: Any, share: float):
    data = written(pa.Table.from_pylist([{"text": f"row {number}" * 50} for number in range(20)]), "stream")
    rows = read_bytes("a.arrow", data[: int(share * len(data))])
    assert rows[-1].reason.startswith("damaged arrow")
    assert all(isinstance(row, Document) for row in rows[:-1])


def test_a_folder_of_a_saved_dataset_is_read(tmp_path: Path):
    """What `Dataset.save_to_disk` writes: data-*.arrow streams, and two JSON files that are not text."""
    folder = tmp_path / "set" / "train"
    folder.mkdir(parents=True)
    (folder / "data-00000-of-00002.arrow").write_bytes(written(pa.table({"text": ["a", "b"]}), "stream"))
    (folder / "data-00001-of-00002.arrow").write_bytes(written(pa.table({"text": ["c"]}), "stream"))
    for name in ("dataset_info.json", "state.json"):
        (folder / name).write_text("{}")
    files = list_inputs("s", SourceConfig(paths=[str(tmp_path / "set")]))
    rows = [row for file in files for row in read_file(file, ReadOptions())]
    assert [row.text for row in rows if isinstance(row, Document)] == ["a", "b", "c"]
    assert len(rows) == 3


def test_saved_datasets_of_the_library_itself(tmp_path: Path):
    datasets = pytest.importorskip("datasets", reason="the peer is not installed")
    made = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "n": [1, 2, 3]}).select([2, 0])
    made.save_to_disk(str(tmp_path / "set"))
    files = list_inputs("s", SourceConfig(paths=[str(tmp_path / "set")]))
    assert [row.text for file in files for row in read_file(file, ReadOptions())] == ["c", "a"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Path]:
    """The scheme hf:// is huggingface_hub's; here a local folder stands behind it."""
    real = fsspec.get_filesystem_class("hf")

    class Hub(DirFileSystem):
        protocol = "hf"

        def __init__(self, **_: Any) -> None:
            super().__init__(path=str(tmp_path), fs=fsspec.filesystem("file"))

    fsspec.register_implementation("hf", Hub, clobber=True)
    yield tmp_path
    fsspec.register_implementation("hf", real, clobber=True)


def test_hub_addresses_are_listed_and_streamed(hub: Path):
    folder = hub / "datasets" / "who" / "corpus" / "data"
    folder.mkdir(parents=True)
    (folder / "0.parquet").write_bytes(written(pa.table({"text": ["a"]}), "parquet"))
    (folder / "1.jsonl").write_text(json.dumps({"text": "b"}) + "\n")
    files = list_inputs("s", SourceConfig(paths=["hf://datasets/who/corpus/data/*"]))
    rows = [row for file in files for row in read_file(file, ReadOptions())]
    assert [row.text for row in rows if isinstance(row, Document)] == ["a", "b"]


@pytest.mark.parametrize(
    ("row", "source", "expected"),
    [
        ({"license": "MIT"}, {}, {"licence": "MIT"}),
        ({"license": ["MIT", None, "BSD"]}, {}, {"licence": "MIT, BSD"}),
        ({"license": {"a": 1}}, {"licence": "CC0"}, {"licence": "CC0"}),
        ({"license": ""}, {"licence": "CC0", "date": "2020"}, {"licence": "CC0", "date": "2020"}),
        ({"m": {"u": "https://a"}, "url": "x"}, {"url_field": "m.u"}, {"url": "https://a"}),
        ({"date": 2020}, {}, {"date": "2020"}),
        ({"url": "\ud800", "date": None}, {}, {}),
        ({"url": "u" * 5000}, {}, {"url": "u" * 2048}),
    ],
)
def test_licence_url_and_date(read_bytes: Any, row: dict[str, Any], source: dict[str, str], expected: dict[str, str]):
    (found,) = read_bytes("a.jsonl", json.dumps({"text": "a", **row}).encode(), **source)
    assert not isinstance(found, Rejected)
    kept = {name: value for name, value in found.metadata.items() if name in ("licence", "url", "date")}
    assert kept == expected


@pytest.mark.parametrize("name", ["0.jsonl", "0.parquet"])
def test_columns_of_partitions_are_fields(read_bytes: Any, name: str):
    """As Hive, Spark and duckdb write them; a row's own column wins."""
    rows = [{"text": "a", "licence": "MIT"}, {"text": "b", "licence": None}]
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    data = data if name == "0.jsonl" else written(pa.Table.from_pylist(rows), "parquet")
    options = {"date_field": "year", "url_field": "page", "licence_field": "licence"}
    for row in read_bytes(
        f"year=2020/page=a%2Fb/licence=CC0/empty=/x={'__HIVE_DEFAULT_PARTITION__'}/{name}", data, **options
    ):
        kept = {"url": "a/b", "date": "2020"} | ({"licence": "MIT"} if row.text == "a" else {})
        assert {key: row.metadata[key] for key in kept} == kept
        assert not {"empty", "x"} & row.metadata.keys()
    (row,) = read_bytes("a=b.jsonl", b'{"text": "a"}')
    assert row.metadata.get("a") is None


CELL = 80 * 2**20


@pytest.mark.parametrize("form", ["parquet", "stream"])
def test_a_cell_that_expands_without_measure_is_not_decoded(read_bytes: Any, form: str):
    tables = [pa.table({"text": pa.array([text], pa.large_string())}) for text in ("a" * CELL, "seen")]
    out, schema, zstd = pa.BufferOutputStream(), tables[0].schema, pa.ipc.IpcWriteOptions(compression="zstd")
    stream = form == "stream"
    writer = (
        pa.ipc.new_stream(out, schema, options=zstd) if stream else pq.ParquetWriter(out, schema, compression="zstd")
    )
    with writer:
        writer.write_table(tables[0])
        writer.write_table(tables[1])
    data = out.getvalue().to_pybytes()
    del tables, out, writer
    before = pa.total_allocated_bytes()
    row, after = read_bytes({"parquet": "a.parquet", "stream": "a.arrow"}[form], data)
    assert (row.kind, after.text) == ({"parquet": "parquet bomb", "stream": "arrow bomb"}[form], "seen")
    assert str(CELL)[:4] in row.reason
    assert pa.total_allocated_bytes() - before < CELL


def test_fewer_rows_are_decoded_at_once_where_each_may_be_long(read_bytes: Any):
    """One word of 4 MiB in a dictionary would be copied for each of its rows."""
    table = pa.table({"text": ["b" * 2**22] * 40 + ["c"]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    rows = read_bytes("a.parquet", sink.getvalue().to_pybytes())
    assert [len(row.text) if isinstance(row, Document) else row.bytes for row in rows] == [2**22] * 40 + [1]


def test_a_damaged_batch_counts_its_rows_and_the_next_are_read(read_bytes: Any):
    table = pa.table({"text": [f"row {number} " + "x" * number for number in range(40)]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table, max_chunksize=10)
    data = bytearray(sink.getvalue().to_pybytes())
    place = [at for at in range(len(data)) if data.startswith(b"\x28\xb5\x2f\xfd", at)][3]
    data[place] ^= 255
    rows = read_bytes("a.arrow", bytes(data))
    lost = [row for row in rows if isinstance(row, Rejected)]
    assert [(row.line, row.rows) for row in lost] == [(11, 10)]
    assert len(rows) == 31


def test_an_absurd_length_is_damage_of_the_file(read_bytes: Any):
    """pyarrow would ask for so much memory, and the error would name no file."""
    data = bytearray(written(pa.table({"text": ["a", "b"]}), "stream"))
    data[4:8] = (2**31 - 1).to_bytes(4, "little")
    (row,) = read_bytes("a.arrow", bytes(data))
    assert row.kind == "damaged arrow"


@pytest.mark.parametrize(("form", "name"), [("parquet", "a.parquet"), ("stream", "a.arrow")])
def test_a_table_at_which_the_decoder_dies_is_damage(read_bytes: Any, monkeypatch: Any, form: str, name: str):
    monkeypatch.setattr(decoder, "PROGRAM", Path("no-such-program.py"))
    monkeypatch.setattr(decoder, "IDLE", [])
    (row,) = read_bytes(name, written(pa.table({"text": ["a"]}), form))
    assert row.reason == f"damaged {name[2:]}: the process that decodes it died"


@pytest.mark.parametrize("form", ["stream", "parquet"])
def test_the_text_under_a_null_is_no_text(read_bytes: Any, form: str):
    inner = pa.StructArray.from_arrays(
        [pa.array(["seen", "hidden", "too"])], ["b"], mask=pa.array([False, True, False])
    )
    outer = pa.StructArray.from_arrays([inner, pa.array([1, 2, 3])], ["a", "c"])
    data = written(pa.table({"x": outer}), form)
    rows = read_bytes("a.parquet" if form == "parquet" else "a.arrow", data, text_field="x.a.b")
    texts = [row.text if isinstance(row, Document) else row.reason for row in rows]
    assert texts == ["seen", "text is not a string: it is null", "too"]


def test_all_rows_of_a_table_without_text_are_counted(read_bytes: Any):
    for name, form in (("a.parquet", "parquet"), ("a.arrow", "stream")):
        data = written(pa.table({"body": ["x"] * 70}), form)
        (row,) = read_bytes(name, data)
        assert (row.kind, row.rows, row.bytes) == ("missing text", 70, len(data))
