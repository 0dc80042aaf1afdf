"""Model folders that appear complete or not at all, so that a killed export leaves no partial folder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.shell import say
from hornbook.errors import UsageError
from hornbook.files.durable import storage_errors, writing_folder

if TYPE_CHECKING:
    from hornbook.model.hf.certificate import Certificate

Certify = Annotated[
    bool, typer.Option("--certificate/--no-certificate", help="Compare the logits with those of transformers.")
]


def check_free(out: Path) -> None:
    """Raise UsageError unless `out` does not exist or is an empty folder."""
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out}: the folder is not empty: choose another, or remove it first")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: it is a file: choose another name")


@contextmanager
def new_model(
    out: Path, command: str, source: Path, report: dict[str, Any], more: Sequence[Path] = ()
) -> Iterator[Path]:
    """A folder to fill with the model that `command` makes of `source`; `report["files"]` gets the bytes of each file.

    more: further sources.

    It is renamed to `out` if the block succeeds, and removed if it fails; what an earlier, killed attempt left is
    removed too. Errors: UsageError if `out` is taken, StorageError.
    """
    from hornbook.run.checkpoints.lineage import write_lineage

    check_free(out)
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with writing_folder(out) as partial:
        yield partial
        write_lineage(partial, command, source, *more)
        report["files"] = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}


def tell_left_out(folder: Path, report: dict[str, Any]) -> dict[str, Any]:
    """The report with what of a model is not written, for other programs have no place for it; stderr says it too."""
    from hornbook.model.surgery.folders import left_out

    if found := left_out(folder):
        report["left_out"] = found
    if count := found.get("mtp_blocks"):
        what = f"{count} block{'s' * (count > 1)} of multi-token prediction (model.mtp)"
        say(f"left out: {what}, which only training and `hornbook generate --speculative` use")
    if "generator_blocks" in found:
        say("left out: the generator (model.head.generator), which only training uses")
    return report


def with_tokenizer(folder: Path) -> Path | None:
    """The folder, if it holds a tokenizer."""
    return folder if (folder / "tokenizer.json").exists() else None


def certify_model(folder: Path, done: str, *, wanted: bool, **given: Any) -> "tuple[Certificate | None, str]":
    """(certificate, "") or (None, why there is none). Raises IntegrityError if the logits differ.

    done: what was done with the folder, for people. given: what `certify` takes besides it.
    """
    from hornbook.model.hf.certificate import MissingTransformers, certify

    if not wanted:
        return None, "not certified (--no-certificate)"
    try:
        return certify(folder, **given).require(), ""
    except MissingTransformers as error:
        return None, f"{done}, but {error}"


def report_text(out: Path, files: dict[str, int], last: str) -> str:
    """The folder, its files with sizes, and a closing line."""
    width = max(map(len, files))
    lines = [f"{out}/", *(f"  {name:<{width}}  {size:>14,} bytes" for name, size in files.items())]
    return "\n".join([*lines, last])
