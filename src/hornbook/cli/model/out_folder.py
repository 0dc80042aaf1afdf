"""Model folders that appear complete or not at all, so that a killed export leaves no partial folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hornbook.errors import UsageError
from hornbook.files.durable import storage_errors, writing_folder


def check_free(out: Path) -> None:
    """Raise UsageError unless `out` does not exist or is an empty folder."""
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out}: the folder is not empty: choose another, or remove it first")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: it is a file: choose another name")


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A temporary folder to fill: renamed to `out` if the block succeeds, removed if it fails.

    What an earlier, killed attempt left is removed. Errors: UsageError if `out` is taken, StorageError.
    """
    check_free(out)
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with writing_folder(out) as partial:
        yield partial


@contextmanager
def new_model(out: Path, command: str, source: Path, report: dict[str, Any]) -> Iterator[Path]:
    """As `appearing`, for a model that `command` makes of `source`; `report["files"]` gets the bytes of each file."""
    from hornbook.run.start.lineage import write_lineage

    with appearing(out) as partial:
        yield partial
        write_lineage(partial, command, source)
        report["files"] = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}


def report_text(out: Path, files: dict[str, int], last: str) -> str:
    """The folder, its files with sizes, and a closing line."""
    width = max(map(len, files))
    lines = [f"{out}/", *(f"  {name:<{width}}  {size:>14,} bytes" for name, size in files.items())]
    return "\n".join([*lines, last])
