"""Documents with the columns that rules of quality compare, so that several thresholds can be moved at once.

They come from a folder that prepare wrote, or from files that are prepared here by steps that measure and drop nothing
for what they measure.
"""

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow.parquet as pq

from hornbook.errors import IntegrityError, UsageError, quoted
from hornbook.text.config.content import LanguageConfig
from hornbook.text.config.rules import MC4Config
from hornbook.text.config.scores import VocabularyConfig
from hornbook.text.config.step import StepConfig
from hornbook.text.config.text import DropEmptyConfig, ExactDedupConfig, NormalizeConfig, SourceConfig, TextConfig
from hornbook.text.ingest.corpora.damaged import DAMAGED, plant_damage
from hornbook.text.ingest.corpora.installed import SOURCES, write_installed_corpus
from hornbook.text.ingest.inputs import is_url, list_inputs
from hornbook.text.refinery.pipeline.decide import KEPT, NOTHING_LEFT
from hornbook.text.refinery.pipeline.folder import MANIFEST, read_text_config
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.refinery.report.reviews import REVIEWS, judged, read_examples
from hornbook.text.refinery.scores.curve import Signals, read_rows
from hornbook.text.refinery.step import build

PLAIN = (NormalizeConfig(), DropEmptyConfig(), ExactDedupConfig())
_MEASURE = [*PLAIN, MC4Config(min_line_length=None), LanguageConfig(detector="script"), VocabularyConfig(one_in=1)]
_EXAMPLE_BYTES, MOST_BYTES, MOST_ROWS = 1_000_000, 32 * 2**20, 1_000_000
_LOCK = Lock()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class MeasuredCorpus:
    """Documents that no other step drops: those kept, and those dropped by the steps whose thresholds are moved."""

    folder: Path
    """As prepare writes it."""
    steps: Sequence[StepConfig]
    """The steps that made the folder."""
    signals: Signals
    """With the columns of the rules, `id`, `source` and `cluster`."""
    good: np.ndarray
    """float64 [rows]: 1 for documents that people, or the program that planted faults, judged good, 0 for bad ones, nan
    for those not judged."""

    def texts(self, rows: Sequence[int], characters: int) -> list[str]:
        """The beginning of texts; "" where prepare stored none, because it stores few of those that it drops."""
        wanted = [str(self.signals.columns["cluster"][row]) for row in rows]
        found = {each.cluster: each.text for each in read_examples(self.folder)}
        for path in sorted((self.folder / "documents").rglob("*.parquet")) if wanted else ():
            table = pq.read_table(path, columns=["cluster", "text"], filters=[("cluster", "in", wanted)])
            found |= dict(zip(table["cluster"].to_pylist(), table["text"].to_pylist(), strict=True))
        return [found.get(each, "")[:characters] for each in wanted]


def measured_corpus(path: str, kinds: Sequence[str]) -> MeasuredCorpus:
    """The documents of a path, by steps of `kinds` or kept; "" for an example whose faults are planted.

    Kept in memory until the files change. Raises UsageError.
    """
    folder = Path(path).expanduser()
    if path and (is_url(path) or not folder.exists()):
        raise UsageError(f"there is no file or folder {path} here: name one that is, or leave the path empty")
    stamp, is_prepared = "", bool(path) and (folder / MANIFEST).is_file()
    if is_prepared:
        made = [each.stat() for name in (MANIFEST, REVIEWS) if (each := folder / name).exists()]
        stamp = repr([(each.st_size, each.st_mtime_ns) for each in made])
    elif path:
        files = list_inputs("documents", SourceConfig(paths=[path]))
        if (size := sum(file.size for file in files)) > MOST_BYTES:
            remedy = f"run `hornbook prepare {quoted(path)} --out FOLDER` with the rules, and name FOLDER"
            raise UsageError(f"{path} has {size >> 20} MiB, and {MOST_BYTES >> 20} are measured here: {remedy}")
        stamp = repr([(file.path, file.stamp) for file in files])
    with _LOCK:
        return _measured(path, stamp, tuple(kinds) if is_prepared else ())


@lru_cache(maxsize=4)
def _measured(path: str, _stamp: str, kinds: tuple[str, ...]) -> MeasuredCorpus:
    if kinds:
        return _read(path, Path(path).expanduser(), kinds)
    scratch = tempfile.mkdtemp(prefix="hornbook-measured-")
    try:
        corpus = _prepare(path, Path(scratch))
    except BaseException as error:
        shutil.rmtree(scratch)
        if isinstance(error, IntegrityError):
            reason = str(error).partition(";")[0]
            raise UsageError(f"{path} has no documents to measure ({reason}): name files with text") from error
        raise
    weakref.finalize(corpus, shutil.rmtree, scratch)
    return corpus


def _prepare(path: str, scratch: Path) -> MeasuredCorpus:
    raw, folder = scratch / "raw", scratch / "prepared"
    paths = {"documents": path}
    if not path:
        write_installed_corpus(raw, max_bytes=_EXAMPLE_BYTES, seed=0)
        paths = {name: str(raw / f"{name}.jsonl") for name in SOURCES}
        for name in paths.values():
            plant_damage(Path(name), seed=0)
    sources = {name: SourceConfig(paths=[each]) for name, each in paths.items()}
    prepare(TextConfig(sources=sources, steps=_MEASURE), folder, workers=1)
    return _read(path, folder, ())


def _read(path: str, folder: Path, kinds: Sequence[str]) -> MeasuredCorpus:
    configs = read_text_config(folder).steps
    rows = sum(pq.ParquetFile(each).metadata.num_rows for each in (folder / "signals").glob("*.parquet"))
    if rows > MOST_ROWS:
        remedy = f"for one threshold after the other use `hornbook prepare curve {quoted(path)}`"
        raise UsageError(f"{path} has {rows:,} documents, and {MOST_ROWS:,} are read here: {remedy}")
    steps = build(configs)
    columns = [name for name in steps.columns() if name.startswith("statistics")]
    moved = [each for each in steps.decisions if each.config.kind in kinds]
    reasons = [KEPT, NOTHING_LEFT, *(reason for step in moved for reason in step.reasons)]
    signals = read_rows(folder, steps, [*columns, "id", "source", "cluster"], reasons)
    if path:
        about = [(each, right) for each, right in judged(folder) if right is not None and each.reason in reasons]
        said = {each.cluster: right == (each.reason == KEPT) for each, right in about}
        good = np.array([said.get(each, np.nan) for each in signals.columns["cluster"].tolist()], np.float64)
    else:
        good = np.array([DAMAGED not in each for each in signals.columns["id"].tolist()], np.float64)
    return MeasuredCorpus(folder, configs, signals, good)
