"""Sections of the receipt's page that are tables of measurements: thresholds, and who is mentioned with what."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import pyarrow.parquet as pq

from hornbook.errors import HornbookError
from hornbook.text.config.step import StepConfig
from hornbook.text.refinery.bias.bias import (
    MentionReport,
    Shift,
    SourceMentions,
    nothing_stands_out,
    shares,
    standing_out,
)
from hornbook.text.refinery.scores.curve import around, curve, curve_table, read_signals, thresholds
from hornbook.text.refinery.step import Decision, build

BIAS_CSS = Path(__file__).with_name("bias.css").read_text(encoding="utf-8")
_MOST_ROWS = 2_000_000
"""Documents whose columns a page reads; of more, `prepare curve` reads those of one step."""
_SHOWN, _IN_CARD = 15, 5
_RULE = "|---|---|--:|--:|--:|--:|"
_LEAST, _MOST = -1.0, 3.0
"""Ends of the bars, in bits."""
_MEANING = (
    "PMI (pointwise mutual information) says how much more often an attribute stands near a group than near all groups "
    "taken together: +1 is twice as often, 0 is alike. It is association in this text; whether that is true of the "
    "world, or does harm, it does not say. Listed is what stands out, now or before: where the 95 % interval, with "
    "documents as the sample, is above 0. Of forty pairs that only chance moves, one does."
)
_BARS = (
    f"Bars: blue from 0 to PMI, the line its interval, orange where it was before; from {_LEAST:+.0f} to {_MOST:+.0f}."
)


def table(header: Sequence[str], rows: Iterable[Iterable[str]], css: str = "") -> str:
    """A table in HTML; cells are HTML already."""
    cells = ["".join(f"<th>{name}</th>" for name in header)]
    cells += ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    opening = f'<table class="{css}">' if css else "<table>"
    return opening + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"


def curves_page(data: Path, configs: Sequence[StepConfig]) -> str:
    """Tables of what stays around today's thresholds, folded; "" where no step has one."""
    rows = sum(pq.ParquetFile(path).metadata.num_rows for path in (data / "signals").glob("*.parquet"))
    if rows > _MOST_ROWS:
        return ""
    try:
        steps = [step for step in build(configs).decisions if isinstance(step, Decision)]
        tables = [each for step in steps for each in _curves(data, configs, step)]
    except HornbookError as error:  # a model's file may be gone, an extra not installed
        tables = [f'<p class="note">They cannot be shown: {escape(str(error))}</p>']
    note = "What stays of the documents that come to a step, around today's value; other values: "
    head = ["<h2>Thresholds</h2>", f'<p class="note">{note}<code>hornbook prepare curve</code>.</p>']
    return "\n".join([*head, *tables]) if tables else ""


def _curves(data: Path, configs: Sequence[StepConfig], step: Decision) -> Iterator[str]:
    known = {key: now for key, now in thresholds(step).items() if now and getattr(step.config, key) is not None}
    if not known:
        return
    step, signals = read_signals(data, configs, step.name)
    for key, now in known.items():
        points = curve(step, signals, key, list(dict.fromkeys(around(now))))
        header, *rows = curve_table(points, now)
        shown = table(header, (tuple(map(escape, row)) for row in rows), "curve")
        yield f"<details><summary>{escape(step.name)}.{key} = {now:g}</summary>{shown}</details>"


def bias_page(reports: list[MentionReport]) -> Iterator[str]:
    """HTML; nothing where no step counted mentions."""
    if reports:
        yield "<h2>Who is mentioned with what</h2>"
        yield f'<p class="note">{_MEANING} {_BARS}</p>'
    for report in reports:
        near = f"<code>{escape(report.step)}</code>: terms <code>{escape(report.terms)}</code>; near is {report.near}"
        yield f"<h3>{near}</h3>"
        yield from (_of_source(report, source) for source in (report.sources[-1], *report.sources[:-1]))


def _of_source(report: MentionReport, source: SourceMentions) -> str:
    pairs = standing_out(source)
    said = f"{escape(source.name)}: {source.documents:,} documents mention {escape(shares(source))}"
    if not pairs:
        return f"<p>{said}; {nothing_stands_out(source)}.</p>"
    names = ("group", "with", "times", "expected", f"PMI {report.before}", "PMI now", "")
    more = f'<p class="note">{len(pairs) - _SHOWN} more: hornbook prepare bias</p>' if len(pairs) > _SHOWN else ""
    return f"<p>{said}.</p>{table(names, map(_row, pairs[:_SHOWN]), 'bias')}{more}"


def _row(pair: Shift) -> list[str]:
    times, expected, before, now = numbers(pair)
    interval = f" ({pair.now.low:+.2f} to {pair.now.high:+.2f})" if pair.now else ""
    return [escape(pair.group), escape(pair.attribute), times, expected, before, now + interval, _bar(pair)]


def numbers(pair: Shift) -> tuple[str, str, str, str]:
    """How often the pair occurs, how often it is expected to, its PMI before and now."""
    before = f"{pair.before.pmi:+.2f}" if pair.before else "rare"
    if (now := pair.now) is None:
        return "rare", "", before, ""
    return f"{now.together:,}", f"{now.expected:,.1f}", before, f"{now.pmi:+.2f}"


def _bar(pair: Shift) -> str:
    parts = []
    if now := pair.now:
        parts = [_span("i", min(now.pmi, 0.0), max(now.pmi, 0.0)), _span("u", now.low, now.high)]
    if pair.before:
        parts.append(f'<b style="left:{_position(pair.before.pmi):.1%}"></b>')
    return f'<div class="pmi">{"".join(parts)}</div>'


def _span(tag: str, low: float, high: float) -> str:
    left = _position(low)
    return f'<{tag} style="left:{left:.1%};width:{_position(high) - left:.1%}"></{tag}>'


def _position(bits: float) -> float:
    return (min(max(bits, _LEAST), _MOST) - _LEAST) / (_MOST - _LEAST)


def bias_card(reports: list[MentionReport]) -> Iterator[str]:
    """Lines of Markdown, of all sources together."""
    if reports:
        yield from ("## Who is mentioned with what", "", _MEANING, "")
    for report in reports:
        source = report.sources[-1]
        yield f"`{report.step}`, terms `{report.terms}`, near is {report.near}: documents mention {shares(source)}."
        pairs = standing_out(source)[:_IN_CARD]
        if pairs:
            yield from ("", f"| group | with | times | expected | PMI {report.before} | PMI now |", _RULE)
        for pair in pairs:
            yield f"| {pair.group} | {pair.attribute} | {' | '.join(numbers(pair))} |"
        yield ""
