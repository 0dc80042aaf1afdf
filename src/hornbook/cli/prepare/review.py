"""`hornbook prepare review`: people judge examples of each rule, which gives its precision."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Json, Result, columns
from hornbook.cli.shell import Data, people
from hornbook.errors import UsageError, quoted
from hornbook.progress import escape_controls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hornbook.text.refinery.report.reviews import Example, Precision

_KEYS = {"y": True, "n": False}


def review(
    data: Data,
    rule: Annotated[str, typer.Option(help="Only this reason; `kept` shows kept documents.")] = "",
    as_json: Json = False,
) -> Result:
    """Show documents that each rule dropped, and some that were kept, and ask whether that was right.

    Your answers are stored in DATA/reviews.jsonl. They stay when the folder is prepared again, and count wherever the
    same text is an example again. Without a terminal, only the results so far are printed.
    """
    from hornbook.text.refinery.report.reviews import judge, judged, precisions

    examples = judged(data)
    reasons = sorted({example.reason for example, _ in examples})
    if rule and rule not in reasons:
        raise UsageError(f"{data} has no examples of {rule!r}; it has {', '.join(reasons)}")
    if sys.stdin.isatty() and not as_json:
        open_ = [each for each, right in examples if right is None and (not rule or each.reason == rule)]
        for number, example in enumerate(open_, start=1):
            if (right := _ask(example, f"{number} of {len(open_)}")) is None:
                break
            judge(data, example, right)
    found = precisions(data)
    rules = {reason: {**asdict(each), "share": each.share, "interval": each.interval} for reason, each in found.items()}
    return Result({"data": str(data), "rules": rules}, _table(data, found))


def _ask(example: "Example", place: str) -> bool | None:
    """Ask whether the decision on an example was right; None: the person quits."""
    from rich.markup import escape
    from rich.panel import Panel

    kept = example.reason == "kept"
    question = "Was it right to keep this?" if kept else f"Was it right to drop this as {example.reason!r}?"
    title = f"{place}: {example.reason} - {example.source}, {example.origin}, {example.bytes:,} bytes"
    shown, title = (escape(escape_controls(text)) for text in (example.text, title))
    people().print(Panel(shown, title=title, title_align="left"))
    while True:
        said = typer.prompt(f"{question} [y]es, [n]o, [q]uit", err=True).strip().lower()[:1]
        if said in _KEYS:
            return _KEYS[said]
        if said == "q":
            return None


def _table(data: Path, precisions: "Mapping[str, Precision]") -> str:
    rows = [("rule", "judged", "right", "precision", "95 % interval")]
    for reason, each in precisions.items():
        low, high = each.interval
        judged = each.right + each.wrong
        rows.append((reason, f"{judged:,}", f"{each.right:,}", f"{each.share:.0%}", f"{low:.0%} to {high:.0%}"))
    if len(rows) == 1:
        return f"nothing is judged yet: run `hornbook prepare review {quoted(data)}` in a terminal"
    return columns(rows)
