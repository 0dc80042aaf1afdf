"""`hornbook prepare bias`: show which words occur near which groups of people."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result, columns
from hornbook.cli.shell import Data
from hornbook.errors import UsageError

if TYPE_CHECKING:
    from hornbook.text.refinery.bias.bias import MentionReport, Shift, SourceMentions


def bias(
    data: Data,
    top: Annotated[int, typer.Option(min=1, help="Maximum number of pairs per source; --json has all.")] = 10,
) -> Result:
    """Show which words occur near which groups of people more often than expected, by source and in total.

    Needs a step {kind = "mentions"} or {kind = "rebalance"}: it uses the counts of prepare and reads no text.
    PMI is in bits: +1 means twice as often as if the word occurred near all groups alike. It measures association in
    text, not harm.
    """
    from hornbook.text.refinery.bias.bias import read_bias
    from hornbook.text.refinery.pipeline.folder import read_text_config

    found = read_bias(data, read_text_config(data).steps)
    if not found:
        raise UsageError(
            f'{data}: no step counted mentions of groups; add {{kind = "mentions"}} to text.steps, after the '
            "edits, and prepare again"
        )
    value = {"data": str(data), "steps": [_as_json(each) for each in found]}
    return Result(value, "\n\n".join(_text(each, top) for each in found))


def _as_json(report: "MentionReport") -> dict[str, object]:
    sources = [
        {
            "source": source.name,
            "documents": source.documents,
            "mentions": source.mentions,
            "pairs": [asdict(pair) for pair in source.pairs],
            "before": [asdict(pair) for pair in source.before.values()],
        }
        for source in report.sources
    ]
    return {"step": report.step, "terms": report.terms, "near": report.near, "sources": sources}


def _text(report: "MentionReport", top: int) -> str:
    head = f"{report.step}: terms {report.terms}; near is {report.near}"
    return "\n\n".join([head, *(_of_source(report, source, top) for source in report.sources)])


def _of_source(report: "MentionReport", source: "SourceMentions", top: int) -> str:
    from hornbook.text.refinery.bias.bias import nothing_stands_out, shares, standing_out

    pairs = standing_out(source)
    head = f"{source.name}: {source.documents:,} documents mention {shares(source)}"
    if not pairs:
        return f"{head}\n{nothing_stands_out(source)}"
    header = ("group", "with", "times", "expected", f"PMI {report.before}", "now", "95 % interval")
    rows = [_row(pair) for pair in pairs[:top]]
    more = [f"and {len(pairs) - top} more: --top {len(pairs)}"] if len(pairs) > top else []
    return "\n".join([head, columns([header, *rows]), *more])


def _row(pair: "Shift") -> tuple[str, ...]:
    from hornbook.text.refinery.report.sections import numbers

    interval = f"{pair.now.low:+.2f} to {pair.now.high:+.2f}" if pair.now else ""
    return pair.group, pair.attribute, *numbers(pair), interval
