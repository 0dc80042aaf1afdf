"""Configuration of how token shards become batches: sources and their weights, the order of samples, the objective."""

from typing import Literal

from pydantic import Field

from hornbook.data.config.objectives import Causal, ObjectiveConfig
from hornbook.settings.fields import Config, Count, Number


class StageConfig(Config):
    """From a position in the run on, other weights."""

    from_tokens: Count = Field(ge=0)
    """Position of training, in tokens, at which this stage begins."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Share of tokens per source."""


class ReplayConfig(Config):
    """Text of an earlier training, so that what it taught is not forgotten (Ibrahim et al. 2024, arXiv 2403.08763)."""

    path: str | None = None
    """Folder of that text, tokenized as the new one; its sources get names that begin with `replay-`. None: none."""
    share: Number = Field(default=0.05, ge=0, lt=1)
    """Share of the tokens that are taken from it, from its sources by their size: 0.01 to 0.05 where the new text is
    like it, 0.25 to 0.5 where it is not. 0: it is evaluated alone."""


class DataConfig(Config):
    """Which tokens are seen, and in which order."""

    path: str | None = None
    """Folder written by `hornbook tokenize`; `hornbook train --data` sets it."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Share of tokens per source, normalised; by default each source by its size."""
    temperature: Number = Field(default=1.0, ge=1)
    """Where no weights are given they are size ** (1 / temperature): 1 is by size, more lifts small sources."""
    replay: ReplayConfig = ReplayConfig()
    """Text of an earlier training among the new; the other weights share what it leaves."""
    max_epochs: Number | None = Field(default=None, gt=0)
    """A source that was read so often is read no more; the others take its place by their weights."""
    stages: list[StageConfig] = Field(default_factory=list)
    """Changes of the weights during the run."""
    order: Literal["shuffled", "sequential", "replacement"] = "shuffled"
    """A new permutation each epoch, the order of the shards, or independent draws."""
    packing: Literal["concat", "best_fit"] = "concat"
    """Cut the stream of documents into rows, or fit whole documents into rows."""
    document_mask: bool = True
    """Attention stays inside a document and positions restart with each."""
    objective: ObjectiveConfig = Causal()
    """The objective: targets that the model learns to predict."""
