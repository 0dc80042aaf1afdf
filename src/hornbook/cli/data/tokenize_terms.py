"""`hornbook tokenize terms`: find the words of a domain that a tokenizer splits."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result, columns
from hornbook.files.durable import write_atomic

if TYPE_CHECKING:
    from hornbook.text.ingest.skipped import SkippedRows
    from hornbook.text.tokenizer.compare.compare import TextSample


def terms(
    text: Annotated[str, typer.Argument(metavar="DATA|PATH", help="Text of the domain: a prepared folder, or files.")],
    tokenizer: Annotated[Path, typer.Option(metavar="TOKENIZER", help="A tokenizer.json, or its folder.")],
    general: Annotated[str, typer.Option(metavar="DATA|PATH", help="General text: terms must be rarer in it.")] = "",
    top: Annotated[int, typer.Option(min=1, help="Number of terms.")] = 100,
    least: Annotated[int, typer.Option(min=1, help="Minimum number of occurrences of a term.")] = 5,
    megabytes: Annotated[int, typer.Option(min=1, help="Megabytes read of each text.")] = 20,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the terms here, one per line, blanks included.")
    ] = None,
) -> Result:
    """Find the words of a domain that would save most tokens of its text if each were one token.

    `hornbook import CHECKPOINT --add-tokens FILE` adds them to a model, and `hornbook tokenize --compare` shows how
    much that saves.
    """
    from hornbook.text.ingest.skipped import SkippedRows
    from hornbook.text.tokenizer.compare.terms import mine_terms
    from hornbook.text.tokenizer.tokenizer import Tokenizer

    known = Tokenizer.load(tokenizer)
    skipped = SkippedRows()
    samples = list(_samples(text, megabytes * 1_000_000, skipped))
    others = list(_samples(general, megabytes * 1_000_000, skipped)) if general else []
    texts, general_texts = ([each for sample in part for each in sample.texts] for part in (samples, others))
    found = mine_terms(texts, known, general_texts, top=top, least=least)
    size = sum(sample.bytes for sample in samples)
    saved = sum(term.saved for term in found)
    if out is not None:
        write_atomic(out, "".join(f"{term.text}\n" for term in found))
    rows = [(repr(t.text), f"{t.count:,}", str(t.pieces), f"{t.saved:,}", f"{t.keyness:,.0f}") for t in found]
    table = columns([("term", "count", "tokens", "saved", "keyness"), *rows])
    note = f"{len(found)} terms would save {saved:,} tokens of {size:,} bytes"
    value = {"terms": [asdict(term) for term in found], "saved": saved, "bytes": size}
    return Result(value | skipped.to_json(), f"{table}\n{note}", notes=skipped.notes)


def _samples(text: str, most: int, skipped: "SkippedRows") -> "Iterator[TextSample]":
    from hornbook.text.refinery.pipeline.folder import MANIFEST
    from hornbook.text.tokenizer.compare.compare import sample_path, sample_prepared

    if (Path(text) / MANIFEST).exists():
        yield from sample_prepared(Path(text), most, held_out=False)
    else:
        yield sample_path(Path(text).name, text, most, skipped)
