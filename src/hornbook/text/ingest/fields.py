"""Fields of rows, by names that may lead into nested ones."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def lookup(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field; `a.b` is key b within a where there is no key of that whole name. None where absent."""
    if name in row:
        return row[name]
    first, dot, rest = name.partition(".")
    inner = row.get(first) if dot else None
    return lookup(inner, rest) if isinstance(inner, Mapping) else None


def partition_columns(path: str) -> dict[str, str]:
    """Columns that the folders of a path give, as Hive writes them: `lang=de/year=2020/0.parquet`."""
    pairs = (folder.partition("=") for folder in path.split("/")[:-1])
    return {name: unquote(value) for name, mark, value in pairs if name and mark and value not in ("", _HIVE_NULL)}


def missing_column(columns: list[str], wanted: Mapping[str, str]) -> str:
    """Which of the columns that are needed a table lacks; empty where none. wanted: what a column holds -> its name."""
    for what, name in wanted.items():
        if name not in columns and name.partition(".")[0] not in columns:
            return f"missing {what}: no column {name!r} (columns: {', '.join(columns)[:100]!a})"
    return ""
