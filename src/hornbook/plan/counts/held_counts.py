"""Values of the parameters that a rank holds of a model: arithmetic on configurations, without building it.

What lies on which stage is as in `hornbook.parallel.axes.pipeline.stages`; what tensor ranks divide, the parts say
(`hornbook.model.config.part.Cut`). What surgery leaves to train of them is in `hornbook.plan.counts.adapted`.
"""

from collections import Counter
from collections.abc import Sequence

from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import count_parameters, places_of, stacks_of
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
    found = _values(model, vocab, tensor, expert)
    whole = tuple(range(sum(stack.num_blocks for stack in stacks_of(model))))
    return [sum(size for users, size in found.items() if users & {*own}) for own in spans or (whole,)]


def held_experts(model: ModelConfig, tensor: int, expert: int, blocks: Sequence[int]) -> int:
    """Of a rank's values those of experts, shared ones not among them; blocks: numbers of those it has."""
    found = _values(model, 1, tensor, expert, of_experts=True)
    return sum(found[frozenset([number])] for number in blocks)


@kept_by_config
def _values(
    model: ModelConfig, vocab: int, tensor: int, expert: int, *, of_experts: bool = False
) -> Counter[frozenset[int]]:
    """Values that a rank has of all parameters, or of those of experts, by the blocks whose stages have them."""
    found = Counter[frozenset[int]]()
    for place in places_of(model, vocab):
        values = sum(each.size_of_rank(tensor, expert) for each in place.weights if each.experts or not of_experts)
        for name in place.names:
            found[_users(model, name)] += values
    return found


def _users(model: ModelConfig, name: str) -> frozenset[int]:
    """Numbers of the blocks, an encoder's first, beside which a part is: on each stage that has one of them."""
    decoder, *encoder = stacks_of(model)
    begin = sum(stack.layers for stack in encoder)
    last = begin + decoder.layers - 1
    stack, first = (encoder[0], 0) if name.startswith("encoder.") else (decoder, begin)
    words = name.removeprefix("encoder.").split(".")
    if "blocks" in words and words[0] != "head":
        return frozenset([first + int(words[words.index("blocks") + 1])])
    again = [last] if stack.mtp.reads_tokens else []
    match words[0]:
        case "embedding":
            return frozenset([0, begin, *again, *([last] if getattr(model.head, "tied", False) else [])])
        case "entrance" | "positions":
            return frozenset([first, *again])
        case "bias":  # scores by distance
            return frozenset(range(first, first + stack.layers))
        case "norm":
            return frozenset([first + stack.layers - 1])
        case _:
            return frozenset([last])
