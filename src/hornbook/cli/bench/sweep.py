"""`hornbook bench RECIPE --sweep key=a,b key=c,d`: one fresh process for each combination of values, in one table."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from hornbook.cli.bench.text import percent
from hornbook.cli.result import columns
from hornbook.errors import HornbookError, UsageError
from hornbook.progress import size_text

MOST = 64
"""Combinations of one sweep."""


def is_swept(word: str) -> bool:
    """Whether a word `key=a,b` names several values; a list or table in brackets is one."""
    _, found, values = word.partition("=")
    return bool(found) and "," in values and values[0] not in "[{\"'"


def combinations(words: Sequence[str]) -> list[dict[str, str]]:
    """All combinations of the values of `key=a,b` words, the last key fastest. UsageError for what is no such word."""
    values: dict[str, list[str]] = {}
    for word in words:
        key, found, text = word.removeprefix("--").partition("=")
        listed = [value.strip() for value in text.split(",")]
        if not found or not key or not all(listed):
            raise UsageError(f"--sweep {word}: write key=value,value, such as parallel.data=1,2")
        if key in values:
            raise UsageError(f"--sweep names {key} twice: put all its values in one list")
        values[key] = list(dict.fromkeys(listed))
    count = len(made := [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())])
    if count > MOST:
        raise UsageError(f"--sweep asks for {count} combinations, {MOST} at most: name fewer values")
    return made


def sweep(
    chosen: Sequence[dict[str, str]], measure: Callable[[dict[str, str]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each combination: its settings, and the bill of its step or why it was refused."""
    rows = []
    for settings in chosen:
        try:
            rows.append({"settings": settings, "step": measure(settings), "refused": None})
        except HornbookError as error:
            rows.append({"settings": settings, "step": None, "refused": str(error)})
    return rows


def sweep_text(rows: Sequence[dict[str, Any]]) -> str:
    """The table, then the reason of each refusal."""
    best = max((row["step"]["tokens_per_second"] for row in rows if row["step"]), default=0.0)
    shown = [[*rows[0]["settings"], "tokens/s", "of the best", "MFU", "communication", "sent", "peak memory per rank"]]
    reasons = []
    for row in rows:
        values, step = list(row["settings"].values()), row["step"]
        if step is None:
            shown.append([*values, "refused", "", "", "", "", ""])
            reasons.append(refusal_text(row))
            continue
        mfu = "-" if step["mfu"] is None else percent(step["mfu"]["causal"])
        phases = step["whole_step"]
        wait = percent(phases["communication"] / sum(phases.values()))
        rate = step["tokens_per_second"]
        memory, sent = size_text(step["memory"]["peak"]), step["communication"]
        crossed = "-" if sent is None else size_text(sum(each["bytes"] for each in sent["flows"]))
        shown.append([*values, f"{rate:,.0f}", percent(rate / best), mfu, wait, crossed, memory])
    return "\n".join([columns(shown), *reasons])


def refusal_text(row: dict[str, Any]) -> str:
    """Why a combination was refused, on one line."""
    name = " ".join(f"{key}={value}" for key, value in row["settings"].items())
    return f"refused  {name}: {' '.join(row['refused'].split())}"
