"""What a plan says of failures, saves and data."""

from typing import TYPE_CHECKING

from hornbook.cli.plan.numbers import seconds

if TYPE_CHECKING:
    from hornbook.plan.search.result import Plan


def upkeep_lines(found: "Plan") -> list[str]:
    """Three lines; none where nothing fits."""
    upkeep, whole = found.upkeep, found.seconds(found.best)
    if upkeep is None:
        return []
    expected = "" if whole is None else f", {upkeep.failures(whole):.3g} in this run"
    length = "" if whole is None else f", {seconds(86400 * upkeep.days(whole))} in all"
    stall, write, interval, restart = map(
        seconds, (upkeep.stall_seconds, upkeep.write_seconds, upkeep.interval_seconds, upkeep.restart_seconds)
    )
    size = upkeep.checkpoint_bytes / 2**30
    return [
        f"failures: one in {seconds(upkeep.mtbf_seconds)}{expected}; as {upkeep.mtbf_source}",
        f"checkpoints of {size:.3g} GiB: one holds the loop {stall}, is written in {write}, best every {interval}",
        f"goodput {upkeep.goodput:.2%}{length}: a restart takes {restart}; "
        f"the loader reads {upkeep.loader_rate / 1e6:.3g} MB/s",
    ]
