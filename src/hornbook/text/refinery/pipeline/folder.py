"""The folder that prepare writes: its files, whether it is finished, and how it is committed."""

import shutil
from collections.abc import Iterator
from json import dumps, loads
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from hornbook.errors import IntegrityError, UsageError, quoted
from hornbook.files.artifact import digest_file, digest_of, read_json, write_json
from hornbook.files.durable import TEMPORARY, create_atomic, storage_errors, write_atomic, writing
from hornbook.files.file_records import first_problem
from hornbook.text.config.labels import LabelsConfig
from hornbook.text.config.text import TextConfig
from hornbook.text.ingest.inputs import InputFile, is_url
from hornbook.text.ingest.lines import HashingFile, digest_input, open_input
from hornbook.text.refinery.exclusions import qualified
from hornbook.text.refinery.pipeline.apply import Applied, ApplyTask
from hornbook.text.refinery.pipeline.funnel import Funnel
from hornbook.text.refinery.pipeline.plan import VERSION, Measured, MeasureTask, read_code, read_columns
from hornbook.text.refinery.report.reviews import REVIEWS, SAMPLES

MANIFEST, FUNNEL, QUARANTINE, WORK = "manifest.json", "funnel.json", "quarantine.jsonl", "work"
TEXT_TOML, UNFINISHED = "text.toml", "unfinished.json"
MISSING_TEXT = "missing text"
"""Reason of rows without the column or key that holds the text."""
UNKNOWN_LABEL = "unknown label"
"""Reason of rows whose label is not in the recipe's list."""
COLUMN_OPTIONS = {MISSING_TEXT: "--text-field NAME", "missing label": "--text.labels.label NAME"}
"""Reason of rows without a column -> option that names another column."""
PAGE, CARD = "report.html", "DATA_CARD.md"
OURS = (
    *("documents", "signals", "tokens", "tokenizer", WORK),
    *(MANIFEST, FUNNEL, QUARANTINE, SAMPLES, TEXT_TOML, UNFINISHED, PAGE, CARD),
)


def make_folder(out: Path) -> None:
    """Create the folder. Raises UsageError where it holds other files, StorageError where it cannot be written."""
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in out.iterdir() if not entry.name.startswith(TEMPORARY)}
    if names - {*OURS, "run.lock", REVIEWS} and not names & {MANIFEST, UNFINISHED}:
        raise UsageError(f"{out} holds other things: choose an empty or a new folder with --out")


def clear(out: Path) -> None:
    """Delete the files that prepare and tokenize write, and no others."""
    for name in OURS:
        path = out / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def config_key(config: TextConfig) -> str:
    """Digest of the settings that change the files of `prepare`: not those of `tokenize` alone, nor `strict`."""
    others = {"tokenizer", "validation", "strict", "bpe_dropout", "bpe_dropout_seed"}
    text = config.model_dump(mode="json", exclude=others)
    return digest_of([VERSION, text, read_code(config)])


def finished(config: TextConfig, inputs: dict[str, list[InputFile]], out: Path) -> Funnel | None:
    """The funnel of a finished folder, else None. Raises UsageError where it was made with other settings or inputs."""
    manifest = read_manifest(out)
    if manifest is None:
        return None
    _require_key(manifest, config, out)
    files = [file for each in inputs.values() for file in each]
    present = [[file.source, file.path, file.size] for file in files]
    read = [[file["source"], file["path"], file["size"]] for file in manifest["inputs"]]
    if present != read or _changed(manifest, files):
        raise UsageError(
            f"the inputs of {out} have changed since; choose another --out, or start afresh with --overwrite"
        )
    missing = next((path for path in manifest["outputs"] if not (out / path).is_file()), None)
    if missing:
        raise IntegrityError(f"{out / missing} is missing; restore it, or start afresh with --overwrite")
    damage = manifest["damage"]
    if config.strict and damage:
        raise IntegrityError(f"{damage}; mend the row and use --overwrite, or run without --strict")
    return Funnel.from_json(read_json(out / FUNNEL))


def begin(config: TextConfig, out: Path) -> None:
    """Record the settings that the folder is made with; of jobs that begin at once one writes, the others compare.

    Raises UsageError where the folder is made with other settings, IntegrityError where the record is damaged.
    """
    path = out / UNFINISHED
    if not path.exists() and create_atomic(path, dumps({"key": config_key(config)})):
        return
    begun = read_json(path)
    if not isinstance(begun, dict) or "key" not in begun:
        raise IntegrityError(f"{path} is damaged; start afresh with --overwrite")
    _require_key(begun, config, out)


def _require_key(begun: dict[str, Any], config: TextConfig, out: Path) -> None:
    if begun["key"] != config_key(config):
        raise UsageError(
            f"{out} was made with other settings of [text]; choose another --out, or start afresh with --overwrite"
        )


def _changed(manifest: dict[str, Any], files: list[InputFile]) -> bool:
    try:
        return any(
            read["digest"] and not is_url(file.path) and _digest(file) != read["digest"]
            for file, read in zip(files, manifest["inputs"], strict=True)
        )
    except OSError:
        return True


def _digest(file: InputFile) -> str:
    with open_input(file) as raw:
        return digest_input(file, HashingFile(raw))


def write_whole(config: TextConfig, jobs: list[ApplyTask], funnel: Funnel, out: Path) -> None:
    """Write the files about the whole folder."""
    _join([job.measured.quarantine for job in jobs], out / QUARANTINE)
    _join([job.samples for job in jobs], out / SAMPLES)
    write_json(out / FUNNEL, funnel.to_json())
    text = config.model_dump(mode="json", exclude={"strict"}, exclude_none=True)
    write_atomic(
        out / TEXT_TOML, "# The [text] section of prepare; tokenize reads it.\n" + tomli_w.dumps({"text": text})
    )


def _join(parts: list[Path], path: Path) -> None:
    with writing(path) as file:
        for each in parts:
            with each.open("rb") as part:
                shutil.copyfileobj(part, file)


def commit(
    config: TextConfig,
    labels: LabelsConfig | None,
    tasks: list[MeasureTask],
    measured: list[Measured],
    applied: list[Applied],
    out: Path,
) -> None:
    """Delete files of an earlier plan, write the manifest, then delete the work. `labels` has the list of names."""
    outputs = {path: digest for written in applied for path, digest in written.outputs.items()}
    for folder in ("documents", "signals"):
        for path in (out / folder).rglob("*"):
            if path.is_file() and str(path.relative_to(out)) not in outputs:
                path.unlink()
    inputs = [
        {"source": task.source, **file} for task, result in zip(tasks, measured, strict=True) for file in result.files
    ]
    manifest = {
        "key": config_key(config),
        "text": config.model_copy(update={"labels": labels}).model_dump(mode="json", exclude={"strict"}),
        "inputs": inputs,
        "damage": next((result.damage for result in measured if result.damage), ""),
        "outputs": {**outputs, **{name: digest_file(out / name) for name in (QUARANTINE, SAMPLES, FUNNEL, TEXT_TOML)}},
    }
    write_json(out / MANIFEST, manifest)
    forget_work(out)


def forget_work(out: Path) -> None:
    """Delete the work of a finished folder; a run that was killed right after its manifest leaves it."""
    (out / UNFINISHED).unlink(missing_ok=True)
    shutil.rmtree(out / WORK, ignore_errors=True)


def require_documents(funnel: Funnel, out: Path) -> None:
    """Raises UsageError where there was no row, IntegrityError where no document is left.

    The folder is then free for other settings: only the list of skipped rows is left in it.
    """
    total = funnel.total()
    if total.kept.rows:
        return
    forget_work(out)
    if not total.read.rows:
        raise UsageError("the input files hold no rows at all: they are empty")
    tables = (*total.quarantined.items(), *total.dropped.items())
    reasons = ", ".join(f"{tally.rows} {reason}" for reason, tally in tables)
    damage = f"; skipped rows are listed in {out / QUARANTINE}" if total.quarantined else ""
    remedy = "".join(_column_remedy(out, reason) for reason in COLUMN_OPTIONS if reason in total.quarantined)
    if UNKNOWN_LABEL in total.quarantined:
        labels = "leave text.labels.labels out, and the labels are those of the rows"
        remedy += f"{_first_row(out, UNKNOWN_LABEL)}\n{labels}"
    raise IntegrityError(f"none of {total.read.rows} rows is left: {reasons}{damage}{remedy}")


def require_named(config: TextConfig, tasks: list[MeasureTask], out: Path) -> None:
    """Raises UsageError where `text.exclude` has a name that no document has; the folder is then free as above."""
    left, shown = set(config.exclude), ("", "")
    for task in tasks if left else ():
        columns = read_columns(task, ["id", "origin"])
        ids = columns["id"].tolist()
        left -= {*ids, *(qualified(task.source, each) for each in ids), *columns["origin"].tolist()}
        shown = next(zip(columns["id"].tolist(), columns["origin"].tolist(), strict=True), shown)
    if not left:
        return
    forget_work(out)
    names = ", ".join(repr(name) for name in sorted(left)[:8]) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
    sources = [name for name in config.sources if name in left]
    remedy = f"; {sources[0]} is a source: leave out text.sources.{sources[0]}" if sources else ""
    raise UsageError(
        f"text.exclude: no document has the id or origin {names}. Sources are {', '.join(config.sources)}; a document "
        f"there has the id {shown[0]!r} and the origin {shown[1]!r}{remedy}"
    )


def _column_remedy(out: Path, reason: str) -> str:
    """The first row without a column, with the names of its columns, and the option that names another."""
    what, option = reason.removeprefix("missing "), COLUMN_OPTIONS[reason]
    recipe = " (text.sources.SOURCE.text_field in a recipe)" if reason == MISSING_TEXT else ""
    return f"{_first_row(out, reason)}\nname the column that has the {what}: {option}{recipe}"


def _first_row(out: Path, reason: str) -> str:
    """A line with the place of the first row that was skipped for a reason, and what is wrong with it."""
    row = next(skipped_rows(out, reason))
    return f"\n{row['file']}:{row['line']}: {row['reason']}"


def skipped_rows(out: Path, reason: str = "", source: str = "") -> Iterator[dict[str, Any]]:
    """Rows of quarantine.jsonl whose reason begins so; those of one source where it is given."""
    with (out / QUARANTINE).open(encoding="utf-8") as file:
        for row in map(loads, file):
            if row["reason"].startswith(reason) and source in ("", row["source"]):
                yield row


def read_manifest(data: Path) -> dict[str, Any] | None:
    """manifest.json of a folder, or None where there is none. Raises IntegrityError where it is damaged."""
    path = data / MANIFEST
    manifest = read_json(path)
    if manifest is None and not path.exists():
        return None
    if not isinstance(manifest, dict) or not {"key", "text", "inputs", "outputs", "damage"} <= manifest.keys():
        raise IntegrityError(f"{path} is damaged; restore it, or prepare again with --overwrite")
    return manifest


def read_text_config(data: Path) -> TextConfig:
    """The [text] section with which a folder was prepared. Raises UsageError where prepare has not finished."""
    manifest = read_manifest(data)
    if manifest is None:
        begun = (data / UNFINISHED).exists()
        state = "is not finished: run `hornbook prepare` again" if begun else "is not prepared"
        raise UsageError(
            f"{data} {state} (it has no {MANIFEST}); make it with `hornbook prepare PATH... --out {quoted(data)}`"
        )
    try:
        return TextConfig.model_validate(manifest["text"])
    except ValidationError as error:  # a step from outside whose module is not there
        raise UsageError(f"{data / MANIFEST}: {first_problem(error)}") from error
