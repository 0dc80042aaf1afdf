"""Time of a step by what it goes into: compute, what is computed again, messages, waiting in a pipeline, the update.

Blocks are timed by the roofline (`work`), collectives by latency and bandwidth (`collectives`), a pipeline by the
simulator of its own schedule (`schedules`), data ranks by what their messages take beyond the computing beside.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import stacks_of
from hornbook.model.config.part import method
from hornbook.parallel.axes.pipeline.cuts import stage_blocks, stage_costs
from hornbook.parallel.axes.pipeline.pass_orders import Durations, stages_of, step_span
from hornbook.parallel.config import BlockRecompute, SelectiveRecompute
from hornbook.plan.counts.adapted import Adapted, adapted
from hornbook.plan.counts.held_counts import held_values
from hornbook.plan.counts.share import reach, rows_of, share_of, tensor_share
from hornbook.plan.counts.teacher_counts import teacher_seconds
from hornbook.plan.devices.collective_times import Group, group
from hornbook.plan.devices.device_rates import Rates, Shares, rates_of
from hornbook.plan.devices.hardware import Cluster
from hornbook.plan.trainer import HORNBOOK, Trainer
from hornbook.plan.update import update_of
from hornbook.plan.update_work import (
    STEP_OPERATIONS,
    Work,
    adapter_work,
    attention_work,
    block_work,
    head_work,
    multiply,
)
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe

UNFUSED = 2.5
"""Bytes between products of torch's single operations over those of compiled ones, by torchtitan's measured pair."""


@dataclass(frozen=True)
class Passes:
    """Seconds of a microbatch in some blocks."""

    forward: float = 0.0
    backward: float = 0.0
    again: float = 0.0
    sent: float = 0.0
    """Forward messages that nothing hides."""
    answered: float = 0.0
    """The same backward."""

    def __add__(self, other: "Passes") -> "Passes":
        again, sent, answered = self.again + other.again, self.sent + other.sent, self.answered + other.answered
        return Passes(self.forward + other.forward, self.backward + other.backward, again, sent, answered)

    @property
    def total(self) -> float:
        """Seconds of all of it."""
        return self.forward + self.backward + self.again + self.sent + self.answered


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


def estimate_step(
    recipe: Recipe,
    vocab: int,
    cluster: Cluster,
    trainer: Trainer = HORNBOOK,
    shares: Shares | None = None,
    *,
    waiting: bool = True,
) -> StepTime:
    """Time of a step of a recipe on a cluster. vocab: rows of the embedding; shares: in place of the calibration;
    waiting: simulate the pipeline, else the step is as long as its slowest rank computes."""
    rates = rates_of(cluster.device, recipe.train.precision, shares)
    kernel = cluster.device.attention if trainer.attention is None else trainer.attention
    rates = replace(rates, attention=kernel * rates.attention, gap=trainer.gap)
    return _Step(recipe, vocab, cluster, trainer, rates).time(waiting=waiting)


@dataclass(frozen=True)
class _Step:
    recipe: Recipe
    vocab: int
    cluster: Cluster
    trainer: Trainer
    rates: Rates

    # ---- Groups of ranks, from the axis whose ranks have neighbouring numbers outwards

    def _group(self, ranks: int, stride: int) -> Group:
        return group(self.cluster, ranks, stride, self.rates.link, self.rates.network)

    @cached_property
    def _groups(self) -> dict[str, Group]:
        parallel, stride, found = self.recipe.parallel, 1, dict[str, Group]()
        shard = parallel.data // parallel.replicas
        sizes = {"tensor": parallel.tensor, "expert": parallel.expert, "context": parallel.context.ranks}
        first = self.trainer.innermost
        sizes = {first: sizes[first]} | sizes | {"shard": shard, "replica": parallel.replicas}
        for name, size in sizes.items():
            found[name] = self._group(size, stride)
            stride *= size
        found["pipeline"] = self._group(parallel.pipeline.stages, stride)
        found["data"] = self._group(parallel.data_ranks * parallel.context.ranks, parallel.tensor)
        if parallel.replicas == 1:
            found["shard"] = found["data"]
        if self.trainer.one_card:
            alone = {"bandwidth": self.rates.network}
            found |= {name: replace(found[name], **alone) for name in ("data", "shard") if found[name].across > 1}
        return found

    # ---- A microbatch

    @cached_property
    def _item(self) -> int:
        return 4 if self.recipe.train.precision == "fp32" else 2

    @cached_property
    def _tokens(self) -> int:
        return rows_of(self.recipe, self.recipe.train.micro_rows).tokens

    @cached_property
    def _blocks(self) -> list[Passes]:
        """Of each block, those of an encoder or a generator first; equal blocks are counted once."""
        model = tensor_share(self.recipe.model, self.recipe.parallel.tensor)
        decoder, *encoder = stacks_of(model)
        found, known = list[Passes](), dict[tuple[int, bool], Passes]()
        first = self._adapted.first if self.recipe.surgery else 0
        generator = model.head.generator_of(model)
        for stack in (*encoder, *([] if generator is None else [generator]), decoder):
            known.clear()
            crossed, side = bool(encoder) and stack is decoder, self.trainer.sides[stack is not decoder]
            for number in range(stack.num_blocks):
                key = stack.alike(number), self._is_again(len(found))
                if key not in known:
                    known[key] = self._with_recompute(self._block(stack.layer(number), side, crossed=crossed), key[1])
                found.append(known[key])
        return [replace(each, backward=0.0, again=0.0, answered=0.0) for each in found[:first]] + found[first:]

    def _block(self, layer: ModelConfig, side: float, *, crossed: bool) -> Passes:
        parallel, tokens, sequence = self.recipe.parallel, self._positions(side), reach(self.recipe)
        sequence = max(round(side * sequence), 1)
        stream = parallel.tensor if parallel.sequence else 1
        attention = attention_work(layer, tokens, sequence, self._item, stored=self.trainer.stored_scores)
        if isinstance(layer.mlp, ExpertsConfig) and parallel.expert > 1:
            held = share_of(layer.mlp.count, parallel.expert)
            layer = layer.model_copy(update={"mlp": layer.mlp.model_copy(update={"count": held})})
        work = block_work(layer, tokens, self._item, stream, attention, self.trainer.expert_calls)
        if crossed:
            bare = layer.model_copy(update={"mlp": layer.mlp.model_copy(update={"hidden": 1}), "kind": "encoder"})
            work += block_work(bare, self._positions(sum(self.trainer.sides) / 2), self._item, stream, attention)
        once = attention.forward(self.rates, self._item)
        trainer, times = self.trainer, 1.5 if crossed else 1.0
        sent, answered = (
            times * self._sent(layer, once, hidden)
            for hidden in (trainer.beside_tensor, trainer.beside_tensor_backward)
        )
        if not self.trainer.fused and not self.cluster.device.is_cpu:
            work = replace(work, moved=UNFUSED * work.moved)
        if self.recipe.surgery:
            blocks = sum(stack.num_blocks for stack in stacks_of(self.recipe.model))
            work += adapter_work(self._adapted, blocks, tokens, self._item)
        return Passes(work.forward(self.rates, self._item), self._backward(work), once, sent, answered)

    def _positions(self, side: float) -> int:
        """Of a microbatch."""
        return max(round(side * self._tokens), 1)

    def _backward(self, work: Work) -> float:
        trainer, seconds = self.trainer, work.backward(self.rates, self._item, self.trainer.sum_bytes)
        if self.recipe.surgery and trainer.sum_bytes is not None:  # without gradients of what is frozen
            still = work.backward(self.rates, self._item, None)
            seconds += self._adapted.frozen * (still - seconds)
        if not trainer.sums_apart or trainer.sum_bytes is None:
            return seconds
        weights = sum(each.weights for each in work.multiplies)
        return seconds + weights * (self._item + 2 * trainer.sum_bytes) / self.rates.bandwidth

    def _sent(self, layer: ModelConfig, attention: float, hidden: float) -> float:
        """Seconds of messages of tensor, context and expert ranks in a block that nothing hides, one way."""
        parallel, groups, tokens = self.recipe.parallel, self._groups, self._tokens
        stream = self._item * tokens * layer.width
        tensor, context = self._tensor(layer, stream, hidden), self._context(layer, attention)
        if isinstance(layer.mlp, ExpertsConfig):
            rows = stream / (parallel.tensor if parallel.sequence else 1)
            once = self.trainer.once_per_domain
            return tensor + context + 2 * groups["expert"].exchange(rows, layer.mlp.active, once=once)
        return tensor + context

    def _tensor(self, layer: ModelConfig, stream: float, hidden: float) -> float:
        """Of tensor ranks: attention and the MLP gather `stream` bytes, or a gradient, and scatter a sum of them."""
        message = self._groups["tensor"].all_reduce(stream) / 2
        if not self.trainer.asynchronous:
            return 4 * message * (1 - hidden)
        shown = 0.0
        for part in (layer.attention, layer.mlp):
            matrices = [multiply(each, self._tokens) for each in method(part, "products")(layer)]
            for own in (matrices[:-1], matrices[-1:]):
                shown += self._shown(message, sum(each.forward(self.rates, self._item) for each in own))
        return shown

    def _context(self, layer: ModelConfig, attention: float) -> float:
        """Of context ranks: keys and values go round beside attention; or queries, keys and values go to the ranks of
        their heads before it and results back behind it, which nothing hides."""
        over, group = self.recipe.parallel.context, self._groups["context"]
        if over.ranks == 1:
            return 0.0
        values = self._item * self._tokens * layer.head_dim
        if over.kind == "ring":
            return self._shown(group.gather(2 * values * layer.kv_heads * over.ranks), attention)
        keys = layer.kv_heads * over.ranks // gcd(over.ranks, layer.kv_heads)  # repeated until they divide
        heads = layer.heads, keys, keys, layer.heads
        return sum(group.exchange(values * each / over.ranks, over.ranks) for each in heads)

    def _is_again(self, number: int) -> bool:
        """Whether something of a block is computed again."""
        recompute = self.recipe.parallel.recompute
        if isinstance(recompute, BlockRecompute):
            return number % recompute.every == 0
        return isinstance(recompute, SelectiveRecompute)

    def _with_recompute(self, each: Passes, again: bool) -> Passes:
        """`again` of a block holds its attention until here."""
        if isinstance(self.recipe.parallel.recompute, BlockRecompute):
            seconds = each.forward + each.sent
        else:
            gathers = each.sent / 2 if self.trainer.again and self.recipe.parallel.sequence else 0.0
            seconds = max(each.again, self.trainer.again * each.forward) + gathers
        return replace(each, again=seconds if again else 0.0)

    @cached_property
    def _head(self) -> Passes:
        model, vocab = self.recipe.model, share_of(self.vocab, self.recipe.parallel.tensor)
        tokens = self._positions(self.trainer.targets * self.trainer.sides[0])
        work, generator = Work(), model.head.generator_of(model)
        if generator is not None:  # its head reads what is masked, the model's all tokens
            work += head_work(generator, vocab, tokens, self._item, cached=self.rates.core > 0)
            tokens = self._positions(self.trainer.sides[0])
        stream = self.recipe.parallel.tensor if self.recipe.parallel.sequence else 1
        work += head_work(model, vocab, tokens, self._item, stream_ranks=stream, cached=self.rates.core > 0)
        sent = (1 + model.mtp.depth) * self._groups["tensor"].all_reduce(self._item * self._tokens * model.width) / 2
        taught, learned = teacher_seconds(self.recipe, self._tokens, self.rates, self._item)
        forward, backward = work.forward(self.rates, self._item) + taught, self._backward(work) + learned
        return Passes(forward, backward, 0.0, sent, sent)

    # ---- A step

    @cached_property
    def _microbatches(self) -> int:
        return -(-self.recipe.train.num_microbatches // self.recipe.parallel.data_ranks)

    @cached_property
    def _held(self) -> list[int]:
        recipe = self.recipe
        return held_values(recipe.model, self.vocab, recipe.parallel, recipe.train.sequence)

    @cached_property
    def _trained(self) -> int:
        """Values of a rank that have gradients, before data ranks share them: all, or those that surgery leaves."""
        if not self.recipe.surgery:
            return max(self._held)
        return self._adapted.of_rank(max(self._held), self.recipe.parallel.pipeline.stages)

    @cached_property
    def _adapted(self) -> Adapted:
        return adapted(self.recipe.model, self.vocab, self.recipe.surgery, self.recipe.parallel.tensor)

    def time(self, *, waiting: bool) -> StepTime:
        stages, pipeline = self._stages(), self.recipe.parallel.pipeline
        ranks = [sum((stages[stage] for stage in self._own(rank)), Passes()) for rank in range(pipeline.stages)]
        slowest = max(ranks, key=lambda each: each.total)
        count = self._microbatches
        busy = count * slowest.total
        waiting = waiting and pipeline.stages > 1
        span = max(self._span(stages, slowest.total), busy) if waiting else busy
        data = self._data_seconds(slowest)
        return StepTime(
            compute=count * (slowest.forward + slowest.backward),
            recompute=count * slowest.again,
            tensor=count * (slowest.sent + slowest.answered),
            data=data,
            bubble=span - busy,
            update=self._update_seconds(),
        )

    def _own(self, rank: int) -> list[int]:
        pipeline = self.recipe.parallel.pipeline
        if pipeline.stages == 1:
            return [0]
        return stages_of(pipeline.schedule, rank, pipeline.stages, pipeline.chunks_per_rank)

    def _stages(self) -> list[Passes]:
        parallel, blocks = self.recipe.parallel, self._blocks
        if parallel.pipeline.stages == 1:
            return [sum(blocks, self._head)]
        bounds, _ = stage_costs(parallel, self.recipe.model, self.vocab, self.recipe.train.sequence)
        message = self._message if self.trainer.waits else 0.0
        waiting = Passes(sent=message, answered=message)
        found = [sum(blocks[each.start : each.stop], waiting) for each in stage_blocks(bounds, self.recipe.model)]
        found[-1] += self._head
        return found

    @cached_property
    def _message(self) -> float:
        """Seconds from a stage to the next."""
        stream = self._item * self._tokens * self.recipe.model.width
        stream /= self.recipe.parallel.tensor if self.recipe.parallel.sequence or self.trainer.scatters else 1
        return self._groups["pipeline"].send(stream)

    def _span(self, stages: list[Passes], slowest: float) -> float:
        """Seconds from the first pass of a step to the last; each beyond those that fill it adds `slowest`."""
        pipeline, count, message = self.recipe.parallel.pipeline, self._microbatches, self._message
        times = [
            Durations(
                each.forward + each.sent,
                (each.backward + each.again * 2) / 2 + each.answered / 2,
                each.backward / 2 + each.answered / 2,
                message,
            )
            for each in stages
        ]
        return step_span(pipeline.schedule, pipeline.stages, pipeline.chunks_per_rank, count, times, slowest)

    def _data_seconds(self, slowest: Passes) -> float:
        """Seconds of messages over data ranks that show."""
        parallel, trainer, groups = self.recipe.parallel, self.trainer, self._groups
        if parallel.data_ranks * parallel.context.ranks == 1:
            return 0.0
        over = groups["data"]
        gradients, weights = trainer.gradient_bytes * self._trained, trainer.weight_bytes * max(self._held)
        backward = slowest.backward + slowest.again if trainer.sums_beside else 0.0
        if parallel.shard == "none":
            return self._shown(over.all_reduce(gradients), backward)
        within, calls = groups["shard"], len(self._blocks) / parallel.pipeline.stages  # each block on its own
        gather, scatter = (calls * within.lap + within.gather(each) for each in (weights, gradients))
        if parallel.replicas > 1:
            scatter += calls * groups["replica"].all_reduce(gradients / within.ranks / calls)
        if parallel.shard == "everything":
            each = (2 if parallel.reshard else 1) * gather + scatter
            times = self._microbatches if trainer.gathers == "each microbatch" else 1
            return times * self._shown(each, slowest.total)
        times = self._microbatches if parallel.shard == "gradients" else 1  # their shards alone stay in between
        return times * self._shown(scatter, backward) + self._shown(gather, slowest.forward)

    def _shown(self, messages: float, beside: float) -> float:
        if not self.trainer.beside_data:
            return messages
        return max(messages - beside, 0.0) + self.trainer.exposed * min(messages, beside)

    def _update_seconds(self) -> float:
        parallel = self.recipe.parallel
        shared = parallel.data // parallel.replicas if parallel.shard != "none" else 1
        started = STEP_OPERATIONS / self.rates.core if self.rates.core else 0.0
        recipe, rates = self.recipe, self.rates
        work = update_of(recipe.model, self.vocab, recipe.optim, recipe.train.item_bytes)
        moved = work.bytes_per_value * self._trained / shared / rates.bandwidth
        if self.trainer.sum_bytes is None:  # what adapters add are thin matrices
            return started + moved
        busy = work.operations / rates.vector + work.narrow_operations / rates.wide
        return started + moved + busy / shared / parallel.pipeline.stages / parallel.tensor / parallel.expert
