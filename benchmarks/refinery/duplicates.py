"""Duplicates and test items found per CPU second, beside libraries, on real text with planted truth; and how well.

Each contender is a process of its own; they take turns. Reading the texts, imports and compiling are not counted.

    python -m benchmarks.refinery.duplicates
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.environment import ROOT, peer_python
from benchmarks.refinery.planted_duplicates import EDITS, Planted, jaccard, plant, shingle_hashes
from benchmarks.report import table, write

OURS = ("near: ours", "exact: ours", "lines: ours", "spans: ours", "decontamination: ours")
PEERS = (
    "near: rensa",
    "near: datasketch",
    "near: datatrove, stock",
    "near: datatrove, words between blanks",
    "exact: polars",
    "lines: polars",
    "spans: suffix array (pydivsufsort)",
    "decontamination: datatrove, words between blanks",
)
ONCE = "near: datatrove, stock"
"""So slow that one round shows it."""
BRIEF = ("exact", "lines")
"""Done in some hundredths of a second: three times as many rounds."""
ROUNDS, DOCUMENTS, COPIES, ITEMS = 3, 2400, 200, 200
SIMILAR = ((0.5, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.01))
MOST_MEMBERS = 50


def _measure(name: str, source: Path, folder: Path) -> tuple[float, Any]:
    out = folder / "out.json"
    python, module = (sys.executable, "ours_duplicates") if name in OURS else (peer_python(), "duplicates")
    subprocess.run(
        [python, "-m", f"benchmarks.peers.{module}", name, source, out],
        check=True,
        cwd=ROOT,
        timeout=1800,
        stderr=subprocess.DEVNULL,
    )
    found = json.loads(out.read_text())
    return found["seconds"], found["result"]


def compare(quick: bool) -> dict[str, Any]:
    """Time all contenders; the figures."""
    rounds = 1 if quick else ROUNDS
    planted = plant(DOCUMENTS // 8, COPIES // 8, ITEMS // 8) if quick else plant(DOCUMENTS, COPIES, ITEMS)
    seconds: dict[str, list[float]] = {name: [] for name in (*OURS, *PEERS)}
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts.json"
        source.write_text(json.dumps({"texts": planted.texts, "items": planted.items}))
        for number in range(3 * rounds):
            for name, times in seconds.items():
                if number >= (1 if name == ONCE else rounds) and not name.startswith(BRIEF):
                    continue
                spent, results[name] = _measure(name, source, Path(folder))
                times.append(spent)
    size = sum(len(text.encode()) for text in planted.texts)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ours = {name.partition(":")[0]: value for name, value in medians.items() if name in OURS}
    return {
        "documents": len(planted.texts),
        "megabytes": size / 1e6,
        "rounds": rounds,
        "cpu_seconds": seconds,
        "megabytes_per_cpu_second": {name: size / 1e6 / value for name, value in medians.items()},
        "documents_per_cpu_second": {name: len(planted.texts) / value for name, value in medians.items()},
        "ratio": {name: medians[name] / ours[name.partition(":")[0]] for name in PEERS},
        "near": _near_quality(planted, {name: results[name] for name in results if name.startswith("near")}),
        "decontamination": {
            name: _found(planted, results[name]) for name in results if name.startswith("decontamination")
        },
        "removed": {name: results[name] for name in results if name.startswith(("exact", "lines", "spans"))},
    }


def _near_quality(planted: Planted, clusters: dict[str, list[int]]) -> dict[str, Any]:
    shingles = [shingle_hashes(text) for text in planted.texts]
    pairs = [(one, other, share, jaccard(shingles[one], shingles[other])) for one, other, share in planted.pairs]
    similar = np.array([similarity for *_, similarity in pairs])
    theory = 1 - (1 - similar**8) ** 14
    found: dict[str, Any] = {"theory": {"recall": _by_band(similar, theory)}}
    for name, cluster in clusters.items():
        met = np.array([cluster[one] == cluster[other] for one, other, *_ in pairs], float)
        by_edit = {
            f"{share:.0%}": [hit for hit, pair in zip(met, pairs, strict=True) if pair[2] == share] for share in EDITS
        }
        found[name] = {
            "recall": _by_band(similar, met),
            "recall_by_edited_words": {share: float(np.mean(hits)) for share, hits in by_edit.items()},
            **_precision(cluster, shingles),
        }
    return found


def _by_band(similar: np.ndarray, met: np.ndarray) -> dict[str, float]:
    bands = {f"{low:.1f}-{min(high, 1):.1f}": (similar >= low) & (similar < high) for low, high in SIMILAR}
    return {name: float(met[band].mean()) for name, band in bands.items() if band.any()}


def _precision(cluster: list[int], shingles: list[np.ndarray]) -> dict[str, float]:
    """Of the documents that another stands for: the share with a document in the cluster that similar."""
    members: dict[int, list[int]] = {}
    for row, first in enumerate(cluster):
        members.setdefault(first, []).append(row)
    nearest = []
    for row, first in enumerate(cluster):
        if row != first:
            others = [other for other in members[first][:MOST_MEMBERS] if other != row]
            nearest.append(max(jaccard(shingles[row], shingles[other]) for other in others))
    best = np.array(nearest)
    return {
        "removed": len(best),
        "precision_0.7": float((best >= 0.7).mean()),
        "precision_0.5": float((best >= 0.5).mean()),
    }


def _found(planted: Planted, result: list[int]) -> dict[str, float]:
    """`result`: rows (peers), or a reason for every row (ours)."""
    rows = {row for row, reason in enumerate(result) if reason} if len(result) == len(planted.texts) else set(result)
    as_is = [row in rows for row, share in planted.contaminated.items() if share == 0]
    altered = [row in rows for row, share in planted.contaminated.items() if share > 0]
    return {
        "recall_as_it_is": float(np.mean(as_is)),
        "recall_10%_of_words_altered": float(np.mean(altered)),
        "precision": len(rows & planted.contaminated.keys()) / max(len(rows), 1),
    }


def run(quick: bool = False) -> dict[str, Any]:
    """Compare and print tables; written to results/refinery_duplicates.json unless quick."""
    figures = compare(quick)
    speed, ratio = figures["megabytes_per_cpu_second"], figures["ratio"]
    rates = [
        [name, speed[name], figures["documents_per_cpu_second"][name], ratio.get(name, 1.0)] for name in sorted(speed)
    ]
    print(table(["work", "MB / CPU s", "documents / CPU s", "ours is x faster"], rates))
    near = figures["near"]
    bands = list(near["theory"]["recall"])
    rows = [
        [
            name,
            *near[name]["recall"].values(),
            near[name].get("removed", ""),
            near[name].get("precision_0.7", ""),
            near[name].get("precision_0.5", ""),
        ]
        for name in near
    ]
    print("\n" + table(["recall at similarity", *bands, "removed", "precision J>=.7", "J>=.5"], rows))
    rows = [[name, *values.values()] for name, values in figures["decontamination"].items()]
    print("\n" + table(["test items", "found as it is", "found altered", "precision"], rows))
    if not quick:
        print(f"written: {write('refinery_duplicates', figures)}")
    return figures


if __name__ == "__main__":
    run("--quick" in sys.argv)
