"""Fault plans: what is to go wrong in a run, where and when, as a TOML file (`hornbook train --faults PLAN`).

    [[faults]]
    do = "kill9"
    at = { step = 7, phase = "clip", rank = 1 }

A fault strikes once, when its rank enters the phase with that many steps done (one of numbers with `again = true`
each time). `generation` 0 are the ranks that the
command starts first, 1 those after the first restart, and so on.
"""

import builtins
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

import hornbook.errors
from hornbook.errors import UsageError
from hornbook.run.job.heartbeat import PHASES
from hornbook.settings.errors import problem_of
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe
from hornbook.settings.toml import dotted, key_lines

PASSES = ("forward", "backward")
"""Moments within the phase `forward_backward`: the first microbatch of the step on its way."""

_AFTER_STEP = ("observe", "evaluate", "sample", "save", "end")
"""Phases that are entered behind a step, which is among those done then."""


def _which(value: Any) -> Any:
    if value == "every" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError(f'must be a number from 0 on or "every", not {value!r}')


Which = Annotated[int | Literal["every"], BeforeValidator(_which)]


class FaultPoint(Config):
    """Where and when a fault strikes."""

    step: int = Field(ge=0)
    """Steps done."""
    phase: str = "forward_backward"
    """The phase that the rank enters; a fault of numbers or files has its own."""
    rank: Which = 0
    """A rank, or `every`."""
    generation: Which = 0
    """Restarts of the ranks before, or `every`."""

    @field_validator("phase")
    @classmethod
    def _check_phase(cls, phase: str) -> str:
        if phase not in (*PHASES, *PASSES):
            raise ValueError(f"must be one of {', '.join((*PHASES, *PASSES))}, not {phase!r}")
        return phase


class Fault(Config):
    """What all faults have."""

    at: FaultPoint
    """Where and when."""

    @property
    def phase(self) -> str:
        """The phase in which it strikes."""
        return self.at.phase


class SignalFault(Fault):
    """A signal that reaches a process of the run."""

    do: Literal["kill9", "stop", "sigterm", "sigint", "sigusr1"]
    """SIGKILL, SIGSTOP, or one that asks the run to stop."""
    to: Literal["rank", "supervisor"] = "rank"
    """Who gets it: the rank itself, or the process that started the ranks."""
    after: float = Field(default=0.0, ge=0)
    """Seconds to wait first, while the rank goes on."""


def error_class(name: str) -> type[Exception]:
    """The class of an error, of Python or of `hornbook.errors`. Raises ValueError for any other name."""
    found = getattr(hornbook.errors, name, None) or getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        raise ValueError(f"must be an error of Python or of hornbook.errors, not {name!r}")
    return found


class ErrorFault(Fault):
    """An error that is raised in the loop."""

    do: Literal["exc"]
    """An exception."""
    error: str = "RuntimeError"
    """Its class: of Python, or of `hornbook.errors`."""
    text: str = "injected by the fault plan"
    """What it says."""

    @field_validator("error")
    @classmethod
    def _check_error(cls, name: str) -> str:
        error_class(name)
        return name


class ExitFault(Fault):
    """The end of a process without a word."""

    do: Literal["exit"]
    """Leave at once."""
    code: int = Field(default=1, ge=0, le=255)
    """Exit code."""


class NumberFault(Fault):
    """Wrong numbers on one rank, before ranks sum their gradients."""

    do: Literal["nan_batch", "inf_grad", "bitflip_grad", "bitflip_param"]
    """NaN in the hidden states of a microbatch, or infinity or a flipped bit in their gradient, or a flipped bit in
    this rank's part of the largest weight."""
    again: bool = False
    """Whenever the step is computed, as bad data would have it; else computing it again gives the right numbers."""

    @model_validator(mode="after")
    def _check_again(self) -> Self:
        if self.again and self.do == "bitflip_param":
            raise ValueError("again: a weight whose bit has flipped stays changed by itself")
        return self

    @property
    def phase(self) -> str:
        return {"nan_batch": "forward", "bitflip_param": "data"}.get(self.do, "backward")


class FileFault(Fault):
    """Damage to the newest checkpoint on disk."""

    do: Literal["bitflip_shard", "torn_shard"]
    """One flipped bit, or half of the file gone, in its largest file of tensors."""


class DiskFault(Fault):
    """A disk that refuses to take bytes of checkpoints."""

    do: Literal["enospc", "eio"]
    """No space, or an input/output error."""
    times: int = Field(default=1, ge=1)
    """Writes that fail, of this rank, from this phase on."""


class SlowFault(Fault):
    """A slow rank."""

    do: Literal["slow"]
    """Sleep in the phase."""
    seconds: float = Field(default=0.1, gt=0)
    """How long, in each step."""
    steps: int = Field(default=1, ge=1)
    """In so many steps."""


class NetworkFault(Fault):
    """A network that breaks."""

    do: Literal["netcut"]
    """The connections of the rank to others end, as by a switch that forgets them."""


class ClockFault(Fault):
    """A clock that is set while the run goes on."""

    do: Literal["clock_jump"]
    """The wall clock of the rank jumps."""
    seconds: float
    """How far; negative: back."""


AnyFault = Annotated[
    SignalFault | ErrorFault | ExitFault | NumberFault | FileFault | DiskFault | SlowFault | ClockFault | NetworkFault,
    Field(discriminator="do"),
]


class FaultPlan(Config):
    """The faults of one command."""

    faults: list[AnyFault] = Field(min_length=1)
    """In any order."""


def read_plan(path: Path) -> FaultPlan:
    """The plan in a file. Raises UsageError that names file, line and key of everything that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the fault plan {path}: {error}") from error
    return parse_plan(tree, str(path), key_lines(text))


def parse_plan(tree: dict[str, Any], label: str, lines: dict[tuple[str | int, ...], int] | None = None) -> FaultPlan:
    """The plan in a parsed file. `label`: its name in messages."""
    try:
        return FaultPlan.model_validate(tree)
    except ValidationError as error:
        problems = [_problem(each, label, lines or {}) for each in error.errors()]
        raise UsageError("\n".join(problems)) from error


def _problem(error: Any, label: str, lines: dict[tuple[str | int, ...], int]) -> str:
    path = error["loc"]
    if len(path) > 2 and path[0] == "faults":
        path = (*path[:2], *path[3:])  # without the tag of the union
    path = (*path, "do") if error["type"].startswith("union_tag") else path
    if error["type"] == "union_tag_not_found":
        error["type"] = "missing"
    found = problem_of(error, path, label)
    line = next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)
    where = label if line is None else f"{label}:{line}"
    return f"{where}: {dotted(path)} {found.text}" + (f"; {found.hint}" if found.hint else "")


def check_plan(plan: FaultPlan, recipe: Recipe) -> None:
    """Raise UsageError for a fault that a run of this recipe cannot meet."""
    world, stages = recipe.parallel.world, recipe.parallel.pipeline.stages
    for number, fault in enumerate(plan.faults):
        where = f"the fault plan: faults.{number} ({fault.do})"
        if fault.at.rank != "every" and fault.at.rank >= world:
            raise UsageError(f"{where}: there is no rank {fault.at.rank}, the run has {world}")
        if isinstance(fault, SignalFault) and fault.to == "supervisor" and world == 1:
            raise UsageError(f"{where}: a run of one rank has no supervisor")
        if isinstance(fault, NetworkFault) and world == 1:
            raise UsageError(f"{where}: a run of one rank has no connections")
        if fault.phase == "setup" and world == 1:
            raise UsageError(f"{where}: only ranks that a supervisor starts have a phase 'setup'")
        if fault.phase in PASSES and stages > 1:
            raise UsageError(f"{where}: stages of a pipeline have no phase {fault.phase!r}: name another phase or kind")


def check_steps(plan: FaultPlan, steps: int, first_save: int) -> None:
    """Raise UsageError for a fault that comes too late for a run of so many steps, or too early.

    first_save: steps before which the run has no checkpoint; 0: it has one, or that is not known.
    """
    for number, fault in enumerate(plan.faults):
        where, done = f"the fault plan: faults.{number} ({fault.do})", fault.at.step
        if done > (steps if fault.phase in _AFTER_STEP else steps - 1):
            raise UsageError(
                f"{where}: phase {fault.phase!r} is not entered with {done:,} steps done, the run ends after "
                f"{steps:,}: name an earlier step, or lengthen the run (--train.tokens)"
            )
        if isinstance(fault, FileFault) and done < first_save:
            raise UsageError(
                f"{where}: there is no checkpoint to damage with {done:,} steps done, the first is saved after "
                f"{first_save:,}: name a later step, or set --checkpoint.every"
            )
