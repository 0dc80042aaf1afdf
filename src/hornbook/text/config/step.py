"""The base of all configurations of steps of the refinery. A step is an edit, a decision or a cut."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from hornbook.settings.fields import Config, named
from hornbook.text.config.modules import code_of

NAME = r"^[a-z][a-z0-9_]*$"

Words = Literal["whitespace", "unicode", "cjk"]
"""Definitions of a word: a run without whitespace; a run of letters and digits; these, with each ideograph alone."""


class StepConfig(Config):
    """One entry of `text.steps`. The `kind` of a step from outside the package is its import path, `module:Class`."""

    name: str = Field(default="", pattern=rf"{NAME}|^$", exclude_if=lambda name: not name)
    """In columns and in the funnel; by default the kind. Two steps of one kind need two names."""

    step: ClassVar[str] = ""
    """Module (below `text.refinery`) and class of the step."""

    def build(self) -> Any:
        """The step. Its module is imported here, because many modules compile kernels."""
        return named(f"text.refinery.{self.step}")(self)

    @property
    def label(self) -> str:
        """The step's name: `name`, or the kind; of a step from outside its class in lower case."""
        kind: str = getattr(self, "kind")  # noqa: B009 - every step has one, each its own type
        return self.name or kind.rpartition(":")[2].lower()

    def reads(self) -> list[str]:
        """Files that the step reads."""
        return []

    def files(self) -> list[str]:
        """Files whose contents are part of a folder's key: `reads`, and the code of a step from outside the package."""
        module, outside, _ = getattr(self, "kind").partition(":")  # noqa: B009 - every step has one, each its own type
        return [*self.reads(), *(map(str, code_of(module)) if outside else ())]

    def packages(self) -> list[str]:
        """Installed packages that the step relies on: their versions are part of a folder's key."""
        return []


class EditConfig(StepConfig):
    """Changes the text of each document alone; edits come first."""


class DecisionConfig(StepConfig):
    """Drops whole documents; decisions come after all edits, and the first that drops a document gives the reason."""


class CutConfig(StepConfig):
    """Removes parts of documents that occur elsewhere too; cuts come last, and see what the decisions kept."""
