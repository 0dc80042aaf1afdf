"""What `hornbook prepare` finds of what was planted, and what it takes for it: precision and recall of each kind.

One corpus of seven languages (`planted_truth`), one recipe, one command. Every kind has look-alikes beside it. Needs
the extra `lang`, for lists of harmful terms are each for a language.

    python -m benchmarks.refinery.planted [--quick]
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.refinery.planted_truth import BOOKS, CATEGORIES, EDITS, LINES, PERSONAL, Doc, planted, rows_of, terms
from benchmarks.report import table, write

COUNT = 1000
NEAR = {"near_dedup": "", "near_dedup, wide": ", shingle = 2, bands = 50, rows = 4"}
"""The step as it is, and for copies that were edited more, at the price of time and of some that are none."""
EXCEPTIONS = ("", ', exceptions = ["exceptions.txt"]')
"""Of the harmful, run by run of `NEAR`."""
RECIPE = """
[text]
validation = 0
steps = [
  {{ kind = "boilerplate" }},
  {{ kind = "personal" }},
  {{ kind = "language", among = {among} }},
  {{ kind = "harmful", max_share = 0, lists = {{ {lists} }}, languages = {{ {spoken} }}{exceptions} }},
  {{ kind = "decontaminate", paths = ["items.jsonl"] }},
  {{ kind = "exact_dedup" }},
  {{ kind = "near_dedup"{near} }},
]
[text.sources.planted]
paths = ["documents.jsonl"]
"""
COPIES = ("exact copy", *(f"copy, {share:.0%} edited" for share in EDITS))
EXACT, DUPLICATES = "exact duplicate", ("exact duplicate", "near duplicate")
Score = dict[str, float | None]
Table = dict[str, dict[str, Score]]


def prepare(folder: Path, documents: list[Doc], items: list[str]) -> None:
    """The command in a folder, with each form of near duplicates."""
    _write_rows(folder / "documents.jsonl", list(rows_of(documents)))
    _write_rows(folder / "items.jsonl", [{"text": item} for item in items])
    named = _write_lists(folder) | {"among": json.dumps(list(BOOKS))}
    for number, (near, exceptions) in enumerate(zip(NEAR.values(), EXCEPTIONS, strict=True)):
        recipe = RECIPE.format(**named, near=near, exceptions=exceptions)
        (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
        command = [sys.executable, "-m", "hornbook", "prepare", "recipe.toml", "--out", f"data-{number}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3600, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")


def _write_lists(folder: Path) -> dict[str, str]:
    """Files of harmful terms and exceptions; returns how a recipe names the former."""
    lists, spoken = [], []
    for category, languages in terms().items():
        for language, found in languages.items():
            (folder / f"{category}.{language}.txt").write_text("\n".join(found) + "\n", encoding="utf-8")
        lists.append(f"{category} = {json.dumps([f'{category}.{language}.txt' for language in languages])}")
        spoken += [f'"{category}.{language}.txt" = ["{language}"]' for language in languages]
    spared = [phrase for each in LINES.values() for phrase in each.get("exceptions", ())]
    (folder / "exceptions.txt").write_text("\n".join(spared) + "\n", encoding="utf-8")
    return {"lists": ", ".join(lists), "spoken": ", ".join(spoken)}


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def results(data: Path, count: int) -> tuple[list[str], list[str]]:
    """(reason, text or "" where it was dropped) of each document, in the order of the input."""
    reasons, texts = [""] * count, [""] * count
    for path in (data / "signals").glob("*.parquet"):
        for row in pq.read_table(path, columns=["id", "reason"]).to_pylist():
            reasons[int(row["id"])] = row["reason"]
    for path in (data / "documents").rglob("*.parquet"):
        for row in pq.read_table(path, columns=["id", "text"]).to_pylist():
            texts[int(row["id"])] = row["text"]
    return reasons, texts


def score(hits: list[bool], false: int | None) -> Score:
    """Of what was planted, and of wrong finds beside it; None where these are not told from those of another kind."""
    return {
        "planted": len(hits),
        "precision": None if false is None else sum(hits) / max(1, sum(hits) + false),
        "recall": sum(hits) / max(1, len(hits)),
    }


def drops(documents: list[Doc], reasons: list[str]) -> dict[str, Score]:
    """Whole documents: test items."""
    wanted = dict.fromkeys(("test item", "test item, 10% altered"), lambda reason: "test item" in reason)
    return {kind: _dropped(documents, reasons, kind, rule) for kind, rule in wanted.items()}


def toxic(documents: list[Doc], reasons: list[str]) -> dict[str, Score]:
    """Whole documents: lines with a harmful term."""
    names = [category.replace("_", "-") for category in CATEGORIES]
    return {
        f"toxic: {name}": _dropped(documents, reasons, f"toxic: {name}", f"harmful: {name}".__eq__) for name in names
    }


def _dropped(documents: list[Doc], reasons: list[str], kind: str, rule: Callable[[str], bool]) -> Score:
    same = kind.partition(",")[0]
    hits = [rule(reason) for each, reason in zip(documents, reasons, strict=True) if each.kind == kind]
    others = zip(documents, reasons, strict=True)
    return score(hits, sum(rule(reason) for each, reason in others if each.kind.partition(",")[0] != same))


def copies(documents: list[Doc], reasons: list[str], step: str) -> dict[str, Score]:
    """A pair is found where one of it is dropped; what is dropped and is none of a pair is a wrong find."""
    pairs = [(row, each.other, each.kind) for row, each in enumerate(documents) if each.kind in COPIES]
    paired = {row for one, other, _ in pairs for row in (one, other)}
    found = {}
    for kind in COPIES:
        known = (EXACT,) if kind == COPIES[0] else DUPLICATES
        gone = [reason in known for reason in reasons]
        false = sum(gone[row] for row in range(len(documents)) if row not in paired)
        name = f"{kind}: {'exact_dedup' if kind == COPIES[0] else step}"
        found[name] = score([gone[row] or gone[other] for row, other, each in pairs if each == kind], false)
    return found


def lines(documents: list[Doc], texts: list[str]) -> dict[str, Score]:
    """Lines of hosts that stay: what a line became is right to the letter, or it is not."""
    hits: dict[str, list[bool]] = {}
    false: Counter[str] = Counter()
    for each, text in zip(documents, texts, strict=True):
        if each.lines and text:
            _judge(each, Counter(text.split("\n")), hits, false)
    judged = (*PERSONAL, "boilerplate")
    return {kind: score(found, false[kind] if kind in judged else None) for kind, found in sorted(hits.items())}


def _judge(host: Doc, left: Counter[str], hits: dict[str, list[bool]], false: Counter[str]) -> None:
    for kind, line, wanted in host.lines:
        if kind.startswith("boilerplate"):
            hits.setdefault(kind, []).append(line not in left)
        elif kind.partition(",")[0] in PERSONAL or kind == "invalid card":
            hits.setdefault(kind if kind != "invalid card" else "invalid card, left alone", []).append(wanted in left)
    strange = left - Counter(wanted for _, _, wanted in host.lines)
    for kind in PERSONAL:
        false[kind] += sum(f"<{kind.upper()}>" in line for line in strange.elements())
    gone = sum(line not in left for kind, line, _ in host.lines if kind.startswith("boilerplate"))
    false["boilerplate"] += len(host.lines) - left.total() - gone


def by_language(documents: list[Doc], measure: Callable[[list[Doc], list[int]], dict[str, Score]]) -> Table:
    """Kind -> language, and `all` -> score; `measure` gets some documents and their rows."""
    found: Table = {}
    for language in ("all", *BOOKS):
        rows = [row for row, each in enumerate(documents) if language in (each.language, "all")]
        place = {row: number for number, row in enumerate(rows)}
        part = [replace(documents[row], other=place.get(documents[row].other, -1)) for row in rows]
        for kind, values in measure(part, rows).items():
            found.setdefault(kind, {})[language] = values
    return found


def _judged(documents: list[Doc], reasons: list[str], texts: list[str], step: str) -> Table:
    """What is said of a run: everything of the first, copies and harmful terms of the other."""

    def measure(part: list[Doc], rows: list[int]) -> dict[str, Score]:
        some = [reasons[row] for row in rows]
        pairs, harmful = copies(part, some, step), toxic(part, some)
        if step != next(iter(NEAR)):
            return pairs | {f"{kind}, with exceptions": each for kind, each in harmful.items()}
        return pairs | drops(part, some) | harmful | lines(part, [texts[row] for row in rows])

    return by_language(documents, measure)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure, print and write results/refinery_planted.json unless quick."""
    documents, items = planted(COUNT // 10 if quick else COUNT)
    kinds: Table = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), documents, items)
        for number, step in enumerate(NEAR):
            reasons, texts = results(Path(folder) / f"data-{number}", len(documents))
            kinds |= _judged(documents, reasons, texts, step)
    size = sum(len(each.text.encode()) for each in documents)
    counts = {language: sum(each.language == language for each in documents) for language in BOOKS}
    figures = {"documents": len(documents), "megabytes": size / 1e6, "languages": counts, "kinds": kinds}
    rows = [[kind, *("" if each is None else each for each in found["all"].values())] for kind, found in kinds.items()]
    print(table(["kind", "planted", "precision", "recall"], rows))
    if not quick:
        print(f"written: {write('refinery_planted', figures)}")
    return figures


if __name__ == "__main__":
    run("--quick" in sys.argv)
