"""Verdicts on disk: phase 2 writes them for phase 3, which may run elsewhere."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hornbook.files.artifact import finish, finished
from hornbook.files.durable import writing
from hornbook.text.refinery.pipeline.decide import Verdict

_NAMES = "verdicts.json"


def write_verdicts(work: Path, key: str, names: Sequence[str], verdicts: Sequence[Verdict]) -> None:
    """One file of arrays per task, then the names of reasons and the examples under a key."""
    (work / _NAMES).unlink(missing_ok=True)  # of an earlier plan: it must not vouch for files of this one
    for number, verdict in enumerate(verdicts):
        for name, array in (("reasons", verdict.reasons), ("cuts", verdict.cuts)):
            with writing(_path(work, number, name)) as file:
                np.save(file, array)
    samples = [sorted(verdict.samples.items()) for verdict in verdicts]
    finish(work / _NAMES, key, {"names": list(names), "samples": samples})


def read_verdicts(work: Path, key: str) -> tuple[list[str], list[Verdict]] | None:
    """What `write_verdicts` wrote under the same key, else None."""
    found = finished(work / _NAMES, key)
    if found is None:
        return None
    verdicts = [
        Verdict(np.load(_path(work, number, "reasons")), np.load(_path(work, number, "cuts")), dict(samples))
        for number, samples in enumerate(found["samples"])
    ]
    return found["names"], verdicts


def decided_before(work: Path, key: str) -> bool:
    """Whether `read_verdicts` would find them."""
    return finished(work / _NAMES, key) is not None


def _path(work: Path, number: int, name: str) -> Path:
    return work / f"verdict-{number:05d}.{name}.npy"
