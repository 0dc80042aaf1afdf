"""What every benchmark shares: facts of the machine, the file of results, plain tables and markdown."""

import datetime
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import cpus

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Facts that a figure depends on: processor, instruction set, cores, versions, date. No host name."""
    import torch

    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next(
            (line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line), model
        )
    facts: dict[str, Any] = {"processor": model, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    facts |= {"instruction_set": cpus.instruction_set(), "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    facts |= {"python": platform.python_version(), "torch": torch.__version__}
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def write(name: str, figures: dict[str, Any]) -> Path:
    """Write `benchmarks/results/NAME.json` with the machine's facts beside the figures; `NAME-avx2.json` if capped."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}{'-avx2' if cpus.kind() == 'avx2' else ''}.json"
    path.write_text(json.dumps({"machine": machine(), **figures}, indent=1) + "\n")
    return path


def show(name: str, figures: dict[str, Any], *, keep: bool = True) -> None:
    """Print the section of a page that these figures make; keep: also write the file of results."""
    from benchmarks.figures import writer_of

    print(*writer_of(name)(figures), sep="\n", flush=True)
    if keep:
        print(f"written: {write(name, figures)}")


def known(name: str) -> dict[str, Any]:
    """Figures on file that a machine like this one measured, on whatever day; else none."""
    path = RESULTS / f"{name}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    measured = found.pop("machine", {})
    return found if {**measured, "date": ""} == {**machine(), "date": ""} else {}


def machine_line(facts: dict[str, Any] | None) -> str:
    """Where and when figures were measured; what a file of results does not hold is said to be missing."""
    if facts is None:
        return "Machine not recorded."
    cores, threads = facts["cores"], facts["threads"]
    instructions = facts.get("instruction_set", "instruction set not recorded")
    date = facts.get("date", "date not recorded")
    return (
        f"Machine: {facts.get('gpu', facts['processor'])}; {instructions}; cores: {cores}, threads: {threads}; {date}."
    )


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as aligned text, numbers with four significant digits."""
    cells = [[_cell(value) for value in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def rows_of(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A markdown table."""
    cells = [[f"{value:,.4g}" if isinstance(value, float) else str(value) for value in row] for row in rows]
    return ["", *(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *cells)), ""]


def section(title: str, *lines: str) -> list[str]:
    """Lines under a heading."""
    return [f"## {title}", "", *lines]


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def with_range(value: Any) -> Any:
    """A value as it is; one of several rounds as `median (least to most)`."""
    return f"{value['median']:.3g} ({value['least']:.3g} to {value['most']:.3g})" if isinstance(value, dict) else value
