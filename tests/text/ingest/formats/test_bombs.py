"""RELIABILITY of archives at full size: ten gigabytes out of ten megabytes, a million members, memory measured."""

import gzip
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
READ = """
import json, resource, sys
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.inputs import list_inputs
from hornbook.text.ingest.readers import read_file
from hornbook.text.ingest.document import ReadOptions

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
(file,) = list_inputs("s", SourceConfig(paths=[sys.argv[1]]))
before, rows, last = peak(), 0, ""
for row in read_file(file, ReadOptions()):
    rows, last = rows + 1, getattr(row, "reason", "kept")
print(json.dumps({"rows": rows, "last": last, "grown": peak() - before}))
"""


def measured(path: Path) -> dict[str, object]:
    ran = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=250, check=True
    )
    return json.loads(ran.stdout)


def tar_of_zeros(path: Path, gigabytes: int) -> None:
    """A member of so many gigabytes, in members of gzip that are copies of one."""
    info = tarfile.TarInfo("a.jsonl")
    info.size = gigabytes * 2**30
    block = gzip.compress(bytes(2**26))
    with path.open("wb") as file:
        file.write(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)))
        for _ in range(gigabytes * 2**30 // 2**26):
            file.write(block)


def test_ten_gigabytes_out_of_ten_megabytes(tmp_path: Path):
    tar_of_zeros(tmp_path / "bomb.tar.gz", 10)
    found = measured(tmp_path / "bomb.tar.gz")
    assert str(found["last"]).startswith("archive bomb")
    assert int(str(found["grown"])) < 100


@pytest.mark.parametrize("name", ["many.tar.gz", "many.zip"])
def test_a_million_members(tmp_path: Path, name: str):
    path = tmp_path / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            for number in range(10**6):
                archive.writestr(zipfile.ZipInfo(f"{number}.txt" if number % 1000 == 0 else f"{number}.png"), b"")
    else:
        with gzip.open(path, "wb", compresslevel=1) as file:
            for number in range(10**6):
                ending = "txt" if number % 1000 == 0 else "png"
                file.write(tarfile.TarInfo(f"{number}.{ending}").tobuf(tarfile.USTAR_FORMAT))
            file.write(bytes(1024))
    found = measured(path)
    assert found["rows"] == 1000
    assert int(str(found["grown"])) < 100


def test_a_zip_whose_members_overlap(tmp_path: Path):
    """Every entry of the directory points to the same data, which is counted each time."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", bytes(2**27))
    data = file.getvalue()
    place = data.index(b"PK\x01\x02")
    entry, end = data[place : data.index(b"PK\x05\x06")], data[data.index(b"PK\x05\x06") :]
    many = 100
    counts = many.to_bytes(2, "little") * 2 + (many * len(entry)).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(data[:place] + entry * many + end[:8] + counts + end[16:])
    found = measured(tmp_path / "a.zip")
    assert str(found["last"]).startswith("archive bomb")
    assert found["rows"] == 4
