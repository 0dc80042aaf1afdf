"""`hornbook doctor`: what this machine can do, or what is wrong with a run, and what to repair."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result
from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir

if TYPE_CHECKING:
    from hornbook.run.doctor.run_report import RunReport
    from hornbook.run.machine.checks import Check

WIDTH = 110
"""Columns of what is wrapped."""


def doctor(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run directory; without it, this machine is checked.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=1, help="Compute this step of the run again; name the first module that is not finite."),
    ] = None,
    folder: Annotated[Path, typer.Option(help="A folder on the disk to measure.")] = Path(),
    deep: Annotated[bool, typer.Option("--deep", help="Look for faulty hardware: products, memory, disk.")] = False,
    data: Annotated[Path | None, typer.Option(help="With --deep: token shards to compare with checksums.")] = None,
    all_data: Annotated[bool, typer.Option("--all-data", help="All of them, not three blocks.")] = False,
    uncordon: Annotated[bool, typer.Option("--uncordon", help="RUN may use all its slots again.")] = False,
) -> Result:
    """Check this machine: versions, devices, speed of arithmetic and of the disk. With RUN, say what happened to a run
    and what is wrong with it: the cause of its end, damage, common training issues, whether more training is worth it.

    Exit code 0 unless a check fails. Machine: 7 if it is only the disk, 8 if hardware is suspected, else 2. Run, by
    the first finding that fails: 3 damage, 4 memory, 5 diverged or nothing learned, 7 disk, 8 hang, 2 settings, 1 else.
    """
    if run is None:
        if step is not None:
            raise UsageError("--step belongs to a run: hornbook doctor RUN --step N")
        if uncordon or (not deep and (data is not None or all_data)):
            raise UsageError("--uncordon belongs to a run, --data and --all-data to --deep: hornbook doctor --deep")
        return _deep(folder, data, whole=all_data) if deep else _machine(folder)
    if deep or data is not None or all_data or (uncordon and step is not None):
        raise UsageError("with a run, give --step N or --uncordon; `hornbook doctor --deep` checks the machine")
    if uncordon:
        return _uncordon(RunDir(run).must_exist())
    if step is not None:
        from hornbook.run.diagnose.nonfinite import recompute

        found = recompute(RunDir(run), step)
        return Result(asdict(found), str(found), Exit.DONE if found.finite else Exit.DIVERGED)
    from hornbook.run.doctor.run_report import diagnose_run

    report = diagnose_run(RunDir(run))
    return Result(report.to_json(), describe(report), report.code)


def describe(report: "RunReport") -> str:
    """The story, the findings with their remedies, the verdict."""
    lines = [f"{report.run}: {report.status}, attempt {report.attempt}, step {report.step:,}, {report.tokens:,} tokens"]
    lines += [f"  {line}" for line in report.story]
    for finding in report.findings:
        lines += ["", f"{finding.severity:<4}  {finding.title}"]
        lines += _wrapped(finding.evidence, "      ") + _wrapped(finding.explanation, "      ")
        lines += _wrapped(f"-> {finding.remedy}", "      ")
    if not report.findings:
        lines += ["", "ok    nothing is wrong"]
    if report.not_judged:
        lines += ["", *_wrapped(f"not judged: {'; '.join(report.not_judged)}", "")]
    lines += ["", *_wrapped(f"convergence: {report.convergence.verdict}: {report.convergence.text}", "")]
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False) or [indent]


def _machine(folder: Path) -> Result:
    from hornbook.run.machine.checks import diagnose

    return _table(diagnose(folder))


def _deep(folder: Path, data: Path | None, *, whole: bool) -> Result:
    from hornbook.run.machine.deep.machine import examine

    return _table(examine(folder, data, whole=whole))


def _table(checks: "Sequence[Check]") -> Result:
    from hornbook.run.machine.checks import worst

    lines = []
    for check in checks:
        lines.append(f"{check.verdict:<4}  {check.name:<11}  {check.text}")
        if check.remedy:
            lines.append(f"{'':<19}-> {check.remedy}")
    value = {"verdict": worst(list(checks)), "checks": [asdict(check) for check in checks]}
    return Result(value, "\n".join(lines), _code(checks))


def _code(checks: "Sequence[Check]") -> Exit:
    from hornbook.run.machine.deep.machine import hardware_faults

    failed = {check.name for check in checks if check.verdict == "fail"}
    if hardware_faults(checks):
        return Exit.HARDWARE
    if "data" in failed:
        return Exit.INTEGRITY
    return Exit.DONE if not failed else Exit.STORAGE if failed <= {"disk", "read-back"} else Exit.USAGE


def _uncordon(run: RunDir) -> Result:
    from hornbook.run.machine.deep.cordon import CordonList

    lifted = CordonList(run.cordon).lift()
    text = "\n".join(f"slot {each.slot} may be used again ({each.test}: {each.evidence})" for each in lifted)
    return Result({"lifted": [each.model_dump() for each in lifted]}, text or f"{run.path}: no slot was left out")
