"""Who is mentioned with what, as a part of the receipt's page and of the data card."""

from collections.abc import Iterator
from html import escape

from hornbook.text.refinery.bias.bias import (
    MentionReport,
    Shift,
    SourceMentions,
    nothing_stands_out,
    shares,
    standing_out,
)

STYLE = """
table.bias td:nth-child(2), table.bias th:nth-child(2) { text-align: left; }
table.bias td:last-child { width: 14rem; }
.pmi { position: relative; background: #e9edf4; height: .7rem; }
.pmi i, .pmi b, .pmi u { position: absolute; height: 100%; }
.pmi i { background: #3566b8; } .pmi b { width: 3px; background: #b86a20; }
.pmi u { top: 43%; height: 14%; background: #1c2430; }
@media (prefers-color-scheme: dark) { .pmi { background: #222934; } .pmi u { background: #dde3ec; } }
"""
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
    header = "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(map(_row, pairs[:_SHOWN]))
    more = f'<p class="note">{len(pairs) - _SHOWN} more: hornbook prepare bias</p>' if len(pairs) > _SHOWN else ""
    return f'<p>{said}.</p><table class="bias"><tr>{header}</tr>{rows}</table>{more}'


def _row(pair: Shift) -> str:
    now, before = pair.now, pair.before
    times, expected, interval = "rare", "", ""
    if now:
        times, expected = f"{now.together:,}", f"{now.expected:,.1f}"
        interval = f"{now.pmi:+.2f} ({now.low:+.2f} to {now.high:+.2f})"
    was = f"{before.pmi:+.2f}" if before else "rare"
    cells = (escape(pair.group), escape(pair.attribute), times, expected, was, interval, _bar(pair))
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _bar(pair: Shift) -> str:
    parts = []
    if now := pair.now:
        parts = [_stretch("i", min(now.pmi, 0.0), max(now.pmi, 0.0)), _stretch("u", now.low, now.high)]
    if pair.before:
        parts.append(f'<b style="left:{_place(pair.before.pmi):.1%}"></b>')
    return f'<div class="pmi">{"".join(parts)}</div>'


def _stretch(tag: str, low: float, high: float) -> str:
    return f'<{tag} style="left:{_place(low):.1%};width:{_place(high) - _place(low):.1%}"></{tag}>'


def _place(bits: float) -> float:
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
            now = pair.now
            was = f"{pair.before.pmi:+.2f}" if pair.before else "rare"
            said = (
                (f"{now.together:,}", f"{now.expected:,.1f}", was, f"{now.pmi:+.2f}") if now else ("rare", "", was, "")
            )
            yield f"| {pair.group} | {pair.attribute} | {' | '.join(said)} |"
        yield ""
