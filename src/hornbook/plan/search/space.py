"""Layouts that a run can have on a cluster: all axes of `[parallel]`, micro-batches, recomputation, precisions.

A layout is a `Block` (what the time and memory of a microbatch depend on) and a `Spread` (how microbatches and state
are spread over the rest of the cluster). What no layout gains by is left out: tensor ranks that do not divide the
stream (`sequence`) where they could, since they send as many bytes and hold more; pipelines of more stages than
microbatches, which never fill.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.parameter_count import stacks_of
from hornbook.parallel.axes.pipeline.pass_orders import SPLIT, Schedule
from hornbook.parallel.config import (
    FILL,
    BlockRecompute,
    ContextConfig,
    HostOffload,
    NoRecompute,
    Offload,
    ParallelConfig,
    PipelineConfig,
    SelectiveRecompute,
)
from hornbook.plan.devices.hardware import Cluster
from hornbook.settings.layout.divided_surgery import divided_surgery_problems
from hornbook.settings.layout.rules import layout_problems
from hornbook.settings.layout.tensor import tensor_problems
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved

MOST_ROWS = 64
"""Rows of a micro-batch that the search goes up to."""
LEAST_POSITIONS = 1024
"""Positions of a row that a context rank has at least."""
SCHEDULES: tuple[tuple[Schedule, int], ...] = (
    ("1f1b", 1),
    ("interleaved", 2),
    ("interleaved", 4),
    ("zb-h1", 1),
    ("zbv", 2),
    ("dualpipev", 2),
)
"""Schedules and the stages that each rank has; `gpipe` holds more than `1f1b` and is no faster."""
RECOMPUTE = {"none": NoRecompute(), "selective": SelectiveRecompute(), "block": BlockRecompute()}
"""By what they keep, the most first."""
_ONE_STAGE, _ONE_PART = PipelineConfig(), ContextConfig()
PARTS = {
    "train.micro_batch": "micro",
    "parallel.recompute.kind": "recompute",
    "parallel.tensor": "tensor",
    "parallel.context.ranks": "context",
    "parallel.context.kind": "exchange",
    "parallel.expert": "expert",
    "parallel.data": "data",
    "parallel.shard": "shard",
    "parallel.replicas": "replicas",
    "parallel.pipeline.stages": "stages",
    "parallel.pipeline.schedule": "schedule",
    "parallel.pipeline.chunks": "chunks",
}
"""Settings that a search may be told to leave as they are, and their names in `Block` and `Spread`."""
WITH_NUMBER = {"schedule": "1f1b", "chunks": 2, "exchange": "ring"}
"""What `parallel.pipeline = 4` and `parallel.context = 2` set beside the number, with all else of their tables."""


def fixed_parts(resolved: Resolved) -> dict[str, Any]:
    """Of a layout what the command line or the environment sets, by names as in `Block` and `Spread`."""
    recipe, found = resolved.recipe, dict[str, Any]()
    given = {key for key, origin in resolved.origins.items() if origin.startswith(("command line", "environment"))}
    for key, name in PARTS.items():
        value: Any = recipe
        for word in key.split("."):
            value = getattr(value, word)
        table = {each for each in resolved.origins if each.startswith(f"{key.rpartition('.')[0]}.")}
        by_number = value == WITH_NUMBER.get(name) and table <= given
        if key in given and not by_number and value not in ("auto", FILL):
            found[name] = value
    return found


class Block(NamedTuple):
    """What the time and memory of a microbatch depend on."""

    tensor: int = 1
    context: int = 1
    exchange: str = "ring"
    """How context ranks exchange keys and values."""
    expert: int = 1
    precision: str = "bf16"
    recompute: str = "none"
    micro: int = 1

    @property
    def ranks(self) -> int:
        """Ranks that compute a microbatch together."""
        return self.tensor * self.context


class Spread(NamedTuple):
    """How microbatches and state are spread."""

    stages: int = 1
    schedule: Schedule = "1f1b"
    chunks: int = 1
    data: int = 1
    shard: str = "none"
    replicas: int = 1


class Layouts:
    """The legal layouts of a recipe that fill a cluster; fixed: what all of them have, by names as in `Block`."""

    def __init__(
        self,
        recipe: Recipe,
        cluster: Cluster,
        precisions: Sequence[str],
        fixed: Mapping[str, Any] = {},
    ) -> None:
        self._recipe = recipe
        self.cluster = cluster
        self._precisions = precisions
        self.fixed = fixed
        own = recipe.parallel.recompute
        self._recompute = RECOMPUTE | ({own.kind: own} if "recompute" in fixed else {})
        self._legal: dict[tuple[Any, ...], bool] = {}

    def other(self, recipe: Recipe, cluster: Cluster) -> "Layouts":
        """Those of another recipe and cluster."""
        return Layouts(recipe, cluster, self._precisions, self.fixed)

    @property
    def most_tensor(self) -> int:
        """Tensor ranks at most: those of a machine, or of what a fast link joins."""
        return max(self.cluster.domain, self.cluster.node)

    @cached_property
    def rows(self) -> int:
        """Rows of a step."""
        return self._recipe.train.batch_tokens // self._recipe.train.sequence

    def recipe(self, block: Block, spread: Spread) -> Recipe:
        """The recipe with a layout."""
        recipe = self._recipe
        pipeline = {"stages": spread.stages, "schedule": spread.schedule}
        pipeline |= {"chunks": spread.chunks} if spread.schedule == "interleaved" else {}
        parallel = recipe.parallel.model_copy(
            update={
                "data": spread.data,
                "shard": spread.shard,
                "gather": recipe.parallel.gather if spread.shard != "none" else "stored",
                "reshard": recipe.parallel.reshard or spread.shard != "everything",
                "replicas": spread.replicas,
                "tensor": block.tensor,
                "sequence": block.tensor > 1 and block.context == 1,
                "expert": block.expert,
                "context": _ONE_PART.model_copy(update={"ranks": block.context, "kind": block.exchange}),
                "pipeline": _ONE_STAGE.model_copy(update=pipeline),
                "recompute": self._recompute[block.recompute],
                "offload": _offload(recipe.parallel.offload, spread.shard),
            }
        )
        train = recipe.train.model_copy(update={"micro_batch": block.micro, "precision": block.precision})
        return recipe.model_copy(update={"parallel": parallel, "train": train})

    def weights_on_host(self, shard: str) -> bool:
        """Whether the host holds a rank's share of weights and gradients."""
        offload = _offload(self._recipe.parallel.offload, shard)
        return isinstance(offload, HostOffload) and offload.parameters

    def blocks(self) -> Iterator[Block]:
        """One for each way to divide a microbatch, with the largest micro-batch and nothing computed again."""
        count = self.cluster.count
        for tensor in self._divisors("tensor", count, self.most_tensor):
            longest = self._recipe.train.sequence // LEAST_POSITIONS
            for context in self._divisors("context", count // tensor, longest):
                for exchange in self._options("exchange", ("ring", "all-to-all")) if context > 1 else ("ring",):
                    for expert in self._divisors("expert", count // tensor // context, self._experts):
                        for precision in self._precisions:
                            block = Block(tensor, context, exchange, expert, precision)
                            sizes = self.micro_batches(block)
                            if sizes and self._allows(block, Spread()):
                                yield block._replace(micro=sizes[0])

    def variants(self, block: Block) -> Iterator[Block]:
        """Recomputation and micro-batches, those first that compute least again, and the largest."""
        for recompute in self._options("recompute", self._recompute):
            each = block._replace(recompute=recompute, micro=1)
            if self._allows(each, Spread()):
                yield from (each._replace(micro=size) for size in self.micro_batches(block))

    def micro_batches(self, block: Block) -> list[int]:
        """Rows of a micro-batch that divide the batch, the largest first."""
        rows, rest = divmod(self.rows, block.expert)
        if rest:
            return []
        return self._divisors("micro", rows, MOST_ROWS)[::-1]

    def spreads(self, block: Block) -> Iterator[Spread]:
        """The ways to spread such microbatches over the rest of the cluster."""
        left = self.cluster.count // block.ranks // block.expert
        each = self.rows // block.micro // block.expert
        for stages in self._divisors("stages", left, self._layers):
            data = left // stages
            if each % data or each // data < stages or data != self.fixed.get("data", data):
                continue
            for schedule, chunks in self._schedules if stages > 1 else SCHEDULES[:1]:
                if stages > 1 and (stages * chunks > self._layers or not self._allows_pipeline(block, schedule)):
                    continue
                shards = self._shards(block, Spread(stages, schedule, chunks, data))
                yield from (spread for spread in shards if self._keeps(spread))

    def _shards(self, block: Block, spread: Spread) -> Iterator[Spread]:
        yield spread
        if spread.data == 1:
            return
        inside = max(self.cluster.domain // (block.ranks * block.expert), 1)  # ranks that a fast link joins
        hybrid = spread.data // inside if spread.data % inside == 0 and inside > 1 else 1
        for shard in ("optimizer", "gradients", "everything"):
            for replicas in sorted({1, hybrid} - {spread.data}):
                yield spread._replace(shard=shard, replicas=replicas)

    # ---- What is fixed

    def _divisors(self, name: str, number: int, most: int) -> list[int]:
        """Of a part of the layout: divisors of `number` up to `most`, or the one that is fixed."""
        if name not in self.fixed:
            return divisors(number, most)
        return [] if number % self.fixed[name] else [self.fixed[name]]

    def _options(self, name: str, options: Iterable[str]) -> list[str]:
        return [each for each in options if each == self.fixed.get(name, each)]

    def _keeps(self, spread: Spread) -> bool:
        """Whether shard and replicas are what is fixed; one rank has nothing to share."""
        names = ("shard", "replicas") if spread.data > 1 else ()
        return all(getattr(spread, name) == self.fixed.get(name, getattr(spread, name)) for name in names)

    @cached_property
    def _schedules(self) -> Sequence[tuple[Schedule, int]]:
        if (schedule := self.fixed.get("schedule")) is None:
            return SCHEDULES
        known = [each for each in SCHEDULES if each[0] == schedule] or [(schedule, 1)]
        return [(schedule, self.fixed["chunks"])] if "chunks" in self.fixed else known

    # ---- What is legal

    @cached_property
    def _layers(self) -> int:
        return sum(stack.layers for stack in stacks_of(self._recipe.model))

    @cached_property
    def _experts(self) -> int:
        parts = [
            stack.layer(number).mlp for stack in stacks_of(self._recipe.model) for number in range(stack.num_blocks)
        ]
        return min((part.count for part in parts if isinstance(part, ExpertsConfig)), default=1)

    def _allows_pipeline(self, block: Block, schedule: Schedule) -> bool:
        """Rules of pipelines ask what kind of schedule it is, not how many stages there are."""
        kind: Schedule = "zb-h1" if schedule in SPLIT else "1f1b"
        return self._allows(block._replace(micro=1, tensor=1), Spread(min(2, self._layers), kind))

    def _allows(self, block: Block, spread: Spread) -> bool:
        key = (block, spread)
        if key not in self._legal:
            recipe = self.recipe(block, spread)
            self._legal[key] = not any(problems(recipe))
        return self._legal[key]


def _offload(offload: Offload, shard: str) -> Offload:
    """Weights stay on the device where `shard` does not allow them on the host or on disk."""
    allowed = {"cpu": "everything", "disk": "none"}.get(offload.kind, shard)
    return offload if allowed == shard else offload.model_copy(update={"parameters": False})


def problems(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """(Dotted key, what is wrong with its layout)."""
    parallel: ParallelConfig = recipe.parallel
    yield from layout_problems(parallel, recipe.train, recipe.model)
    yield from tensor_problems(parallel, recipe.train, recipe.model)
    yield from divided_surgery_problems(parallel, recipe.model, recipe.surgery)


def divisors(number: int, most: int) -> list[int]:
    """Divisors of a number up to `most`, the smallest first."""
    return [each for each in range(1, min(number, max(most, 1)) + 1) if number % each == 0]
