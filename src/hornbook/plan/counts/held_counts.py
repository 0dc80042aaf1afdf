"""Values of the parameters that a rank holds of a model: arithmetic on configurations, without building it.

What lies on which stage is as in `hornbook.parallel.axes.pipeline.stages`, what tensor ranks divide as in
`hornbook.parallel.axes.tensor.division_tables`: of what does not divide evenly, the larger part. What surgery leaves to
train of them is in `hornbook.plan.counts.adapted`.
"""

from collections.abc import Sequence

from hornbook.model.config.attention_config import FullAttentionConfig, LatentAttentionConfig
from hornbook.model.config.mlp_config import ExpertsConfig, GLUConfig, PlainMLPConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import block_norms, count_parameters, stacks_of
from hornbook.model.config.position_config import AddedPositionPart
from hornbook.parallel.axes.pipeline.cuts import stage_blocks, stage_costs
from hornbook.parallel.axes.pipeline.pass_orders import stages_of
from hornbook.parallel.config import ParallelConfig
from hornbook.settings.fields import kept_by_config


def held_values(model: ModelConfig, vocab: int, parallel: ParallelConfig, sequence: int) -> list[int]:
    """Of each rank of a pipeline, before data ranks share them; `sequence` counts where blocks are cut by cost."""
    pipeline = parallel.pipeline
    if parallel.tensor == parallel.expert == pipeline.stages == 1:
        return [count_parameters(model, vocab)]
    spans: list[tuple[int, ...]] = []
    if pipeline.stages > 1:
        bounds, _ = stage_costs(parallel, model, vocab, sequence)
        blocks = stage_blocks(bounds, model)
        for rank in range(pipeline.stages):
            own = stages_of(pipeline.schedule, rank, pipeline.stages, pipeline.chunks_per_rank)
            spans.append(tuple(number for stage in own for number in blocks[stage]))
    return _held(model, vocab, parallel.tensor, parallel.expert, tuple(spans))


@kept_by_config
def _held(model: ModelConfig, vocab: int, tensor: int, expert: int, spans: tuple[tuple[int, ...], ...]) -> list[int]:
    """Of each rank; spans: its blocks, none for all of them on one rank."""
    blocks = _blocks(model, tensor, expert)
    held = spans or (tuple(range(len(blocks))),)
    return [sum(blocks[number] for number in own) + _ends(model, vocab, tensor, set(own)) for own in held]


def held_experts(model: ModelConfig, tensor: int, expert: int, blocks: Sequence[int]) -> int:
    """Of a rank's values those of experts, shared ones not among them; blocks: numbers of those it has."""
    found = _experts(model, tensor, expert)
    return sum(found[number] for number in blocks)


@kept_by_config
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


@kept_by_config
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
        enters = first in held or (stack.mtp.reads_tokens and last in held)
        total += enters * (stack.embedding.num_parameters(stack) + entrance)
        total += (own[-1] in held) * stack.final_norm * norm
        positions = stack.position.num_parameters(stack.entrance)
        if isinstance(stack.position, AddedPositionPart):
            total += enters * positions
        elif held & set(own):  # scores by distance, of a rank's heads
            total += _share(positions, ranks)
    tied, rows = getattr(model.head, "tied", False), _share(vocab, ranks)
    copied = [last] if tied or model.mtp.reads_tokens else []
    total += rows * (model.embedding.width or model.width) * bool(held & {0, begin, *copied})
    if last in held:  # what a head of tokens has for each of them is divided
        each = hasattr(model.head, "tied") * (model.head.num_parameters(model, 2) - model.head.num_parameters(model, 1))
        total += model.head.num_parameters(model, 0) + each * rows + model.mtp.num_parameters(model)
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
