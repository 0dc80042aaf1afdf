"""`hornbook seal`: a folder that proves what a run was."""

from pathlib import Path
from typing import Annotated

import typer

from hornbook.cli.result import Result
from hornbook.cli.train.verify import describe_checkup
from hornbook.errors import Exit, UsageError, quoted
from hornbook.files.run_directory import RunDir


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
        checkup = check_seal(run)
        value = {"whole": checkup.ok, "findings": [vars(finding) for finding in checkup.findings]}
        return Result(value, describe_checkup(checkup), Exit.DONE if checkup.ok else Exit.INTEGRITY)
    if out is None:
        raise UsageError(f"hornbook seal {quoted(run)} needs --out FOLDER")
    made = seal_run(RunDir(run).must_exist(), out, weights=weights)
    size = sum(each["bytes"] for each in made["files"].values())
    text = f"{out}: {len(made['files']):,} files, {size:,} bytes\nhead {made['head']}"
    return Result({"seal": str(out), "head": made["head"], "files": len(made["files"]), "bytes": size}, text)
