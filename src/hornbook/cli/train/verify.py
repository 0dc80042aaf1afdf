"""`hornbook verify | seal`: compare two runs bit for bit, check one for damage, or keep what proves what it was."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result
from hornbook.errors import Exit, UsageError, quoted
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
        return _checkup(check_run(RunDir(run_a), read_data=data))
    comparison = compare_runs(RunDir(run_a), RunDir(run_b))
    code = Exit.DONE if comparison.equal else Exit.INTEGRITY
    return Result(comparison.to_json(), describe_comparison(comparison), code)


def seal(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run that has ended; with --check, a seal.")],
    *,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder to write.")] = None,
    weights: Annotated[bool, typer.Option("--weights", help="With the newest checkpoint.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check a seal. Exit code 0 if whole, 3 if not.")] = False,
) -> Result:
    """Write recipe, environment, digests of the data, ledger, metrics and manifests of a run into one folder.

    Each file has its SHA-256 in SEAL.json, whose own SHA-256, the head, stands for all: it is what to keep or sign.
    """
    from hornbook.run.diagnose.seal_run import check_seal, seal_run

    if check:
        if out is not None or weights:
            raise UsageError("--check reads a seal: leave --out and --weights out")
        return _checkup(check_seal(run))
    if out is None:
        raise UsageError(f"hornbook seal {quoted(run)} needs --out FOLDER")
    made = seal_run(RunDir(run).must_exist(), out, weights=weights)
    size = sum(each["bytes"] for each in made["files"].values())
    text = f"{out}: {len(made['files']):,} files, {size:,} bytes\nhead {made['head']}"
    return Result({"seal": str(out), "head": made["head"], "files": len(made["files"]), "bytes": size}, text)


def _checkup(checkup: "Checkup") -> Result:
    """One line per check."""
    lines = [f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what:<14}  {finding.text}" for finding in checkup.findings]
    value = {"whole": checkup.ok, "findings": [vars(finding) for finding in checkup.findings]}
    text = "\n".join([*lines, "whole" if checkup.ok else "damaged"])
    return Result(value, text, Exit.DONE if checkup.ok else Exit.INTEGRITY)


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
