"""Twenty small sets of real text, trained for many epochs: the guard has nothing to do in any of them.

Labels (sections, languages, sources), answers (titles and the paragraph that follows), conversations (several
paragraphs in turn) and preferences (the paragraph that follows over one of another document), of 100 to 10,000 rows.
"""

import gzip
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.reliability.guard.page import ACTIONS
from benchmarks.reliability.kill import finish, hornbook
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir

EPOCHS, LEAST_EPOCHS, MOST_SAMPLES = 20, 3, 12_000
"""Passes over a set; fewer over a large one, down to the least."""
SETS = (
    *(("languages", rows) for rows in (100, 1000, 4000)),
    *(("sources", rows) for rows in (100, 1099, 10_000)),
    *(("sections", rows) for rows in (200, 1000, 4000)),
    *(("answers", rows) for rows in (100, 300, 1000, 3000)),
    *(("conversations", rows) for rows in (100, 400, 1500)),
    *(("preferences", rows) for rows in (100, 300, 1000, 3000)),
)
SHAPE = ("--model.layers=2", "--model.width=64", "--model.heads=2", "--train.sequence=128", "--train.batch_tokens=2048")
RECIPES = {"answers": "sft-tiny", "conversations": "sft-tiny", "preferences": "dpo-tiny"}


def documents(texts: Path) -> Iterator[tuple[str, str, list[str]]]:
    """(source, section, paragraphs) of the documents in `texts`/*.jsonl.gz."""
    for path in sorted(texts.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                parts = [" ".join(part.split()) for part in row["text"].split("\n\n")]
                section = "/".join(row["id"].split("/")[:3])
                yield path.name.removesuffix(".jsonl.gz"), section, [part[:400] for part in parts if len(part) > 60]


def rows_of(kind: str, texts: Path, count: int) -> list[dict[str, Any]]:
    """So many rows of a set, in an order that a seed gives."""
    draw, whole = random.Random(kind), [each for each in documents(texts) if len(each[2]) > 3]
    draw.shuffle(whole)
    others = itertools.cycle(each[2][-1] for each in reversed(whole))

    def candidates() -> Iterator[dict[str, Any]]:
        for place in range(1, 60):
            for source, section, parts in whole:
                if place + 2 >= len(parts):
                    continue
                asked, answer = f"Continue: {parts[place - 1][:120]}", parts[place]
                if kind == "languages" and source.startswith("handbook-"):
                    yield {"text": answer, "label": source[-5:]}
                elif kind == "sources" and not source.startswith("handbook-"):
                    yield {"text": answer, "label": source}
                elif kind == "sections" and source.startswith("linux"):
                    yield {"text": answer, "label": section.split("/")[-1]}
                elif kind == "answers":
                    yield {"prompt": asked, "completion": answer}
                elif kind == "conversations":
                    turns = (asked, answer, "Go on.", parts[place + 1])
                    roles = itertools.cycle(("user", "assistant"))
                    yield {"messages": [{"role": next(roles), "content": turn} for turn in turns]}
                elif kind == "preferences":
                    yield {"prompt": asked, "chosen": answer, "rejected": next(others)}

    found = list(itertools.islice(candidates(), count))
    draw.shuffle(found)
    return found


def sets(folder: Path, texts: Path) -> dict[str, Any]:
    """What the guard did in each set, in its default mode."""
    base, rows = _base(folder, texts), list[dict[str, Any]]()
    for kind, count in SETS:
        place = folder / f"{kind}-{count}"
        place.mkdir()
        lines = rows_of(kind, texts, count)
        (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")
        epochs = max(min(EPOCHS, MOST_SAMPLES // len(lines)), LEAST_EPOCHS)
        rows.append({"set": kind, "rows": len(lines), "epochs": epochs, **_train(kind, place, base, epochs)})
        print(rows[-1], flush=True)
    return {"rows": rows}


def _base(folder: Path, texts: Path) -> Path:
    """A small model of these texts, for what is taught afterwards."""
    place = folder / "base"
    place.mkdir()
    pages = [parts for _, _, parts in itertools.islice(documents(texts), 3000)]
    (place / "pages.jsonl").write_text("".join(json.dumps({"text": "\n\n".join(page)}) + "\n" for page in pages))
    finish(hornbook("prepare", place / "pages.jsonl", "--out", place / "data"))
    finish(hornbook("tokenize", place / "data", "--vocab", "1024"))
    finish(hornbook("train", "tiny", "--data", place / "data", "--out", place / "run", *SHAPE, "--train.tokens=800k"))
    return place / "run"


def _train(kind: str, place: Path, base: Path, epochs: int) -> dict[str, Any]:
    recipe, data, run = RECIPES.get(kind, "tiny-classify"), place / "data", place / "run"
    tokenizer, begin, shape = ("--vocab", "1024"), (), (*SHAPE, "--data.objective.balance=false")
    if recipe in RECIPES.values():
        tokenizer, begin, shape = ("--tokenizer", str(base)), ("--from", str(base)), SHAPE
    finish(hornbook("prepare", recipe, place / "rows.jsonl", "--out", data))
    finish(hornbook("tokenize", data, *tokenizer))
    words = (*shape, f"--train.epochs={epochs}", "--eval.every=0")
    if kind == "preferences":
        finish(hornbook("reference", recipe, "--data", data, "--from", str(base), *words))
    finish(hornbook("train", recipe, "--data", data, "--out", run, *begin, *words))
    losses = [record["loss"] for record in read_records(RunDir(run).metrics)]
    kinds = [record["kind"] for record in read_records(RunDir(run).events) if record["kind"] in ACTIONS]
    return {"steps": len(losses), "first": losses[0], "last": losses[-1], "did": kinds}
