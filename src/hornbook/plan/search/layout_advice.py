"""What a plan says in words: why its best layout is the best, why a faster one does not fit, what to look out for."""

from collections.abc import Iterator

from hornbook.model.config.parameter_count import parameter_counts
from hornbook.plan.planned_memory import CATEGORIES
from hornbook.plan.search.number_words import dollars, short, spelled, step_time
from hornbook.plan.search.plan_result import SAME, Layout, Plan, capacity
from hornbook.settings.recipe import Recipe

PARTS = {
    "compute": "computing",
    "recompute": "computing again",
    "tensor": "messages within blocks",
    "data": "messages of gradients and weights",
    "bubble": "waiting in the pipeline",
    "update": "the optimizer",
}
"""Parts of a step in words."""
LARGE = 0.25
"""Share of the peak from which logits are worth a word."""
ACTIVATIONS = 0.6
"""The same of activations."""
TWICE = 2.0
"""How much faster 16 bits must be than fp32 to be worth a word."""
EPOCHS = 4
"""Epochs from which repeated text is worth less than new text (Muennighoff et al. 2023, arXiv 2305.16264)."""


def verdict(plan: Plan) -> str:
    """The answer in a sentence: time and cost of the best layout, or what makes a run fit that does not."""
    best, seconds, cost = plan.best, plan.seconds(plan.best), plan.cost(plan.best)
    if not best.fits:
        need, usable = best.worst.peak.total / 2**30, capacity(plan.cluster) / 2**30
        return f"Does not fit on {plan.cluster}: {need:.1f} GiB needed, {usable:.1f} usable; {plan.fits_on}"
    if seconds is not None:
        return f"Fits: {spelled(seconds)}{'' if cost is None else f' and {dollars(cost)}'} on {plan.cluster}"
    length = "no length is set" if plan.epochs is None else f"{plan.epochs:g} epoch{'s' * (plan.epochs != 1)}"
    speed = f"{short(best.tokens_per_second)} tokens per second"
    return f"Fits on {plan.cluster}: {speed}, {length}; --data DATA or --train.tokens N gives time and cost"


def reasons(plan: Plan) -> Iterator[str]:
    """Why the best layout is before the next, and why one that would be faster does not fit."""
    best = plan.best
    if not best.fits:
        yield f"{_named(best)} needs the least memory{_short_of(plan, best)}"
        return
    if len(plan.layouts) > 1:
        yield _before(best, plan.layouts[1])
    if plan.missed is not None:
        missed = plan.missed
        yield f"{_named(missed)} takes {step_time(missed.step.total)} but does not fit{_short_of(plan, missed)}"


def _named(layout: Layout) -> str:
    again = f", recompute {layout.recompute}" if layout.recompute != "none" else ""
    rows = "one row" if layout.micro_batch == 1 else f"{layout.micro_batch} rows"
    return f"{layout.name} with {rows}{again}"


def _before(best: Layout, after: Layout) -> str:
    gaps = {name: value - getattr(best.step, name) for name, value in after.step}
    name = max(gaps, key=lambda each: gaps[each])
    slower = after.step.total / best.step.total - 1
    if slower < SAME - 1:
        faster = "slower" if slower > 0 else "faster and more complex"
        return f"{best.name} is listed first: {after.name} is less than {100 * SAME - 100:.0f} % {faster}"
    part = f"{PARTS[name]} takes {step_time(getattr(after.step, name))}, not {step_time(getattr(best.step, name))}"
    return f"{best.name} is listed first: {after.name} takes {100 * slower:.0f} % longer ({part})"


def _short_of(plan: Plan, layout: Layout) -> str:
    """How much memory a layout needs, and what takes most of it."""
    peak, usable = layout.worst.peak, capacity(plan.cluster)
    name = max(CATEGORIES, key=lambda each: getattr(peak, each))
    most = f"{name} {getattr(peak, name) / 2**30:.1f}"
    return f": {peak.total / 2**30:.1f} GiB ({most}); {usable / 2**30:.1f} GiB are usable"


def warnings(recipe: Recipe, plan: Plan) -> Iterator[str]:
    """What to look out for, with what to do about it."""
    yield from _memory_warnings(plan)
    yield from _shape_warnings(recipe, plan)
    yield from _layout_warnings(recipe, plan)
    yield from _batch_warnings(recipe, plan)
    epochs = recipe.train.epochs
    if epochs is not None and epochs > EPOCHS:
        yield f"{epochs:g} epochs: beyond {EPOCHS} repeated text is worth less than new text (arXiv 2305.16264)"


def _memory_warnings(plan: Plan) -> Iterator[str]:
    best = plan.best
    peak, device = best.worst.peak, plan.cluster.device
    logits = max((rank.phases["loss"].logits for rank in best.memory), default=0)
    if logits > LARGE * peak.total and not best.fits:
        yield (
            f"logits and their gradients take {logits / 2**30:.1f} GiB, chunk by chunk, so that a smaller micro-batch "
            "changes little: tensor ranks (parallel.tensor) or a smaller vocabulary do"
        )
    if peak.activations > ACTIVATIONS * peak.total and best.recompute == "none" and not device.is_cpu:
        share = peak.activations / peak.total
        yield (
            f"activations are {share:.0%} of the peak: longer rows or more of them need --parallel.recompute block, "
            "which keeps the input of each block alone and takes about a third more computing"
        )


def _shape_warnings(recipe: Recipe, plan: Plan) -> Iterator[str]:
    if plan.vocab % 64:
        more = -(-plan.vocab // 64) * 64
        yield (
            f"the vocabulary of {plan.vocab:,} rows is no multiple of 64, and products with it are slower: "
            f"--model.vocab {more}"
        )
    if not plan.is_search:  # the layout is given
        return
    heads, domain = recipe.model.heads, plan.cluster.domain
    uneven = [ranks for ranks in (2, 4, 8) if ranks <= min(domain, plan.cluster.count) and heads % ranks]
    if uneven:
        yield f"{heads} heads do not divide among {uneven[0]} tensor ranks: model.heads a multiple of 8 opens layouts"
    rows = recipe.train.batch_tokens // recipe.train.sequence
    if rows % plan.cluster.count and not plan.cluster.device.is_cpu:
        fitting = max(round(rows / plan.cluster.count), 1) * plan.cluster.count * recipe.train.sequence
        yield (
            f"{rows:,} rows of a step do not divide among {plan.cluster.count} devices, so that layouts are "
            f"missing: --train.batch_tokens {fitting}"
        )


def _batch_warnings(recipe: Recipe, plan: Plan) -> Iterator[str]:
    """Of a decoder that learns its text from the start: rules for the critical batch are of such runs."""
    train, model = recipe.train, recipe.model
    if plan.tokens is None or model.kind != "decoder" or recipe.surgery or recipe.data.objective.predicts_labels:
        return
    from hornbook.plan.scaling.advice import suggestions

    counts = parameter_counts(model, plan.vocab)
    bare = sum(counts[name] for name in ("attention", "mlp", "norms"))
    for each in suggestions(bare, plan.tokens):
        if each.what == "critical batch" and train.batch_tokens > each.value > train.sequence:
            rows = 1 << int(each.value / train.sequence).bit_length() - 1
            yield (
                f"a batch of {train.batch_tokens:,} tokens is beyond the critical one of about {each.value:,.0f} "
                f"({each.name}, {each.source}): --train.batch_tokens {rows * train.sequence}, or measure it "
                "(log.noise_scale)"
            )


def _layout_warnings(recipe: Recipe, plan: Plan) -> Iterator[str]:
    best, device = plan.best, plan.cluster.device
    parallel = best.parallel
    fast, node = plan.cluster.domain, max(plan.cluster.node, plan.cluster.domain)
    if parallel.tensor > node:
        yield f"tensor ranks cross machines: {parallel.tensor} ranks on machines of {node}: --parallel.tensor {node}"
    elif parallel.tensor > fast and not plan.is_search:  # a search has compared them
        joined = "no fast link joins them" if fast == 1 else f"a fast link joins {fast}"
        yield f"{parallel.tensor} tensor ranks exchange activations in every block, and {joined}: data ranks need less"
    microbatches = recipe.train.batch_tokens // recipe.train.sequence // best.micro_batch // parallel.data_ranks
    stages = parallel.pipeline.stages
    if stages > 1 and microbatches < 4 * stages:
        waits = best.step.bubble / best.step.total
        fewer = "fewer rows in a micro-batch or " if best.micro_batch > 1 else ""
        yield (
            f"{microbatches} microbatches for {stages} stages: ranks wait {waits:.0%} of a step; {fewer}a larger "
            "batch (train.batch_tokens) fills it"
        )
    yield from _precision_warnings(recipe, plan)
    if (used := device.threads * plan.cluster.count) < device.cores:
        each = device.cores // plan.cluster.count
        yield f"{used} threads on {device.cores} cores: OMP_NUM_THREADS={each} takes them all"
    elif device.threads and used > device.cores:
        yield f"{plan.cluster.count} ranks of {device.threads} threads share {device.cores} cores: take fewer"


def _precision_warnings(recipe: Recipe, plan: Plan) -> Iterator[str]:
    device = plan.cluster.device
    if recipe.train.precision == "fp16" and device.bf16 is not None:
        yield f"fp16 needs loss scaling, and {device.name} multiplies bf16 as fast: --train.precision bf16"
    wide, half = device.fp32, device.bf16 or device.fp16
    if plan.best.precision == "fp32" and half is not None and half > TWICE * wide and not device.is_cpu:
        name = "bf16" if device.bf16 else "fp16"
        yield (
            f"{device.name} multiplies fp32 at {wide:,.0f} TFLOP/s and {name} at {half:,.0f}: --train.precision {name}"
            f"{', which scales the loss' * (name == 'fp16')}"
        )
