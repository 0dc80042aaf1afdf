"""Stages: a model with blocks deleted, whose names stay, and the calls that make a stage of what is left.

The parts of a model lie on stages by its own order: blocks as they are cut, embedding and input layers with the first
block of a stack, norms with the last one, the head on the last stage, and with it blocks of multi-token prediction.
What several stages need, each of them has: the embedding beside a tied head and before the first block of a decoder,
T5's positions with every block; embedding and input layers where such blocks read tokens. Gradients of such copies
are summed (`copies.py`), so they stay equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hornbook.model.attention.mask import as_tuples
from hornbook.model.forward_context import Auxiliary, Context, Memory
from hornbook.model.layers.embedding import InputLayers
from hornbook.model.transformer import Source, Stack, Transformer, add_auxiliary
from hornbook.parallel.axes.pipeline.cuts import Bounds, cut_by_cost
from hornbook.parallel.axes.pipeline.pass_orders import Schedule, rank_of, stages_of
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parameter_shard import Division, Divisions
from hornbook.parallel.world import World


@dataclass(frozen=True)
class Layout:
    """The stages of a model and the ranks that hold them, as one rank sees them."""

    schedule: Schedule
    ranks: int
    rank: int
    """Number of this rank among those of its pipeline."""
    chunks: int
    """Stages of each rank."""
    bounds: Bounds
    encoder: int
    """Number of blocks of the encoder, which come first; 0 without one."""
    width: int
    """Of the hidden states that go from stage to stage."""
    copies: dict[str, list[int]]
    """Parameters that several ranks hold -> these ranks."""

    @property
    def stages(self) -> int:
        """Of the whole pipeline."""
        return len(self.bounds) - 1

    @property
    def own(self) -> list[int]:
        """The stages of this rank."""
        return stages_of(self.schedule, self.rank, self.ranks, self.chunks)

    def rank_of(self, stage: int) -> int:
        """The rank that holds a stage."""
        return rank_of(self.schedule, stage, self.ranks)

    def received(self, stage: int) -> tuple[str, ...]:
        """What a stage gets from the one before: hidden states (of the encoder, or of the model) and memory."""
        first = self.bounds[stage]
        if not stage:
            return ()
        if first < self.encoder or not self.encoder:
            return ("hidden",)
        return ("memory",) if first == self.encoder else ("hidden", "memory")


def apply_stages(model: Transformer, world: World, config: ParallelConfig) -> Layout | None:
    """Delete from a model on meta all that other ranks hold; None where `parallel.pipeline.stages` is 1."""
    pipeline, rank = config.pipeline, world.axis_rank(["pipeline"])
    if pipeline.stages == 1:
        return None
    schedule, ranks, chunks = pipeline.schedule, pipeline.stages, pipeline.chunks_per_rank
    encoder = 0 if model.encoder is None else len(model.encoder.blocks)
    count = encoder + len(model.blocks)
    bounds = (0, *pipeline.cuts, count)
    if not pipeline.cuts:
        bounds = cut_by_cost([1.0] * count, pipeline.all_stages)
    places, copies, width = _Places(model, bounds, encoder), dict[str, list[int]](), _width(model)
    for name, _ in model.named_parameters():
        holders = sorted({rank_of(schedule, stage, ranks) for stage in places.of(name)})
        if len(holders) > 1:
            copies[name] = holders
    _delete(model, places, set(stages_of(schedule, rank, ranks, chunks)))
    return Layout(schedule, ranks, rank, chunks, bounds, encoder, width, copies)


def record_stages(model: Transformer, layout: Layout, divisions: Divisions) -> None:
    """Add to the divisions by other axes that ranks of other stages hold nothing of a parameter, or a copy."""
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        known = divisions.get(name) or Division(shape, (0,) * len(shape), ())
        copy = layout.copies[name].index(layout.rank) if name in layout.copies else 0
        divisions[name] = known.of_stage(copy)


def _width(model: Transformer) -> int:
    assert model.embedding is not None
    project = model.entrance.project
    return model.embedding.weight.shape[1] if project is None else project.weight.shape[0]


class _Places:
    """The stages that need each part of a whole model."""

    def __init__(self, model: Transformer, bounds: Bounds, encoder: int) -> None:
        self._bounds, self._encoder = bounds, encoder
        assert model.embedding is not None
        self._tied = getattr(model.head, "matrix", None) is model.embedding.weight
        self._read_again = model.mtp is not None and len(model.mtp.joins) > 0

    def of(self, name: str) -> set[int]:
        """Stages that need a parameter, or a module directly below the model or its encoder."""
        first, end = (0, self._encoder) if name.startswith("encoder.") else (self._encoder, self._bounds[-1])
        part, *below = name.removeprefix("encoder.").split(".")
        begin, last = self._stage(first), self._stage(end - 1)
        match part:
            case "blocks":
                return {self._stage(first + int(below[0]))}
            case "embedding":
                return {0, begin, *([last] if self._tied or self._read_again else [])}
            case "positions" | "entrance":
                return {begin, *([last] if self._read_again else [])}
            case "bias":
                return set(range(begin, last + 1))
            case "norm" | "head" | "mtp":
                return {last}
            case _:
                raise AssertionError(f"no stage is known for {name}")

    def _stage(self, block: int) -> int:
        return next(stage for stage, end in enumerate(self._bounds[1:]) if block < end)


def _delete(model: Transformer, places: _Places, own: set[int]) -> None:
    """Delete what the stages `own` do not need."""
    for stack, before in ((model, ""), (model.encoder, "encoder.")):
        if stack is None:
            continue
        for name in [name for name in stack.blocks if not places.of(f"{before}blocks.{name}") & own]:
            del stack.blocks[name]
        for part in ("positions", "bias", "norm"):
            if not places.of(before + part) & own:
                setattr(stack, part, None)
        if not places.of(before + "entrance") & own:
            stack.entrance = InputLayers(1.0, None, None, None)
    if not places.of("embedding") & own:
        model.embedding = None
    if not places.of("head") & own:
        model.head = model.mtp = None
    if model.encoder is not None and not len(model.encoder.blocks):
        model.encoder = None


class StageModel:
    """One stage of what a rank holds: called with what came from the stage before and the inputs of a microbatch."""

    def __init__(self, model: Transformer, layout: Layout, stage: int) -> None:
        first, end = layout.bounds[stage], layout.bounds[stage + 1]
        inside = layout.encoder
        before, blocks = range(first, min(end, inside)), range(max(first - inside, 0), end - inside)
        self._model, self._names = model, layout.received(stage)
        self._encoder = _part(model, model.encoder, before, inside) if before and model.encoder is not None else None
        self._decoder = _part(model, model, blocks, layout.bounds[-1] - inside) if blocks else None
        parts = (each for each in (self._encoder, self._decoder) if each is not None)
        self._mtp = model.mtp if end == layout.bounds[-1] else None
        self.blocks = [block for part in parts for block in part.all_blocks()]
        self.blocks += [] if self._mtp is None else self._mtp.blocks.values()
        """Of this stage alone."""

    def __call__(self, received: Sequence[Tensor], inputs: dict[str, Any]) -> tuple[tuple[Tensor, ...], Auxiliary]:
        """(what the stage after gets, and of the last stage the hidden states; auxiliary values of its own blocks)."""
        came, auxiliary = dict(zip(self._names, received, strict=True)), Auxiliary()
        source: Source | None = inputs.get("source")
        if self._encoder is not None:
            assert source is not None
            tokens = came.get("hidden", source.tokens)
            places = {"positions": source.positions, "lengths": source.lengths, "token_mask": source.token_mask}
            self._encoder.compute_dtype = self._model.compute_dtype
            hidden, auxiliary = self._encoder(tokens, keys=inputs.get("keys"), **places)
            came = {"memory": hidden}  # or, where no block of the model follows, what the next stage goes on with
        if self._decoder is None:
            return tuple(came.values()), auxiliary
        memory = Memory(came["memory"], as_tuples(source.lengths)) if source is not None else None
        rest = inputs | {"source": None, "memory": memory, "tokens": came.get("hidden", inputs["tokens"])}
        self._decoder.compute_dtype = self._model.compute_dtype
        hidden, found = self._decoder(**rest)
        add_auxiliary(auxiliary, found)
        if self._mtp is not None and inputs.get("ahead"):
            names = ("positions", "lengths", "token_mask", "part")
            read = Source(inputs["tokens"], *(inputs.get(name) for name in names))
            add_auxiliary(auxiliary, self._model.further_states(hidden, read, inputs.get("keys"), inputs.get("types")))
        return (hidden, *([] if memory is None else [memory.states])), auxiliary


def _part(model: Transformer, stack: Stack, blocks: range, count: int) -> Transformer:
    """Some blocks of a stack, with what stands before the first and behind the last of its `count`."""
    part = Transformer(
        head=None,
        kind=stack.kind,
        embedding=None if blocks.start else model.embedding,
        positions=stack.positions,
        bias=stack.bias,
        entrance=stack.entrance,
        dropout=stack.dropout,
        blocks={str(number): stack.blocks[str(number)] for number in blocks},
        norm=stack.norm if blocks.stop == count else None,
    )
    shown = part.blocks, part.norm

    def run_blocks(x: Tensor, context: Context) -> tuple[Tensor, Auxiliary]:
        """As the stack runs its blocks, whatever hangs on that, but these blocks alone."""
        before = stack.blocks, stack.norm
        stack.blocks, stack.norm = shown
        try:
            return stack.run_blocks(x, context)
        finally:
            stack.blocks, stack.norm = before

    part.run_blocks, part.compiled = run_blocks, stack.compiled
    return part
