"""Configuration of how token shards become batches: sources and their weights, the order of samples, the objective."""

from typing import Annotated, Literal

from pydantic import Field

from hornbook.data.config.objectives import Causal, ObjectiveConfig
from hornbook.optim.config.batch_schedule import LinearRamp, NoRamp
from hornbook.settings.fields import Config, Count, LocalPath, Number


class StageConfig(Config):
    """From a position in the run on, other weights."""

    from_tokens: Count = Field(ge=0)
    """Position of training, in tokens, at which this stage begins."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Share of tokens per source."""


class ReplayConfig(Config):
    """Text of an earlier training, so that what it taught is not forgotten (Ibrahim et al. 2024, arXiv 2403.08763)."""

    path: LocalPath | None = None
    """Folder of that text, tokenized as the new one; its sources get names that begin with `replay-`. None: none."""
    share: Number = Field(default=0.05, ge=0, lt=1)
    """Share of the tokens that are taken from it, from its sources by their size: 0.01 to 0.05 where the new text is
    like it, 0.25 to 0.5 where it is not. 0: it is evaluated alone."""


class NoCurriculum(Config):
    """Rows come in the order of `data.order` from the start."""

    kind: Literal["none"] = "none"


class Curriculum(Config):
    """From easy rows to hard ones (Bengio et al. 2009), in the first pass over each source, which still reads all once.

    After t tokens rows are drawn from the easiest share c of a source, less those already read: c is
    (start^root + (1 - start^root) t / over_tokens)^(1 / root), the competence of Platanios et al. 2019 (arXiv
    1903.09848, equation 8). A row is as hard as the mean of its tokens' documents. Replayed text is shuffled as always.
    """

    kind: Literal["difficulty"] = "difficulty"
    by: str = "length"
    """What is hard: `length`, the tokens of a document, or a column that a step of `prepare` measured (STEP.NAME)."""
    hardest: Literal["highest", "lowest"] = "highest"
    """Which values are hard: `lowest` where a column is a score of quality."""
    over_tokens: Count = Field(ge=1)
    """Tokens of training after which rows of all of a source are drawn."""
    start: Number = Field(default=0.01, gt=0, le=1)
    """The easiest share from which the first rows are drawn."""
    root: Number = Field(default=2, gt=0)
    """1 lets new rows in evenly; 2, the paper's square root, more of them early."""


class DataConfig(Config):
    """Which tokens are seen, and in which order."""

    path: LocalPath | None = None
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
    curriculum: Annotated[NoCurriculum | Curriculum, Field(discriminator="kind")] = NoCurriculum()
    """Whether easy rows come first."""
    sequence_ramp: Annotated[NoRamp | LinearRamp, Field(discriminator="kind")] = NoRamp()
    """How far attention reaches, from few tokens at first to `train.sequence` (arXiv 2108.06084): documents are cut
    into parts of so many tokens, as if each were one of its own. The tokens of a row and of a batch stay the same."""
    packing: Literal["concat", "best_fit"] = "concat"
    """Cut the stream of documents into rows, or fit whole documents into rows."""
    document_mask: bool = True
    """Attention stays inside a document and positions restart with each."""
    objective: ObjectiveConfig = Causal()
    """The objective: targets that the model learns to predict."""
