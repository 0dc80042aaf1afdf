"""`hornbook verify`: compare two runs bit for bit, or check one for damage."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir

if TYPE_CHECKING:
    from hornbook.run.doctor.check_run import Checkup
    from hornbook.run.doctor.compare_runs import Comparison


def verify(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run directory.")],
    run_b: Annotated[
        Path | None, typer.Argument(metavar="RUN_B", help="A second run; without it, RUN_A is checked for damage.")
    ] = None,
    data: Annotated[bool, typer.Option("--data", help="For one run: read all bytes of its token shards too.")] = False,
) -> Result:
    """Compare two runs bit for bit: tokens, losses, weights, moments. Exit code 0 if equal, 3 if different.

    With one run, check its ledger, checkpoints and data for damage. Exit code 0 if whole, 3 if damaged.
    """
    from hornbook.run.doctor.check_run import check_run
    from hornbook.run.doctor.compare_runs import compare_runs

    if run_b is None:
        checkup = check_run(RunDir(run_a), read_data=data)
        value = {"whole": checkup.ok, "findings": [vars(finding) for finding in checkup.findings]}
        return Result(value, describe_checkup(checkup), Exit.DONE if checkup.ok else Exit.INTEGRITY)
    comparison = compare_runs(RunDir(run_a), RunDir(run_b))
    code = Exit.DONE if comparison.equal else Exit.INTEGRITY
    return Result(comparison.to_json(), describe_comparison(comparison), code)


def describe_checkup(checkup: "Checkup") -> str:
    """One line per check."""
    lines = [f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what:<14}  {finding.text}" for finding in checkup.findings]
    return "\n".join([*lines, "whole" if checkup.ok else "damaged"])


def describe_comparison(comparison: "Comparison") -> str:
    """One line per part, and the first step at which the runs differ."""
    lines = []
    for part in comparison.parts:
        unit = "steps" if part.name in ("tokens", "losses", "norms") else "checkpoints"
        if not part.compared:
            text = f"no {unit} in common"
        elif part.different:
            text = f"{part.different:,} of {part.compared:,} {unit} differ; step {part.first:,}: {part.detail}"
        else:
            text = f"{part.compared:,} {unit} equal to the bit"
        lines.append(f"{part.name:<9}  {text}")
    if len(set(comparison.steps)) > 1:
        lines.append(f"one run has {comparison.steps[0]:,} steps, the other {comparison.steps[1]:,}")
    parted = comparison.parted
    return "\n".join([*lines, "equal" if parted is None else f"they part at step {parted.first:,} ({parted.name})"])
