"""Configuration of parallelism: ranks, sharding, recomputation."""

from math import prod
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from hornbook.settings.fields import Config, Count, Number

FILL = -1
"""Ranks along an axis: as many as the other axes leave of the world."""


def _ranks(value: int) -> int:
    if value == 0:
        raise ValueError("no ranks: write 1 or more, or -1 for those that the other axes leave")
    return value


Ranks = Annotated[Count, Field(ge=FILL), AfterValidator(_ranks)]
"""Number of ranks along an axis, or FILL."""


class NoRecompute(Config):
    """Everything that backward needs is kept."""

    kind: Literal["none"] = "none"


class BlockRecompute(Config):
    """Of a block only its input is kept (Chen et al. 2016, arXiv 1604.06174)."""

    kind: Literal["block"] = "block"
    every: Count = Field(default=1, ge=1)
    """Every k-th block is computed again, the first of them among these; the others keep what they need."""


class SelectiveRecompute(Config):
    """Outputs of matrix products are kept; norms, activations, casts of weights and attention probabilities are not."""

    kind: Literal["selective"] = "selective"


class BudgetRecompute(Config):
    """The compiler chooses what to compute again within a budget of memory; needs `train.compile`."""

    kind: Literal["budget"] = "budget"
    share: Number = Field(default=0.5, ge=0, le=1)
    """Bytes kept, as a share of what a compiled block keeps by default: 0 keeps its inputs alone."""


BETWEEN = 2**28
"""Bytes of tensors that are in the device's memory and in a copy at once: on their way down, or up ahead of use."""


class NoOffload(Config):
    """All is held in the memory of the device."""

    kind: Literal["none"] = "none"


class HostOffload(Config):
    """On a GPU: in page-locked memory of the host."""

    kind: Literal["cpu"] = "cpu"
    activations: bool = True
    """What blocks keep for backward; copied while the GPU computes."""
    optimizer: bool = False
    """The optimizer: its state, and the update, which the host computes as it would in a run on a CPU. The GPU keeps
    weights and gradients."""
    parameters: bool = False
    """Where ranks share the weights (`shard = "everything"`): a rank's share of weights and gradients too, besides the
    optimizer. Weights of a block are copied up when they are gathered, gradients down once they are summed."""


class DiskOffload(Config):
    """In files of a scratch folder, which have no names and vanish with the process."""

    kind: Literal["disk"] = "disk"
    activations: bool = True
    """What blocks keep for backward."""
    optimizer: bool = True
    """The optimizer's state, in files mapped into memory; in a run on a GPU the host then computes the update."""
    parameters: bool = False
    """Weights, in files mapped into memory, where each rank holds all of them."""
    folder: str = ""
    """Folder of the files; by default that of temporary files."""


def _by_kind(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


Recompute = Annotated[
    NoRecompute | BlockRecompute | SelectiveRecompute | BudgetRecompute,
    Field(discriminator="kind"),
    BeforeValidator(_by_kind),
]


Offload = Annotated[NoOffload | HostOffload | DiskOffload, Field(discriminator="kind"), BeforeValidator(_by_kind)]


class PipelineConfig(Config):
    """Blocks divided over ranks: each rank computes a stage, and microbatches flow through the stages."""

    stages: Ranks = 1
    """Ranks that the blocks are divided over."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"] = "1f1b"
    """Order of forward and backward passes (`parallel.axes.pipeline.pass_orders`); no gradient depends on it."""
    chunks: Count = Field(default=2, ge=2)
    """Stages that each rank holds in turns, of the schedule `interleaved`; `zbv` and `dualpipev` have two."""
    cuts: list[Count] = Field(default_factory=list)
    """First block of each stage but the first, those of an encoder counted before the others; empty: evenly by
    operations, the head's included."""

    @property
    def chunks_per_rank(self) -> int:
        """Stages that each rank holds."""
        return self.chunks if self.schedule == "interleaved" else 2 if self.schedule in ("zbv", "dualpipev") else 1

    @property
    def all_stages(self) -> int:
        """Stages of the whole pipeline."""
        return self.stages * self.chunks_per_rank


class ContextConfig(Config):
    """Sequences divided over ranks, which exchange what attention needs."""

    ranks: Ranks = 1
    """Ranks that each sequence is divided over."""
    kind: Literal["ring", "all-to-all"] = "ring"
    """How attention sees the whole sequence: keys and values travel around (`ring`, any number of heads), or each rank
    gets all positions of some heads (`all-to-all`; fewer bytes, heads must divide among the ranks)."""


def _count_as(key: str) -> BeforeValidator:
    """A bare number stands for a table in which `key` is that number."""

    def read(value: Any) -> Any:
        return value if isinstance(value, dict | Config) else {key: value}

    return BeforeValidator(read)


class ParallelConfig(Config):
    """Ranks, what they share of the model, and what is computed again in backward.

    One axis may be -1: as many ranks as the others leave of those that are there.
    """

    data: Ranks = 1
    """Data-parallel processes (ranks); each takes its share of the microbatches of a step. -1: as many as there are."""
    shard: Literal["none", "optimizer", "gradients", "everything"] = "none"
    """Divided over the ranks instead of held by each: moments; gradients too; weights too (ZeRO stages 1 to 3)."""
    replicas: Count = Field(default=1, ge=1)
    """Groups of ranks that each hold the whole model between them (hybrid sharding); `data` is a multiple of it."""
    tensor: Ranks = 1
    """Ranks that the matrices of each layer are divided over, and the vocabulary."""
    sequence: bool = False
    """Divide what lies between those matrices too, norms and dropout, by time over the same ranks."""
    pipeline: Annotated[PipelineConfig, _count_as("stages")] = PipelineConfig()
    """Stages of blocks; a number stands for that many stages."""
    context: Annotated[ContextConfig, _count_as("ranks")] = ContextConfig()
    """Parts of sequences; a number stands for that many ranks."""
    expert: Ranks = 1
    """Ranks that the experts of each layer are divided over; each has microbatches of its own."""
    bucket_mb: Number | None = Field(default=None, gt=0)
    """MiB of gradients that cross ranks in one call; by default 25. Small ones start earlier, large ones waste less on
    each call."""
    compress: Literal["none", "bf16"] = "none"
    """How gradients cross ranks: in their own dtype, or rounded to bfloat16, half the bytes. Of p ranks that sum
    together a gradient is then off by at most p / 256 of the sum of their absolute values, and a little."""
    gather: Literal["stored", "bf16"] = "stored"
    """How sharded weights cross ranks and are kept for use: in their own dtype, or rounded to bfloat16, half the bytes.
    Needs a run that computes in bfloat16, whose matrices are rounded for each use in any case."""
    reshard: bool = True
    """With `shard = "everything"`: gathered weights of a block are released between forward and backward and gathered
    again; `false` keeps them until the backward pass, which takes memory and saves a third of what crosses ranks."""
    exact: bool = False
    """Sum microbatches in a fixed tree: the same bits with 1, 2, 4 ... ranks of the same threads; costs speed."""
    recompute: Recompute = NoRecompute()
    """What backward computes again to save memory. No kind changes a bit of a gradient but `budget`."""
    offload: Offload = NoOffload()
    """What is held outside the memory of the device. No bit of a run depends on it, but where the optimizer of a run on
    a GPU is offloaded: the update is then rounded as on a CPU."""

    @property
    def data_ranks(self) -> int:
        """Ranks that have microbatches of their own; an axis of -1 counts as one rank until it is filled."""
        return abs(self.data * self.expert)

    @property
    def world(self) -> int:
        """Ranks of a run, over all axes (`hornbook.parallel.world`), as `data_ranks` counts."""
        return prod(map(abs, axis_ranks(self).values()))


def axis_ranks(parallel: ParallelConfig) -> dict[str, int]:
    """Setting of each axis -> ranks along it; their product is the world."""
    return {
        "parallel.data": parallel.data,
        "parallel.tensor": parallel.tensor,
        "parallel.pipeline.stages": parallel.pipeline.stages,
        "parallel.context.ranks": parallel.context.ranks,
        "parallel.expert": parallel.expert,
    }
