"""What the configurations of all steps of the refinery share. A step is an edit, a decision or a cut."""

from typing import Literal

from pydantic import Field

from hornbook.settings.fields import Config

NAME = r"^[a-z][a-z0-9_]*$"

Words = Literal["whitespace", "unicode", "cjk"]
"""What a word is: what stands between blanks; runs of letters and digits; these, and each ideograph alone."""


class StepConfig(Config):
    """One entry of `text.steps`."""

    name: str = Field(default="", pattern=rf"{NAME}|^$", exclude_if=lambda name: not name)
    """In columns and in the funnel; by default the kind. Two steps of one kind need two names."""

    @property
    def label(self) -> str:
        """The name it goes by."""
        return self.name or getattr(self, "kind")  # noqa: B009 - every step has one, each its own type

    def reads(self) -> list[str]:
        """Files that the step reads: what is in them is part of what makes a folder."""
        return []

    def packages(self) -> list[str]:
        """Installed packages that judge for the step: their versions are part of what makes a folder."""
        return []


class EditConfig(StepConfig):
    """Changes the text of each document alone; edits come first."""


class DecisionConfig(StepConfig):
    """Drops whole documents; decisions come after all edits, and a document falls to the first that drops it."""


class CutConfig(StepConfig):
    """Removes parts of documents that stand elsewhere too; cuts come last, and see what decisions kept."""
