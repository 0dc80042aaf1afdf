"""Text to train on for a fixed time: prepared and tokenized by hornbook once, its documents handed to all contenders.

The text is the folder that BENCH_TEXT names, else the documents `shared/data/*.jsonl.gz` in the checkout or beside it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from hornbook.data.corpus import Corpus, Stream
from hornbook.text.tokenizer.tokenizer import Tokenizer

ROOT = Path(__file__).parents[3]
VARIABLE = "BENCH_TEXT"
VOCAB, DRY_VOCAB = 50257, 512
"""GPT-2's size, which modded-nanogpt's script is written for."""
HELD_OUT, DRY_HELD_OUT = 0.03, 0.2
"""Share of documents."""
NO_TEXT = f"no text: {VARIABLE} names no folder, and there is no shared/data/*.jsonl.gz in the checkout or beside it"


class LeftOut(Exception):
    """A contender or its text is not there; the message says which."""


def sources(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> list[Path]:
    """What `hornbook prepare` reads. LeftOut where there is none."""
    if named := environ.get(VARIABLE):
        if not Path(named).is_dir():
            raise LeftOut(f"no text: {VARIABLE} names {named}, which is no folder")
        return [Path(named).resolve()]
    for folder in (root / "shared" / "data", root.parent / "shared" / "data"):
        if found := sorted(folder.glob("*.jsonl.gz")):
            return found
    raise LeftOut(NO_TEXT)


def hornbook(*words: str | Path) -> str:
    """What a command of hornbook prints with --json. RuntimeError with the end of what it said where it fails."""
    command = [sys.executable, "-m", "hornbook", *map(str, words), "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"hornbook {words[0]} ended with {answer.returncode}: {answer.stderr[-2000:]}")
    return answer.stdout


def make(folder: Path, dry: bool) -> "Text":
    """The text, prepared in a folder of its own below `folder` unless it was before."""
    found = [write_text(folder / "written")] if dry and VARIABLE not in os.environ else sources()
    facts = [f"{path} {each.stat().st_size}" for path in found for each in ([path] if path.is_file() else walk(path))]
    data = folder / f"text-{xxhash.xxh3_64_hexdigest(' '.join([*facts, str(dry)]).encode())}"
    share, vocab = (DRY_HELD_OUT, DRY_VOCAB) if dry else (HELD_OUT, VOCAB)
    if not (data / "tokens" / "index.json").is_file():
        hornbook("prepare", *found, "--out", data, "--text.validation", str(share))
        hornbook("tokenize", data, "--vocab", str(vocab))
    return Text(data)


def write_text(folder: Path) -> Path:
    """A little text for a dry run."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(60):
        words = (f"word{(number * factor) % 97}" for factor in range(1, 400))
        (folder / f"{number}.txt").write_text(" ".join(words))
    return folder


def walk(folder: Path) -> list[Path]:
    """Files below a folder, in order."""
    return sorted(each for each in folder.rglob("*") if each.is_file())


@dataclass(frozen=True)
class Documents:
    """Documents of a split behind one another; the first token of each is the delimiter, and only that."""

    tokens: np.ndarray
    """Token ids, uint16 [tokens]."""
    ends: np.ndarray
    """END offset of each, int64 [documents]."""
    bytes: int
    """UTF-8 bytes of the text."""

    def pieces(self, most: int) -> list[np.ndarray]:
        """Documents without delimiters, cut into equal pieces of at most `most` tokens."""
        found: list[np.ndarray] = []
        for start, end in zip([0, *self.ends[:-1].tolist()], self.ends.tolist(), strict=True):
            inside = self.tokens[start + 1 : end]
            found += np.array_split(inside, -(-len(inside) // most)) if len(inside) else []
        return found


class Text:
    """A folder of `hornbook tokenize`, read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        corpus = Corpus.open(folder)
        self.delimiter, self.vocab = corpus.delimiter_id, corpus.vocab_size
        self.train, self.held_out = (self._documents(streams) for streams in (corpus.train, corpus.validation))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return Tokenizer.load(self.folder / "tokenizer")

    def spellings(self) -> dict[bytes, int]:
        """Ids of tokens that stand for text. One token's bytes begin with another's where the tokens' text does."""
        made = json.loads((self.folder / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
        special = self.tokenizer.special_ids
        return {each.encode(): number for each, number in made["model"]["vocab"].items() if number not in special}

    def bits_per_byte(self, loss: float) -> float:
        """Of a mean loss in nats per held-out token: the bits of all held-out tokens over the bytes of their text."""
        return loss / np.log(2.0).item() * len(self.held_out.tokens) / self.held_out.bytes

    @staticmethod
    def _documents(streams: Mapping[str, Stream]) -> Documents:
        shards = [shard for stream in streams.values() for shard in stream.shards]
        starts = np.cumsum([0, *(shard.tokens for shard in shards)])
        ends = [start + shard.ends.astype(np.int64) for start, shard in zip(starts, shards, strict=False)]
        tokens = np.concatenate([shard.data for shard in shards])
        return Documents(tokens, np.concatenate(ends), sum(shard.bytes for shard in shards))
