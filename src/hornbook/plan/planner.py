"""What a run takes on a cluster before it starts: memory, time and cost of each layout, the best first.

Pure functions: a recipe and a cluster in, a `Plan` out; the command, the pages and the search call the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hornbook.data.config.objectives import Masked, Replaced
from hornbook.errors import UsageError
from hornbook.model.config.flops import StepOperations, step_operations
from hornbook.model.config.parameter_count import count_parameters, embedding_rows
from hornbook.model.config.surgery_config import adapter_of
from hornbook.parallel.config import ParallelConfig
from hornbook.plan.at_scale.failure_costs import Upkeep, estimate_upkeep
from hornbook.plan.counts.adapted import adapted
from hornbook.plan.counts.share import labels_texts, reach, sides
from hornbook.plan.devices.device_rates import NARROW
from hornbook.plan.devices.hardware import PRECISIONS, Cluster, prices
from hornbook.plan.planned_memory import estimate_memory
from hornbook.plan.search.best import Found, Search
from hornbook.plan.search.layout_advice import reasons, warnings
from hornbook.plan.search.plan_result import SAME, Layout, Plan, capacity
from hornbook.plan.search.remedy import fitting_setting, smallest_cluster
from hornbook.plan.search.space import MOST_ROWS, Layouts, divisors
from hornbook.plan.step_time import estimate_step
from hornbook.plan.trainer import Trainer
from hornbook.settings.recipe import Recipe

SHOWN = 6
"""Layouts that a plan has by default."""
KINDS = {"tensor": 2, "expert": 2, "context": 3, "stages": 4}
"""What an axis costs in simplicity; data ranks cost nothing."""


@dataclass(frozen=True)
class _Compared:
    """What a search found."""

    layouts: list[Layout]
    missed: Layout | None = None
    estimates: int = 0


def plan_run(
    recipe: Recipe,
    cluster: Cluster,
    *,
    search: bool = False,
    fixed: Mapping[str, Any] = {},
    price: float | None = None,
    top: int = SHOWN,
    float8: bool = False,
    remedy: bool = True,
) -> Plan:
    """The plan of a recipe as it is, or with `search` of the `top` layouts that fill the cluster, with `float8` in that
    precision too. fixed: what all of them have (`search.space.fixed_parts`). `remedy` looks for a setting and
    for the smallest cluster where it does not fit.

    Raises UsageError for parts that do not say what they keep, and where the device lacks the precision.
    """
    cluster = cluster if search else _with_ranks(cluster, recipe)
    recipe = settle(recipe, cluster)
    own = recipe.train.precision
    precisions = [own, "float8"] if float8 and own != "float8" else [own]
    for precision in precisions:
        _check_precision(precision, cluster)
    vocab = vocabulary(recipe)
    layouts = Layouts(recipe, cluster, precisions, fixed)
    compared = _search(recipe, vocab, layouts, top) if search else _Compared([_own(recipe, vocab, cluster)])
    lacks = remedy and not compared.layouts[0].fits
    plan = _described(recipe, vocab, cluster, compared, price)
    if not lacks:
        return plan
    setting = fitting_setting(recipe, vocab, layouts, trainer_of)
    return plan.model_copy(update={"setting": setting, "remedy": smallest_cluster(recipe, vocab, layouts, trainer_of)})


def plan_own(recipe: Recipe, vocab: int, cluster: Cluster) -> Plan:
    """The plan of a recipe's own layout, with the precision and rows of a run that begins.

    Raises UsageError for parts that do not say what they keep.
    """
    cluster = _with_ranks(cluster, recipe)
    return _described(recipe, vocab, cluster, _Compared([estimate_layout(recipe, vocab, cluster)]))


def _described(recipe: Recipe, vocab: int, cluster: Cluster, compared: _Compared, price: float | None = None) -> Plan:
    hour, source = price_of(cluster, price)
    plan = Plan(
        name=recipe.name,
        parameters=count_parameters(recipe.model, vocab),
        vocab=vocab,
        batch_tokens=recipe.train.batch_tokens,
        tokens=recipe.train.tokens,
        epochs=recipe.train.epochs,
        cluster=cluster,
        layouts=_with_front(compared.layouts),
        missed=compared.missed,
        estimates=compared.estimates,
        price=hour,
        price_source=source,
    )
    return described(plan, recipe)


def described(plan: Plan, recipe: Recipe) -> Plan:
    """The plan with what follows from the times of its layouts: upkeep, reasons, warnings."""
    upkeep = _upkeep(recipe, plan.vocab, plan.cluster, plan.best)
    words = {"reasons": list(reasons(plan)), "warnings": list(warnings(recipe, plan))}
    return plan.model_copy(update={"upkeep": upkeep} | words)


def price_of(cluster: Cluster, price: float | None = None) -> tuple[float | None, str]:
    """(dollars for an hour of a device or None, where they are from); `price` is one that was given."""
    if price is not None:
        return price, "as given"
    if cluster.device.hour is not None:
        return cluster.device.hour, cluster.device.source
    date, hours = prices()
    listed = hours.get(cluster.device.name)
    return listed, "" if listed is None else date


def _upkeep(recipe: Recipe, vocab: int, cluster: Cluster, best: Layout) -> Upkeep | None:
    """None where nothing fits."""
    run = recipe.model_copy(update={"parallel": best.parallel})
    return estimate_upkeep(run, vocab, cluster, best.tokens_per_second) if best.fits else None


def _with_ranks(cluster: Cluster, recipe: Recipe) -> Cluster:
    """A CPU has as many ranks as the recipe gives it."""
    return cluster.model_copy(update={"count": recipe.parallel.world}) if cluster.device.is_cpu else cluster


def _check_precision(precision: str, cluster: Cluster) -> None:
    device = cluster.device
    name = PRECISIONS.get(precision, precision)
    if (device.is_cpu and precision not in NARROW) or getattr(device, name) is not None:
        return
    others = [each for each in ("bf16", "fp16", "fp32") if getattr(device, each) is not None]
    emulated = "; products that train.float8.emulate makes take at least the time of fp32" * (precision == "float8")
    raise UsageError(
        f"{device.name} has no products in {name} (train.precision {precision}): take --train.precision "
        f"{' or '.join(others)}, or another device{emulated}"
    )


def _with_front(layouts: list[Layout]) -> list[Layout]:
    """Layouts that fit, with those marked that no other beats in both time and memory."""

    def beaten(each: Layout) -> bool:
        size = each.worst.peak.total
        others = ((other.step.total, other.worst.peak.total) for other in layouts if other is not each and other.fits)
        return any(t <= each.step.total and m <= size and (t, m) != (each.step.total, size) for t, m in others)

    return [each.model_copy(update={"pareto": each.fits and not beaten(each)}) for each in layouts]


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


def trainer_of(recipe: Recipe) -> Trainer:
    """What crosses data ranks in hornbook."""
    parallel, item = recipe.parallel, float(recipe.train.item_bytes)
    return Trainer(
        gradient_bytes=2.0 if parallel.compress == "bf16" else 4.0,  # summed in float32, also those of bf16 weights
        weight_bytes=2.0 if parallel.gather == "bf16" else item,
        beside_data=not parallel.exact,
        sums_beside=_sums_beside(parallel),
        sum_bytes=None if adapter_of(recipe.surgery) else 4.0,
        targets=_targets(recipe),
        sides=sides(recipe),
        fused=recipe.train.compile,
    )


def _sums_beside(parallel: ParallelConfig) -> bool:
    """Whether gradients cross data ranks during the last backward pass (`hornbook.parallel.data_parallel`), not after
    it: backward passes of other axes have collectives of their own, passes of a pipeline come in any order."""
    if parallel.shard == "none":
        return parallel.world == parallel.data
    return parallel.shard == "gradients" or parallel.pipeline.stages == 1


def _targets(recipe: Recipe) -> float:
    """Share of positions that the head computes."""
    if labels_texts(recipe.model):
        return 1 / recipe.train.sequence
    objective = recipe.data.objective
    return objective.rate if isinstance(objective, Masked | Replaced) else 1.0


def estimate_layout(recipe: Recipe, vocab: int, cluster: Cluster) -> Layout:
    """Memory and time of a recipe whose number of rows is known."""
    cluster = cluster.shared(recipe.parallel.world)
    memory = estimate_memory(recipe, vocab, cluster.device)
    step = estimate_step(recipe, vocab, cluster, trainer_of(recipe))
    batch, parallel = recipe.train.batch_tokens, recipe.parallel
    decoder, encoder = sides(recipe)
    positions = round(batch * decoder), round(batch * encoder) if recipe.model.kind == "encoder_decoder" else 0
    done = step_operations(recipe.model, vocab, reach(recipe), positions, parallel.recompute)
    done = needed_operations(done, recipe, vocab, sum(positions))
    could = step.total * parallel.world * cluster.device.rate(recipe.train.precision)
    peak = max(each.peak.total for each in memory)
    return Layout(
        name=layout_name(parallel),
        parallel=parallel,
        micro_batch=recipe.train.micro_rows,
        precision=recipe.train.precision,
        recompute=parallel.recompute.kind,
        memory=memory,
        fits=peak <= capacity(cluster),
        step=step,
        tokens_per_second=batch / step.total,
        mfu=done.causal / could,
        mfu_palm=done.palm / could,
        hfu=done.recomputed / could,
    )


def needed_operations(done: StepOperations, recipe: Recipe, vocab: int, positions: int) -> StepOperations:
    """Operations of a step without gradients of what surgery froze, a third of its products, and with what it added."""
    if not recipe.surgery:
        return done
    left, head = adapted(recipe.model, vocab, recipe.surgery), done.causal - done.without_head
    below, inside = left.first / recipe.model.num_blocks, done.matrices - head
    spared = (left.frozen * inside + left.is_head_frozen * head) / 3 - 6.0 * positions * left.added * (left.updated > 0)

    def needed(operations: float) -> float:
        """Blocks before the first one that is trained have no gradients of their inputs, nor of attention."""
        return operations - spared - below * (2 * (operations - head) - inside) / 3

    return replace(done, causal=needed(done.causal), palm=needed(done.palm), recomputed=needed(done.recomputed))


def layout_name(parallel: ParallelConfig) -> str:
    """`ddp x 8`, `zero-3 x 8, tensor 2, pipeline 4 (1f1b)`."""
    kind = {"none": "ddp", "optimizer": "zero-1", "gradients": "zero-2", "everything": "zero-3"}[parallel.shard]
    words = [f"{kind} x {parallel.data_ranks}" if parallel.data_ranks > 1 else "one rank"]
    words += [f"{parallel.replicas} replicas"] if parallel.replicas > 1 else []
    sizes = {"tensor": parallel.tensor, "context": parallel.context.ranks, "expert": parallel.expert}
    words += [f"{name} {size}" for name, size in sizes.items() if size > 1]
    if parallel.pipeline.stages > 1:
        chunks = f" x{parallel.pipeline.chunks}" if parallel.pipeline.schedule == "interleaved" else ""
        words.append(f"pipeline {parallel.pipeline.stages} ({parallel.pipeline.schedule}{chunks})")
    return ", ".join(words if len(words) == 1 or parallel.data_ranks > 1 else words[1:])


def _own(recipe: Recipe, vocab: int, cluster: Cluster) -> Layout:
    if recipe.train.micro_batch != "auto":
        return estimate_layout(recipe, vocab, cluster)
    return _largest(recipe, vocab, cluster)


def _largest(recipe: Recipe, vocab: int, cluster: Cluster) -> Layout:
    """The largest micro-batch that fits and divides the batch among the ranks, else one row."""
    rows = recipe.train.batch_tokens // recipe.train.sequence // recipe.parallel.data_ranks
    sizes = [each for each in divisors(rows, MOST_ROWS) if each & (each - 1) == 0]
    for size in reversed(sizes[1:]):
        layout = estimate_layout(_train(recipe, micro_batch=size), vocab, cluster)
        if layout.fits:
            return layout
    return estimate_layout(_train(recipe, micro_batch=1), vocab, cluster)


# ---- Search


def _search(recipe: Recipe, vocab: int, layouts: Layouts, top: int) -> _Compared:
    """The fastest layouts that fit, the best first, or those that take the least memory where none does."""
    cluster = layouts.cluster
    search = Search(vocab, cluster.shared(cluster.count), layouts, trainer_of)
    found = search.fastest(top, capacity(cluster), SAME)
    if found:
        best = min((each for each in found if each.step.total <= SAME * found[0].step.total), key=_simplicity)
        found = [best, *(each for each in found if each is not best)]
    if not (found := found or search.smallest(top)):
        raise UsageError(_no_layout(recipe, layouts))
    shown = [estimate_layout(layouts.recipe(each.block, each.spread), vocab, cluster) for each in found[:top]]
    missed = search.missed and layouts.recipe(search.missed.block, search.missed.spread)
    return _Compared(shown, missed and estimate_layout(missed, vocab, cluster), search.num_estimates)


def _simplicity(found: Found) -> tuple[object, ...]:
    """Few and simple kinds of ranks first, little sharded, little computed again, little memory."""
    block, spread = found.block, found.spread
    ranks = {"tensor": block.tensor, "expert": block.expert, "context": block.context, "stages": spread.stages}
    kinds = sum(KINDS[name] for name, size in ranks.items() if size > 1) + (spread.replicas > 1)
    level = ("none", "optimizer", "gradients", "everything").index(spread.shard)
    return kinds, spread.stages > 1 and spread.schedule != "1f1b", level, block.recompute != "none", found.peak


def _no_layout(recipe: Recipe, layouts: Layouts) -> str:
    """Why no layout fills a cluster at all."""
    cluster, rows = layouts.cluster, recipe.train.batch_tokens // recipe.train.sequence
    compiled = "; train.compile rules out context ranks" if recipe.train.compile else ""
    fixed = "".join(f"; {name} is {value}" for name, value in layouts.fixed.items())
    return (
        f"no layout of {recipe.name} fills {cluster.count} devices: it has data ranks that divide {rows} "
        f"row{'s' * (rows != 1)} of a step (train.batch_tokens / train.sequence), tensor ranks of one machine "
        f"(up to {layouts.most_tensor}) that divide {recipe.model.heads} heads (model.heads), and stages of "
        f"{recipe.model.layers} layers with as many microbatches{compiled}{fixed}. Change --cluster, or "
        f"--train.batch_tokens to a multiple of {cluster.count * recipe.train.sequence:,}"
    )
