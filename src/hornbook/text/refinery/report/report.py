"""The receipt of prepare: a page with the funnel, examples of each reason and its precision; and a data card."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hornbook.errors import IntegrityError, quoted
from hornbook.files.artifact import read_json
from hornbook.text.config.text import TextConfig
from hornbook.text.refinery.bias.bias import MentionReport, read_bias
from hornbook.text.refinery.pipeline.decide import EXAMPLES, KEPT
from hornbook.text.refinery.pipeline.folder import FUNNEL, QUARANTINE, read_manifest, read_text_config, skipped_rows
from hornbook.text.refinery.pipeline.funnel import Funnel, SourceFunnel, Tally
from hornbook.text.refinery.pipeline.plan import FIELDS
from hornbook.text.refinery.report.reviews import Example, Precision, precisions, read_examples
from hornbook.text.refinery.report.sections import BIAS_CSS, bias_card, bias_page, curves_page, table

_CSS = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
_DAMAGED = "damaged: "
_MARKS, _CELL = frozenset("|<>&[]()`*_\\!"), 100


@dataclass(frozen=True, slots=True)
class Receipt:
    """The data of the page and the card."""

    data: Path
    config: TextConfig
    funnel: Funnel
    examples: list[Example]
    precisions: dict[str, Precision]
    known: dict[str, dict[str, int]]
    """Licence and date: value -> kept documents."""
    inputs: list[dict[str, Any]]
    bias: list[MentionReport]


def read_receipt(data: Path) -> Receipt:
    """Read the data. Raises UsageError where prepare has not finished, IntegrityError where its files are damaged."""
    config, manifest, funnel = read_text_config(data), read_manifest(data), read_json(data / FUNNEL)
    if manifest is None or not isinstance(funnel, dict):
        raise IntegrityError(f"{data / FUNNEL} is damaged; prepare again with --overwrite")
    return Receipt(
        data,
        config,
        Funnel.from_json(funnel),
        [*read_examples(data), *_damaged(data)],
        precisions(data),
        {name: _counts(data, name) for name in FIELDS if name != "url"},
        manifest["inputs"],
        read_bias(data, config.steps),
    )


def _damaged(data: Path) -> list[Example]:
    """The first damaged rows of each reason; nobody judges them. Raises IntegrityError."""
    found: dict[str, list[Example]] = {}
    try:
        for row in skipped_rows(data):
            reason = _DAMAGED + row["reason"].partition(":")[0]
            if len(rows := found.setdefault(reason, [])) < EXAMPLES:
                text, origin = f"{row['reason']}\n\n{row['excerpt']}", f"{row['file']}:{row['line']}"
                rows.append(Example(reason, row["source"], "", origin, "", row["bytes"], text))
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise IntegrityError(f"{data / QUARANTINE} is damaged ({error}); prepare again with --overwrite") from error
    return [row for rows in found.values() for row in rows]


def _counts(data: Path, column: str) -> dict[str, int]:
    """Value -> kept documents; "unknown" where there is none. Of dates the years."""
    found: dict[str, int] = {}
    for path in sorted((data / "documents").rglob("*.parquet")):
        values = pq.read_table(path, columns=[column])[column]
        for each in values.value_counts().to_pylist():
            name = each["values"] if each["values"] is not None else "unknown"
            name = name[:4] if column == "date" and name != "unknown" else name
            found[name] = found.get(name, 0) + each["counts"]
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def page(receipt: Receipt) -> str:
    """The receipt as one self-contained HTML file."""
    total, sources = receipt.funnel.total(), receipt.funnel.sources
    if len(sources) > 1:
        sources = {**sources, "all sources": total}
    reasons = sorted({each.reason for each in receipt.examples}, key=lambda reason: (reason == KEPT, reason))
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(receipt.data.name)}: receipt</title>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    parts = [
        f"{head}{view}<style>{_CSS}{BIAS_CSS if receipt.bias else ''}</style>",
        f"<h1>What became of the text in {escape(str(receipt.data.name))}</h1>",
        f"<p>{total.read.rows:,} rows were read, {total.kept.rows:,} documents are left "
        f"({total.kept.rows / max(total.read.rows, 1):.1%}), {total.text_bytes:,} bytes of text.</p>",
        *(_source(name, source) for name, source in sources.items()),
        "<h2>Rules and examples</h2>",
        f'<p class="note">Up to {EXAMPLES} documents of each rule, chosen at random (fixed by hash). Judge them with '
        f"<code>hornbook prepare review {escape(quoted(receipt.data))}</code>; "
        f"precision appears here once they are judged. Of damaged rows, the first {EXAMPLES} of each kind.</p>",
        *(_rule(reason, receipt) for reason in reasons),
        curves_page(receipt.data, receipt.config.steps),
        *bias_page(receipt.bias),
        "<h2>Licences and dates</h2>",
        *(
            table((name, "documents"), [(escape(value), f"{n:,}") for value, n in list(counts.items())[:20]])
            for name, counts in receipt.known.items()
        ),
    ]
    return "\n".join(parts) + "\n"


def _source(name: str, source: SourceFunnel) -> str:
    changes = [(escape(counter), *map("{:,}".format, counts)) for counter, counts in sorted(source.changed.items())]
    edits = table(("changed", "documents", "changes (cut: bytes)"), changes) if changes else ""
    header = "", "rows", "share", "bytes", "share", ""
    return f"<h2>{escape(name)}</h2>{table(header, _lines(source))}{edits}"


def _lines(source: SourceFunnel) -> Iterator[tuple[str, ...]]:
    for name, tally in [("read", source.read), *_removed(source), (KEPT, source.kept)]:
        share = _bytes_share(tally, source)
        bar = f'<div class="bar"><i class="{"kept" if name == KEPT else ""}" style="width:{share:.2%}"></i></div>'
        rows = tally.rows / max(source.read.rows, 1)
        yield escape(name), f"{tally.rows:,}", f"{rows:.1%}", f"{tally.bytes:,}", f"{share:.1%}", bar


def _bytes_share(tally: Tally, source: SourceFunnel) -> float:
    return tally.bytes / max(source.read.bytes, 1)


def _removed(source: SourceFunnel) -> list[tuple[str, Tally]]:
    """Why rows were damaged or dropped; the reasons with most bytes first."""
    damaged = {_DAMAGED + reason: tally for reason, tally in source.quarantined.items()}
    return sorted({**damaged, **source.dropped}.items(), key=lambda item: (-item[1].bytes, -item[1].rows, item[0]))


def _rule(reason: str, receipt: Receipt) -> str:
    shown = [example for example in receipt.examples if example.reason == reason]
    said = ""
    if (precision := receipt.precisions.get(reason)) is not None:
        low, high = precision.interval
        judged = precision.right + precision.wrong
        said = f": right in {precision.share:.0%} of {judged} judged ({low:.0%} to {high:.0%})"
    texts = "".join(
        f'<p class="note">{escape(each.source)}, {escape(each.origin)}, {each.bytes:,} bytes</p>'
        f"<pre>{escape(each.text)}</pre>"
        for each in shown
    )
    count = "1 example" if len(shown) == 1 else f"{len(shown)} examples"
    return f"<details><summary>{escape(reason)}{said} ({count})</summary>{texts}</details>"


def card(receipt: Receipt) -> str:
    """A data card in Markdown, for the readers of the trained model's card."""
    total, config = receipt.funnel.total(), receipt.config
    lines = [
        f"# Data card: {receipt.data.name}",
        "",
        f"{total.kept.rows:,} documents, {total.text_bytes:,} bytes of UTF-8 text, from {total.read.rows:,} rows "
        f"in {len(receipt.inputs):,} files.",
        "",
        "## Sources",
        "",
        "| source | files | rows read | documents kept | share kept | bytes kept |",
        "|---|--:|--:|--:|--:|--:|",
        *(
            f"| {name} | {each.files:,} | {each.read.rows:,} | {each.kept.rows:,} "
            f"| {each.kept.rows / max(each.read.rows, 1):.1%} | {each.text_bytes:,} |"
            for name, each in receipt.funnel.sources.items()
        ),
        "",
        "## What was done to it",
        "",
        *(f"{number}. `{_settings(step)}`" for number, step in enumerate(config.steps, start=1)),
        "",
        "## What was removed",
        "",
        "| reason | rows | share of rows | bytes | share of bytes | judged precision |",
        "|---|--:|--:|--:|--:|--:|",
        *(
            f"| {reason} | {tally.rows:,} | {tally.rows / max(total.read.rows, 1):.2%} | {tally.bytes:,} "
            f"| {_bytes_share(tally, total):.2%} | {_said(receipt, reason)} |"
            for reason, tally in _removed(total)
        ),
        "",
        *_facts("Licences", receipt.known["licence"]),
        *_facts("Years", receipt.known["date"]),
        *bias_card(receipt.bias),
        "## Not known",
        "",
        "Who is in the text and agreed to it, and what the rules missed: `hornbook prepare review` samples the latter.",
        "",
    ]
    return "\n".join(lines)


def _settings(step: Any) -> str:
    values = step.model_dump(exclude_defaults=True, exclude={"kind", "name"})
    return ", ".join([step.label, *(f"{key} = {value}" for key, value in values.items())])


def _said(receipt: Receipt, reason: str) -> str:
    found = receipt.precisions.get(reason)
    if reason.startswith(_DAMAGED):
        return ""
    return "not judged" if found is None else f"{found.share:.0%} of {found.right + found.wrong}"


def _facts(title: str, counts: Mapping[str, int]) -> list[str]:
    rows = [f"| {_plain(value)} | {count:,} |" for value, count in list(counts.items())[:30]]
    return [f"## {title}", "", "| | documents |", "|---|--:|", *rows, ""]


def _plain(value: str) -> str:
    """Metadata of a document as one cell: one line, with all marks of Markdown and HTML escaped."""
    line = "".join(char if char.isprintable() else " " for char in value[:_CELL])
    return "".join(f"&#{ord(char)};" if char in _MARKS else char for char in line)
