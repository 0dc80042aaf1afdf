"""Configuration of parallelism: ranks, sharding, recomputation."""

from typing import Literal

from pydantic import Field

from hornbook.settings.fields import Config, Count


class ParallelConfig(Config):
    """Ranks, what they share of the model, and what is computed again in backward."""

    data: Count = Field(default=1, ge=1)
    """Data-parallel processes (ranks); each takes its share of the microbatches of a step."""
    shard: Literal["none", "optimizer", "gradients", "everything"] = "none"
    """Divided over the ranks instead of held by each: moments; gradients too; weights too (ZeRO stages 1 to 3)."""
    replicas: Count = Field(default=1, ge=1)
    """Groups of ranks that each hold the whole model between them (hybrid sharding); `data` is a multiple of it."""
    exact: bool = False
    """Sum microbatches in a fixed tree: the same bits with 1, 2, 4 ... ranks of the same threads; costs speed."""
    recompute: Literal["none", "block"] = "none"
    """Keep activations, or only each block's input and compute the rest again in backward."""

    @property
    def world(self) -> int:
        """Ranks of a run, over all axes (`hornbook.parallel.world`)."""
        return self.data
