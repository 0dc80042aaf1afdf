"""Sections of the page of figures on the planner, each named as its file of results."""

from typing import Any

from benchmarks.report import rows_of, section


def plan_runs(found: dict[str, Any]) -> list[str]:
    """Our own runs on a CPU against their plans."""
    lines = section(
        "Plans and runs on a CPU",
        "`python -m benchmarks.plan.runs`: what the planner says of a run, and what the run measured, with one thread",
        "a rank and the rates that `hornbook bench` measured. Where other processes shared the machine the time is",
        "processor time. A CPU's six constants were fitted on decoders and encoders; encoder-decoders, experts,",
        "windows and latent attention are held out. Goals: memory within 5 %, time within 10 %.",
    )
    figures = [
        (what, *(f"{found[what][key]:.1%}" for key in ("median", "p90", "worst"))) for what in ("memory", "time")
    ]
    lines += rows_of(["error", "median", "90 of 100", "worst"], figures)
    rows = [[name, *map(_cell, row[:-2]), row[-1]] for name, *row in found["rows"]]
    return lines + rows_of(["configuration", "MiB planned", "measured", "", "ms planned", "measured", ""], rows)


def _cell(value: Any) -> Any:
    return f"{value:.0f}" if isinstance(value, float) else value


def plan_fsdp(found: dict[str, Any]) -> list[str]:
    """The scenario of PyTorch FSDP's paper."""
    lines = section(
        "T5 on 8 to 512 A100, simulated",
        "`python -m benchmarks.plan.fsdp`: TFLOP/s of a device as the planner simulates them, in the scenario of",
        "arXiv 2304.11277; nothing here was measured. Its out-of-memory rows are all as published",
        f"({found['points'] - len(found['memory_wrong'])} of {found['points']} points). Of its fall by "
        f"{found['published_drop']:.0%} for 11.3B, fully sharded, the planner explains {_explained(found)} (8 and 16",
        "rows): neither slow ranks nor a network that others use are in it.",
    )
    return lines + rows_of(found["header"], found["rows"])


def _explained(found: dict[str, Any]) -> str:
    """What it says of that fall, with 8 and 16 rows."""
    return " and ".join(f"{found['drops'][f'11.3B, full sharding, {rows} rows']:.1%}" for rows in (8, 16))


SECTIONS = (plan_runs, plan_fsdp)
