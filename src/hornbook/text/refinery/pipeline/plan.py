"""The tasks of a configuration: the files of each source, and how they are cut into shards."""

import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from hornbook.errors import UsageError
from hornbook.files.artifact import digest_file, digest_of
from hornbook.text.config.step import StepConfig
from hornbook.text.config.text import TextConfig
from hornbook.text.ingest.document import ReadOptions
from hornbook.text.ingest.inputs import InputFile, list_inputs
from hornbook.text.ingest.parts import cut
from hornbook.text.pool import choose_workers
from hornbook.text.refinery.pipeline.measured import MeasureTask

_MIN_TASK_BYTES = 2 * 2**20
_SMALL_BYTES = 8 * 2**20
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def list_all(config: TextConfig) -> dict[str, list[InputFile]]:
    """The input files of every source, in the order of the configuration."""
    if not config.sources:
        raise UsageError("there is nothing to prepare: name paths, or give text.sources in the recipe")
    for name in config.sources:
        if not _NAME.fullmatch(name):
            raise UsageError(f"source name {name!r}: use letters, digits, '-', '_' and '.' (it becomes a folder)")
    labelled = config.labels is not None
    return {name: list_inputs(name, source, labelled=labelled) for name, source in config.sources.items()}


def plan(config: TextConfig, inputs: dict[str, list[InputFile]], work: Path) -> list[MeasureTask]:
    """Cut the inputs into tasks of about equal size, one per shard. The result depends on the inputs alone."""
    total = sum(file.size for files in inputs.values() for file in files)
    size = min(config.shard_bytes, max(_MIN_TASK_BYTES, total // 16))
    steps, read = tuple(config.all_steps), digest_of(read_code(config))
    tasks: list[MeasureTask] = []
    for name, files in inputs.items():
        options = ReadOptions.of(config.sources[name], config.max_document_bytes, config.labels)
        pieces = files if config.labels else [part for file in files for part in cut(file, size)]
        for shard, group in enumerate(_groups(pieces, size)):
            tasks.append(MeasureTask(len(tasks), name, shard, group, options, steps, read, config.strict, work))
    return tasks


def _groups(files: list[InputFile], size: int) -> Iterator[tuple[InputFile, ...]]:
    group: list[InputFile] = []
    filled = 0
    for file in files:
        if group and filled + file.part_size > size:
            yield tuple(group)
            group, filled = [], 0
        group.append(file)
        filled += file.part_size
    yield tuple(group)


def read_by_steps(steps: Sequence[StepConfig]) -> list[str]:
    """Digests of the files that steps read, versions of their packages. Raises UsageError where a file is missing."""
    found: list[str] = []
    for step in steps:
        found += map(_version, step.packages())
        for path in step.files():
            try:
                found.append(digest_file(Path(path)))
            except OSError as error:
                raise UsageError(f"step {step.label!r}: cannot read {path}: {error.strerror}") from error
    return found


def read_code(config: TextConfig) -> list[str]:
    """`read_by_steps`, and digests of the files of readers from outside."""
    files = [path for source in config.sources.values() for path in source.reads()]
    return [*read_by_steps(config.steps), *(digest_file(Path(path)) for path in files)]


def _version(package: str) -> str:
    """Name and version; where the package is missing the step says how to install it."""
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return package


def workers_for(asked: int, tasks: list[MeasureTask], total: int) -> int:
    """Number of processes: one where others would not see the input (memory://), or where it is too small."""
    if any(file.path.startswith("memory://") for task in tasks for file in task.files):
        return 1
    return 1 if not asked and total < _SMALL_BYTES else choose_workers(asked, len(tasks))
