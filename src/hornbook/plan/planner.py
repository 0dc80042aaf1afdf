"""What a run takes on a cluster before it starts: memory, time and cost of each layout, the best first.

Pure functions: a recipe and a cluster in, a `Plan` out; the command, the pages and the search call the same.
"""

from collections.abc import Iterator
from functools import cached_property
from math import gcd

from pydantic import Field

from hornbook.model.config.flops import step_operations
from hornbook.model.config.parameter_count import count_parameters, embedding_rows
from hornbook.parallel.config import BlockRecompute, NoRecompute, ParallelConfig, PipelineConfig
from hornbook.plan.hardware import Cluster, prices
from hornbook.plan.memory import RankMemory, estimate_memory
from hornbook.plan.step import StepTime, Traffic, estimate_step
from hornbook.settings.fields import Config
from hornbook.settings.layout.rules import layout_problems
from hornbook.settings.layout.tensor import tensor_problems
from hornbook.settings.recipe import Recipe

FITS = 0.94
"""Share of a device's memory that a plan may fill: the allocator's gaps take the rest."""
MOST_ROWS = 64
"""Rows of a micro-batch that the search goes up to."""
SHOWN = 6
"""Layouts that a plan has at most."""
POWER_SHARE = 0.8
"""Share of its board power that a training device draws, and the rest of a machine per device."""


class Layout(Config):
    """One layout of a run on a cluster."""

    name: str
    """`zero-3 x 8, tensor 2`."""
    parallel: ParallelConfig
    micro_batch: int
    recompute: str
    memory: list[RankMemory]
    """Of each rank of the pipeline."""
    fits: bool
    step: StepTime
    tokens_per_second: float
    mfu: float
    """Share of the peak: operations of the model over pairs that see each other."""
    mfu_palm: float
    """The same over all pairs, as PaLM counts."""
    hfu: float
    """Share of the peak with what is computed again."""

    @cached_property
    def worst(self) -> RankMemory:
        """The rank that holds the most."""
        return max(self.memory, key=lambda each: each.peak.total)


class Plan(Config):
    """The layouts of a run on a cluster, the best first."""

    name: str
    parameters: int
    vocab: int
    batch_tokens: int
    tokens: int | None
    """Of the run; None where they depend on data."""
    cluster: Cluster
    layouts: list[Layout]
    remedy: str = ""
    """The smallest cluster on which it fits, where it does not."""
    price: float | None = None
    """Dollars for an hour of a device."""
    price_source: str = ""
    warnings: list[str] = Field(default_factory=list)

    @property
    def best(self) -> Layout:
        """The first."""
        return self.layouts[0]

    def seconds(self, layout: Layout) -> float | None:
        """Of the run, without evaluation and saves."""
        return None if self.tokens is None else self.tokens / layout.tokens_per_second

    def cost(self, layout: Layout) -> float | None:
        """Dollars."""
        seconds = self.seconds(layout)
        if seconds is None or self.price is None:
            return None
        return seconds / 3600 * self.price * self.cluster.count

    def kilowatt_hours(self, layout: Layout) -> float | None:
        """Energy of the devices."""
        seconds = self.seconds(layout)
        watts = self.cluster.device.watts * self.cluster.count * POWER_SHARE
        return None if seconds is None or not watts else seconds / 3.6e6 * watts


def plan_run(recipe: Recipe, cluster: Cluster, *, search: bool = False, price: float | None = None) -> Plan:
    """The plan of a recipe as it is, or with `search` of the layouts that fill the cluster.

    Raises UsageError for parts that do not say what they keep.
    """
    recipe = settle(recipe, cluster)
    vocab = vocabulary(recipe)
    found = _search(recipe, vocab, cluster) if search else [_own(recipe, vocab, cluster)]
    remedy = "" if found[0].fits else _smallest(recipe, vocab, cluster)
    listed = prices()[1].get(cluster.device.name)
    plan = Plan(
        name=recipe.name,
        parameters=count_parameters(recipe.model, vocab),
        vocab=vocab,
        batch_tokens=recipe.train.batch_tokens,
        tokens=recipe.train.tokens,
        cluster=cluster,
        layouts=found,
        remedy=remedy,
        price=listed if price is None else price,
        price_source=("" if listed is None else prices()[0]) if price is None else "as given",
    )
    return plan.model_copy(update={"warnings": list(_warnings(recipe, plan))})


def vocabulary(recipe: Recipe) -> int:
    """Rows of the embedding: the model's, else as the tokenizer to train has them."""
    return embedding_rows(recipe.model, getattr(recipe.text.tokenizer, "vocab", 0))


def settle(recipe: Recipe, cluster: Cluster) -> Recipe:
    """The recipe with the precision that `auto` takes on such devices."""
    if recipe.train.precision != "auto":
        return recipe
    device = cluster.device
    fast = device.bf16 is not None and (not device.is_cpu or device.bf16 > device.fp32)
    return _train(recipe, precision="bf16" if fast else "fp32")


def _train(recipe: Recipe, **changes: object) -> Recipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})


def traffic_of(recipe: Recipe) -> Traffic:
    """What crosses data ranks in hornbook."""
    parallel, item = recipe.parallel, float(recipe.train.item_bytes)
    return Traffic(
        gradient_bytes=2.0 if parallel.compress == "bf16" else item,
        weight_bytes=2.0 if parallel.gather == "bf16" else item,
        beside_data=not parallel.exact,
        fused=recipe.train.compile,
    )


def estimate_layout(recipe: Recipe, vocab: int, cluster: Cluster) -> Layout:
    """Memory and time of a recipe whose number of rows is known."""
    memory = estimate_memory(recipe, vocab, cluster.device)
    step = estimate_step(recipe, vocab, cluster, traffic_of(recipe))
    batch, parallel = recipe.train.batch_tokens, recipe.parallel
    positions = batch, batch if recipe.model.kind == "encoder_decoder" else 0
    done = step_operations(recipe.model, vocab, recipe.train.sequence, positions, parallel.recompute)
    could = step.total * parallel.world * cluster.device.rate(recipe.train.precision)
    peak = max(each.peak.total for each in memory)
    ranks = parallel.world if cluster.device.is_cpu else 1  # ranks on a CPU share its memory
    return Layout(
        name=layout_name(parallel),
        parallel=parallel,
        micro_batch=recipe.train.micro_rows,
        recompute=parallel.recompute.kind,
        memory=memory,
        fits=peak * ranks <= FITS * cluster.device.memory_bytes,
        step=step,
        tokens_per_second=batch / step.total,
        mfu=done.causal / could,
        mfu_palm=done.palm / could,
        hfu=done.recomputed / could,
    )


def layout_name(parallel: ParallelConfig) -> str:
    """`ddp x 8`, `zero-3 x 8, tensor 2, pipeline 4 (1f1b)`."""
    kind = {"none": "ddp", "optimizer": "zero-1", "gradients": "zero-2", "everything": "zero-3"}[parallel.shard]
    words = [f"{kind} x {parallel.data_ranks}" if parallel.data_ranks > 1 else "one rank"]
    sizes = {"tensor": parallel.tensor, "context": parallel.context.ranks, "expert": parallel.expert}
    words += [f"{name} {size}" for name, size in sizes.items() if size > 1]
    if parallel.pipeline.stages > 1:
        words.append(f"pipeline {parallel.pipeline.stages} ({parallel.pipeline.schedule})")
    return ", ".join(words if len(words) == 1 or parallel.data_ranks > 1 else words[1:])


def _own(recipe: Recipe, vocab: int, cluster: Cluster) -> Layout:
    if recipe.train.micro_batch != "auto":
        return estimate_layout(recipe, vocab, cluster)
    return _largest(recipe, vocab, cluster)


# ---- Search


def _search(recipe: Recipe, vocab: int, cluster: Cluster) -> list[Layout]:
    """The fastest layouts that fit, then those that do not, the smallest first."""
    found = [_largest(each, vocab, cluster) for each in _candidates(recipe, cluster)] or [_own(recipe, vocab, cluster)]
    found.sort(key=lambda each: (not each.fits, each.step.total if each.fits else each.worst.peak.total))
    best: dict[str, Layout] = {}
    for each in found:  # of those that differ in recomputation alone, the better one
        best.setdefault(each.name, each)
    return list(best.values())[:SHOWN]


def _candidates(recipe: Recipe, cluster: Cluster) -> Iterator[Recipe]:
    """Legal layouts that fill the cluster."""
    for tensor in _powers(min(cluster.domain, cluster.count)):
        for stages in _powers(min(cluster.count // tensor, recipe.model.layers)):
            data, rest = divmod(cluster.count, tensor * stages)
            kinds = ("none", "optimizer", "everything") if stages == 1 else ("none", "optimizer")
            for shard in kinds if rest == 0 else ():
                if data == 1 and shard != "none":
                    continue
                for again in (NoRecompute(), BlockRecompute()):
                    parallel = recipe.parallel.model_copy(
                        update={
                            "data": data,
                            "shard": shard,
                            "tensor": tensor,
                            "sequence": tensor > 1,
                            "pipeline": PipelineConfig(stages=stages),
                            "recompute": again,
                        }
                    )
                    each = _train(recipe.model_copy(update={"parallel": parallel}), micro_batch=1)
                    if _is_legal(each):
                        yield each


def _powers(most: int) -> list[int]:
    return [1 << n for n in range(most.bit_length()) if 1 << n <= most]


def _is_legal(recipe: Recipe) -> bool:
    parallel, train, model = recipe.parallel, recipe.train, recipe.model
    if any(layout_problems(parallel, train, model)):
        return False
    return not any(tensor_problems(parallel, train, model, recipe.surgery))


def _largest(recipe: Recipe, vocab: int, cluster: Cluster) -> Layout:
    """The largest micro-batch of a power of two that fits and divides the batch among the ranks."""
    rows = recipe.train.batch_tokens // recipe.train.sequence // recipe.parallel.data_ranks
    sizes = [each for each in _powers(gcd(rows, MOST_ROWS)) if rows % each == 0] or [1]
    limit, low, high = FITS * cluster.device.memory_bytes, 0, len(sizes) - 1
    if cluster.device.is_cpu:
        limit /= recipe.parallel.world
    while low < high:
        middle = (low + high + 1) // 2
        memory = estimate_memory(_train(recipe, micro_batch=sizes[middle]), vocab, cluster.device)
        fits = max(each.peak.total for each in memory) <= limit
        low, high = (middle, high) if fits else (low, middle - 1)
    few = sizes[max(low - 3, 0) : low + 1] if recipe.parallel.pipeline.stages > 1 else [sizes[low]]
    tried = [estimate_layout(_train(recipe, micro_batch=each), vocab, cluster) for each in few]
    return min(tried, key=lambda each: (not each.fits, each.step.total))


def _smallest(recipe: Recipe, vocab: int, cluster: Cluster) -> str:
    """The smallest cluster of such devices, by powers of two, on which some layout fits; "" where none does."""
    count = cluster.count
    while (count := 2 * count) <= 2**17:
        node = min(count, cluster.device.node)
        larger = Cluster(device=cluster.device, count=count, node=node)
        batch = max(recipe.train.batch_tokens, count * recipe.train.sequence)
        grown = _train(recipe, batch_tokens=batch // recipe.train.sequence * recipe.train.sequence)
        if any(_fits(each, vocab, larger) for each in _candidates(grown, larger)):
            machines = f"{count // node}x{node}" if count > node else str(count)
            return f"{machines}x{cluster.device.name.replace(' ', '-')}"
    return ""


def _fits(recipe: Recipe, vocab: int, cluster: Cluster) -> bool:
    memory = estimate_memory(recipe, vocab, cluster.device)
    return max(each.peak.total for each in memory) <= FITS * cluster.device.memory_bytes


# ---- Warnings


def _warnings(recipe: Recipe, plan: Plan) -> Iterator[str]:
    best = plan.best
    peak, parallel = best.worst.peak, best.parallel
    last = max((rank.phases["loss"].logits for rank in best.memory), default=0)
    if last > 0.25 * peak.total and not plan.cluster.device.is_cpu:
        yield f"logits and their gradients take {last / 2**30:.1f} GiB: a smaller micro-batch shrinks the other parts"
    if plan.vocab % 64:
        yield f"the vocabulary of {plan.vocab:,} rows is no multiple of 64: products with it are slower"
    if parallel.tensor > plan.cluster.domain:
        yield f"tensor ranks cross machines: {parallel.tensor} ranks, {plan.cluster.domain} devices share a fast link"
    microbatches = -(-recipe.train.batch_tokens // recipe.train.sequence // best.micro_batch) // parallel.data_ranks
    if parallel.pipeline.stages > 1 and microbatches < 4 * parallel.pipeline.stages:
        yield f"{microbatches} microbatches for {parallel.pipeline.stages} stages: ranks wait much of the step"
    if recipe.train.precision == "fp16" and plan.cluster.device.bf16 is not None:
        yield f"fp16 needs loss scaling, and {plan.cluster.device.name} multiplies bf16 as fast: --train.precision bf16"
