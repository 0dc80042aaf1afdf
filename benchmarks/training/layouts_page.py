"""docs/layouts.md from benchmarks/results/layouts.json."""

from typing import Any

from benchmarks.report import rows_of, section
from tests.parallel.layouts import EVERY, FIGURES, LAYOUTS

TITLES = {
    "fp64": "float64: the largest relative difference of losses, norms, final weights and gradients (limit 1e-9)",
    "fp32": "float32: the largest relative difference of a loss (limit 1e-5)",
    "bf16": "bf16: differences of losses, norms and final weights as a share of their limits (the largest)",
}


def layouts(found: dict[str, Any]) -> list[str]:
    """The equality matrix."""
    states = [each["state"] for each in found["cells"].values()]
    told = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lines = section(
        "Every layout against one process",
        f"`python -m benchmarks.training.layouts`: {found['steps']} steps of five tiny models (vocabulary 97, 6 heads",
        "over 3 key-value heads, 5 blocks, inner width 45, rows of 25 tokens in two documents, 7 microbatches of",
        "unequal weight; dropout, clipping that bites, tied embeddings) on forked ranks of one thread, against one",
        "process: losses, gradient norms, final weights, and the gradient of every parameter after the first step.",
        "After each step ranks that hold the same part of a parameter hold the same bits, all tell the same loss and",
        "norm, and each microbatch was taken by one data rank. The limit in bf16 is three times what other orders of",
        "the same microbatches make in one process. `rounds`: tensor and context ranks round their parts of a sum,",
        "which no order of microbatches does; they are held against three times the distance of bf16 from float32 in",
        f"one process. Cells: {told}; what has no entry was not run, and * is of earlier code ({_old(found)} cells).",
        "",
    )
    for precision, title in TITLES.items():
        rows = [[name, *(_cell(found, name, family, precision) for family in EVERY)] for name in LAYOUTS]
        if rows := [row for row in rows if any(row[1:])]:
            lines += [f"### {title}", *rows_of(["", *EVERY], rows)]
    return [*lines, *_refused(found)]


def _old(found: dict[str, Any]) -> int:
    """Cells that were measured before the code of models, optimizers or ranks changed for the last time."""
    return sum(each["source"] != found["source"] for each in found["cells"].values())


def _cell(found: dict[str, Any], name: str, family: str, precision: str) -> str:
    cell = found["cells"].get(f"{name} | {family} | {precision}")
    if cell is None or cell["state"] in ("refused", "failed"):
        return "" if cell is None else cell["state"]
    difference, limits = cell["difference"], cell["limits"]
    if precision == "bf16":
        shown = f"{max(difference[figure] / most for figure, most in limits.items()):.2f}"
    else:
        shown = f"{max(difference[figure] for figure in FIGURES if figure in limits):.0e}"
    shown += "*" * (cell["source"] != found["source"])
    return {"equal": shown, "rounds": f"rounds: {shown}"}.get(cell["state"], f"DIFFERS: {shown}")


def _refused(found: dict[str, Any]) -> list[str]:
    """Layouts and families that no recipe may have, or that failed, by reason."""
    reasons: dict[str, list[str]] = {}
    for key, cell in found["cells"].items():
        layout, family, _ = key.split(" | ")
        if cell["reason"]:
            names = reasons.setdefault(f"{cell['state']}: {cell['reason']}", [])
            names += [] if f"{layout} ({family})" in names else [f"{layout} ({family})"]
    rows = [(reason, ", ".join(names)) for reason, names in reasons.items()]
    return ["### What is refused, and why", *rows_of(["", ""], rows)] if reasons else []


SECTIONS = (layouts, "overhead")
