"""Configuration of the steps that find what stands in a corpus more than once, or in the sets of an evaluation."""

from typing import Literal

from pydantic import Field

from hornbook.fields import Count
from hornbook.text.config_step import CutConfig


class LineDedup(CutConfig):
    """Cut: lines that stand elsewhere too; the first of each stays."""

    kind: Literal["line_dedup"] = "line_dedup"
    min_bytes: Count = Field(default=40, ge=1)
    """Shorter lines stay, blanks at both ends aside: UTF-8, so a Chinese line of 14 characters counts as one of 42."""


class ParagraphDedup(CutConfig):
    """Cut: paragraphs (lines between blank ones) that stand elsewhere too; the first of each stays."""

    kind: Literal["paragraph_dedup"] = "paragraph_dedup"
    min_bytes: Count = Field(default=80, ge=1)
    """Shorter paragraphs stay, blanks at both ends aside, counted in UTF-8."""
