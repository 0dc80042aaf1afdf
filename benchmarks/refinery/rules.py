"""Published rules of quality against datatrove 0.10.1: the same reasons, and CPU seconds for them.

Every twelfth document is taken. Reasons are compared for each definition of a word, datatrove's filters being given our
words and sentences. Times are CPU seconds of one core in turn: ours; datatrove's logic with words between blanks, which
cost it next to nothing; and, once, datatrove as it is, which splits with spaCy. Every step judges every document, but
in the pipeline, where datatrove stops at a document's first reason and its filters share the words, while ours still
measures all columns of all documents. Long runs of one character show that time is linear.

    python -m benchmarks.refinery.rules [FILE.jsonl.gz...]     by default ../shared/data
"""

import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.environment import ROOT, peer_python
from benchmarks.report import table, write
from hornbook.text.config import rules as configs
from hornbook.text.config.step import StepConfig
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.quality.rules import C4Lines, Rules
from hornbook.text.refinery.quality.statistics import Settings, Statistics
from hornbook.text.refinery.scores.curve import Signals
from hornbook.text.refinery.scores.curve import curve as points_of
from hornbook.text.refinery.words.words import DEFINITIONS, word_bounds

ROUNDS = 3
REASONS = {
    "gopher_quality": (
        *("gopher_short_doc", "gopher_long_doc", "gopher_below_avg_threshold", "gopher_above_avg_threshold"),
        *("gopher_too_many_hashes", "gopher_too_many_ellipsis", "gopher_too_many_bullets"),
        *("gopher_too_many_end_ellipsis", "gopher_below_alpha_threshold", "gopher_enough_stop_words"),
    ),
    "gopher_repetition": (
        *("dup_para_frac", "dup_para_char_frac", "dup_line_frac", "dup_line_char_frac"),
        *(f"top_{n}_gram" for n in (2, 3, 4)),
        *(f"duplicated_{n}_n_grams" for n in range(5, 11)),
    ),
    "fineweb": ("line_punct_ratio", "short_line_ratio", "char_dup_ratio", "list_ratio"),
    "c4": ("lorem_ipsum", "curly_bracket", "too_few_sentences"),
    "mc4": ("< 3 paragraphs",),
}
"""datatrove's names of our reasons, in our order."""
KINDS: dict[str, type[StepConfig]] = {
    "gopher_quality": configs.GopherQualityConfig,
    "gopher_repetition": configs.GopherRepetitionConfig,
    "fineweb": configs.FineWebConfig,
    "c4": configs.C4Config,
    "mc4": configs.MC4Config,
}
ON_RAW = ("gopher_quality", "gopher_repetition", "fineweb", "mc4")


class Peer:
    """datatrove in its own process."""

    def __init__(self) -> None:
        command = [peer_python(), "-m", "benchmarks.peers.datatrove_rules"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One command."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def load(self, texts: Sequence[str], definition: str = "whitespace") -> None:
        """Send documents with their words; those between blanks it finds itself."""
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for text in texts:
                words = {} if definition == "whitespace" else {"words": split(text, definition)}
                file.write(json.dumps({"text": text, **words}) + "\n")
            file.flush()
            self.ask("load", path=file.name)

    def judge_seconds(self, texts: Sequence[str], names: Sequence[str], words: str) -> float:
        """CPU seconds of every filter on every document."""
        self.load(texts)
        return self.ask("judge", names=list(names), options={}, words=words)["seconds"]

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def split(text: str, definition: str) -> list[str]:
    """Our words."""
    data = text.encode()
    starts, ends = word_bounds(np.frombuffer(data, np.uint8), definition)
    return [data[start:end].decode() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def read(paths: Sequence[Path], every: int) -> Iterator[str]:
    """Every so manieth document."""
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file):
                if number % every == 0:
                    yield json.loads(line)["text"]


def judge(texts: Sequence[str], kinds: Sequence[str], definition: str = "whitespace") -> dict[str, list[str]]:
    """Our reasons, by datatrove's names, of each step by itself."""
    found: dict[str, list[str]] = {}
    columns: dict[str, np.ndarray] = {}
    documents = [Document(text, "", "") for text in texts]
    for kind in kinds:
        step = _step(kind, definition)
        (measurer,) = step.measurers
        if f"{measurer.name}.words" not in columns:
            columns |= {f"{measurer.name}.{key}": values for key, values in measurer.measure(documents).items()}
        found[kind] = [("", *REASONS[kind])[number] for number in step.decide(columns)]
    return found


def edited(texts: Sequence[str]) -> list[str]:
    """What C4's rules for lines leave."""
    return [EDIT.edit(Document(text, "", ""))[0] for text in texts]


def first_reasons(texts: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """The edit of lines, one pass over what it leaves, and the first reason of all steps in a row."""
    found = judge(edited(texts), kinds)
    return [next(filter(None, reasons), "") for reasons in zip(*found.values(), strict=True)]


def _step(kind: str, definition: str) -> Rules:
    config = KINDS[kind]
    return config(**({"words": definition} if "words" in config.model_fields else {})).build()


EDIT = C4Lines(configs.C4LinesConfig())


def compare(peer: Peer, texts: Sequence[str]) -> dict[str, Any]:
    """Documents by definition and step, and how many have another reason than datatrove gives them."""
    found: dict[str, Any] = {}
    for definition in DEFINITIONS:
        peer.load(texts, definition)
        theirs = peer.ask("judge", names=list(KINDS), options={}, words="given")["reasons"]
        ours = judge(texts, ON_RAW, definition)
        ours |= judge(edited(texts), ["c4"])
        found[definition] = {name: _differences(ours[name], theirs[name]) for name in KINDS}
    return found


def _differences(ours: Sequence[str], theirs: Sequence[str]) -> dict[str, int]:
    pairs = [(one, other) for one, other in zip(ours, theirs, strict=True) if other != "empty"]  # drop_empty's work
    different = sum(one != other for one, other in pairs)
    dropped = sum(one != "" for one, _ in pairs)
    return {"documents": len(pairs), "dropped": dropped, "different": different}


def measure(peer: Peer, texts: Sequence[str], stock: Sequence[str]) -> dict[str, Any]:
    """Speeds of three forms: Gopher, FineWeb and mC4 on the text as it is; these on what C4's lines leave, and C4."""

    def each_on_raw(words: str, texts: Sequence[str]) -> float:
        return peer.judge_seconds(texts, ON_RAW, words)

    def each_behind_c4(words: str, texts: Sequence[str]) -> float:
        return peer.judge_seconds(texts, ("c4",), words) + peer.judge_seconds(edited(texts), ON_RAW, words)

    def chain(words: str, texts: Sequence[str]) -> float:
        peer.load(texts)
        return peer.ask("pipeline", names=["c4", *ON_RAW], words=words)["seconds"]

    behind = ("c4", *ON_RAW)
    found = {
        "each_on_raw": _compare_speed(texts, stock, lambda: judge(texts, ON_RAW), each_on_raw),
        "each_behind_c4": _compare_speed(texts, stock, lambda: judge(edited(texts), behind), each_behind_c4),
        "pipeline": _compare_speed(texts, stock, lambda: first_reasons(texts, behind), chain),
    }
    peer.load(texts)
    theirs = peer.ask("pipeline", names=list(behind), words="given")["reasons"]
    return found | {"pipeline_reasons": _differences(first_reasons(texts, behind), theirs)}


def _compare_speed(
    texts: Sequence[str],
    stock: Sequence[str],
    run_ours: Callable[[], object],
    run_theirs: Callable[[str, Sequence[str]], float],
) -> dict[str, Any]:
    megabytes, ours, logic = _megabytes(texts), [], []
    run_ours()
    for _ in range(ROUNDS):
        ours.append(_seconds(run_ours) / megabytes)
        logic.append(run_theirs("plain", texts) / megabytes)
    slow = run_theirs("stock", stock) / _megabytes(stock)
    ratios = [theirs / mine for theirs, mine in zip(logic, ours, strict=True)]
    return {
        "ours_mb_per_second": 1 / statistics.median(ours),
        "logic_mb_per_second": 1 / statistics.median(logic),
        "stock_mb_per_second": 1 / slow,
        "times_logic": statistics.median(ratios),
        "times_logic_range": [min(ratios), max(ratios)],
        "times_stock": slow / statistics.median(ours),
    }


def _megabytes(texts: Sequence[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


def _seconds(function: Callable[[], object]) -> float:
    begin = time.process_time()
    function()
    return time.process_time() - begin


def adversarial() -> dict[str, float]:
    """Nanoseconds per byte of hard input of ten million bytes."""
    size, measurer = 10_000_000, Statistics(Settings())
    units = {"a": "a", "combining mark": "\u0301", "one line": "words and more, ", "a line each": "a\n", "dots": "."}
    documents = {name: [Document(unit * (size // len(unit.encode())), "", "")] for name, unit in units.items()}
    documents["documents of one character"] = [Document("a", "", "")] * (size // 100)
    found = {}
    for name, batch in documents.items():
        written = sum(len(each.text.encode()) for each in batch)
        found[name] = _seconds(lambda batch=batch: measurer.measure(batch)) / written * 1e9
    return found


def curve(rows: int = 1_000_000) -> dict[str, float]:
    """Milliseconds of what stays at twenty values of one threshold, over random columns."""
    step, draw = configs.GopherRepetitionConfig().build(), np.random.default_rng(0)
    columns = {name: draw.integers(0, 1000, rows) for name in step.needs}
    signals, values = Signals(columns, draw.integers(1, 10_000, rows)), np.linspace(0, 1, 20).tolist()
    return {
        "rows": rows,
        "milliseconds": 1e3 * _seconds(lambda: points_of(step, signals, "max_top_2_gram", values)),
    }


def run(quick: bool = False, paths: Sequence[Path] = ()) -> dict[str, Any]:
    """Compare and time; returns what is written to results/refinery_rules.json."""
    paths = paths or sorted((ROOT.parent / "shared" / "data").glob("*.jsonl.gz"))
    texts = list(read(paths, 40 if quick else 12))
    peer = Peer()
    try:
        figures = {
            "documents": len(texts),
            "megabytes": _megabytes(texts),
            "reasons": compare(peer, texts),
            "speed": measure(peer, texts, texts[::4]),
            "nanoseconds_per_byte": adversarial(),
            "retention": curve(),
        }
    finally:
        peer.close()
    write("refinery_rules", figures)
    return figures


def main() -> None:
    """Run and print."""
    figures = run(paths=[Path(path) for path in sys.argv[1:]])
    for definition, steps in figures["reasons"].items():
        rows = [[name, *counts.values()] for name, counts in steps.items()]
        print(table([f"words: {definition}", "documents", "dropped", "different"], rows), end="\n\n")
    header = ["rules", "ours MB/s", "logic MB/s", "stock MB/s", "x logic", "x stock"]
    keys = ("ours_mb_per_second", "logic_mb_per_second", "stock_mb_per_second", "times_logic", "times_stock")
    speed = {name: each for name, each in figures["speed"].items() if "times_logic" in each}
    print(table(header, [[name, *(each[key] for key in keys)] for name, each in speed.items()]))
    print(figures["speed"]["pipeline_reasons"], figures["nanoseconds_per_byte"], figures["retention"], sep="\n")


if __name__ == "__main__":
    main()
