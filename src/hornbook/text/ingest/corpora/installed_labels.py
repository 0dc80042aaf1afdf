"""A labelled set that every Python installation carries: passages of its standard library, code or docstring.

`python -m hornbook.text.ingest.corpora.installed_labels FOLDER` writes `passages.jsonl`, for the recipe
`tiny-classify`.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

from hornbook.files.durable import write_atomic
from hornbook.text.ingest.corpora.installed import SOURCES, write_installed_corpus

LABELS = {"code": "code", "docstrings": "docstring"}
PASSAGE = (80, 400)
"""Characters of a passage, from the beginning of a paragraph."""


def write_passages(folder: Path, *, max_bytes: int = 3_000_000, seed: int = 0) -> Path:
    """Write `passages.jsonl`: id, text, label, in random order. Same installation, same bytes."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        write_installed_corpus(Path(scratch), max_bytes=max_bytes, seed=seed)
        for source in SOURCES:
            for line in (Path(scratch) / f"{source}.jsonl").read_text(encoding="utf-8").splitlines():
                document = json.loads(line)
                passages = [text[: PASSAGE[1]] for text in document["text"].split("\n\n") if len(text) >= PASSAGE[0]]
                for number, text in enumerate(passages):
                    rows.append({"id": f"{document['id']}#{number}", "text": text, "label": LABELS[source]})
    random.Random(seed).shuffle(rows)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "passages.jsonl"
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path


if __name__ == "__main__":
    print(write_passages(Path(sys.argv[1])))
