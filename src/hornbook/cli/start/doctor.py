"""`hornbook doctor`: what this machine can do, and what to repair."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result
from hornbook.errors import Exit, UsageError

if TYPE_CHECKING:
    from hornbook.run.diagnose.doctor import Check


def doctor(
    folder: Annotated[Path, typer.Option(help="A folder on the disk to measure.")] = Path(),
    deep: Annotated[bool, typer.Option("--deep", help="Look for faulty hardware: products, memory, disk.")] = False,
    data: Annotated[Path | None, typer.Option(help="With --deep: token shards to compare with checksums.")] = None,
    all_data: Annotated[bool, typer.Option("--all-data", help="All of them, not three blocks.")] = False,
    uncordon: Annotated[Path | None, typer.Option(help="A run that may use all its slots again.")] = None,
) -> Result:
    """Check this machine: versions, devices, speed of arithmetic and of the disk.

    Exit code 0 unless a check fails: 7 if it is only the disk, 8 if the hardware is suspected, otherwise 2.
    """
    from hornbook.run.diagnose.doctor import diagnose, worst

    if uncordon is not None:
        return _uncordon(uncordon)
    if (data is not None or all_data) and not deep:
        raise UsageError("--data and --all-data belong to --deep: `hornbook doctor --deep --data DATA`")
    if deep:
        from hornbook.run.diagnose.deep.machine import examine

        checks = examine(folder, data, whole=all_data)
    else:
        checks = diagnose(folder)
    verdict = worst(checks)
    lines = []
    for check in checks:
        lines.append(f"{check.verdict:<4}  {check.name:<11}  {check.text}")
        if check.remedy:
            lines.append(f"{'':<19}-> {check.remedy}")
    value = {"verdict": verdict, "checks": [asdict(check) for check in checks]}
    return Result(value, "\n".join(lines), _code(checks))


def _code(checks: "Sequence[Check]") -> Exit:
    from hornbook.run.diagnose.deep.machine import hardware_faults

    failed = {check.name for check in checks if check.verdict == "fail"}
    if hardware_faults(checks):
        return Exit.HARDWARE
    if "data" in failed:
        return Exit.INTEGRITY
    return Exit.DONE if not failed else Exit.STORAGE if failed <= {"disk", "read-back"} else Exit.USAGE


def _uncordon(run: Path) -> Result:
    from hornbook.files.run_directory import RunDir
    from hornbook.run.diagnose.deep.cordon import CordonList

    if not RunDir(run).exists():
        raise UsageError(f"{run} holds no run")
    lifted = CordonList(RunDir(run).cordon).lift()
    text = "\n".join(f"slot {each.slot} may be used again ({each.test}: {each.evidence})" for each in lifted)
    return Result({"lifted": [each.model_dump() for each in lifted]}, text or f"{run}: no slot was left out")
