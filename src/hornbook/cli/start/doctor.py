"""`hornbook doctor`: what this machine can do, and what to repair."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hornbook.cli.result import Result
from hornbook.errors import Exit


def doctor(
    folder: Annotated[Path, typer.Option(help="A folder on the disk to measure.")] = Path(),
) -> Result:
    """Check this machine: versions, devices, speed of arithmetic and of the disk.

    Exit code 0 unless a check fails: 7 if it is only the disk, otherwise 2.
    """
    from hornbook.run.diagnose.doctor import diagnose, worst

    checks = diagnose(folder)
    verdict = worst(checks)
    lines = []
    for check in checks:
        lines.append(f"{check.verdict:<4}  {check.name:<11}  {check.text}")
        if check.remedy:
            lines.append(f"{'':<19}-> {check.remedy}")
    failed = [check.name for check in checks if check.verdict == "fail"]
    code = Exit.DONE if not failed else Exit.STORAGE if failed == ["disk"] else Exit.USAGE
    return Result({"verdict": verdict, "checks": [asdict(check) for check in checks]}, "\n".join(lines), code)
