"""Token shards made by hand, in the format of docs/architecture.md."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from hornbook.text.tokenizer.tokenizer import Tokenizer

DELIMITER = 0
VOCAB = 1000


@dataclass
class Raw:
    """What was written, as plain lists: documents[split][source] are token lists, delimiter included."""

    path: Path
    delimiter: int
    end: int
    documents: dict[str, dict[str, list[list[int]]]] = field(default_factory=dict)
    shards: dict[str, list[list[list[int]]]] = field(default_factory=dict)


def write_shard(root: Path, name: str, documents: Sequence[Sequence[int]], dtype: str) -> dict:
    stem = root / name
    stem.parent.mkdir(parents=True, exist_ok=True)
    tokens = np.array([token for document in documents for token in document], dtype)
    ends = np.cumsum([len(document) for document in documents], dtype=np.uint64)
    tokens.tofile(f"{stem}.bin")
    ends.tofile(f"{stem}.idx")
    table = pa.table(
        {
            "id": [f"{name}#{k}" for k in range(len(documents))],
            "origin": [f"{name}.txt:{k}" for k in range(len(documents))],
            "bytes": pa.array([4 * len(document) for document in documents], pa.int64()),
        }
    )
    pq.write_table(table, f"{stem}.docs.parquet")
    digests = {
        key: xxhash.xxh3_128_hexdigest(Path(f"{stem}{ending}").read_bytes())
        for key, ending in (("bin", ".bin"), ("idx", ".idx"), ("docs", ".docs.parquet"))
    }
    raw = tokens.tobytes()
    blocks = [xxhash.xxh3_64_hexdigest(raw[first : first + 2**20]) for first in range(0, len(raw), 2**20)]
    facts = {
        "tokens": len(tokens),
        "documents": len(documents),
        "bytes": sum(4 * len(document) for document in documents),
        "dtype": dtype,
    }
    Path(f"{stem}.json").write_text(json.dumps({**facts, "digests": digests, "blocks": blocks}))
    return {"name": name, **facts, "digest": digests["bin"]}


def flip(path: Path, byte: int) -> None:
    """Change the lowest bit of a byte in place."""
    with path.open("r+b") as file:
        file.seek(byte)
        (old,) = file.read(1)
        file.seek(byte)
        file.write(bytes([old ^ 1]))


def restate(root: Path) -> None:
    """Give all shards of one block, and the index, the checksums of what is in their files now."""
    path = root / "tokens" / "index.json"
    index = json.loads(path.read_text())
    for entry in index["shards"]:
        stem = root / entry["name"]
        endings = {"bin": ".bin", "idx": ".idx", "docs": ".docs.parquet", "labels": ".labels"}
        files = {name: Path(f"{stem}{ending}") for name, ending in endings.items()}
        sidecar = json.loads(Path(f"{stem}.json").read_text())
        sidecar["digests"] = {
            name: xxhash.xxh3_128_hexdigest(file.read_bytes()) for name, file in files.items() if file.exists()
        }
        sidecar["blocks"] = [xxhash.xxh3_64_hexdigest(files["bin"].read_bytes())]
        Path(f"{stem}.json").write_text(json.dumps(sidecar))
        entry["digest"] = sidecar["digests"]["bin"]
    path.write_text(json.dumps(index))


def write_corpus(
    root: Path,
    sources: Mapping[str, Sequence[int]],
    *,
    shards: int = 1,
    dtype: str = "uint16",
    separate_end: bool = False,
    validation: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
) -> Raw:
    """Random documents of the given lengths (delimiter, and end if separate, included) in `shards` shards."""
    rng = np.random.default_rng(seed)
    raw = Raw(root, DELIMITER, 1 if separate_end else DELIMITER)
    entries = []
    for split, lengths in (("train", sources), ("validation", validation or {})):
        raw.documents[split] = {}
        for source, sizes in lengths.items():
            documents = [[DELIMITER, *rng.integers(2, VOCAB, size - 1).tolist()] for size in sizes]
            if separate_end:
                for document in documents:
                    document[-1] = 1
            raw.documents[split][source] = documents
            groups = [
                documents[k * len(documents) // shards : (k + 1) * len(documents) // shards] for k in range(shards)
            ]
            raw.shards[f"{split}/{source}"] = groups
            for number, group in enumerate(groups):
                name = f"tokens/{split}/{source}/{number:05d}"
                entries.append({"split": split, "source": source, **write_shard(root, name, group, dtype)})
    index = {
        "dtype": dtype,
        "delimiter_id": raw.delimiter,
        "end_id": raw.end,
        "vocab_size": VOCAB,
        "tokenizer_digest": "0" * 32,
        "shards": entries,
    }
    (root / "tokens").mkdir(exist_ok=True)
    (root / "tokens" / "index.json").write_text(json.dumps(index))
    return raw


SPECIALS = {"[PAD]": "pad", "[MASK]": "mask", "[R]": "R", "[S]": "S", "[X]": "X"}
SENTINELS = 60


def spelling(number: int) -> str:
    """Odd ids begin a word, even ones go on; each fiftieth ends a sentence."""
    return f"{'_' if number % 2 else ''}w{number}{'.' if number % 50 == 0 else ''}"


def write_tokenizer(raw: Raw, without: Sequence[str] = (), sentinels: int = SENTINELS) -> dict[str, int]:
    """A tokenizer for a corpus of `write_corpus`: special tokens from id VOCAB on, sentinels in falling order as in T5.

    Returns the ids of the special tokens. The index learns the tokenizer's size and digest.
    """
    ends = ["<|endoftext|>"] if raw.delimiter == raw.end else ["<s>", "</s>"]
    first = [*ends, *(spelling(number) for number in range(len(ends), VOCAB))]
    specials = [token for token in SPECIALS if token not in without]
    specials += [f"<extra_id_{number}>" for number in reversed(range(sentinels))]
    ids = {token: number for number, token in enumerate([*first, *specials])}
    model = {"type": "WordLevel", "vocab": ids, "unk_token": spelling(2)}
    added = [
        {"id": ids[token], "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token in (*ends, *specials)
    ]
    definition = {"version": "1.0", "added_tokens": added, "model": model}
    definition |= dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    (raw.path / "tokenizer").mkdir()
    (raw.path / "tokenizer" / "tokenizer.json").write_text(json.dumps(definition))
    tokenizer = Tokenizer.load(raw.path / "tokenizer")
    index = json.loads((raw.path / "tokens" / "index.json").read_text())
    index |= {"vocab_size": tokenizer.vocab_size, "tokenizer_digest": tokenizer.digest}
    (raw.path / "tokens" / "index.json").write_text(json.dumps(index))
    return {token: ids[token] for token in (*ends, *specials)}


@pytest.fixture(scope="session")
def make_corpus(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Raw]:
    """Write a corpus into a fresh folder: make_corpus({"a": [3, 5]}, shards=2, ...) -> Raw."""
    base, count = tmp_path_factory.mktemp("corpora"), itertools.count()
    return lambda sources, **options: write_corpus(base / str(next(count)), sources, **options)
