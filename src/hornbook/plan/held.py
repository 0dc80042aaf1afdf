"""Values of the parameters that a rank holds of a model: arithmetic on configurations, without building it.

What lies on which stage is as in `hornbook.parallel.axes.pipeline.stages`, what tensor ranks divide as in
`hornbook.parallel.axes.tensor.tables`: of what does not divide evenly, the larger part. `adapted` says which of them
surgery leaves to train.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from hornbook.errors import UsageError
from hornbook.model.config.attention import FullAttentionConfig, LatentAttentionConfig
from hornbook.model.config.mlp import ExpertsConfig, GLUConfig, PlainMLPConfig
from hornbook.model.config.model import ModelConfig
from hornbook.model.config.parameter_count import block_norms, count_parameters, parameter_counts, stacks_of
from hornbook.model.config.position import AddedPositionPart
from hornbook.model.config.surgery import (
    Dora,
    Ia3Config,
    LlamaAdapter,
    LlamaAdapterV2,
    Lora,
    Nf4,
    PrefixConfig,
    PromptConfig,
)
from hornbook.parallel.config import ParallelConfig
from hornbook.plan.memo import kept_by_model
from hornbook.plan.stages.cuts import stage_costs
from hornbook.plan.stages.schedules import stages_of


def held_values(model: ModelConfig, vocab: int, parallel: ParallelConfig, sequence: int) -> list[int]:
    """Of each rank of a pipeline, before data ranks share them; `sequence` counts where blocks are cut by cost."""
    pipeline = parallel.pipeline
    if parallel.tensor == parallel.expert == pipeline.stages == 1:
        return [count_parameters(model, vocab)]
    spans: list[tuple[int, ...]] = []
    if pipeline.stages > 1:
        bounds, _ = stage_costs(parallel, model, vocab, sequence)
        for rank in range(pipeline.stages):
            own = stages_of(pipeline.schedule, rank, pipeline.stages, pipeline.chunks_per_rank)
            spans.append(tuple(number for stage in own for number in range(bounds[stage], bounds[stage + 1])))
    return _held(model, vocab, parallel.tensor, parallel.expert, tuple(spans))


@kept_by_model
def _held(model: ModelConfig, vocab: int, tensor: int, expert: int, spans: tuple[tuple[int, ...], ...]) -> list[int]:
    """Of each rank; spans: its blocks, none for all of them on one rank."""
    blocks = _blocks(model, tensor, expert)
    held = spans or (tuple(range(len(blocks))),)
    return [sum(blocks[number] for number in own) + _ends(model, vocab, tensor, set(own)) for own in held]


def held_experts(model: ModelConfig, tensor: int, expert: int, blocks: Sequence[int]) -> int:
    """Of a rank's values those of experts, shared ones not among them; blocks: numbers of those it has."""
    found = _experts(model, tensor, expert)
    return sum(found[number] for number in blocks)


@kept_by_model
def _experts(model: ModelConfig, tensor: int, expert: int) -> list[int]:
    """Values of experts of each block."""
    decoder, *encoder = stacks_of(model)
    layers = [stack.layer(number) for stack in (*encoder, decoder) for number in range(stack.num_blocks)]
    return [
        3 * layer.width * _share(layer.hidden, tensor) * _share(layer.mlp.count, expert)
        if isinstance(layer.mlp, ExpertsConfig)
        else 0
        for layer in layers
    ]


@kept_by_model
def _blocks(model: ModelConfig, tensor: int, expert: int) -> list[int]:
    """Of each block, an encoder's first."""
    decoder, *encoder = stacks_of(model)
    found = []
    for stack in (*encoder, decoder):
        crossed = bool(encoder) and stack is decoder
        for number in range(stack.num_blocks):
            layer = stack.layer(number)
            attention = _attention(layer, tensor) * (2 if crossed else 1)
            found.append(attention + _mlp(layer, tensor, expert) + block_norms(stack, number, crossed=crossed))
    return found


def _ends(model: ModelConfig, vocab: int, ranks: int, held: set[int]) -> int:
    """Of everything but blocks, on a rank that holds some of them."""
    decoder, *encoder = stacks_of(model)
    begin, total = sum(stack.layers for stack in encoder), 0
    last = begin + decoder.layers - 1
    for stack, first in ((decoder, begin), *((stack, 0) for stack in encoder)):
        norm, own = stack.norm.num_parameters(stack), range(first, first + stack.layers)
        entrance = stack.embedding.norm * stack.norm.num_parameters(stack.entrance)
        total += (first in held) * (stack.embedding.num_parameters(stack) + entrance)
        total += (own[-1] in held) * stack.final_norm * norm
        positions = stack.position.num_parameters(stack.entrance)
        if isinstance(stack.position, AddedPositionPart):
            total += (first in held) * positions
        elif held & set(own):  # scores by distance, of a rank's heads
            total += _share(positions, ranks)
    tied, rows = getattr(model.head, "tied", False), _share(vocab, ranks)
    total += rows * (model.embedding.width or model.width) * bool(held & {0, begin, *([last] if tied else [])})
    if last in held:  # what a head of tokens has for each of them is divided
        each = hasattr(model.head, "tied") * (model.head.num_parameters(model, 2) - model.head.num_parameters(model, 1))
        total += model.head.num_parameters(model, 0) + each * rows
    return total


def _attention(layer: ModelConfig, ranks: int) -> int:
    part, whole = layer.attention, layer.attention.num_parameters(layer)
    if isinstance(part, FullAttentionConfig):
        keys = 2 * layer.kv_heads * layer.head_dim * (layer.width + part.bias)
        keys += layer.kv_heads * layer.head_dim * (part.qk_norm == "full")
        alone = part.out_bias * layer.width + 2 * layer.head_dim * (part.qk_norm == "head")
        return alone + _share(whole - alone - keys, ranks) + _share(keys, min(ranks, layer.kv_heads))
    if isinstance(part, LatentAttentionConfig):
        down = layer.width * (part.kv_rank + part.rope_dim) + part.kv_rank
        down += (part.query_rank or 0) * (layer.width + 1)
        down += part.bias * ((part.query_rank or 0) + part.kv_rank + part.rope_dim + layer.width)
        return down + _share(whole - down, ranks)
    return whole  # a part without a table


def _mlp(layer: ModelConfig, ranks: int, expert: int) -> int:
    part, whole = layer.mlp, layer.mlp.num_parameters(layer)
    inner = _share(layer.hidden, ranks)
    if isinstance(part, PlainMLPConfig | GLUConfig):
        before = part.projections - 1
        return part.projections * layer.width * inner + part.bias * (before * inner + layer.width)
    if isinstance(part, ExpertsConfig):
        shared = part.shared_hidden or 0
        router = whole - part.num_expert_weights(layer) - 3 * layer.width * shared
        experts = _share(part.count, expert)
        return router + 3 * layer.width * (inner * experts + _share(shared, ranks))
    return whole


def _share(values: int, ranks: int) -> int:
    return -(-values // ranks)


# ---- After surgery: names of layers are those of the built model

SCALES_PER_BLOCK = 256
"""Scales of 4-bit blocks that have a range in common (`hornbook.model.surgery.quantization.nf4`)."""


class Matrix(NamedTuple):
    """A linear layer of a block."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Adapted:
    """A model after surgery."""

    trained: int
    """Values that surgery added, which are all that training changes."""
    coded: int
    """Values of the base that are held as codes."""
    code_bytes: int
    """Bytes of the codes."""
    inner: int
    """Values of a token that are kept of what low-rank updates, or factors, compute, of all layers."""
    updated: int
    """Layers with a low-rank update."""
    around: int
    """Inputs and outputs of a token in these layers."""
    outputs: int
    """Of them the outputs."""
    gated: int
    """Values that gated MLPs hand to a layer with an update: a CPU's kernel would not keep them."""


def adapted(model: ModelConfig, steps: Sequence[Any]) -> Adapted:
    """The model after these steps. Raises UsageError for steps and parts whose layers are not known here."""
    trained = coded = code_bytes = inner = updated = around = outputs = gated = 0
    for step in steps:
        match step:
            case Lora():
                chosen = _chosen(model, step.targets)
                lengths = sum(each.outputs for each in chosen) if isinstance(step, Dora) else 0
                updated, outputs = len(chosen), sum(each.outputs for each in chosen)
                around = outputs + sum(each.inputs for each in chosen)
                gated = sum(each.inputs for each in chosen if each.name.endswith("mlp.down"))
                trained = step.rank * around + lengths
                inner = step.rank * len(chosen) + 2 * lengths  # a row's length scales the product and its update
            case Ia3Config():
                chosen = _chosen(model, step.targets)
                read = {each.name for each in _chosen(model, step.inputs)}
                trained = sum(each.inputs if each.name in read else each.outputs for each in chosen)
                inner = trained  # what is multiplied by a factor is kept
                gated = sum(each.inputs for each in chosen if each.name.endswith("mlp.down"))
            case PromptConfig():
                trained = step.length * (model.embedding.width or model.width)
            case PrefixConfig():
                trained = _prefix_values(model, step)
            case LlamaAdapter():
                layers = [model.layer(number) for number in range(step.below, model.layers)]
                trained = sum(step.length * layer.width + layer.heads for layer in layers)
                scores = 2 * step.length  # before and after the softmax
                inner = sum(layer.heads * (scores + layer.head_dim) for layer in layers)
                if isinstance(step, LlamaAdapterV2):
                    scaled = sum(each.outputs for each in _chosen(model, step.targets))
                    trained, inner = trained + 2 * scaled + _norm_values(model), inner + scaled
            case Nf4():
                chosen = _chosen(model, step.targets)
                coded = sum(each.inputs * each.outputs for each in chosen)
                code_bytes = sum(_code_bytes(each, step.block) for each in chosen)
            case _:
                raise UsageError(f"the planner does not know what {step.kind} (surgery) leaves to train")
    return Adapted(trained, coded, code_bytes, inner, updated, around, outputs, gated)


def _prefix_values(model: ModelConfig, step: PrefixConfig) -> int:
    """Keys and values of all layers, or of the network that makes them."""
    width = model.embedding.width or model.width
    widths = [2 * layer.kv_heads * layer.head_dim for layer in map(model.layer, range(model.layers))]
    if step.hidden is None:
        return step.length * sum(widths)
    return step.length * width + step.hidden * (width + 1) + (step.hidden + 1) * sum(widths)


def _norm_values(model: ModelConfig) -> int:
    """Values of all norms, those within attention too."""
    norms = parameter_counts(model, 0)["norms"]
    for layer in map(model.layer, range(model.layers)):
        part = layer.attention
        if isinstance(part, FullAttentionConfig) and part.qk_norm != "none":
            norms += layer.head_dim * (layer.heads + layer.kv_heads if part.qk_norm == "full" else 2)
        if isinstance(part, LatentAttentionConfig):
            norms += part.kv_rank + (part.query_rank or 0)
    return norms


def _code_bytes(matrix: Matrix, block: int) -> int:
    """Codes, a scale of a byte for each block, ranges of scales and their mean."""
    size = matrix.inputs * matrix.outputs
    blocks = size // block
    return -(-size // 2) + blocks + 4 * -(-blocks // SCALES_PER_BLOCK) + 4


def _chosen(model: ModelConfig, targets: Sequence[str]) -> list[Matrix]:
    matrices = [each for number in range(model.layers) for each in _matrices(model, number)]
    return [each for each in matrices if any(fnmatchcase(each.name, target) for target in targets)]


def _matrices(model: ModelConfig, number: int) -> Iterator[Matrix]:
    """Linear layers of a block. Raises UsageError for a part without names here."""
    layer = model.layer(number)
    if model.kind == "encoder_decoder":
        raise UsageError("the planner does not know the layers of an encoder-decoder after surgery")
    for place, sizes in (("attention", _attention_layers(layer)), ("mlp", _mlp_layers(layer))):
        for name, inputs, outputs in sizes:
            yield Matrix(f"blocks.{number}.{place}.{name}", inputs, outputs)


def layers_of(layer: ModelConfig, place: str) -> list[Matrix]:
    """Linear layers of `attention` or `mlp` of a block, in order; none of a part without names here."""
    with suppress(UsageError):
        found = _attention_layers(layer) if place == "attention" else _mlp_layers(layer)
        return [Matrix(*each) for each in found]
    return []


def _attention_layers(layer: ModelConfig) -> list[tuple[str, int, int]]:
    part, width = layer.attention, layer.width
    if isinstance(part, FullAttentionConfig):
        queries, keys = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        return [("query", width, queries), ("key", width, keys), ("value", width, keys), ("out", queries, width)]
    if isinstance(part, LatentAttentionConfig):
        queries, rank = layer.heads * (part.nope_dim + part.rope_dim), part.query_rank
        first = [("query_down", width, rank), ("query_up", rank, queries)] if rank else [("query", width, queries)]
        values = layer.heads * (part.nope_dim + part.value_dim)
        first += [("kv_down", width, part.kv_rank + part.rope_dim), ("kv_up", part.kv_rank, values)]
        return [*first, ("out", layer.heads * part.value_dim, width)]
    raise UsageError(f"the planner does not know the layers of attention {part.kind} after surgery")


def _mlp_layers(layer: ModelConfig) -> list[tuple[str, int, int]]:
    part = layer.mlp
    if isinstance(part, PlainMLPConfig | GLUConfig):
        names = ("gate", "up")[3 - part.projections :]
        return [*((name, layer.width, layer.hidden) for name in names), ("down", layer.hidden, layer.width)]
    raise UsageError(f"the planner does not know the layers of mlp {part.kind} after surgery")
