"""Which source each position draws from: blocks of 4096 draws that realise the weights exactly and evenly.

Every block holds `counts[s]` draws of source s, the weights rounded to 1/4096 (largest remainder; a source
with any weight gets at least one). Inside a block the draws follow Tijdeman's solution of the chairman
assignment problem (Discrete Mathematics 32, 1980): after any number of draws each source is within one
draw of its share, which is the best that is possible.
"""

import difflib
import functools
import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int32, Int64

from hornbook.data.config.data import DataConfig
from hornbook.errors import UsageError

BLOCK = 4096


def block_counts(weights: Sequence[float]) -> Int64[np.ndarray, " sources"]:
    """Draws of each source in a block of 4096; the weights are positive or 0 and not all 0."""
    shares = np.asarray(weights, np.float64)
    shares = shares / shares.sum() * BLOCK
    counts = np.where(shares > 0, np.maximum(1, np.floor(shares)), 0).astype(np.int64)
    while counts.sum() < BLOCK:
        counts[np.argmax(shares - counts)] += 1
    while counts.sum() > BLOCK:
        excess = np.where(counts > 1, counts - shares, -np.inf)
        counts[np.argmax(excess)] -= 1
    return counts


def block_pattern(counts: Int64[np.ndarray, " sources"]) -> Int32[np.ndarray, " 4096"]:
    """Source of each draw in a block: within one draw of each source's share after every prefix (Tijdeman 1980)."""
    slack = max(1, 2 * np.count_nonzero(counts) - 2)
    # One entry per draw. The terms of release and deadline are multiplied by BLOCK * slack, so that they are integers.
    source = np.repeat(np.arange(len(counts)), counts)
    earlier = BLOCK * slack * (np.arange(BLOCK) - np.repeat(np.cumsum(counts) - counts, counts))
    release = -((BLOCK + earlier) // (-slack * counts[source])) - 1
    deadline = (BLOCK * (slack - 1) + earlier) / counts[source]
    coming = sorted(zip(release.tolist(), deadline.tolist(), source.tolist(), strict=True), reverse=True)
    pattern, released = np.zeros(BLOCK, np.int32), list[tuple[float, int]]()
    for draw in range(BLOCK):
        while coming and coming[-1][0] <= draw:
            heapq.heappush(released, coming.pop()[1:])
        _, pattern[draw] = heapq.heappop(released)
    return pattern


@functools.lru_cache(64)
def _block(weights: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts, pattern and ranks of a stage's block, kept: nobody may change them."""
    counts = block_counts(weights)
    pattern = block_pattern(counts)
    ranks = np.zeros(BLOCK, np.int64)
    for source in np.flatnonzero(counts):
        ranks[pattern == source] = np.arange(counts[source])
    return counts, pattern, ranks


@dataclass(frozen=True)
class Stage:
    """From position `first` on, draws follow `pattern`."""

    first: int
    weights: tuple[float, ...]
    """Share of each source as the settings state it, normalised."""
    counts: np.ndarray
    """Draws of each source in a block, int64."""
    pattern: np.ndarray
    """Source of each draw in a block, int32 [4096]."""
    ranks: np.ndarray
    """How many draws of the same source come before it in the block, int64 [4096]."""

    @staticmethod
    def build(first: int, weights: Sequence[float]) -> "Stage":
        """Stage that begins at position `first`, with one weight per source."""
        total = float(sum(weights))
        return Stage(first, tuple(weight / total for weight in weights), *_block(tuple(weights)))

    def reach(self, source: int, draws: int) -> int:
        """Number of positions of the stage that hold `draws` (at least 1) draws of a source that has any."""
        blocks, rest = divmod(draws - 1, int(self.counts[source]))
        place = np.flatnonzero((self.pattern == source) & (self.ranks == rest))[0]
        return blocks * BLOCK + int(place) + 1

    def positions(self, source: int, draws: int) -> Int64[np.ndarray, " draws"]:
        """Positions, counted from the stage's first, of the first `draws` draws of a source that has any."""
        blocks, rest = np.divmod(np.arange(draws), self.counts[source])
        return blocks * BLOCK + np.flatnonzero(self.pattern == source)[rest]

    def draws(self, samples: int) -> Int64[np.ndarray, " sources"]:
        """Draws of each source in the first `samples` positions of the stage."""
        blocks, rest = divmod(samples, BLOCK)
        return blocks * self.counts + np.bincount(self.pattern[:rest], minlength=len(self.counts))


def cap_epochs(stages: Sequence[Stage], rows: Sequence[int], epochs: float) -> tuple[list[Stage], int | None]:
    """The stages with no source drawn from more than `epochs` times its rows.

    A stage starts wherever a source is used up; from there the others share its draws by weight. Also returns the
    position at which all sources of a stage are used up, from which on stages are unchanged; None if there is none.
    """
    limits = np.ceil(np.round(np.array(rows) * epochs, 6)).astype(np.int64)
    drawn, spent = np.zeros(len(rows), np.int64), limits == 0
    pending, capped = list(stages), []
    while pending:
        stage = pending.pop(0)
        weights = np.where(spent, 0.0, stage.weights)
        if not weights.any():
            return [*capped, stage, *pending], stage.first
        if spent.any():
            stage = Stage.build(stage.first, weights.tolist())
        left = limits - drawn
        used_up = min(
            stage.first + stage.reach(source, int(left[source])) for source in np.flatnonzero(stage.counts).tolist()
        )
        capped.append(stage)
        end = pending[0].first if pending else None
        place = used_up if end is None else min(end, used_up)
        drawn += stage.draws(place - stage.first)
        spent |= drawn >= limits
        if place != end:
            nothing_left = not np.where(spent, 0.0, stage.weights).any()
            pending.insert(0, Stage.build(place, stage.weights) if nothing_left else _unbuilt(stage, place))
    return capped, None


def _unbuilt(stage: Stage, first: int) -> Stage:
    """The stage from `first` on, whose pattern is made when it is its turn: a source less draws from then on."""
    total = float(sum(stage.weights))
    return replace(stage, first=first, weights=tuple(weight / total for weight in stage.weights))


def build_stages(
    config: DataConfig, sizes: Mapping[str, int], sequence: int, replayed: Collection[str] = ()
) -> tuple[list[str], list[Stage], list[str]]:
    """Sources in use, the stages over them, and notes for the user.

    `sizes` are training tokens per source. Sources without weight in every stage are left out. `replayed`: sources
    that have `data.replay.share` of each stage, by their size.
    """
    notes: list[str] = []
    old = {name: size for name, size in sizes.items() if name in replayed}
    sizes = {name: size for name, size in sizes.items() if name not in replayed}
    wanted = [(0, _weights(config.weights or _by_size(sizes, config.temperature), sizes, "data.weights", notes))]
    for number, stage in enumerate(config.stages):
        first = -(-stage.from_tokens // sequence)
        if first * sequence != stage.from_tokens:
            notes.append(
                f"data.stages[{number}].from_tokens: {stage.from_tokens} is not a multiple of the sequence length"
                f" {sequence}; the stage begins at {first * sequence}"
            )
        weights = _weights(stage.weights, sizes, f"data.stages[{number}].weights", notes)
        if first == wanted[-1][0]:
            wanted.pop()
        wanted.append((first, weights))
    if old:
        wanted = [(first, _with_replay(weights, old, config.replay.share)) for first, weights in wanted]
        sizes |= old
    used = [name for name in sizes if any(weights[name] > 0 for _, weights in wanted)]
    if len(used) > BLOCK:
        raise UsageError(f"{len(used)} sources have a weight, at most {BLOCK} can be mixed: merge some of them")
    return used, [Stage.build(first, [weights[name] for name in used]) for first, weights in wanted], notes


def _with_replay(weights: dict[str, float], old: Mapping[str, int], share: float) -> dict[str, float]:
    """Weights of which those of the sources of an earlier training add up to `share`, and the others to the rest."""
    if share and not any(old.values()):
        raise UsageError("data.replay.share: the text of data.replay.path has no training tokens: set it to 0")
    new, size = sum(weights.values()), sum(old.values()) or 1
    return {name: (1 - share) * weight / new for name, weight in weights.items()} | {
        name: share * tokens / size for name, tokens in old.items()
    }


def _by_size(sizes: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Weights size ** (1 / temperature) (Devlin et al. 2018, multilingual BERT; Conneau et al. 2020, section 3.1)."""
    largest = max(sizes.values(), default=0) or 1
    return {name: (size / largest) ** (1 / temperature) for name, size in sizes.items()} if temperature != 1 else {}


def _weights(weights: Mapping[str, float], sizes: Mapping[str, int], key: str, notes: list[str]) -> dict[str, float]:
    """One weight per source, as the settings state it, or by size."""
    if not weights:
        return {name: float(size) for name, size in sizes.items()}
    for name, weight in weights.items():
        if name not in sizes:
            raise UsageError(f"{key}: {_unknown_source(name, sizes)}")
        if weight < 0:
            raise UsageError(f"{key}.{name}: a weight is not negative, as {weight} is")
        if weight > 0 and sizes[name] == 0:
            raise UsageError(f"{key}.{name}: the source has no training tokens: give it weight 0 or leave it out")
    if not any(weights.values()):
        raise UsageError(f"{key}: all weights are 0: give at least one source a weight")
    left_out = [name for name in sizes if name not in weights]
    if left_out:
        notes.append(f"{key}: without a weight, so not used: {', '.join(left_out)}")
    return {name: float(weights.get(name, 0.0)) for name in sizes}


def _unknown_source(name: str, known: Mapping[str, int]) -> str:
    """Text that names an unknown source, the nearest known one, and all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no source {name!r}: {hint}the data has {', '.join(known)}"
