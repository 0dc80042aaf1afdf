"""`hornbook prepare perplexity`: train an n-gram model of good text; a refinery step scores documents with it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hornbook.cli.result import Result


def perplexity(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")],
    good: Annotated[list[str], typer.Option("--good", metavar="PATH", help="Files of good text; may be repeated.")],
    order: Annotated[int, typer.Option("--order", min=2, max=8, help="Length of the longest n-grams, in bytes.")] = 7,
    megabytes: Annotated[
        int, typer.Option("--megabytes", min=1, help="Most text read: a uniform sample of the documents.")
    ] = 64,
    ngrams: Annotated[
        int, typer.Option("--ngrams", min=100_000, help="Most n-grams kept, 17 bytes each; the rarest are dropped.")
    ] = 4_000_000,
) -> Result:
    """Train an n-gram model of bytes on good text, and measure its bits per byte on documents it was not trained on.

    Use it as a step: {kind = "perplexity", model = "FILE", maximum = 2.4} drops documents with more bits per byte.
    """
    from hornbook.cli.prepare.classifier import sample_texts
    from hornbook.text.refinery.scores.perplexity_train import train

    model, report = train(sample_texts("--good", good), order, megabytes * 1_000_000, ngrams)
    model.save(out)
    lines = [
        f"{out}: {report.ngrams:,} n-grams of up to {order} bytes, of {report.documents:,} documents "
        f"({report.bytes / 1e6:,.1f} MB); those of three and more occur at least {report.least} times",
        f"bits per byte of {report.held_out:,} held-out documents:",
        *(f"  {share:2d} % at most {bits:.3f}" for share, bits in report.percentiles.items()),
    ]
    return Result({"model": str(out), "order": order, **asdict(report)}, "\n".join(lines))
