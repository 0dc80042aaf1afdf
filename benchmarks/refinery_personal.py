"""Personal data: CPU seconds against datatrove's formatter and a set of regular expressions, and planted truth.

datatrove looks for e-mail and public IP addresses; ours is timed for the same two and for all eight kinds. The set of
expressions looks for the eight kinds' forms without check digits or context, in Python's `re`, one after the other.
Planted truth is exact to the letter; its forms are those that the patterns know, so it bounds recall from above.

    python -m benchmarks.refinery_personal [FILE.jsonl.gz...]     by default ../shared/data
"""

import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import ROOT, peer_python
from benchmarks.planted_personal import CARRIERS, planted, scores
from benchmarks.report import table, write
from hornbook.text.config.content import PersonalConfig
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.privacy.personal import Personal

ROUNDS, PLANTED = 3, 1000
NAIVE = [
    re.compile(pattern)
    for pattern in (
        r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,255}\.[A-Za-z]{2,24}",
        r"\b(?:\d{1,3}\.){3}\d{1,3}\b",
        r"(?:\+\d{1,3}[ .-]?)?\(?\d{2,4}\)?[ .-]?\d{3,4}[ .-]?\d{3,4}\b",
        r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b",
        r"\b(?:\d[ -]?){12,18}\d\b",
        r"\b\d{3}-\d{2}-\d{4}\b|\b\d{3}\.\d{3}\.\d{3}-\d{2}\b|\b\d{8}[A-Z]\b",
        r"\b\d{1,5} (?:[A-Z]\w+ ){1,3}(?:Street|Road|Avenue|Lane|Drive|Boulevard)\b",
        r"\b(?:ghp_\w{36}|AKIA[A-Z2-7]{16}|xox[abprs]-[\w-]{10,}|AIza[\w-]{35}|sk_live_\w{16,})",
    )
]


def read(paths: Sequence[Path], every: int) -> list[str]:
    """Every so manieth document."""
    found = []
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found += [json.loads(line)["text"] for number, line in enumerate(file) if number % every == 0]
    return found


def seconds_of(call: Callable[[str], object], texts: Sequence[str]) -> float:
    """CPU seconds for all texts."""
    begin = time.process_time()
    for text in texts:
        call(text)
    return time.process_time() - begin


def redact(step: Personal) -> Callable[[str], object]:
    """The step on a text."""
    return lambda text: step.edit(Document(text, "", ""))


def naive(text: str) -> str:
    """All expressions, one after the other."""
    for pattern in NAIVE:
        text = pattern.sub("<X>", text)
    return text


def datatrove(texts: Sequence[str]) -> float:
    """Its CPU seconds in its own environment."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(text) + "\n" for text in texts)
        file.flush()
        command = [peer_python(), "-m", "benchmarks.peers.datatrove_personal", file.name, "1"]
        output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return json.loads(output)["seconds"]


def truth(count: int) -> dict[str, Any]:
    """Language -> kind -> precision and recall."""
    step = Personal(PersonalConfig())

    def find(text: str) -> list[tuple[str, str]]:
        data = text.encode()
        return [(kind, data[start:end].decode()) for start, end, kind in step.find(data)]

    sentences = list(planted(count, seed=11))
    return {each: scores(find, [one for one in sentences if one.language == each]) for each in CARRIERS}


def run(quick: bool = False, paths: Sequence[Path] = ()) -> None:
    """Interleaved rounds; writes benchmarks/results/refinery_personal.json."""
    files = paths or sorted((ROOT.parent / "shared" / "data").glob("*.jsonl.gz"))
    texts = read(files, 60 if quick else 6)
    two, all_kinds = Personal(PersonalConfig(kinds=["email", "ip"])), Personal(PersonalConfig())
    redact(all_kinds)("a@b.example 1")  # compiles
    forms: dict[str, Callable[[], float]] = {
        "ours, e-mail and IP": lambda: seconds_of(redact(two), texts),
        "ours, eight kinds": lambda: seconds_of(redact(all_kinds), texts),
        "datatrove, e-mail and IP": lambda: datatrove(texts),
        "re, eight kinds without checks": lambda: seconds_of(naive, texts),
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(1 if quick else ROUNDS):
        for name, call in forms.items():
            times[name].append(call())
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    speeds = {name: megabytes / min(each) for name, each in times.items()}
    print(table(["form", "MB per CPU s"], list(speeds.items())))
    figures = truth(60 if quick else PLANTED)
    worst = {
        kind: [min(each[kind][name] for each in figures.values()) for name in ("precision", "recall")]
        for kind in next(iter(figures.values()))
    }
    rows = [[kind, *each] for kind, each in worst.items()]
    print(table(["kind", "least precision", "least recall of six languages"], rows))
    if not quick:
        write("refinery_personal", {"megabytes": megabytes, "mb_per_cpu_s": speeds, "seconds": times, "truth": figures})


if __name__ == "__main__":
    run(paths=[Path(each) for each in sys.argv[1:]])
