"""Everything that a run recorded about itself, read once for the doctor without disturbing the run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.errors import HornbookError
from hornbook.files.filesystem import is_folder, list_folder
from hornbook.files.journal import current_branch, read_records
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import Verdict, evaluations, events, status_of, steps_that_count
from hornbook.run.diagnose.runs.curves import Curves, Facts, curves_of
from hornbook.settings.recipe import Recipe

SAMPLED_TOKENS = 2_000_000
"""Training tokens whose frequencies give the unigram entropy."""


@dataclass(frozen=True)
class RunHistory:
    """The records of a run; those that cannot be read are empty, and named in `unreadable`."""

    run: RunDir
    status: Verdict
    events: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    statistics: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)
    recipe: Recipe | None = None
    curves: Curves = field(default_factory=lambda: curves_of(()))
    """The series that rules judge."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """What is wrong with a file, by what it holds."""

    @property
    def attempt(self) -> int:
        """The newest attempt; 0 before the first."""
        return max((each["attempt"] for each in self.events), default=0)

    @property
    def last_step(self) -> int:
        """The last step on record anywhere: state.json is written once a second at most."""
        state = self.run.read_state() or {}
        newest = (each[-1:] for each in (self.steps, self.events))
        return max([int(state.get("step", 0)), *(int(record["step"]) for (record,) in filter(None, newest))])

    def newest(self, *kinds: str) -> dict[str, Any] | None:
        """The newest record of the ledger of these kinds."""
        return next((each for each in reversed(self.events) if each.get("kind") in kinds), None)


def facts_of(recipe: Recipe, planned_tokens: int) -> Facts:
    """What a recipe alone says."""
    return Facts(
        peak_rate=float(recipe.optim.lr),
        planned_tokens=planned_tokens,
        has_qk_norm=getattr(recipe.model.attention, "qk_norm", "none") != "none",
        has_z_loss=recipe.train.loss.z_loss > 0,
        is_fp16=recipe.train.precision == "fp16",
    )


def read_history(run: RunDir) -> RunHistory:
    """UsageError where there is no run; damaged files do not end the reading."""
    from hornbook.run.diagnose.verify import check_records  # imports torch
    from hornbook.run.start.bound import recipe_in_force

    run.must_exist()
    unreadable: dict[str, str] = {}

    def read(what: str, act: Any, default: Any) -> Any:
        try:
            return act()
        except (HornbookError, OSError, LookupError, TypeError, ValueError) as error:
            unreadable[what] = str(error) or repr(error)
            return default

    checkup = read("records", lambda: check_records(run)[0], None)
    unreadable |= {each.what: each.text for each in (checkup.findings if checkup is not None else ()) if not each.ok}
    ledger, recipe = read("ledger", lambda: events(run), []), read("recipe", lambda: recipe_in_force(run), None)
    steps = read("metrics", lambda: steps_that_count(run), [])
    statistics = read("statistics", lambda: current_branch(read_records(run.statistics)), [])
    scored = read("evaluations", lambda: evaluations(run), [])
    memory = read("memory", lambda: list(read_records(run.memory)), [])
    planned = int((run.read_state() or {}).get("total_tokens", 0))
    facts = Facts(planned_tokens=planned) if recipe is None else facts_of(recipe, planned)
    if recipe is not None:
        facts = replace(facts, unigram_loss=read("data", lambda: unigram_loss(recipe), None))
    curves = read("series", lambda: curves_of(steps, statistics, scored, facts), curves_of(()))
    return RunHistory(run, status_of(run), ledger, steps, statistics, scored, memory, recipe, curves, unreadable)


def unigram_loss(recipe: Recipe) -> float | None:
    """Entropy of single training tokens in nats, over the first `SAMPLED_TOKENS` of the shards in turn.

    None where the objective is not the next token of plain text, or the data is not there any more. The sample's
    entropy is raised by (kinds - 1) / 2n (Miller 1955), for it has not met all rare tokens.
    """
    if recipe.data.objective.kind != "causal" or recipe.data.path is None or recipe.model.head.kind != "lm":
        return None
    counts = _token_counts(Path(recipe.data.path))
    total = int(counts.sum())
    if not total:
        return None
    shares = counts[counts > 0] / total
    return float(-(shares * np.log(shares)).sum() + (len(shares) - 1) / (2 * total))


def _token_counts(data: Path) -> np.ndarray:
    folder, counts = data / "tokens" / "train", np.zeros(0, dtype=np.int64)
    shards = [
        path for each in (list_folder(folder) if is_folder(folder) else []) for path in list_folder(each, "*.bin")
    ]
    for path in shards:
        wide = _shard_dtype(data) == "uint32"
        size = 4 if wide else 2
        with path.open("rb") as file:
            tokens = np.frombuffer(file.read(SAMPLED_TOKENS // max(len(shards), 1) * size), "<u4" if wide else "<u2")
        found = np.bincount(tokens)
        counts = np.pad(counts, (0, max(len(found) - len(counts), 0)))
        counts[: len(found)] += found
    return counts


def _shard_dtype(data: Path) -> str:
    import json

    return str(json.loads((data / "tokens" / "index.json").read_bytes())["dtype"])


def gigabytes(size: float) -> str:
    """`1.3 GB`."""
    return f"{size / 1e9:.3g} GB" if math.isfinite(size) else "?"


def at_step(record: Mapping[str, Any]) -> str:
    """`step 1,200`."""
    return f"step {record['step']:,}"
