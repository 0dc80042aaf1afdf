"""Rules of layouts: what the axes of `[parallel]` ask of one another, of the batch, and of the model."""

from collections.abc import Iterator
from itertools import pairwise

from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import stacks_of
from hornbook.parallel.config import FILL, ParallelConfig, PipelineConfig, axis_ranks
from hornbook.settings.layout.context import context_problems
from hornbook.settings.training import TrainConfig


def layout_problems(parallel: ParallelConfig, train: TrainConfig, model: ModelConfig) -> Iterator[tuple[str, str]]:
    """(Dotted key, what is wrong and the remedy): of layouts that no run can have."""
    yield from _check_traffic(parallel, train)
    yield from _check_memory(parallel, train)
    unknown = [key for key, ranks in axis_ranks(parallel).items() if ranks == FILL]
    if len(unknown) > 1:
        yield unknown[1], f"{' and '.join(unknown)} are -1, and one axis alone can take the ranks that are left"
    if unknown:  # the rest is checked when the number of ranks is known (`hornbook.settings.layout.world`)
        return
    yield from _check_sharding(parallel)
    yield from _check_held_weights(parallel)
    yield from _check_generator(parallel, model)
    yield from _check_microbatches(parallel, train)
    yield from _check_pipeline(parallel, train, model)
    yield from _check_experts(parallel, train, model)
    if parallel.context.ranks > 1:
        yield from context_problems(parallel, train, model)


def _check_sharding(parallel: ParallelConfig) -> Iterator[tuple[str, str]]:
    ranks = parallel.data
    if ranks % parallel.replicas:
        yield "parallel.replicas", f"{ranks} ranks do not divide into {parallel.replicas} groups"
    if parallel.replicas > 1 and parallel.shard == "none":
        yield "parallel.replicas", 'groups that share a model need parallel.shard: "none" leaves it whole on every rank'
    if parallel.exact and ranks & (ranks - 1):
        yield "parallel.exact", f"the tree of exact sums is the same for 1, 2, 4, 8 ... ranks, not for {ranks}"
    if parallel.exact and parallel.world > ranks:
        yield "parallel.exact", "sums gradients of data-parallel ranks alone: leave the other axes 1, or leave it out"


def _check_generator(parallel: ParallelConfig, model: ModelConfig) -> Iterator[tuple[str, str]]:
    """Axes that would divide a generator."""
    if model.head.generator_of(model) is None:
        return
    text = "the generator of replaced tokens (model.head.generator) is whole on each rank"
    ranks = {"pipeline.stages": parallel.pipeline.stages, "tensor": parallel.tensor, "context": parallel.context.ranks}
    for key, count in (ranks | {"expert": parallel.expert}).items():
        if count > 1:
            yield f"parallel.{key}", f'{text}: leave it 1, and widen parallel.data, or take the objective "masked"'


def _check_traffic(parallel: ParallelConfig, train: TrainConfig) -> Iterator[tuple[str, str]]:
    for key in ("compress", "gather"):
        if parallel.exact and getattr(parallel, key) == "bf16":
            yield f"parallel.{key}", f"parallel.exact adds up every bit: leave parallel.{key} out, or parallel.exact"
    if parallel.gather == "bf16" and parallel.shard == "none":
        yield "parallel.gather", 'parallel.shard is "none", so no weights are gathered: leave it out'
    if parallel.gather == "bf16" and train.precision not in ("auto", "bf16", "bf16-pure"):
        yield "parallel.gather", f'"bf16" needs train.precision bf16, which is {train.precision}: leave it out'
    if not parallel.reshard and parallel.shard != "everything":
        text = f'parallel.shard is "{parallel.shard}", which keeps gathered weights in any case: leave it out'
        yield "parallel.reshard", text


def _check_memory(parallel: ParallelConfig, train: TrainConfig) -> Iterator[tuple[str, str]]:
    if train.cuda_graphs and getattr(parallel.offload, "activations", False):
        text = "graphs hold what backward needs in memory of their own: set it to false, or train.cuda_graphs"
        yield "parallel.offload.activations", text
    if train.cuda_graphs and (parallel.shard != "none" or parallel.exact):
        key = "parallel.exact" if parallel.exact else "parallel.shard"
        yield key, "keeps gradients that the next replay of a graph overwrites: leave it out, or train.cuda_graphs"
    if parallel.recompute.kind in ("selective", "budget") and train.compile != (parallel.recompute.kind == "budget"):
        yield "parallel.recompute", _recompute_problem(train.compile)


def _check_held_weights(parallel: ParallelConfig) -> Iterator[tuple[str, str]]:
    offload = parallel.offload
    if offload.kind == "none" or not offload.parameters:
        return
    if offload.kind == "disk" and parallel.shard != "none":
        text = "shards of weights have memory of their own: leave it out, or parallel.shard"
        yield "parallel.offload.parameters", text
    if offload.kind == "cpu" and (parallel.shard != "everything" or parallel.world == 1):
        text = "are gathered from the host where several ranks share them: leave it out, or take"
        yield "parallel.offload.parameters", f'weights {text} parallel.shard = "everything" and 2 ranks or more'
    if offload.kind == "cpu" and not offload.optimizer:
        yield "parallel.offload.optimizer", "the host updates weights that it holds: set it to true"


def _check_microbatches(parallel: ParallelConfig, train: TrainConfig) -> Iterator[tuple[str, str]]:
    ranks = parallel.data_ranks
    rows = train.batch_tokens // train.sequence
    microbatches = -(-rows // train.micro_rows)
    if microbatches % ranks:
        fitting = ", ".join(str(n) for n in range(1, min(microbatches, 64) + 1) if microbatches % n == 0)
        text = f"{ranks} ranks cannot share {microbatches} microbatches of {train.micro_batch} rows evenly"
        yield "parallel.data", f"{text}: take {fitting}, or change train.micro_batch or train.batch_tokens"


def _check_pipeline(parallel: ParallelConfig, train: TrainConfig, model: ModelConfig) -> Iterator[tuple[str, str]]:
    pipeline, blocks = parallel.pipeline, sum(stack.layers for stack in stacks_of(model))
    if pipeline.stages == 1:
        return
    stages, each = pipeline.all_stages, pipeline.chunks_per_rank
    if stages > blocks:
        more = f"{pipeline.stages} ranks of {each} stages" if each > 1 else f"{stages} stages"
        yield "parallel.pipeline.stages", f"{more}, and the model has {blocks} blocks: take at most {blocks // each}"
    elif pipeline.cuts:
        bounds = (0, *pipeline.cuts, blocks)
        rising = all(first < second for first, second in pairwise(bounds))
        if len(pipeline.cuts) != stages - 1 or not rising:
            text = f"{list(pipeline.cuts)} is not the first block of each of {stages} stages but the first"
            yield "parallel.pipeline.cuts", f"{text}: give {stages - 1} rising numbers below {blocks}, or none"
    if pipeline.schedule != "interleaved" and pipeline.chunks != PipelineConfig().chunks:
        yield "parallel.pipeline.chunks", f'is for the schedule "interleaved", not "{pipeline.schedule}": leave it out'
    yield from _check_passes(parallel, train)


def _check_passes(parallel: ParallelConfig, train: TrainConfig) -> Iterator[tuple[str, str]]:
    """What the passes of a pipeline do not go with."""
    if train.compile and train.compile_scope == "stack":
        yield "train.compile_scope", 'a stage has some blocks of a stack: take "blocks"'
    if train.cuda_graphs:
        yield "train.cuda_graphs", "a graph's memory is used again before its microbatch goes backward: set it to false"
    if train.micro_batch == "auto":
        yield "train.micro_batch", "how many microbatches a stage holds is not known before: give a number"
    if parallel.offload.kind == "disk" and parallel.offload.activations:
        yield "parallel.offload.activations", "the file would grow with every microbatch of a step: set it to false"
    schedule = parallel.pipeline.schedule
    if schedule not in ("zb-h1", "zbv", "dualpipev"):
        return
    text, remedy = f'the schedule "{schedule}" runs backward in two parts', 'or the schedule "1f1b" or "interleaved"'
    if train.compile:
        yield "train.compile", f"{text}, which compiled blocks cannot: set it to false, {remedy}"
    if train.precision == "float8":
        yield "train.precision", f"{text}, and float8 keeps its scales in one: take bf16, {remedy}"
    if parallel.recompute.kind != "none":
        yield "parallel.recompute", f'{text}, and each would compute blocks again: take "none", {remedy}'
    if getattr(parallel.offload, "activations", False):
        yield "parallel.offload.activations", f"{text}, and each would fetch activations: set it to false, {remedy}"


def _recompute_problem(compiled: bool) -> str:
    """Why selective recomputation and a budget do not go with `train.compile` as it is set."""
    if compiled:
        return '"selective" works by calls, which a compiled block does not make: take {kind = "budget"}, or "block"'
    return '"budget" is kept by the compiler: set train.compile = true, or take "selective"'


def _check_experts(parallel: ParallelConfig, train: TrainConfig, model: ModelConfig) -> Iterator[tuple[str, str]]:
    ranks = parallel.expert
    if ranks == 1:
        return
    parts = [stack.layer(number).mlp for stack in stacks_of(model) for number in range(stack.num_blocks)]
    counts = [part.count for part in parts if isinstance(part, ExpertsConfig)]
    if not counts:
        yield "parallel.expert", "the model has no experts to divide: leave it 1, and raise parallel.data"
    elif ranks > min(counts):
        text = f"a layer of {min(counts)} experts would leave some of {ranks} ranks without one"
        yield "parallel.expert", f"{text}: take {min(counts)} or less, and raise parallel.data"
    if train.cuda_graphs:
        text = "how many tokens the experts of a rank get differs from step to step, and a graph does not"
        yield "train.cuda_graphs", f"{text}: set it to false, or parallel.expert = 1"
    if train.micro_batch == "auto":
        text = "what the experts of a rank keep for backward depends on the tokens they get, and is not known before"
        yield "train.micro_batch", f"{text}: give a number"
