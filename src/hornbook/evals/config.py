"""Configuration of evaluation during training, and the base of evaluation tasks from other packages."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from hornbook.settings.fields import Config, Count, Duration, Number, open_to

if TYPE_CHECKING:
    from hornbook.evals.task import Task, TaskContext


class TaskConfig(Config):
    """Base of evaluation tasks of other packages (docs/parts.md): settings, and how the task is built."""

    def build(self, context: "TaskContext") -> "Task":
        """The task, for one evaluation."""
        raise NotImplementedError


class NoStop(Config):
    """The run goes on to its planned end."""

    kind: Literal["none"] = "none"


class _Stop(Config):
    after: Duration = Duration(amount=0.5, unit="share")
    """Earliest point: a loss that stands still early may fall again."""
    rest: float = Field(default=0.1, ge=0, le=1)
    """Share of the tokens so far for which the run goes on, where the schedule has a lower learning rate ahead: the
    rest of the schedule happens in them, for it lowers the loss once more."""


class Patience(_Stop):
    """No validation loss was lower for some evaluations."""

    kind: Literal["patience"] = "patience"
    evaluations: Count = Field(default=10, ge=1)
    """Evaluations in a row."""
    gain: Number = Field(default=0.0, ge=0)
    """Nats by which a loss must be lower to count."""


class Converged(_Stop):
    """The expected gain of 10 % more tokens is small (`hornbook doctor RUN` shows it), or the loss rises for good."""

    kind: Literal["converged"] = "converged"
    evaluations: Count = Field(default=3, ge=1)
    """Evaluations in a row that must say so."""
    gain: Number = Field(default=0.001, gt=0)
    """Nats: the upper end of the gain's interval must be below."""


StopConfig = Annotated[NoStop | Patience | Converged, Field(discriminator="kind")]


class EvalConfig(Config):
    """Validation loss, bits-per-byte and samples while training."""

    every: Count = Field(default=250, ge=0)
    """Steps between evaluations; 0 evaluates only at the end."""
    tokens: Count = Field(default=262_144, gt=0)
    """Validation tokens per source and evaluation, at most: rows spread over all documents, always the same ones.

    After the last step all are scored.
    """
    tasks: list[Annotated[TaskConfig, *open_to("task", TaskConfig)]] = Field(default_factory=list)
    """Tasks of other packages that are scored besides, such as `{kind = "package.module:Class"}`."""
    sample_every: Count = Field(default=0, ge=0)
    """Steps between samples of `prompt`; 0 means with each evaluation."""
    stop: StopConfig = NoStop()
    """When the run ends before its planned length, by its validation losses: `patience` or `converged`."""
    prompt: str = "The"
    """What samples continue; empty turns samples off."""
    sample_tokens: Count = Field(default=48, ge=1)
    """Length of a sample."""
