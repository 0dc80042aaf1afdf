"""The same work as in `benchmarks.peers.bpe`, done by this package's kernels.

    ours_bpe.py (rustbpe|tokenizers) FOLDER

names the peer whose order of bytes decides among equal pairs: that of their values, or that of their letters.
"""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.bpe import VOCAB, batches, digest_tokens, serve
from hornbook.text.config.text import BPE
from hornbook.text.tokenizer.bpe.count import WordCounts
from hornbook.text.tokenizer.bpe.learn import learn_merges
from hornbook.text.tokenizer.bpe.tables import PATTERN, STYLES
from hornbook.text.tokenizer.bpe.train import train_bpe
from hornbook.text.tokenizer.tokenizer import Tokenizer


def _train_like_rustbpe(texts: list[str]) -> list[bytes]:
    counts = WordCounts(STYLES[PATTERN])
    for batch in batches(texts):
        counts.add(batch)
    spelled = [bytes([byte]) for byte in range(256)]
    for left, right in learn_merges(counts, list(range(256)), VOCAB - 1, 1):
        spelled.append(spelled[left] + spelled[right])
    return spelled


def _train(texts: list[str]) -> str:
    return train_bpe(BPE(vocab=VOCAB), batches(texts)).definition


def main() -> None:
    """Kernels are compiled before anything is timed; the cache of words is empty each time."""
    _train_like_rustbpe(["the page"])
    path = Path(sys.argv[2]) / "tokenizer.json"
    if sys.argv[1] == "tokenizers" and not path.exists():
        from benchmarks.peers.bpe import read_texts

        path.write_text(_train(read_texts(path.parent)), encoding="utf-8")
    definition = path.read_text(encoding="utf-8") if path.exists() else ""

    def make_encoder() -> Callable[[list[str]], Any]:
        tokenizer = Tokenizer(definition, None, "<|endoftext|>")
        tokenizer.encode_arrays([""])  # makes the tables
        return lambda texts: [ids[1:] for batch in batches(texts) for ids in tokenizer.encode_arrays(batch)]

    if sys.argv[1] == "rustbpe":
        serve(_train_like_rustbpe, make_encoder, digest_tokens)
    else:
        serve(_train, make_encoder, lambda made: hashlib.sha256(made.encode()).hexdigest())


if __name__ == "__main__":
    main()
