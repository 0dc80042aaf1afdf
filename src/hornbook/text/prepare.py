"""From raw text to clean documents: edits and signals, decisions, apply (docs/architecture.md, "text").

The result is a function of the inputs and the configuration: not of the number of workers, of kills or of time.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from hornbook.durable import TEMPORARY, storage_error, write_atomic
from hornbook.errors import IntegrityError, UsageError
from hornbook.rundir import RunDir
from hornbook.runlock import RunLock
from hornbook.text.apply import Applied, ApplyTask, apply
from hornbook.text.config import SourceConfig, TextConfig
from hornbook.text.config_step import StepConfig
from hornbook.text.decide import KEPT, decide
from hornbook.text.funnel import Funnel, SourceFunnel
from hornbook.text.inputs import InputFile, is_url, list_inputs
from hornbook.text.measure import measure
from hornbook.text.measured import VERSION, Measured, MeasureTask
from hornbook.text.pool import choose_workers, run_tasks
from hornbook.text.readers import ReadOptions
from hornbook.text.refinery.table import build
from hornbook.text.store import digest_file, digest_of, read_json, write_json, writing

Progress = Callable[[str, int, int], None]
"""Called with (phase, bytes done, bytes in all)."""

MANIFEST, FUNNEL, QUARANTINE, SAMPLES, WORK = (
    "manifest.json",
    "funnel.json",
    "quarantine.jsonl",
    "samples.jsonl",
    "work",
)
TEXT_TOML, UNFINISHED = "text.toml", "unfinished.json"
OURS = (
    "documents",
    "signals",
    "tokens",
    "tokenizer",
    WORK,
    MANIFEST,
    FUNNEL,
    QUARANTINE,
    SAMPLES,
    TEXT_TOML,
    UNFINISHED,
)
_MIN_TASK_BYTES = 2 * 2**20
_SMALL_BYTES = 8 * 2**20
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def prepare(
    config: TextConfig, out: Path, *, workers: int = 0, overwrite: bool = False, progress: Progress | None = None
) -> Funnel:
    """Read all sources, refine them and write the folder `out`; a killed run goes on where it was.

    `workers` 0 takes one process per core. If `out` is already finished for the same configuration and the
    same input bytes, its funnel is returned.

    Raises UsageError (nothing to read, `out` holds something else), IntegrityError (a damaged row with `strict`;
    nothing left to keep), StorageError, InUseError.
    """
    inputs = list_all(config)
    _make_folder(out)
    with RunLock(RunDir(out)):
        RunDir(out).clean()
        if overwrite:
            clear(out)
        done = _finished(config, inputs, out)
        if done is not None:
            return done
        write_json(out / UNFINISHED, {"key": config_key(config)})
        return _prepare(config, inputs, out, workers, progress or _silent)


def _silent(phase: str, done: int, total: int) -> None:
    del phase, done, total


def list_all(config: TextConfig) -> dict[str, list[InputFile]]:
    """The input files of every source, in the order of the configuration."""
    if not config.sources:
        raise UsageError("there is nothing to prepare: name paths, or give text.sources in the recipe")
    for name in config.sources:
        if not _NAME.fullmatch(name):
            raise UsageError(f"source name {name!r}: use letters, digits, '-', '_' and '.' (it becomes a folder)")
    return {name: list_inputs(name, source) for name, source in config.sources.items()}


def read_by_steps(steps: Sequence[StepConfig]) -> dict[str, str]:
    """Path -> digest of every file that steps read. Raises UsageError where one is missing."""
    found: dict[str, str] = {}
    for step in steps:
        for path in step.reads():
            try:
                found[path] = digest_file(Path(path))
            except OSError as error:
                raise UsageError(f"step {step.label!r}: cannot read {path}: {error.strerror}") from error
    return found


def config_key(config: TextConfig) -> str:
    """Digest of what `prepare` obeys; the tokenizer, the validation share and `strict` do not change its files."""
    text = config.model_dump(mode="json", exclude={"tokenizer", "validation", "strict"})
    return digest_of([VERSION, text, read_by_steps(config.steps)])


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in out.iterdir() if not entry.name.startswith(TEMPORARY)}
        foreign = bool(names - {*OURS, "run.lock"})
        known = any((out / name).exists() for name in (MANIFEST, UNFINISHED))
    except OSError as error:
        raise storage_error(error, out) from error
    if foreign and not known:
        raise UsageError(f"{out} holds other things: choose an empty or a new folder with --out")


def clear(out: Path) -> None:
    """Delete what prepare and tokenize write, and nothing else."""
    for name in OURS:
        path = out / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _finished(config: TextConfig, inputs: dict[str, list[InputFile]], out: Path) -> Funnel | None:
    """The funnel of a finished folder; None where there is work to do; UsageError where it is another's folder."""
    manifest = read_manifest(out)
    begun = manifest or read_json(out / UNFINISHED)
    if begun is None:
        return None
    if begun["key"] != config_key(config):
        raise UsageError(
            f"{out} was made with other settings of [text]; choose another --out, or start afresh with --overwrite"
        )
    if manifest is None:
        return None
    present = [[file.source, file.path, file.size] for files in inputs.values() for file in files]
    if present != [[file["source"], file["path"], file["size"]] for file in manifest["inputs"]] or _changed(manifest):
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


def _changed(manifest: dict[str, Any]) -> bool:
    local = [file for file in manifest["inputs"] if file["digest"] and not is_url(file["path"])]
    try:
        return any(digest_file(Path(file["path"])) != file["digest"] for file in local)
    except OSError:
        return True


def _prepare(
    config: TextConfig, inputs: dict[str, list[InputFile]], out: Path, workers: int, progress: Progress
) -> Funnel:
    tasks = plan(config, inputs, out / WORK)
    total = sum(task.size for task in tasks)
    workers = _workers(workers, tasks, total)
    measured: list[Measured] = []
    done = 0
    for task, result in zip(tasks, run_tasks(measure, tasks, workers), strict=True):
        measured.append(result)
        done += task.size
        progress("read and measure", done, total)
    names, verdicts = decide(tasks, build(config.steps), out / WORK / "scratch")
    progress("decide", total, total)
    jobs = [ApplyTask(task, tuple(names), verdict, out) for task, verdict in zip(tasks, verdicts, strict=True)]
    applied: list[Applied] = []
    done = 0
    for task, written in zip(tasks, run_tasks(apply, jobs, workers), strict=True):
        applied.append(written)
        done += task.size
        progress("write", done, total)
    funnel = _funnel(tasks, measured, applied)
    _write_whole(config, jobs, funnel, out)
    _require_documents(funnel, out)
    _commit(config, tasks, measured, applied, out)
    return funnel


def _workers(asked: int, tasks: list[MeasureTask], total: int) -> int:
    """One process where others would not see the input (memory://) or are not worth their start."""
    if any(file.path.startswith("memory://") for task in tasks for file in task.files):
        return 1
    return 1 if not asked and total < _SMALL_BYTES else choose_workers(asked, len(tasks))


def plan(config: TextConfig, inputs: dict[str, list[InputFile]], work: Path) -> list[MeasureTask]:
    """Cut the inputs into tasks of about equal size; each becomes one shard. A function of the inputs alone."""
    total = sum(file.size for files in inputs.values() for file in files)
    size = min(config.shard_bytes, max(_MIN_TASK_BYTES, total // 16))
    steps, read = tuple(config.steps), digest_of(read_by_steps(config.steps))
    tasks: list[MeasureTask] = []
    for name, files in inputs.items():
        options = _options(config.sources[name], config.max_document_bytes)
        for shard, group in enumerate(_groups(files, size)):
            tasks.append(MeasureTask(len(tasks), name, shard, group, options, steps, read, config.strict, work))
    return tasks


def _options(source: SourceConfig, max_bytes: int) -> ReadOptions:
    return ReadOptions(source.text_field, source.id_field, max_bytes)


def _groups(files: list[InputFile], size: int) -> Iterator[tuple[InputFile, ...]]:
    group: list[InputFile] = []
    filled = 0
    for file in files:
        if group and filled + file.size > size:
            yield tuple(group)
            group, filled = [], 0
        group.append(file)
        filled += file.size
    yield tuple(group)


def _funnel(tasks: list[MeasureTask], measured: list[Measured], applied: list[Applied]) -> Funnel:
    funnel = Funnel()
    for task, result, written in zip(tasks, measured, applied, strict=True):
        source = funnel.sources.setdefault(task.source, SourceFunnel())
        source.files += len(task.files)
        for reason, (rows, size) in result.blank.items():
            source.drop(reason, rows, size)
        for reason, (rows, size) in result.quarantined.items():
            source.quarantine(reason, rows, size)
        for reason, (rows, size) in written.reasons.items():
            if reason == KEPT:
                source.keep(rows, size, written.text_bytes)
            else:
                source.drop(reason, rows, size)
        source.count_changes({**written.edits, "cut": written.cut})
    assert all(source.balanced() for source in funnel.sources.values())
    return funnel


def _write_whole(config: TextConfig, jobs: list[ApplyTask], funnel: Funnel, out: Path) -> None:
    """The files about the whole folder."""
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


def _commit(
    config: TextConfig, tasks: list[MeasureTask], measured: list[Measured], applied: list[Applied], out: Path
) -> None:
    """Delete what an earlier plan left, write the manifest, then forget the work."""
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
        "text": config.model_dump(mode="json", exclude={"strict"}),
        "inputs": inputs,
        "damage": next((result.damage for result in measured if result.damage), ""),
        "outputs": {**outputs, **{name: digest_file(out / name) for name in (QUARANTINE, SAMPLES, FUNNEL, TEXT_TOML)}},
    }
    write_json(out / MANIFEST, manifest)
    (out / UNFINISHED).unlink()
    shutil.rmtree(out / WORK)


def _require_documents(funnel: Funnel, out: Path) -> None:
    total = funnel.total()
    if total.kept.rows:
        return
    if not total.read.rows:
        raise UsageError("the input files hold no rows at all: they are empty")
    tables = (*total.quarantined.items(), *total.dropped.items())
    reasons = ", ".join(f"{tally.rows} {reason}" for reason, tally in tables)
    raise IntegrityError(
        f"none of {total.read.rows} rows is left: {reasons}; damaged rows are named in {out / QUARANTINE}"
    )


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
        raise UsageError(f"{data} {state} (it has no {MANIFEST}); make it with `hornbook prepare PATH... --out {data}`")
    return TextConfig.model_validate(manifest["text"])
