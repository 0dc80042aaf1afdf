"""Everything that a run recorded about itself, read once for the doctor without disturbing the run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hornbook.errors import HornbookError
from hornbook.files.journal import current_branch, read_records
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import Verdict, evaluations, events, status_of, steps_that_count
from hornbook.run.doctor.curves import Curves, Facts, curves_of
from hornbook.run.guard.unigram import unigram_loss
from hornbook.settings.recipe import Recipe


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
    from hornbook.run.checkpoints.bound import recipe_in_force
    from hornbook.run.doctor.check_run import check_records  # imports torch

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


def gigabytes(size: float) -> str:
    """`1.3 GB`."""
    return f"{size / 1e9:.3g} GB" if math.isfinite(size) else "?"


def at_step(record: Mapping[str, Any]) -> str:
    """`step 1,200`."""
    return f"step {record['step']:,}"
