"""The settings of a run's optimizer: one update rule, or several by groups of parameters.

A user's optimizer from outside the package is a subclass of `OptimizerConfig` (docs/parts.md).
"""

from collections.abc import Iterator

from pydantic import Field

from hornbook.optim.config.clipping_config import Clip, NormClip
from hornbook.optim.config.rule import UpdateRule
from hornbook.optim.config.schedules import Cosine, Schedule
from hornbook.optim.config.update_rules import AnyRule
from hornbook.settings.fields import Config, Number


class ParameterGroup(Config):
    """Other settings for some parameters."""

    match: str
    """Glob of their names, such as `blocks.*.attention.*`; the first group that matches a name counts."""
    lr: Number | None = Field(default=None, gt=0)
    """Peak learning rate; by default that of the rule."""
    weight_decay: Number | None = Field(default=None, ge=0)
    """Decoupled decay, also of parameters that do not decay without it; by default as in no group."""
    rule: AnyRule | None = None
    """Update rule; by default the optimizer's."""


class OptimizerConfig(UpdateRule):
    """Base of the settings of an optimizer. A subclass has `kind`, `lr` (the peak learning rate) and its own."""

    decay_embeddings: bool = False
    """Decay embeddings too (GPT-3, nanoGPT)."""
    clip: Clip = NormClip()
    """How gradients are limited; a plain number is the largest global norm."""
    schedule: Schedule = Cosine()
    """Learning rate over the run."""
    groups: list[ParameterGroup] = Field(default=[])
    """Parameters with other settings, such as `[{ match = "embedding.*", lr = 1e-3 }]`."""

    def model_state_bytes(self, parameters: int) -> int:
        """Bytes of the state of a whole model of that many values, of matrices and others; about, and rather more."""
        return self.state_bytes(parameters)

    def problems(self) -> Iterator[tuple[str, str]]:
        """(key below `optim`, what is wrong and the remedy) of settings that do not fit each other."""
        yield from ()
