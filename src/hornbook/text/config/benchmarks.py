"""The tasks of GLUE and SuperGLUE (`benchmarks.toml`): their layouts and the metrics of their scores."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Benchmark(NamedTuple):
    """A task, as `benchmarks.toml` describes it."""

    suites: tuple[str, ...]
    metrics: tuple[str, ...]
    fields: tuple[tuple[str, ...], ...] = ()
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    sources: bool = False

    @property
    def is_paired(self) -> bool:
        """Whether rows become two texts."""
        return not self.fields or len(self.fields[0]) > 2


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """The tasks by the names of their layouts."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: _benchmark(**each) for name, each in table.items()}


def _benchmark(
    suites: list[str],
    metrics: list[str],
    *,
    fields: list[list[str]] | None = None,
    labels: list[str] | None = None,
    columns: list[str] | None = None,
    sources: bool = False,
) -> Benchmark:
    known = tuple(map(tuple, fields or []))
    return Benchmark(tuple(suites), tuple(metrics), known, tuple(labels or []), tuple(columns or []), sources)
