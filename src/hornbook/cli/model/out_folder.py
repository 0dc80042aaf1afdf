"""A folder that appears at once or not at all, so that a killed export leaves nothing half done under its name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hornbook.errors import UsageError
from hornbook.files.durable import storage_errors, writing_folder


def check_free(out: Path) -> None:
    """UsageError unless `out` is missing or an empty folder."""
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out}: it is not empty; choose another folder, or remove it first")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: it is a file; choose another name")


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `out` when the block ends well and vanishes when it does not.

    What an earlier, killed attempt left is removed. Errors: UsageError if `out` is taken, StorageError.
    """
    check_free(out)
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with writing_folder(out) as partial:
        yield partial


def file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file, by name."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def report_text(out: Path, files: dict[str, int], last: str) -> str:
    """The folder, its files with sizes, and a closing line."""
    width = max(map(len, files))
    lines = [f"{out}/", *(f"  {name:<{width}}  {size:>14,} bytes" for name, size in files.items())]
    return "\n".join([*lines, last])
