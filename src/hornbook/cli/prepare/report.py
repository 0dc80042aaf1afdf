"""`hornbook prepare report`: write the receipt as a page, and a data card."""

from pathlib import Path
from typing import Annotated

import typer

from hornbook.cli.result import Result
from hornbook.cli.shell import Data


def report(
    data: Data,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="By default DATA.")] = None,
) -> Result:
    """Write report.html (the funnel, and examples and precision of every rule) and DATA_CARD.md."""
    from hornbook.files.durable import write_atomic
    from hornbook.text.refinery.pipeline.folder import CARD, PAGE
    from hornbook.text.refinery.report.report import card, page, read_receipt

    receipt = read_receipt(data)
    folder = out or data
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / PAGE, page(receipt))
    write_atomic(folder / CARD, card(receipt))
    value = {"page": str(folder / PAGE), "card": str(folder / CARD)}
    return Result(value, f"{value['page']}\n{value['card']}")
