"""`hornbook prepare classifier | perplexity`: train a score of documents on samples of your own."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result
from hornbook.errors import UsageError

if TYPE_CHECKING:
    from hornbook.text.ingest.skipped import SkippedRows


def classifier(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")],
    good: Annotated[list[str], typer.Option(metavar="PATH", help="Files of good samples; may be repeated.")],
    bad: Annotated[list[str], typer.Option(metavar="PATH", help="Files of bad samples; may be repeated.")],
    words: Annotated[str, typer.Option(metavar="whitespace|unicode|cjk", help="How words are split.")] = "cjk",
) -> Result:
    """Train a classifier of documents, and measure it on samples it was not trained on.

    Use it as a step: {kind = "classifier", model = "FILE", keep = "above", threshold = 0.5}.
    """
    from hornbook.text.ingest.skipped import SkippedRows
    from hornbook.text.refinery.scores.classifier import train
    from hornbook.text.refinery.words.words import DEFINITIONS

    if words not in DEFINITIONS:
        raise UsageError(f"--words {words}: choose one of {', '.join(DEFINITIONS)}")
    skipped = SkippedRows()
    good_texts, bad_texts = list(_sample_texts("--good", good, skipped)), list(_sample_texts("--bad", bad, skipped))
    model, report = train(good_texts, bad_texts, words)
    model.save(out)
    text = (
        f"{out}: accuracy {report.accuracy:.1%}, area under the curve {report.auc:.3f} "
        f"on {report.good + report.bad:,} samples held out"
    )
    return Result({"model": str(out), **asdict(report), **skipped.to_json()}, text, notes=skipped.notes)


def perplexity(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")],
    good: Annotated[list[str], typer.Option(metavar="PATH", help="Files of good text; may be repeated.")],
    order: Annotated[int, typer.Option(min=2, max=8, help="Length of the longest n-grams, in bytes.")] = 7,
    megabytes: Annotated[int, typer.Option(min=1, help="Most text read: a uniform sample of the documents.")] = 64,
    ngrams: Annotated[
        int, typer.Option(min=100_000, help="Most n-grams kept, 17 bytes each; the rarest are dropped.")
    ] = 4_000_000,
) -> Result:
    """Train an n-gram model of bytes on good text, and measure its bits per byte on documents it was not trained on.

    Use it as a step: {kind = "perplexity", model = "FILE", maximum = 2.4} drops documents with more bits per byte.
    """
    from hornbook.text.ingest.skipped import SkippedRows
    from hornbook.text.refinery.scores.perplexity_train import train

    skipped = SkippedRows()
    model, report = train(_sample_texts("--good", good, skipped), order, megabytes * 1_000_000, ngrams)
    model.save(out)
    lines = [
        f"{out}: {report.ngrams:,} n-grams of up to {order} bytes, of {report.documents:,} documents "
        f"({report.bytes / 1e6:,.1f} MB); those of three and more occur at least {report.least} times",
        f"bits per byte of {report.held_out:,} held-out documents:",
        *(f"  {share:2d} % at most {bits:.3f}" for share, bits in report.percentiles.items()),
    ]
    value = {"model": str(out), "order": order, **asdict(report), **skipped.to_json()}
    return Result(value, "\n".join(lines), notes=skipped.notes)


def _sample_texts(option: str, paths: Sequence[str], skipped: "SkippedRows") -> Iterator[str]:
    """Texts of the documents in the files that `option` names; `skipped` counts rows that cannot be read.

    Raises UsageError for a file that does not exist.
    """
    from hornbook.text.config.text import SourceConfig
    from hornbook.text.ingest.document import ReadOptions
    from hornbook.text.ingest.inputs import list_inputs
    from hornbook.text.ingest.readers import read_file

    source = SourceConfig(paths=list(paths))
    options = ReadOptions.of(source)
    rows = (row for file in list_inputs(option.strip("-"), source) for row in read_file(file, options))
    return (document.text for document in skipped.documents(rows))
