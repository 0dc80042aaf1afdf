"""Fetching corpora: from a local HTTP server that breaks and changes, and from file://; never from the internet."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import IntegrityError, UsageError
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.corpora import fetch as module
from hornbook.text.ingest.corpora.corpora import CORPORA, PublicCorpus, corpus_of, filled
from hornbook.text.ingest.corpora.fetch import RECORD, Remote, fetch, plan
from hornbook.text.ingest.inputs import format_of
from tests.text.ingest.corpora.conftest import Site

DATA = bytes(range(256)) * 20_000


def remote(site: Site, name: str = "a.bin", digest: str = "") -> Remote:
    site.files.setdefault(f"/{name}", DATA)
    return Remote(f"{site.address}/{name}", name, len(DATA), digest)


def test_a_file_comes_whole_and_is_recorded(site: Site, tmp_path: Path):
    seen: list[tuple[int, int]] = []
    (path,) = fetch([remote(site)], tmp_path, progress=lambda _, done, total: seen.append((done, total)))
    assert path.read_bytes() == DATA
    assert seen[-1] == (len(DATA), len(DATA))
    record = json.loads((tmp_path / RECORD).read_text())["a.bin"]
    assert record == {"url": f"{site.address}/a.bin", "size": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.bin", RECORD]


def test_what_is_there_is_not_fetched_again(site: Site, tmp_path: Path):
    fetch([remote(site)], tmp_path)
    before = len(site.asked)
    fetch([remote(site)], tmp_path)
    assert len(site.asked) == before
    (tmp_path / "a.bin").write_bytes(b"damaged")
    assert fetch([remote(site)], tmp_path)[0].read_bytes() == DATA


def test_a_broken_transfer_goes_on_where_it_stopped(site: Site, tmp_path: Path):
    site.breaks = 2
    (path,) = fetch([remote(site)], tmp_path, pause=0)
    assert path.read_bytes() == DATA
    assert site.asked == ["GET", f"GET bytes={len(DATA) // 2}-", f"GET bytes={len(DATA) // 2 + len(DATA) // 4}-"]


def test_the_next_command_goes_on_too(site: Site, tmp_path: Path):
    site.breaks = 2
    with pytest.raises(UsageError, match=r"2 attempts\); start the same command again"):
        fetch([remote(site)], tmp_path, attempts=2, pause=0)
    assert not (tmp_path / "a.bin").exists()
    site.asked.clear()
    assert fetch([remote(site)], tmp_path, pause=0)[0].read_bytes() == DATA
    assert site.asked == [f"GET bytes={len(DATA) // 2 + len(DATA) // 4}-"]


def test_a_file_that_changed_between_starts_afresh(site: Site, tmp_path: Path):
    site.breaks = 1
    with pytest.raises(UsageError):
        fetch([remote(site)], tmp_path, attempts=1)
    site.version, site.files["/a.bin"] = "2", DATA[::-1]
    assert fetch([remote(site)], tmp_path)[0].read_bytes() == DATA[::-1]


def test_a_part_that_is_whole_already_is_not_the_end(site: Site, tmp_path: Path):
    (tmp_path / ".tmp-a.bin.part").write_bytes(DATA)
    (tmp_path / ".tmp-a.bin.tag").write_text('"1"')
    assert fetch([remote(site)], tmp_path, pause=0)[0].read_bytes() == DATA


def test_a_server_without_ranges_sends_all_again(site: Site, tmp_path: Path):
    site.breaks, site.ranges = 1, False
    assert fetch([remote(site)], tmp_path, pause=0)[0].read_bytes() == DATA


@pytest.mark.parametrize("codes", [[503], [429, 500, 502]])
def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path, codes: list[int]):
    site.refusals = list(codes)
    assert fetch([remote(site)], tmp_path, pause=0)[0].read_bytes() == DATA
    assert len(site.asked) == len(codes) + 1


def test_attempts_are_bounded(site: Site, tmp_path: Path):
    site.refusals = [503] * 9
    with pytest.raises(UsageError, match="503"):
        fetch([remote(site)], tmp_path, attempts=4, pause=0)
    assert len(site.asked) == 4


@pytest.mark.parametrize("code", [403, 404])
def test_a_refusal_is_final(site: Site, tmp_path: Path, code: int):
    site.refusals = [code]
    with pytest.raises(UsageError, match=str(code)):
        fetch([remote(site)], tmp_path, pause=0)
    assert len(site.asked) == 1


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256"])
def test_published_digests_are_checked(site: Site, tmp_path: Path, algorithm: str):
    good = hashlib.new(algorithm, DATA).hexdigest()
    assert fetch([remote(site, digest=good)], tmp_path)[0].read_bytes() == DATA
    with pytest.raises(IntegrityError, match=f"its {algorithm} is {good}"):
        fetch([remote(site, "b.bin", good[::-1])], tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir() if "b.bin" in entry.name) in ([], [".tmp-b.bin.tag"])


def test_a_list_names_the_files(site: Site):
    site.files = {"/wet.paths.gz": gzip.compress(b"x/1.wet.gz\ny/1.wet.gz\ny/2.wet.gz\n"), "/x/1.wet.gz": b"12345"}
    corpus = PublicCorpus(
        "c",
        "",
        "",
        "",
        "",
        listing=f"{site.address}/{{kind}}.paths.gz",
        base=f"{site.address}/",
        variables={"kind": "wet"},
    )
    (only,), total = plan(corpus, {}, 1)
    assert (only.url, only.size, total) == (f"{site.address}/x/1.wet.gz", 5, 3)
    assert only.name.endswith("-x-1.wet.gz")  # two files are called 1.wet.gz


def test_digests_are_found_by_name_whatever_the_date(site: Site):
    name = "enwiki-20240101-pages.xml.bz2"
    site.files = {"/enwiki-latest-pages.xml.bz2": DATA, "/sums": f"{'a' * 40}  {name}\nnoise\n".encode()}
    corpus = PublicCorpus(
        "c", "", "", "", "", urls=(f"{site.address}/enwiki-latest-pages.xml.bz2",), checksums=f"{site.address}/sums"
    )
    ((found,), total) = plan(corpus, {}, None)
    assert (found.digest, found.size, total) == ("a" * 40, len(DATA), 1)


def test_other_file_systems_are_listed_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    for name in ("a.txt", "b.txt"):
        (there / name).write_bytes(DATA)
    remotes, total = plan(corpus_of(f"file://{there}/*.txt"), {}, 1)
    assert ([each.name for each in remotes], remotes[0].size, total) == (["a.txt"], len(DATA), 2)
    real, reads = module._read, 0

    def once(url: str, body: Any) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 3:
            raise module.TransferError("gone")
        return real(url, body)

    monkeypatch.setattr(module, "_read", once)
    assert fetch(remotes, here, pause=0)[0].read_bytes() == DATA
    assert reads == 3 + (len(DATA) - 2 * 2**20 + 2**20 - 1) // 2**20 + 1  # what had come was not read again


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "there is no corpus 'nowhere'"),
        ("file:///nowhere/x.txt", "does not exist"),
        ("file:///no/*.x", "matches nothing"),
    ],
)
def test_what_cannot_be_fetched_is_named(name: str, message: str):
    with pytest.raises(UsageError, match=message):
        plan(corpus_of(name), {}, None)


@pytest.mark.parametrize(
    "given", [{"lang": "de"}, {"language": ""}, {"language": "../x"}, {"language": "a?b"}, {"date": "a b"}]
)
def test_variables_are_names(given: dict[str, str]):
    with pytest.raises(UsageError):
        filled(CORPORA["wikipedia"], given)
    assert filled(CORPORA["wikipedia"], {"language": "de"})["language"] == "de"


@pytest.mark.parametrize("corpus", CORPORA.values(), ids=CORPORA)
def test_every_corpus_of_the_table_is_whole(corpus: PublicCorpus):
    assert all((corpus.what, corpus.size, corpus.licence, corpus.cites))
    assert corpus.urls or corpus.listing
    for pattern in (*corpus.urls, corpus.listing, corpus.checksums):
        assert "{" not in pattern.format(**filled(corpus, {}))
    config = SourceConfig.model_validate({"paths": ["x"], **corpus.source})
    for url in corpus.urls:
        readable = format_of(url.replace("/*", "/x").replace("*", ""), config.layout) is not None
        assert readable or "archive" in corpus.note or "unzip" in corpus.note


def test_a_query_is_not_written_down(site: Site, tmp_path: Path):
    """It may be a signature. The same address is not fetched again, another query is."""
    for query, asked in (("token=secret", 1), ("token=secret", 1), ("token=other", 2)):
        site.files[f"/a.bin?{query}"] = b"data"
        fetch([Remote(f"{site.address}/a.bin?{query}", "a.bin", 4)], tmp_path)
        assert len(site.asked) == asked
    written = (tmp_path / RECORD).read_text()
    assert "token" not in written
    assert f"{site.address}/a.bin?sha256=" in written


@pytest.mark.parametrize("breaks", [0, 2])
def test_a_compression_of_the_transfer_is_undone(site: Site, tmp_path: Path, breaks: int):
    site.encoding, site.breaks = "gzip", breaks
    (path,) = fetch([remote(site, "a.jsonl")], tmp_path, pause=0)
    assert path.read_bytes() == DATA
    assert json.loads((tmp_path / RECORD).read_text())["a.jsonl"]["sha256"] == hashlib.sha256(DATA).hexdigest()
    assert len(site.asked) == breaks + 1
    assert module._size(f"{site.address}/a.jsonl", {}) is None


def test_a_file_that_is_stored_with_gzip_stays_so(site: Site, tmp_path: Path):
    """Servers label it like a compressed transfer."""
    site.encoding = "x-gzip"
    (path,) = fetch([remote(site, "a.jsonl.gz")], tmp_path, pause=0)
    assert gzip.decompress(path.read_bytes()) == DATA


def test_an_unknown_compression_of_the_transfer_is_refused(site: Site, tmp_path: Path):
    site.encoding = "br"
    with pytest.raises(UsageError, match=r"/a\.bin: it is sent with Content-Encoding br"):
        fetch([remote(site)], tmp_path, pause=0)
    assert not (tmp_path / "a.bin").exists()
