"""What a rank computes of a model, as a configuration: its heads, its inner width, its part of each row.

Of what does not divide evenly a rank has the larger part, as in `hornbook.plan.counts.held_counts`.
"""

from typing import Any

from hornbook.errors import UsageError
from hornbook.model.config.head_config import ClassificationHead, RegressionHead
from hornbook.model.config.model_config import LayerConfig, ModelConfig
from hornbook.model.config.part import Rows, method
from hornbook.model.config.saved_bytes import SavedBytes, saved_bytes
from hornbook.model.config.surgery_config import positions_ahead
from hornbook.parallel.config import Offload
from hornbook.settings.fields import kept_by_config
from hornbook.settings.recipe import Recipe

CPU_RUNTIME = 520 * 2**20
"""Interpreter, torch and compiled kernels of a process, measured (`python -m benchmarks.plan.runs`)."""
CPU_RANK_RUNTIME = 375 * 2**20
"""The same of a rank beside others: it shares with the process that forked it what it never touches."""
CPU_SHARDING = 95 * 2**20
"""What torch loads besides where weights are sharded."""
GPU_RUNTIME = 600 * 2**20
"""Context and kernels of a process on a GPU."""
CHANNELS = 400 * 2**20
"""Buffers of collectives of a process on a GPU that has others beside it."""


def activation_bytes(recipe: Recipe, vocab: int, rows: int, *, fused: bool = False) -> SavedBytes:
    """Bytes that a rank keeps of `rows` rows, on a GPU where `fused`; `auto` precision counts as bf16, and a masked
    model as if it predicted all tokens.

    Raises UsageError where they are not known before the model runs.
    """
    if recipe.surgery:
        raise UsageError("what a model after surgery keeps for backward is not known before it runs")
    return saved_bytes(recipe.model, vocab, rows_of(recipe, rows, fused=fused), recipe.parallel.recompute)


def left_on_device(state: dict[str, int], offload: Offload) -> dict[str, int]:
    """Bytes of `weights`, `gradients` and `moments` that `parallel.offload` leaves on the device."""
    gone = {"moments": getattr(offload, "optimizer", False), "weights": getattr(offload, "parameters", False)}
    gone["gradients"] = gone["weights"] and offload.kind == "cpu"
    return {name: size * (not gone[name]) for name, size in state.items()}


def rows_of(recipe: Recipe, rows: int, *, fused: bool = False) -> Rows:
    """The rows of a microbatch as a rank has them; fused: on a GPU, whose attention is one kernel.

    What surgery puts before documents counts once for a row.
    """
    parallel = recipe.parallel
    return Rows(
        rows,
        -(-(recipe.train.sequence + positions_ahead(recipe.surgery)) // parallel.context.ranks),
        itemsize=4 if recipe.train.precision == "fp32" else 2,
        rebuilding=parallel.recompute.kind == "selective",
        stream_ranks=parallel.tensor if parallel.sequence else 1,
        fused=fused,
        eager=fused and not recipe.train.compile,
    )


def sides(recipe: Recipe) -> tuple[float, float]:
    """Positions of the decoder and of the encoder over those of a row: of spans that are taken out the decoder sees
    what the sentinels stand for, of text that is filled in all of it. Both are 1 for other models."""
    if recipe.model.kind != "encoder_decoder":
        return 1.0, 1.0
    decoder = encoder = weights = 0.0
    for part in recipe.data.objective.components():
        taken, marks = (part.noise.rate, part.noise.rate / part.noise.mean_span) if part.noise else (0.0, 0.0)
        left = 1 - taken + marks
        infill = part.noise is None or part.noise.infill
        decoder += part.weight * (1.0 if infill else (taken + marks) / left)
        encoder += part.weight * (left if infill else 1.0)
        weights += part.weight
    return decoder / weights, encoder / weights


def reach(recipe: Recipe) -> int:
    """Tokens of a row over which attention reaches, in the mean of a run: fewer than all where `data.sequence_ramp`
    lets it grow. Where `train.tokens` does not say how long the run is, all of them."""
    sequence, tokens = recipe.train.sequence, recipe.train.tokens
    if recipe.data.sequence_ramp.kind == "none" or tokens is None:
        return sequence
    levels = recipe.data.sequence_ramp.batches(sequence)
    ends = (*levels.firsts[1:], tokens)
    spans = [max(min(end, tokens) - first, 0) for first, end in zip(levels.firsts, ends, strict=True)]
    return max(round(sum(size * span for size, span in zip(levels.sizes, spans, strict=True)) / tokens), 1)


def labels_texts(model: ModelConfig) -> bool:
    """Whether its head reads one token of each text; a row counts as one text, since how many it has is the data's."""
    return isinstance(model.head, ClassificationHead | RegressionHead)


def share_of(values: int, ranks: int) -> int:
    """The larger part of what ranks divide."""
    return -(-values // ranks)


@kept_by_config
def tensor_share(model: ModelConfig, ranks: int) -> ModelConfig:
    """The model as one of `ranks` tensor ranks computes it, but for its vocabulary."""
    if ranks == 1:
        return model

    def shares(parts: ModelConfig | LayerConfig) -> dict[str, Any]:
        chosen = {name: part for name in ("attention", "mlp") if (part := getattr(parts, name)) is not None}
        layer = model.model_copy(update=chosen)
        return {name: method(part, "of_rank")(layer, ranks) for name, part in chosen.items()}

    layers = {
        name: [each.model_copy(update=shares(each)) for each in getattr(model, name)] for name in ("first", "pattern")
    }
    return model.model_copy(update=layers | shares(model) | {"heads": share_of(model.heads, ranks)})


# ---- What a process holds beside tensors


def cpu_runtime(recipe: Recipe) -> int:
    """Bytes of a process on a CPU."""
    sharding = CPU_SHARDING if recipe.parallel.shard == "everything" else 0
    return sharding + (CPU_RUNTIME if recipe.parallel.world == 1 else CPU_RANK_RUNTIME)


def gpu_runtime(recipe: Recipe) -> int:
    """Context and kernels of a process on a GPU, and channels to others."""
    return GPU_RUNTIME + (CHANNELS if recipe.parallel.world > 1 else 0)
