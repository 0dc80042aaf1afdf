"""Fixtures that several rooms share: a small corpus of two sources, with a byte-level tokenizer."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

END = "<|endoftext|>"
WORDS = ("the", "a", "model", "learns", "to", "read", "one", "two", "letters", "from", "its", "page", "and", "says")


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges: 256 bytes and one special token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {END: 0, **{letter: number for number, letter in enumerate(alphabet, 1)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_shard(root: Path, name: str, documents: list[list[int]]) -> dict[str, object]:
    """The files of one shard; returns its line of the index."""
    stem = root / name
    stem.parent.mkdir(parents=True)
    np.array([token for document in documents for token in document], "<u2").tofile(f"{stem}.bin")
    np.cumsum([len(document) for document in documents], dtype="<u8").tofile(f"{stem}.idx")
    sizes = [len(document) - 1 for document in documents]
    rows = {
        "id": [f"{name}#{k}" for k in range(len(documents))],
        "origin": [f"{name}.txt:{k}" for k in range(len(documents))],
        "bytes": pa.array(sizes, pa.int64()),
    }
    pq.write_table(pa.table(rows), f"{stem}.docs.parquet")
    return {
        "name": name,
        "tokens": sum(map(len, documents)),
        "documents": len(documents),
        "bytes": sum(sizes),
        "digest": xxhash.xxh3_128_hexdigest(Path(f"{stem}.bin").read_bytes()),
    }


def write_corpus(root: Path, seed: int = 0) -> Path:
    """A data folder as `hornbook tokenize` leaves it: sources `notes` and `prose`, train and validation."""
    from hornbook.text.tokenizer import Tokenizer

    write_tokenizer(root / "tokenizer")
    tokenizer = Tokenizer.load(root / "tokenizer")
    draw = random.Random(seed)
    entries = []
    for split, count in (("train", 120), ("validation", 12)):
        for source in ("notes", "prose"):
            texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 30))) for _ in range(count)]
            entry = write_shard(root, f"tokens/{split}/{source}/00000", tokenizer.encode_documents(texts))
            entries.append({"split": split, "source": source, **entry})
    index = {
        "dtype": "uint16",
        "delimiter_id": tokenizer.delimiter_id,
        "end_id": tokenizer.end_id,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_digest": tokenizer.digest,
        "shards": entries,
    }
    (root / "tokens" / "index.json").write_text(json.dumps(index))
    return root


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with about 20 thousand training tokens. Read only: a test that changes it copies it."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "data")
