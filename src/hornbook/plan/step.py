"""Time of a step by what it goes into: compute, what is computed again, messages, waiting in a pipeline, the update.

Blocks are timed by the roofline (`work`), collectives by latency and bandwidth (`collectives`), a pipeline by the
simulator of its own schedule (`schedules`), data ranks by what their messages take beyond the computing beside.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from hornbook.model.config.mlp import ExpertsConfig
from hornbook.model.config.model import ModelConfig
from hornbook.model.config.parameter_count import stacks_of
from hornbook.parallel.config import BlockRecompute, SelectiveRecompute
from hornbook.plan.collectives import Group, group
from hornbook.plan.cuts import stage_costs
from hornbook.plan.hardware import Cluster
from hornbook.plan.held import held_values
from hornbook.plan.rates import Rates, Shares, rates_of
from hornbook.plan.schedules import Durations, plan, simulate, stages_of
from hornbook.plan.share import rows_of, share_of, tensor_share
from hornbook.plan.work import Work, block_work, head_work
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe

UPDATE_BYTES = 28
"""Bytes that AdamW reads and writes for a value: weight, gradient, two moments; three of them are written."""
EXPOSED = 0.1
"""Share of messages beside computing that shows all the same: both want memory and cores."""


@dataclass(frozen=True)
class Traffic:
    """What crosses data ranks, and what a trainer computes meanwhile."""

    gradient_bytes: float = 4.0
    """Of a value's gradient."""
    weight_bytes: float = 4.0
    """Of a value that is gathered."""
    beside_data: bool = True
    """Messages of data ranks run beside computing."""
    again: float = 0.0
    """Share of a block's forward pass that `selective` recomputation repeats, or attention if that is more."""
    beside_tensor: float = 0.0
    """Share of tensor ranks' messages that computing hides."""


class StepTime(Config):
    """Seconds of a step of the slowest rank."""

    compute: float
    """Forward and backward."""
    recompute: float
    """Forward again, of what was not kept."""
    tensor: float
    """Messages of tensor, context and expert ranks that nothing hides."""
    data: float
    """Gradients and weights over data ranks, as far as nothing hides them."""
    bubble: float
    """Waiting for other stages."""
    update: float
    """The optimizer."""

    @property
    def total(self) -> float:
        """Seconds of a step."""
        return self.compute + self.recompute + self.tensor + self.data + self.bubble + self.update


@dataclass(frozen=True)
class _Passes:
    """Seconds of a microbatch in some blocks."""

    forward: float = 0.0
    backward: float = 0.0
    again: float = 0.0
    sent: float = 0.0
    """Forward messages that nothing hides; backward has as many."""

    def __add__(self, other: "_Passes") -> "_Passes":
        names = ("forward", "backward", "again", "sent")
        return _Passes(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.again + 2 * self.sent


def estimate_step(
    recipe: Recipe,
    vocab: int,
    cluster: Cluster,
    traffic: Traffic = Traffic(),
    shares: Shares | None = None,
    *,
    waiting: bool = True,
) -> StepTime:
    """Time of a step of a recipe on a cluster. vocab: rows of the embedding; shares: in place of the calibration;
    waiting: simulate the pipeline, else the step is as long as its slowest rank computes."""
    rates = rates_of(cluster.device, recipe.train.precision, shares)
    return _Step(recipe, vocab, cluster, traffic, rates).time(waiting=waiting)


@dataclass(frozen=True)
class _Step:
    recipe: Recipe
    vocab: int
    cluster: Cluster
    traffic: Traffic
    rates: Rates

    # ---- Groups of ranks: the innermost axis has neighbouring numbers (`hornbook.parallel.world.AXES`)

    def _group(self, ranks: int, stride: int) -> Group:
        return group(self.cluster, ranks, stride, self.rates.link, self.rates.network)

    @cached_property
    def _groups(self) -> dict[str, Group]:
        parallel, stride, found = self.recipe.parallel, 1, dict[str, Group]()
        shard = parallel.data // parallel.replicas
        sizes = {"tensor": parallel.tensor, "expert": parallel.expert, "context": parallel.context.ranks}
        for name, size in (sizes | {"shard": shard, "replica": parallel.replicas}).items():
            found[name] = self._group(size, stride)
            stride *= size
        found["pipeline"] = self._group(parallel.pipeline.stages, stride)
        inside = parallel.tensor
        found["data"] = self._group(parallel.data_ranks * parallel.context.ranks, inside)
        if parallel.replicas == 1:
            found["shard"] = found["data"]
        return found

    # ---- A microbatch

    @cached_property
    def _item(self) -> int:
        return 4 if self.recipe.train.precision == "fp32" else 2

    @cached_property
    def _tokens(self) -> int:
        rows = rows_of(self.recipe, self.recipe.train.micro_rows)
        return rows.tokens

    @cached_property
    def _blocks(self) -> list[_Passes]:
        """Of each block, an encoder's first; equal blocks are counted once."""
        model = tensor_share(self.recipe.model, self.recipe.parallel.tensor)
        decoder, *encoder = stacks_of(model)
        found, known = list[_Passes](), dict[int, _Passes]()
        for stack in (*encoder, decoder):
            known.clear()
            crossed = bool(encoder) and stack is decoder
            for number in range(stack.layers):
                key = stack.alike(number)
                if key not in known:
                    known[key] = self._block(stack.layer(number), crossed=crossed)
                found.append(known[key])
        return [self._with_recompute(each, number) for number, each in enumerate(found)]

    def _block(self, layer: ModelConfig, *, crossed: bool) -> _Passes:
        parallel, tokens = self.recipe.parallel, self._tokens
        stream = parallel.tensor if parallel.sequence else 1
        sequence = self.recipe.train.sequence
        work = block_work(layer, tokens, sequence, self._item, stream, 1.0)
        if crossed:
            bare = layer.model_copy(update={"mlp": layer.mlp.model_copy(update={"hidden": 1}), "kind": "encoder"})
            work += block_work(bare, tokens, sequence, self._item, stream, 1.0)
        sent = self._sent(layer) * (1.5 if crossed else 1.0)
        return _Passes(work.forward(self.rates), work.backward(self.rates), work.attention_forward(self.rates), sent)

    def _sent(self, layer: ModelConfig) -> float:
        """Seconds of forward messages of tensor, context and expert ranks in a block."""
        parallel, groups, tokens = self.recipe.parallel, self._groups, self._tokens
        stream = self._item * tokens * layer.width
        tensor = 2 * groups["tensor"].all_reduce(stream) * (1 - self.traffic.beside_tensor)
        keys = 2 * self._item * tokens * layer.kv_heads * layer.head_dim * parallel.context.ranks
        context = groups["context"].gather(keys)
        if isinstance(layer.mlp, ExpertsConfig):
            rows = layer.mlp.active * stream / (parallel.tensor if parallel.sequence else 1)
            return tensor + context + 2 * groups["expert"].all_to_all(rows)
        return tensor + context

    def _with_recompute(self, each: _Passes, number: int) -> _Passes:
        """`again` of a block holds its attention until here."""
        recompute = self.recipe.parallel.recompute
        if isinstance(recompute, BlockRecompute):
            again = each.forward + each.sent if number % recompute.every == 0 else 0.0
        else:
            selective = isinstance(recompute, SelectiveRecompute)
            again = max(each.again, self.traffic.again * each.forward) if selective else 0.0
        return _Passes(each.forward, each.backward, again, each.sent)

    @cached_property
    def _head(self) -> _Passes:
        model, vocab = self.recipe.model, share_of(self.vocab, self.recipe.parallel.tensor)
        work: Work = head_work(model, vocab, self._tokens, self._item)
        sent = self._groups["tensor"].all_reduce(self._item * self._tokens * model.width) / 2
        return _Passes(work.forward(self.rates), work.backward(self.rates), 0.0, sent)

    # ---- A step

    @cached_property
    def _microbatches(self) -> int:
        return -(-self.recipe.train.num_microbatches // self.recipe.parallel.data_ranks)

    @cached_property
    def _held(self) -> list[int]:
        recipe = self.recipe
        return held_values(recipe.model, self.vocab, recipe.parallel, recipe.train.sequence)

    def time(self, *, waiting: bool) -> StepTime:
        stages, pipeline = self._stages(), self.recipe.parallel.pipeline
        ranks = [sum((stages[stage] for stage in self._own(rank)), _Passes()) for rank in range(pipeline.stages)]
        slowest = max(ranks, key=lambda each: each.total)
        count = self._microbatches
        busy = count * slowest.total
        waiting = waiting and pipeline.stages > 1
        span = max(self._span(stages, slowest.total), busy) if waiting else busy
        data = self._data_seconds(slowest)
        return StepTime(
            compute=count * (slowest.forward + slowest.backward),
            recompute=count * slowest.again,
            tensor=count * 2 * slowest.sent,
            data=data,
            bubble=span - busy,
            update=self._update_seconds(),
        )

    def _own(self, rank: int) -> list[int]:
        pipeline = self.recipe.parallel.pipeline
        if pipeline.stages == 1:
            return [0]
        return stages_of(pipeline.schedule, rank, pipeline.stages, pipeline.chunks_per_rank)

    def _stages(self) -> list[_Passes]:
        parallel, blocks = self.recipe.parallel, self._blocks
        if parallel.pipeline.stages == 1:
            return [sum(blocks, self._head)]
        bounds, _ = stage_costs(parallel, self.recipe.model, self.vocab, self.recipe.train.sequence)
        found = [sum(blocks[first:end], _Passes()) for first, end in pairwise(bounds)]
        found[-1] += self._head
        return found

    def _span(self, stages: list[_Passes], slowest: float) -> float:
        """Seconds from the first pass of a step to the last; each beyond those that fill it adds `slowest`."""
        pipeline, count = self.recipe.parallel.pipeline, self._microbatches
        stream = self._item * self._tokens * self.recipe.model.width
        stream /= self.recipe.parallel.tensor if self.recipe.parallel.sequence else 1
        message = self._groups["pipeline"].send(stream)
        times = [
            Durations(
                each.forward + each.sent,
                (each.backward + each.again * 2) / 2 + each.sent / 2,
                each.backward / 2 + each.sent / 2,
                message,
            )
            for each in stages
        ]
        layout = pipeline.schedule, pipeline.stages, pipeline.chunks_per_rank

        few = min(count, pipeline.stages + count % pipeline.stages)
        timed = simulate(plan(*layout, few), times)
        return max(passes[-1].end for passes in timed) + (count - few) * slowest

    def _data_seconds(self, slowest: _Passes) -> float:
        """Seconds of messages over data ranks that show."""
        parallel, traffic, groups = self.recipe.parallel, self.traffic, self._groups
        if parallel.data_ranks * parallel.context.ranks == 1:
            return 0.0
        held, over = max(self._held), groups["data"]
        gradients, weights = traffic.gradient_bytes * held, traffic.weight_bytes * held
        if parallel.shard == "none":
            return self._shown(over.all_reduce(gradients), slowest.backward + slowest.again)
        within = groups["shard"]
        across = groups["replica"].all_reduce(gradients / within.ranks) if parallel.replicas > 1 else 0.0
        shown = self._shown(across, slowest.backward)
        if parallel.shard == "everything":
            each = (2 if parallel.reshard else 1) * within.gather(weights) + within.gather(gradients)
            return shown + self._microbatches * self._shown(each, slowest.total)
        times = self._microbatches if parallel.shard == "gradients" else 1  # their shards alone stay in between
        shown += times * self._shown(within.gather(gradients), slowest.backward + slowest.again)
        return shown + self._shown(within.gather(weights), slowest.forward)

    def _shown(self, messages: float, beside: float) -> float:
        if not self.traffic.beside_data:
            return messages
        return max(messages - beside, 0.0) + EXPOSED * min(messages, beside)

    def _update_seconds(self) -> float:
        parallel = self.recipe.parallel
        shared = parallel.data // parallel.replicas if parallel.shard != "none" else 1
        return UPDATE_BYTES * max(self._held) / shared / self.rates.bandwidth
