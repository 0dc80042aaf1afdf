"""Configuration of evaluation during training, and the base of evaluation tasks from other packages."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from hornbook.settings.fields import Config, Count, open_to

if TYPE_CHECKING:
    from hornbook.evals.task import Task, TaskContext


class TaskConfig(Config):
    """Base of evaluation tasks of other packages (docs/parts.md): settings, and how the task is built."""

    def build(self, context: "TaskContext") -> "Task":
        """The task, for one evaluation."""
        raise NotImplementedError


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
    prompt: str = "The"
    """What samples continue; empty turns samples off."""
    sample_tokens: Count = Field(default=48, ge=1)
    """Length of a sample."""
