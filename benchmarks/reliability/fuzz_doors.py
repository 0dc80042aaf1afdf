"""The doors that `benchmarks.reliability.fuzz` knocks at: valid inputs of each, and the function that takes them."""

import bz2
import gzip
import io
import json
import lzma
import os
import socket
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from hornbook.data.corpus import Corpus, check_data_lock
from hornbook.files.journal import chain, current_branch, read_records, verify_chain
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock
from hornbook.files.safetensors import read_header
from hornbook.model.hf.hf import left_out, read_hf
from hornbook.run.machine.deep.cordon import CordonList
from hornbook.settings.resolve import resolve
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.document import ReadOptions
from hornbook.text.ingest.inputs import list_inputs
from hornbook.text.ingest.readers import read_file
from hornbook.text.tokenizer.shards import verify_shard, writing_shard
from hornbook.text.tokenizer.tokenizer import Tokenizer

ROWS = [{"id": str(n), "text": f"row {n} of a text, and more words", "url": "https://a"} for n in range(40)]
HTML = (
    b"<!doctype html><html lang=en><head><meta charset=utf-8><title>T</title></head><body class='a'><p>Text.</p></body>"
)
PAGE = (
    b"<!-- <meta charset=koi8-r> --><html><head><meta charset=utf-8><title>a <b> title</title><style>p > a {}</style>"
    b"<script>for (i = 0; i<n; i++) { a<b } <!-- <script> </script> --></script></head><body><svg><title>t</title>"
    b"<path d='M0 0'/></svg><select><option>a<option>b</select><textarea><i></textarea><p>Text.</p><!--[if mso]><o:p>"
    b"<![endif]--><math><mi>x</mi></math></body></html>"
)
LISTING = (
    b"\\documentclass{article}\\usepackage[latin1]{inputenc}\\newcommand{\\R}{\\mathbb{R}}\\begin{document}\n"
    b'na\\"{\\i}ve Erd\\H{o}s \\verb|a%b| \\url{http://a/b%20c} \\href{http://a}{label} $\\R$ % no\n\\begin{verbatim}\n'
    b"x = 1 % yes\n\\end{verbatim}\\iffalse no \\fi\\begin{lstlisting}[a=b]\n%\n\\end{lstlisting}\n\\end{document}"
)
CODE = (
    b"<mediawiki><page><title>T</title><ns>0</ns><id>1</id><revision><text>f() &lt;pre&gt;\n a  ()\n&lt;/pre&gt; "
    b"({{x}}) &lt;syntaxhighlight lang=c&gt;\n  * f();\n&lt;/syntaxhighlight&gt; &lt;nowiki&gt;[[a]]&lt;/nowiki&gt;"
    b"&lt;ref&gt;c&lt;/ref&gt;\n{|\n|a\n|}\n==H==</text></revision></page></mediawiki>"
)
WORDS = (
    b'<w:document xmlns:w="w"><w:body><w:p><w:r><w:t>a &amp; b</w:t><w:tab/></w:r></w:p><w:tbl><w:tr><w:tc><w:p><w:r>'
    b"<w:t>c</w:t></w:r></w:p></w:tc></w:tr></w:tbl><w:p><w:moveFrom><w:r><w:t>d</w:t></w:r></w:moveFrom></w:p></w:body>"
    b"</w:document>"
)
TEX = b"\\documentclass{article}\\begin{document}\\section{A} Text $x^2$ \\emph{word} \\cite{a}. % no\n\\end{document}"
WIKI = (
    b"<mediawiki><siteinfo><base>https://a/w/B</base></siteinfo>\n<page><title>T</title><ns>0</ns><id>1</id><revision>"
    b"<text>'''A''' {{b|c}} [[d|e]] text &amp; more</text></revision></page>\n</mediawiki>\n"
)
POSTS = (
    b'<?xml version="1.0"?>\n<posts>\n<row Id="1" PostTypeId="1" Title="q" Body="&lt;p&gt;a&lt;/p&gt;" />\n'
    b'<row Id="2" PostTypeId="2" ParentId="1" Score="3" Body="answer" />\n</posts>\n'
)
BOOK = (
    b"Title: T\nCharacter set encoding: ISO-8859-1\n"
    b"*** START OF THE PROJECT GUTENBERG EBOOK T ***\nText\n*** END OF THE PROJECT GUTENBERG EBOOK"
)


@dataclass(frozen=True)
class Door:
    """One kind of input."""

    seeds: Callable[[Path], list[bytes]]
    """Valid inputs; what they need beside them is made in the folder."""
    enter: Callable[[bytes, Path], None]
    """Take an input; raises HornbookError where it is refused."""


def _jsonl() -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def _table(form: str) -> bytes:
    table, sink = pa.Table.from_pylist(ROWS), pa.BufferOutputStream()
    if form == "parquet":
        pq.write_table(table, sink, row_group_size=20, compression="zstd")
    else:
        packed = pa.ipc.IpcWriteOptions(compression="zstd" if form == "packed" else None)
        with (pa.ipc.new_file if form == "file" else pa.ipc.new_stream)(sink, table.schema, options=packed) as writer:
            writer.write_table(table, max_chunksize=10)
    return sink.getvalue().to_pybytes()


def _warc() -> bytes:
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + HTML
    head = b"HTTP/1.1 200 OK\nContent-Type: text/html;\n charset=utf-8\nTransfer-Encoding: chunked\n\n"
    chunked = head + b"%X;a=b\r\n" % len(PAGE) + PAGE + b"\r\n6\r\n<p>end\r\n0\r\n\r\n"
    packed = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(PAGE)
    pages = [("response", "application/http", body) for body in (page, chunked, packed)]
    records = [*pages, ("conversion", "text/plain; charset=latin-1", b"plain text")]
    return b"".join(
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
        + b"\r\n\r\n"
        for kind, media, body in records * 2
    )


def _tar() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in (("a.jsonl", _jsonl()), ("b/c.txt", b"text"), ("d" * 150 + ".md", b"more")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def _zip() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", _jsonl())
        archive.writestr("b.txt", b"text")
    return sink.getvalue()


def _read(name: str, layout: str, data: bytes, folder: Path) -> None:
    """What `prepare` does first with a file of that name."""
    path = folder / name
    path.write_bytes(data)
    config = SourceConfig.model_validate({"paths": [str(path)], "layout": layout})
    for file in list_inputs("s", config):
        for _ in read_file(file, ReadOptions.of(config, 2**22)):
            pass


def _text(name: str, *data: bytes, layout: str = "auto") -> Door:
    return Door(lambda _: list(data), partial(_read, name, layout))


TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [
        {"id": 0, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "vocab": {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}, "merges": [["a", "b"]]},
}


def _enter_tokenizer(data: bytes, folder: Path) -> None:
    home = folder / "tokenizer"
    home.mkdir(exist_ok=True)
    (home / "tokenizer.json").write_bytes(data)
    tokenizer = Tokenizer.load(home)
    tokenizer.encode("ab a")
    tokenizer.decode([0, 1])
    assert tokenizer.token_bytes().nbytes < 2**20
    _ = tokenizer.ends_between, tokenizer.digest


def _enter_words(data: bytes, folder: Path) -> None:
    with zipfile.ZipFile(folder / "words.docx", "w") as archive:
        archive.writestr("word/document.xml", data)
    _text("words.docx").enter((folder / "words.docx").read_bytes(), folder)


def _shard(folder: Path) -> Path:
    """A data folder with one shard of each split."""
    for split in ("train", "validation"):
        path = folder / "data" / "tokens" / split / "a" / "00000"
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_shard(path, "uint16") as shard:
            shard.add([0, 1, 2, 3], "x", "a:1", 4)
    return folder / "data" / "tokens"


def _index(folder: Path) -> bytes:
    tokens = _shard(folder)
    entries = []
    for split in ("train", "validation"):
        stated = json.loads((tokens / split / "a" / "00000.json").read_text())
        entry = {name: stated[name] for name in ("tokens", "documents", "bytes")}
        name = f"tokens/{split}/a/00000"
        entries.append({"name": name, "split": split, "source": "a", **entry, "digest": stated["digests"]["bin"]})
    ids = {"delimiter_id": 0, "end_id": 0, "vocab_size": 4, "tokenizer_digest": "d", "dtype": "uint16"}
    index = json.dumps({**ids, "shards": entries}).encode()
    (tokens / "index.json").write_bytes(index)
    return index


def _enter_index(data: bytes, folder: Path) -> None:
    (folder / "data" / "tokens" / "index.json").write_bytes(data)
    corpus = Corpus.open(folder / "data")
    corpus.verify()
    corpus.lock()


def _sidecar(folder: Path) -> bytes:
    _shard(folder / "one")
    return (folder / "one" / "data" / "tokens" / "train" / "a" / "00000.json").read_bytes()


def _enter_sidecar(data: bytes, folder: Path) -> None:
    path = folder / "one" / "data" / "tokens" / "train" / "a" / "00000"
    path.with_name("00000.json").write_bytes(data)
    verify_shard(path)


def _weights() -> bytes:
    values = np.arange(12, dtype="<f4").tobytes()
    header = json.dumps({"a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}, "__metadata__": {}}).encode()
    return struct.pack("<Q", len(header)) + header + values


def _enter_weights(data: bytes, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(data)
    read_header(folder / "model.safetensors")


CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 16, "hidden_size": 8}
CONFIG |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16}
CONFIG |= {
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "head_dim": 4,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
CONFIG |= {"max_position_embeddings": 32, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
GPT = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 16,
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
}


def _enter_config(data: bytes, folder: Path) -> None:
    home = folder / "model"
    home.mkdir(exist_ok=True)
    (home / "config.json").write_bytes(data)
    (home / "model.safetensors").write_bytes(_weights())
    left_out(home)
    _, _, tensors = read_hf(home)
    for _ in tensors:
        pass


RECIPE = b"""extends = "tiny"
[model]
layers = 2
heads = 4
[model.init]
kind = "normal"
[optim.schedule]
kind = "cosine"
warmup = "10 steps"
[train]
tokens = "1M"
"""


def _enter_recipe(data: bytes, folder: Path) -> None:
    (folder / "recipe.toml").write_bytes(data)
    resolve(str(folder / "recipe.toml"), environ={}).to_toml()


LOCK = {"tokenizer": "d", "shards": {"tokens/train/a/00000": "x"}, "fingerprint": "f"}


def _enter_data_lock(data: bytes, folder: Path) -> None:
    (folder / "data.lock").write_bytes(data)
    check_data_lock(folder / "data.lock", LOCK)


CORDON = {"slot": 1, "test": "memory", "evidence": "word 3", "since": 1.7e9, "until": None}


def _enter_cordon(data: bytes, folder: Path) -> None:
    (folder / "cordon.json").write_bytes(data)
    CordonList(folder / "cordon.json").slots()


def _run_lock(_: Path) -> list[bytes]:
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "boot": "b", "started": "1", "since": 1.7e9}
    return [json.dumps(each).encode() for each in (owner, owner | {"host": "other"})]


def _enter_run_lock(data: bytes, folder: Path) -> None:
    (folder / "run.lock").write_bytes(data)
    with RunLock(RunDir(folder)):
        pass


def _events(_: Path) -> list[bytes]:
    lines, previous = [], ""
    for step in range(4):
        record = chain({"attempt": 1, "step": step, "tokens": 8 * step, "kind": "save", "time": 1.5}, previous)
        previous = record["sha"]
        lines.append(json.dumps(record).encode() + b"\n")
    return [b"".join(lines)]


def _enter_events(data: bytes, folder: Path) -> None:
    (folder / "events.jsonl").write_bytes(data)
    current_branch(read_records(folder / "events.jsonl"))
    verify_chain(folder / "events.jsonl")


DOORS: dict[str, Door] = {
    "jsonl": _text("a.jsonl", _jsonl()),
    "json": _text("a.json", json.dumps(ROWS).encode()),
    "csv": _text("a.csv", b'id,text\n1,"a, b"\n2,"two\nlines"\n' * 5),
    "tsv": _text("a.tsv", b"id\ttext\n1\ta b\n" * 5, b'id\ttext\n1\t"a\n""b"""\n2\tc\n' * 5),
    "parquet": _text("a.parquet", _table("parquet")),
    "arrow": _text("a.arrow", _table("stream"), _table("file"), _table("packed")),
    "warc": _text("a.warc", _warc()),
    "warc.gz": _text("a.warc.gz", gzip.compress(_warc())),
    "html": _text("a.html", HTML * 3, PAGE),
    "wiki": _text("a.xml", WIKI, CODE),
    "posts": _text("a.xml", POSTS),
    "latex": _text("a.tex", TEX, LISTING),
    "gutenberg": _text("a.txt", BOOK, layout="gutenberg"),
    "arxiv": _text("a.tar.gz", gzip.compress(_tar()), layout="arxiv"),
    "tar": _text("a.tar", _tar()),
    "zip": _text("a.zip", _zip()),
    "gzip": _text("a.jsonl.gz", gzip.compress(_jsonl()), gzip.compress(_jsonl()) * 2),
    "zstd": _text("a.jsonl.zst", zstandard.ZstdCompressor(write_checksum=True).compress(_jsonl())),
    "bz2": _text("a.jsonl.bz2", bz2.compress(_jsonl())),
    "xz": _text("a.jsonl.xz", lzma.compress(_jsonl())),
    "docx": Door(lambda _: [WORDS], _enter_words),
    "utf16": _text("a.txt", "a text\nof lines".encode("utf-16")),
    "tokenizer.json": Door(lambda _: [json.dumps(TOKENIZER).encode()], _enter_tokenizer),
    "index.json": Door(lambda folder: [_index(folder)], _enter_index),
    "00000.json": Door(lambda folder: [_sidecar(folder)], _enter_sidecar),
    "safetensors": Door(lambda _: [_weights()], _enter_weights),
    "config.json": Door(lambda _: [json.dumps(each).encode() for each in (CONFIG, GPT)], _enter_config),
    "recipe.toml": Door(lambda _: [RECIPE], _enter_recipe),
    "cordon.json": Door(lambda _: [json.dumps({"cordoned": [CORDON]}).encode()], _enter_cordon),
    "data.lock": Door(lambda _: [json.dumps(LOCK).encode()], _enter_data_lock),
    "run.lock": Door(_run_lock, _enter_run_lock),
    "events.jsonl": Door(_events, _enter_events),
}


def header(text: str) -> bytes:
    """A safetensors file with that header and 48 bytes of data."""
    return struct.pack("<Q", len(text)) + text.encode() + bytes(48)


def _repeated(count: int) -> str:
    """A JSON object whose last key is there twice."""
    return "{" + ",".join(f'"k{n}":1' for n in range(count)) + f',"k{count - 1}":1}}'


QUADRATIC: dict[str, Callable[[int], bytes]] = {
    "jsonl": lambda n: _repeated(n).encode() + b"\n",
    "safetensors": lambda n: header(_repeated(n)),
    "html": lambda n: b"<p " + b" ".join(b"a%d=1" % k for k in range(n)) + b">text",
    "html-svg": lambda n: b"<svg><title><p></svg></title><style><!--" * n,
    "html-values": lambda n: b"</title>" + b"<a=" * n + b"<a x='" * n + b'<a x="' * n + b"<!--" * n,
    "html-comments": lambda n: b"<!-- --!" * n + b"<script><!--" * n,
    "html-metas": lambda n: b"<meta name=a content='charset=b'><title></title>" * n,
    "wiki-raw": lambda n: WIKI.replace(b"text &amp;", b"&lt;pre&gt;&lt;source&gt;&lt;nowiki&gt;({{" * n),
    "latex-raw": lambda n: b"\\begin{verbatim}\\verb|\\url{\\iffalse\\begin{minted}{a}%\n" * n,
    "html-merged": lambda n: b"".join(b"<html a%d=1>" % k for k in range(n)) + b"text",
}
"""By door: an input of so many keys or attributes, on which time grew with their square."""
