"""The fastest layouts of a recipe on a cluster, by branch and bound: the same as if all had been estimated.

The time of a microbatch is known per `Block`; a step takes at least as long as its microbatches in a pipeline without
messages over data ranks. Blocks whose bound is no better than what was found are not looked into, nor are spreads; the
rest is estimated as it is (`plan.planned_memory`, `plan.step_time`).
"""

from collections.abc import Callable, Iterator
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from hornbook.plan.devices.hardware import Cluster
from hornbook.plan.planned_memory import PhaseMemory, estimate_memory, fits_memory
from hornbook.plan.search.space import Block, Layouts, Spread
from hornbook.plan.step_time import StepTime, estimate_step
from hornbook.plan.trainer import Trainer
from hornbook.settings.recipe import Recipe

FILL = {"gpipe": 1.0, "1f1b": 1.0, "interleaved": 1.0, "zb-h1": 0.3, "zbv": 0.15, "dualpipev": 0.3}
"""Least time in which ranks wait for a pipeline, in passes of a microbatch through a whole rank, for each rank but one;
of `interleaved` divided by the stages of a rank. Of schedules that split backward it depends on the parts' times."""
TRIED = 24
"""Layouts that are estimated before it is said that none fits."""
SURE = 0.98
"""Of a bound, what is taken to be sure: the pass through the fullest rank is never shorter than the mean one."""


class Found(NamedTuple):
    """An estimated layout."""

    block: Block
    spread: Spread
    peak: int
    """Bytes of the fullest rank."""
    step: StepTime

    @property
    def name(self) -> tuple[object, ...]:
        """What layouts have in common that differ in micro-batch, recomputation and how context ranks exchange."""
        return (self.block._replace(micro=0, recompute="", exchange=""), self.spread)


class _Open(NamedTuple):
    """Layouts that are still to be looked into, by the least time that they may take."""

    bound: float
    block: Block
    spread: Spread | None = None
    """None: all of them."""
    level: int = 0
    """1: micro-batch and recomputation are settled, 2: the spread too, 3: the bound has the messages of data ranks."""

    def __lt__(self, other: "_Open") -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (self.bound, self.block, self.spread or ()) < (other.bound, other.block, other.spread or ())


class Search:
    """Layouts of one recipe on one cluster. `trainer`: what crosses data ranks, by recipe."""

    def __init__(self, vocab: int, cluster: Cluster, layouts: Layouts, trainer: Callable[[Recipe], Trainer]) -> None:
        self.layouts = layouts
        self._vocab = vocab
        self._cluster = cluster
        self._trainer = trainer
        self.num_estimates = 0
        """Layouts of which time was estimated beyond a bound."""
        self.missed: Found | None = None
        """The fastest layout that would be faster than the best, and does not fit."""
        self._seconds = cache(self._microbatch_seconds)
        self._whole = cache(self._whole_memory)
        self._memory = cache(self._estimate_memory)
        self._holds = cache(self._estimate_holds)
        self._step = cache(self._estimate_step)

    def fastest(self, number: int, capacity: float, within: float = 1.0) -> list[Found]:
        """The fastest layouts whose ranks take at most `capacity` bytes, each of another kind: `number` of them, and
        all that take at most `within` times as long as the first."""
        best: dict[tuple[object, ...], Found] = {}
        limit, beyond = float("inf"), list[_Open]()
        opened = [_Open(self._pace(block), block) for block in self.layouts.blocks()]
        heapify(opened)
        while opened and (least := heappop(opened)).bound < limit:
            if least.spread is None:
                for each in self._within(least):
                    heappush(opened, each)
            elif least.level == 2:
                if self._fits(least.block, least.spread, capacity):
                    heappush(opened, self._closer(least.block, least.spread))
                else:
                    beyond.append(least)
            else:
                found = self._found(least.block, least.spread)
                known = best.get(found.name)
                best[found.name] = found if known is None else min(known, found, key=_rank)
                times = sorted(each.step.total for each in best.values())
                limit = max(times[number - 1], within * times[0]) if len(times) >= number else limit
        chosen = [each for each in sorted(best.values(), key=_rank) if each.step.total <= limit]
        self.missed = self._missed(beyond, chosen[0].step.total) if chosen else None
        return chosen

    def smallest(self, number: int) -> list[Found]:
        """Layouts that take the least memory, each of another kind."""
        found: dict[tuple[object, ...], Found] = {}
        for _, block, spread in islice(sorted(self._sizes()), 4 * number):
            each = self._found(block, spread)
            found.setdefault(each.name, each)
        return sorted(found.values(), key=lambda each: (each.peak, _rank(each)))[:number]

    def fits(self, capacity: float) -> bool:
        """Whether some layout fits: of those that may, the smallest are estimated."""
        sizes = sorted(size for size in self._sizes() if size[0] <= capacity)
        return any(self._holds(block, spread, capacity) for _, block, spread in sizes[:TRIED])

    def _sizes(self) -> Iterator[tuple[float, Block, Spread]]:
        """(bytes at least, block, spread) with the smallest micro-batches."""
        for block in self.layouts.blocks():
            least = self.layouts.micro_batches(block)[-1]
            for each in self.layouts.variants(block):
                if each.micro == least:
                    yield from (
                        (self._least_bytes(each, spread), each, spread) for spread in self.layouts.spreads(each)
                    )

    # ---- Bounds

    def _pace(self, block: Block) -> float:
        """Least seconds of a step with such blocks: every rank computes all the time."""
        microbatches = self.layouts.rows / block.micro
        return SURE * self._seconds(block) * microbatches * block.ranks / self._cluster.count

    def _within(self, opened: "_Open") -> Iterator["_Open"]:
        """A block's variants, or a variant's spreads."""
        block = opened.block
        if opened.level:
            pace = self._pace(block)
            for each in self.layouts.spreads(block):
                yield _Open(pace + self._waiting(block, each), block, each, level=2)
        else:
            yield from (_Open(self._pace(each), each, level=1) for each in self.layouts.variants(block))

    def _closer(self, block: Block, spread: Spread) -> "_Open":
        """A layout by all parts of its step but the waiting of a pipeline, of which the least is taken."""
        return _Open(self._step(block, spread, waiting=False).total + self._waiting(block, spread), block, spread, 3)

    def _waiting(self, block: Block, spread: Spread) -> float:
        if spread.stages == 1:
            return 0.0
        filled = (
            FILL[spread.schedule] * (spread.stages - 1) / (spread.chunks if spread.schedule == "interleaved" else 1)
        )
        return SURE * 0.9 * filled * self._seconds(block) / spread.stages

    def _least_bytes(self, block: Block, spread: Spread) -> float:
        """Bytes that the fullest rank holds at least: its even share of weights and state, and of what is under way."""
        memory, shared = self._whole(block), spread.data // spread.replicas
        level = ("none", "optimizer", "gradients", "everything").index(spread.shard)
        state = memory.optimizer / (shared if level > 0 else 1)
        if not self.layouts.weights_on_host(spread.shard):  # `memory` is of ranks that share none, so it has them
            state += memory.gradients / (shared if level > 1 else 1) + memory.weights / (shared if level > 2 else 1)
        microbatches = self.layouts.rows // block.micro // block.expert // spread.data
        passes, chunks = spread.stages, spread.chunks if spread.schedule == "interleaved" else 1
        if chunks > 1:  # of the first rank, before it computes backward
            passes = 2 * (spread.stages - 1) + (chunks - 1) * spread.stages + 1
        kept = memory.activations * min(microbatches * chunks, passes) / chunks
        return (state + kept * (SURE if spread.stages > 1 else 1)) / spread.stages + memory.runtime

    def _fits(self, block: Block, spread: Spread, capacity: float) -> bool:
        return self._least_bytes(block, spread) <= capacity and self._holds(block, spread, capacity)

    def _estimate_holds(self, block: Block, spread: Spread, capacity: float) -> bool:
        return fits_memory(self.layouts.recipe(block, spread), self._vocab, self._cluster.device, capacity)

    # ---- Estimates

    def _microbatch(self, block: Block) -> Recipe:
        """One microbatch on ranks of its own."""
        recipe = self.layouts.recipe(block, Spread())
        tokens = block.micro * block.expert * recipe.train.sequence
        return recipe.model_copy(update={"train": recipe.train.model_copy(update={"batch_tokens": tokens})})

    def _microbatch_seconds(self, block: Block) -> float:
        recipe = self._microbatch(block)
        step = estimate_step(recipe, self._vocab, self._cluster, self._trainer(recipe))
        return step.compute + step.recompute + step.tensor

    def _whole_memory(self, block: Block) -> PhaseMemory:
        """Of the whole model on such ranks, with one microbatch."""
        (memory,) = estimate_memory(self._microbatch(block), self._vocab, self._cluster.device)
        return memory.phases["loss"]

    def _estimate_memory(self, block: Block, spread: Spread) -> int:
        recipe = self.layouts.recipe(block, spread)
        found = estimate_memory(recipe, self._vocab, self._cluster.device)
        return max(each.peak.total for each in found)

    def _estimate_step(self, block: Block, spread: Spread, *, waiting: bool = True) -> StepTime:
        self.num_estimates += waiting
        recipe = self.layouts.recipe(block, spread)
        return estimate_step(recipe, self._vocab, self._cluster, self._trainer(recipe), waiting=waiting)

    def _found(self, block: Block, spread: Spread) -> Found:
        return Found(block, spread, self._memory(block, spread), self._step(block, spread))

    def _missed(self, beyond: "list[_Open]", best: float) -> Found | None:
        """Of faster layouts that do not fit, the one that lacks least."""
        lacking = [(each.block, each.spread) for each in beyond if each.bound < best and each.spread is not None]
        for block, spread in sorted(lacking, key=lambda each: (self._least_bytes(*each), each))[:4]:
            found = self._found(block, spread)
            if found.step.total < best:
                return found
        return None


def _rank(found: Found) -> tuple[object, ...]:
    """Faster ones first; of equal ones those with fewer kinds of ranks, then with less memory."""
    return found.step.total, found.peak, found.block, found.spread
