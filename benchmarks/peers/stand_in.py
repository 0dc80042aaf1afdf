"""Runs a peer's training script with the benchmark's tokens: `python -m benchmarks.peers.stand_in ENCODING SCRIPT ...`.

ENCODING is a pickled `Encoding`, or "" where the script reads one of its own; it takes tiktoken's place. SCRIPT is a
file, or a module behind `-m`, and runs in the current folder. rustbpe, wandb and requests are imported by nanochat's
script, but only train a tokenizer, log to a network and fetch text: where they are missing, empty modules take their
place.
"""

import importlib.util
import os
import pickle
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class Encoding:
    """What scripts ask of a tokenizer of tiktoken's, of a text that was tokenized before: documents are numbers."""

    def __init__(
        self, vocab: int, delimiter: int, *, pieces: Sequence[Any] = (), ranks: dict[bytes, int] | None = None
    ) -> None:
        """pieces: token ids of each document. ranks: the id of each spelling."""
        self.n_vocab, self._delimiter, self._pieces = vocab, delimiter, pieces
        self.special_tokens_set = {"<|endoftext|>"}
        self._mergeable_ranks = ranks or {}

    def encode_single_token(self, text: str) -> int:  # noqa: ARG002
        """The id of a special token: all are the delimiter."""
        return self._delimiter

    def encode_ordinary(self, text: str) -> list[int]:
        """Token ids of the document of that number."""
        return self._pieces[int(text)].tolist()

    def encode_ordinary_batch(self, texts: Sequence[str], num_threads: int = 1) -> list[list[int]]:  # noqa: ARG002
        """Those of several."""
        return [self.encode_ordinary(text) for text in texts]


EAGER = "BENCH_EAGER"
"""A variable of the environment: nothing is compiled, for a trial of the script on a CPU."""


def compile_nothing() -> None:
    """`torch.compile` returns what it is given, as a function and as a decorator."""
    import torch

    torch.compile = lambda model=None, **_: (lambda function: function) if model is None else model


def main() -> None:
    """Put the modules in their places, and run the script as if it had been started."""
    encoding, *words = sys.argv[1:]
    tiktoken = ModuleType("tiktoken")
    if encoding:
        known = pickle.loads(Path(encoding).read_bytes())
        tiktoken.__dict__["get_encoding"] = lambda _: known
    sys.modules["tiktoken"] = tiktoken
    if os.environ.get(EAGER):
        compile_nothing()
    for name in ("rustbpe", "wandb", "requests"):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = ModuleType(name)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
