"""Configuration of how one model is spread over devices."""

from typing import Literal

from pydantic import Field

from hornbook.fields import Config


class ParallelConfig(Config):
    """One process for now."""

    data: int = Field(default=1, ge=1, le=1)
    """Data-parallel processes."""
    recompute: Literal["none", "block"] = "none"
    """Keep activations, or only each block's input and compute the rest again in backward."""
