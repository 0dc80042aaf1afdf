"""The cases of a rehearsal: a table (`cases.toml`) of faults and of what a run makes of them."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from hornbook.run.job.fault_plan import FaultPlan, parse_plan


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    words: str
    """What happens."""
    rows: Sequence[int]
    """Of the failure matrix."""
    ends: Literal["restart", "finish", "stop", "dies", "gives_up"]
    """What the run makes of it."""
    faults: Sequence[dict[str, Any]]
    settings: Sequence[str] = ()
    """Changes to the recipe."""
    quick: bool = False
    ranks: int = 1
    """How many it needs at least."""
    evaluates: bool = False
    """Whether it needs validation text: without any, a run never enters an evaluation."""
    ledger: Sequence[str] = ()
    """Kinds of records that must be there."""
    outside: Literal["", "stop_file", "second_start"] = ""
    """What else is done from outside while the run trains."""
    finite: bool = False
    """The run differs from the reference by design; its weights must be finite."""

    def plan(self, world: int) -> FaultPlan:
        """The plan for a run of so many ranks; without a supervisor its signals go to the only rank."""
        given: list[dict[str, Any]] = []
        for fault in self.faults:
            at = {key: world - 1 if value == "last" else value for key, value in fault["at"].items()}
            given.append({**fault, "at": at} | ({"to": "rank"} if "to" in fault and world == 1 else {}))
        return parse_plan({"faults": given}, "cases.toml")

    def codes(self, world: int) -> list[str]:
        """Exit codes of its starts, the last one a resume; `died` is any that is not 0 or 75."""
        if self.ends == "restart":
            return ["0"] if world > 1 else ["died", "0"]
        return {"finish": ["0"], "stop": ["75", "0"], "dies": ["died", "0"], "gives_up": ["9", "0"]}[self.ends]


@cache
def all_cases() -> tuple[Case, ...]:
    """The table, in its order."""
    text = (files("hornbook") / "run" / "diagnose" / "rehearsal" / "cases.toml").read_text(encoding="utf-8")
    return tuple(Case(**row) for row in tomllib.loads(text)["cases"])
