"""What `hornbook plan` prints: layouts in a table, phases and parts of a step."""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

from rich.text import Text

from hornbook.cli.result import columns
from hornbook.plan.search.layout_advice import verdict
from hornbook.plan.search.number_words import dollars, duration, short, step_time
from hornbook.plan.search.plan_result import Layout, Plan

BAR = 34
"""Characters of a bar as long as the device's memory."""
LEAST_BAR = 6
BAR_COLUMN = 3
LETTERS = {
    "weights": "W",
    "gradients": "G",
    "optimizer": "O",
    "activations": "A",
    "logits": "L",
    "temporaries": "T",
    "communication": "C",
    "runtime": "R",
}
COLORS = {
    "weights": "blue",
    "gradients": "cyan",
    "optimizer": "magenta",
    "activations": "green",
    "logits": "yellow",
    "temporaries": "red",
    "communication": "bright_blue",
    "runtime": "bright_black",
}
_BARS = re.compile(f"(?<= )[{''.join(LETTERS.values())}]+[.+]*(?=  )")
_LEGEND = re.compile(f"(?<=  )[{''.join(LETTERS.values())}](?= )")
_LEGEND_LINE = re.compile("|".join(f"  {letter} {name}" for name, letter in LETTERS.items()))
LEAST_NAME = 16
"""Characters of the layouts' column, into which long names are folded on a narrow terminal."""
GIB = 2**30


def plan_text(found: Plan, *, explain: bool = False, room: int | None = None) -> str:
    """The table for people; room: characters of a line, for which bars are made shorter and names folded."""
    device = found.cluster.device
    duration = "" if found.tokens is None else f", {short(found.tokens)} tokens"
    header = (
        f"{found.name}: {short(found.parameters)} parameters{duration}, {found.batch_tokens:,} tokens a step, "
        f"{found.cluster} of {device.memory:.0f} GiB"
    )
    rows = [["  layout", "micro", "recompute", "", "GiB", "step", "MFU", "time", "cost"]]
    layouts = [*found.layouts, *([] if found.missed is None else [found.missed])]
    rows += [_row(found, each) for each in layouts]
    if found.best.fits:
        rows[1][0] = f"> {found.best.name}{_precision(found, found.best)}"
    beside = max(map(len, columns(rows).splitlines()))
    width = BAR if room is None else max(min(room - beside, BAR), LEAST_BAR)
    for row, bar_text in zip(
        rows, ["memory", *(bar(each, device.memory_bytes, width) for each in layouts)], strict=True
    ):
        row[BAR_COLUMN] = bar_text
    legend = (
        [f"{letter} {name}" for name, letter in LETTERS.items()] + ["> best"] * found.best.fits + ["x does not fit"]
    )
    length = sum(map(len, legend)) + 2 * len(legend)
    parts = [legend] if room is None or length <= room else [legend[:4], legend[4:]]
    table = [columns(folded(rows, 0, room)), "", *("  " + "  ".join(each) for each in parts)]
    lines = ["", *found.reasons]
    rate = device.rate(found.best.precision) / 1e12
    shown = f"{rate:.3f}" if device.is_cpu else f"{rate:,.0f}"
    lines.append(
        f"Device: {shown} TFLOP/s in {found.best.precision}, {device.bandwidth:,.0f} GB/s of memory; {device.source}"
    )
    if found.anchor:
        lines.append(found.anchor)
    if found.price is not None:
        lines.append(price_text(found.price, found.price_source))
    elif not device.is_cpu and found.tokens is not None:
        lines.append(f"Price: none is known for {device.name}; --price DOLLARS sets that of a device-hour")
    lines += _explained(found) if explain else []
    return "\n".join(
        [wrapped(verdict(found), room), "", wrapped(header, room), "", *table, *(wrapped(each, room) for each in lines)]
    )


def price_text(price: float, source: str) -> str:
    """Where a cost comes from: `Price: $3.00 per device-hour (2026-05, ...)`."""
    return f"Price: ${price:.2f} per device-hour ({source}); change it with --price"


def folded(rows: Sequence[list[str]], column: int, room: int | None) -> list[list[str]]:
    """The rows of a table with cells of one column on several lines, where the table is wider than `room`."""
    over = 0 if room is None else max(map(len, columns(rows).splitlines())) - room
    if over <= 0:
        return list(rows)
    width = max(max(len(row[column]) for row in rows) - over, LEAST_NAME)
    found = list[list[str]]()
    for row in rows:
        first, *more = textwrap.wrap(row[column], width, subsequent_indent="    ") or [""]
        found.append([*row[:column], first, *row[column + 1 :]])
        found += [[*[""] * column, each, *[""] * (len(row) - column - 1)] for each in more]
    return found


def halved(rows: Sequence[list[str]], at: int, room: int | None) -> str:
    """The table, or where it is wider than `room` two: its first `at` columns, and the first one with the others."""
    text = columns(rows)
    if room is None or max(map(len, text.splitlines())) <= room:
        return text
    return f"{columns(folded([row[:at] for row in rows], 1, room))}\n\n{columns([[row[0], *row[at:]] for row in rows])}"


def wrapped(text: str, room: int | None) -> str:
    """A sentence on lines of `room` characters; a table, which has lines already, as it is."""
    if room is None or "\n" in text or len(text) <= room:
        return text
    return textwrap.fill(text, room, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _row(found: Plan, each: Layout) -> list[str]:
    """The cells of a layout; that of the bar is empty."""
    peak, seconds, cost = each.worst.peak.total, found.seconds(each), found.cost(each)
    return [
        ("  " if each.fits else "x ") + each.name + _precision(found, each),
        str(each.micro_batch),
        each.recompute,
        "",
        f"{peak / GIB:.1f}" if peak > GIB else f"{peak / GIB:.2f}",
        step_time(each.step.total) if each.fits else "OOM",
        f"{each.mfu:.0%}" if each.fits else "",
        duration(seconds) if seconds is not None and each.fits else "",
        dollars(cost) if cost is not None and each.fits else "",
    ]


def _precision(found: Plan, each: Layout) -> str:
    """The precision of a layout, where it tells layouts apart."""
    several = len({layout.precision for layout in found.layouts}) > 1 or each.precision == "float8"
    return f", {each.precision}" if several else ""


def bar(layout: Layout, capacity: int, width: int = BAR) -> str:
    """A letter for each part of the device's memory, up to its end; + for what is beyond."""
    peak, text = layout.worst.peak, ""
    done = 0
    for name, letter in LETTERS.items():
        done += getattr(peak, name)
        text += letter * (min(round(width * done / capacity), width) - len(text))
    return (text + "+" if done > capacity else text).ljust(width, ".")


def room() -> int | None:
    """Characters of a line of this terminal; None where stdout is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def colored(table: str) -> Text:
    """The table with bars in the colours of their legend."""
    by_letter = {letter: COLORS[name] for name, letter in LETTERS.items()}
    found = Text()
    first, *lines = table.splitlines()
    found.append(f"{first}\n", style="bold green" if first.startswith("Fits") else "bold red")
    for line in lines:
        legend = _LEGEND_LINE.match(line)
        at = 0
        for match in _BARS.finditer(line) if not legend else _LEGEND.finditer(line):
            found.append(line[at : match.start()])
            for letter in match[0]:
                found.append("█" if letter in by_letter else letter, style=by_letter.get(letter, "dim"))
            at = match.end()
        found.append(line[at:] + "\n")
    found.right_crop(1)
    return found


def _explained(found: Plan) -> list[str]:
    """Phases of the fullest rank, parts of a step, and what the figures rest on."""
    best = found.best
    worst = best.worst
    rows = [["GiB by phase", *worst.phases]]
    for name in LETTERS:
        sizes = [getattr(phase, name) for phase in worst.phases.values()]
        if any(sizes):
            rows.append([name, *(f"{size / GIB:.2f}" for size in sizes)])
    rows.append(["all", *(f"{phase.total / GIB:.2f}" for phase in worst.phases.values())])
    parts = ", ".join(f"{name} {step_time(value)}" for name, value in best.step if value)
    energy = found.kilowatt_hours(best)
    place = "disk" if best.parallel.offload.kind == "disk" else "host"
    fullest = f"stage {worst.rank} holds most, " if len(best.memory) > 1 else ""
    return [
        "",
        f"{best.name}: {fullest}the peak is in phase {worst.peak_phase!r}",
        columns(rows),
        *([f"{worst.elsewhere / GIB:.2f} GiB of it on the {place}"] if worst.elsewhere else []),
        f"a step: {parts}",
        f"{best.tokens_per_second:,.0f} tokens a second; {found.estimates} steps estimated, others ruled out by bounds",
        f"MFU {best.mfu:.1%} (pairs that see each other), {best.mfu_palm:.1%} (all pairs, PaLM); HFU {best.hfu:.1%}",
        *([f"energy {energy:,.0f} kWh of the devices"] if energy else []),
        *_upkeep(found),
    ]


def _upkeep(found: Plan) -> list[str]:
    """Failures, checkpoints and data."""
    upkeep, seconds = found.upkeep, found.seconds(found.best)
    if upkeep is None:
        return []
    failures, days = (None, None) if seconds is None else (upkeep.failures(seconds), upkeep.days(seconds))
    expected = "" if failures is None else f", {failures:.3g} in this run"
    whole = (
        ", so that no run ends" if not upkeep.goodput else "" if days is None else f", {duration(86400 * days)} in all"
    )
    stall, write, interval, restart = (
        duration(each)
        for each in (upkeep.stall_seconds, upkeep.write_seconds, upkeep.interval_seconds, upkeep.restart_seconds)
    )
    size = upkeep.checkpoint_bytes / GIB
    return [
        f"failures: one in {duration(upkeep.mtbf_seconds)}{expected}; as {upkeep.mtbf_source}",
        f"checkpoints of {size:.3g} GiB: one holds the loop {stall}, is written in {write}, best every {interval}",
        f"goodput {upkeep.goodput:.2%}{whole}: a restart takes {restart}; "
        f"the loader reads {upkeep.loader_rate / 1e6:.3g} MB/s",
    ]
