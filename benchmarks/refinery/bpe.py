"""Our BPE kernels against rustbpe, tiktoken and tokenizers: the same merges and tokens, and CPU seconds for them.

Each contender is a process that reads its texts first; the work is asked for in turn (A B A B ...), on one thread.
Training: 32,768 tokens, the split regex of our tokenizers. rustbpe lets the order of byte values decide among
equal pairs, tokenizers that of the letters that stand for them, so ours is compared to each in its own order. Encoding
begins with an empty cache of words and ends with ids in memory. Cases: texts that are slow for many encoders.

    python -m benchmarks.refinery.bpe [--quick]     texts of ../shared/data
"""

import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.bpe import CASES
from benchmarks.peers.environment import ROOT, peer_python
from benchmarks.report import show

ROUNDS = 5
PEERS = {"train": ("rustbpe", "tokenizers"), "encode": ("tiktoken", "tokenizers")}


class Contender:
    """A process that does what it is asked for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        self._input, self._output = process.stdin, process.stdout
        assert self._output.readline() == "ready\n"

    def ask(self, work: str) -> tuple[float, str]:
        """(CPU seconds, digest of the result)"""
        self._input.write(json.dumps({"work": work}) + "\n")
        self._input.flush()
        answer = json.loads(self._output.readline())
        return answer["cpu_seconds"], answer["digest"]


@contextmanager
def contender(name: str, peer: str, folder: Path) -> Iterator[Contender]:
    """Our process that is to be compared to a peer, or the peer itself."""
    ours = [sys.executable, "-m", "benchmarks.peers.ours_bpe"]
    theirs = [str(peer_python()), str(ROOT / "benchmarks" / "peers" / "bpe.py")]
    environment = {**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [*(ours if name == "ours" else theirs), peer, str(folder)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield Contender(process)
        finally:
            process.terminate()


def compare(work: str, peer: str, folder: Path, rounds: int, names: list[str]) -> dict[str, dict[str, Any]]:
    """For each of `names` (works of one kind): medians of both, their ratio, and whether the results are equal."""
    with ExitStack() as stack:
        own = "rustbpe" if peer == "rustbpe" else "tokenizers"
        ours = stack.enter_context(contender("ours", own, folder))
        theirs = stack.enter_context(contender(peer, peer, folder))
        return {name: _compare(ours, theirs, name, rounds) for name in names or [work]}


def _compare(ours: Contender, theirs: Contender, work: str, rounds: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    digests: set[str] = set()
    for _ in range(rounds):
        for name, process in (("ours", ours), ("peer", theirs)):
            seconds, digest = process.ask(work)
            times[name].append(seconds)
            digests.add(digest)
    mine, other = (statistics.median(values) for values in times.values())
    return {"ours": mine, "peer": other, "ratio": other / mine, "identical": len(digests) == 1, "times": times}


def write_texts(folder: Path, every: int) -> tuple[int, int]:
    """texts.jsonl of a folder, of every so many-th document; (documents, bytes)."""
    documents = size = 0
    with (folder / "texts.jsonl").open("w", encoding="utf-8") as out:
        for path in sorted((ROOT.parent / "shared" / "data").glob("*.jsonl.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for number, line in enumerate(lines):
                    if number % every == 0:
                        text = json.loads(line)["text"]
                        out.write(json.dumps(text) + "\n")
                        documents, size = documents + 1, size + len(text.encode())
    return documents, size


def run(quick: bool = False) -> dict[str, Any]:
    """All comparisons; written to results/refinery_bpe.json unless quick."""
    rounds = 1 if quick else ROUNDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents, size = write_texts(folder, 20 if quick else 1)
        figures: dict[str, Any] = {"documents": documents, "bytes": size, "rounds": rounds}
        for work, peers in PEERS.items():
            figures[work] = {peer: compare(work, peer, folder, rounds, [work])[work] for peer in peers}
        figures["cases"] = compare("encode", "tiktoken", folder, rounds, list(CASES))
    show("refinery_bpe", figures, keep=not quick)
    return figures


if __name__ == "__main__":
    run("--quick" in sys.argv)
