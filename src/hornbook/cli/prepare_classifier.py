"""`hornbook prepare classifier`: a score trained on a user's own good and bad samples."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hornbook.cli.shell import Json, answer
from hornbook.errors import UsageError


def classifier(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The classifier to write.")],
    good: Annotated[list[str], typer.Option("--good", metavar="PATH", help="Files of good samples; may be repeated.")],
    bad: Annotated[list[str], typer.Option("--bad", metavar="PATH", help="Files of bad samples; may be repeated.")],
    words: Annotated[str, typer.Option("--words", metavar="whitespace|unicode|cjk", help="What a word is.")] = "cjk",
    as_json: Json = False,
) -> None:
    """Train a classifier of documents and say how well it does on samples that it did not learn from.

    Use it as a step: {kind = "classifier", model = "FILE", keep = "above", threshold = 0.5}.
    """
    from hornbook.text.refinery.classifier import train
    from hornbook.text.refinery.words import DEFINITIONS

    if words not in DEFINITIONS:
        raise UsageError(f"--words {words}: it is one of {', '.join(DEFINITIONS)}")
    model, report = train(_texts("--good", good), _texts("--bad", bad), words)
    model.save(out)
    text = (
        f"{out}: accuracy {report.accuracy:.1%}, area under the curve {report.auc:.3f} "
        f"on {report.good + report.bad:,} samples held out"
    )
    answer({"model": str(out), **asdict(report)}, text, as_json=as_json)


def _texts(option: str, paths: list[str]) -> list[str]:
    from hornbook.text.config import SourceConfig
    from hornbook.text.document import Document
    from hornbook.text.inputs import list_inputs
    from hornbook.text.readers import read_file
    from hornbook.text.rows import ReadOptions

    source = SourceConfig(paths=paths)
    options = ReadOptions.of(source)
    rows = (row for file in list_inputs(option.strip("-"), source) for row in read_file(file, options))
    return [row.text for row in rows if isinstance(row, Document)]
