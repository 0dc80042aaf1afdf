"""Schedules of pipelines: in which order each rank computes its stages' passes. Pure functions, without torch.

A stage is a run of blocks; a rank holds one stage, or several (chunks). In the orders of this module a pass is an
`Action`: F forward, B backward, or backward in two parts: I, the gradient of the stage's input, which the stage before
waits for, and W, that of its weights, which nobody waits for.

| schedule | order | idle, as a share of the work (p ranks, m microbatches, v chunks; F, I and W take equally long) |
|---|---|---|
| gpipe | all forward, then all backward (Huang et al. 2019, arXiv 1811.06965) | (p - 1) / m |
| 1f1b | one forward, one backward: at most p microbatches under way (PipeDream-flush, arXiv 2006.09503) | (p - 1) / m |
| interleaved | 1f1b over several chunks in turns (Narayanan et al. 2021, arXiv 2104.04473) | (p - 1) / (v m) |
| zb-h1 | 1f1b with W moved to where a rank would wait (ZB-H1; Qi et al. 2024, arXiv 2401.10241) | (p - 1) / (3 m) |
| zbv | two chunks that run down the ranks and up again (Qi et al. 2024, arXiv 2405.15362) | (p - 1) / (6 m) |
| dualpipev | the same; two microbatches cross on each rank (DeepSeek-V3, arXiv 2412.19437) | (p - 1) / (3 m) |

`zbv` has its formula from m = 2p - 1 on, `dualpipev` from m = 2p on.
"""

from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "I", "W"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"]
V_SHAPED = ("zbv", "dualpipev")
"""Schedules whose second half of stages runs from the last rank back to the first."""
SPLIT = ("zb-h1", *V_SHAPED)
"""Schedules that compute the two parts of backward apart."""


class Action(NamedTuple):
    """One pass of one microbatch through one stage."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}"


Order = list[Action]
"""What a rank computes, one after the other."""


def rank_of(schedule: Schedule, stage: int, ranks: int) -> int:
    """The rank that holds a stage."""
    return min(stage, 2 * ranks - 1 - stage) if schedule in V_SHAPED else stage % ranks


def stages_of(schedule: Schedule, rank: int, ranks: int, chunks: int) -> list[int]:
    """The stages that a rank holds, in the order of the model."""
    return [rank, 2 * ranks - 1 - rank] if schedule in V_SHAPED else list(range(rank, ranks * chunks, ranks))


def plan(schedule: Schedule, ranks: int, chunks: int, microbatches: int) -> list[Order]:
    """The order of every rank, which holds `chunks` stages (`PipelineConfig.chunks_per_rank`)."""
    return [rank_order(schedule, rank, ranks, chunks, microbatches) for rank in range(ranks)]


def rank_order(schedule: Schedule, rank: int, ranks: int, chunks: int, microbatches: int) -> Order:
    """What one rank computes."""
    match schedule:
        case "gpipe":
            numbers = range(microbatches)
            return [*(Action("F", rank, each) for each in numbers), *(Action("B", rank, each) for each in numbers)]
        case "1f1b":
            return _one_forward_one_backward(rank, ranks, 1, microbatches)
        case "interleaved":
            whole = -(-microbatches // ranks) * ranks  # groups of another size may wait for each other for ever
            return _only(_one_forward_one_backward(rank, ranks, chunks, whole), microbatches)
        case "zb-h1":
            return _delay_weights(_one_forward_one_backward(rank, ranks, 1, microbatches), rank)
        case "zbv":
            return _only(_zbv(rank, ranks, max(microbatches, 2 * ranks - 1)), microbatches)
        case "dualpipev":
            return _only(_dualpipev(rank, ranks, max(microbatches, 2 * ranks)), microbatches)


def _only(order: Order, microbatches: int) -> Order:
    """Of an order that was made for more microbatches, the passes of those that are there."""
    return [action for action in order if action.microbatch < microbatches]


def _one_forward_one_backward(rank: int, ranks: int, chunks: int, microbatches: int) -> Order:
    """`warmup` forward passes, then forward and backward in turns; chunks take turns after `ranks` microbatches."""
    groups = [range(first, min(first + ranks, microbatches)) for first in range(0, microbatches, ranks)]
    turns = [(chunk, number) for group in groups for chunk in range(chunks) for number in group]
    forward = [Action("F", chunk * ranks + rank, number) for chunk, number in turns]
    backward = [Action("B", (chunks - 1 - chunk) * ranks + rank, number) for chunk, number in turns]
    warmup = ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks
    order, rest = forward[:warmup], deque(forward[warmup:])
    for action in backward:
        order += [rest.popleft()] if rest else []
        order.append(action)
    return order


def _delay_weights(order: Order, delay: int) -> Order:
    """Backward in two parts, W of a microbatch `delay` backward passes after its I (arXiv 2401.10241, figure 2)."""
    found, waiting = Order(), deque[Action]()
    for action in order:
        if action.kind == "F":
            found.append(action)
            continue
        found.append(action._replace(kind="I"))
        waiting.append(action._replace(kind="W"))
        found += [waiting.popleft()] if len(waiting) > delay else []
    return [*found, *waiting]


class _Turns:
    """Counts the passes of the two chunks of a V-shaped schedule, and writes them down."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._stages = rank, 2 * ranks - 1 - rank
        self._next = {(kind, chunk): 0 for kind in ("F", "B") for chunk in (0, 1)}
        self.order = Order()
        self.waiting = deque[Action]()
        """Weights' gradients that are still to be computed."""

    def done(self, kind: Literal["F", "B"], chunk: int) -> int:
        """Passes so far."""
        return self._next[kind, chunk]

    def forward(self, chunk: int) -> None:
        """The next microbatch."""
        self.order.append(Action("F", self._stages[chunk], self._count("F", chunk)))

    def backward(self, chunk: int) -> None:
        """Both parts at once."""
        self.order.append(Action("B", self._stages[chunk], self._count("B", chunk)))

    def inputs(self, chunk: int) -> None:
        """The gradient of the input; that of the weights waits."""
        number = self._count("B", chunk)
        self.order.append(Action("I", self._stages[chunk], number))
        self.waiting.append(Action("W", self._stages[chunk], number))

    def weights(self) -> None:
        """Those that wait longest."""
        self.order.append(self.waiting.popleft())

    def _count(self, kind: Literal["F", "B"], chunk: int) -> int:
        number = self._next[kind, chunk]
        self._next[kind, chunk] += 1
        return number


def _zbv(rank: int, ranks: int, microbatches: int) -> Order:
    """arXiv 2405.15362, figure 4: chunk 0 goes ahead until chunk 1 comes back, then both go in turns."""
    turns, behind = _Turns(rank, ranks), ranks - rank
    for _ in range(2 * behind - 1):
        turns.forward(0)
    for _ in range(rank):
        turns.forward(1)
        turns.forward(0)
    for _ in range(behind):
        turns.forward(1)
        turns.inputs(1)
        turns.weights()
    while turns.done("F", 1) < microbatches:
        if turns.done("F", 0) < microbatches:
            turns.forward(0)
        turns.inputs(0)
        turns.weights()
        turns.forward(1)
        turns.inputs(1)
        turns.weights()
    for _ in range(rank):
        turns.inputs(0)
        turns.inputs(1)
    late = sorted(turns.waiting, key=lambda action: -action.stage)  # the end of the model first
    turns.waiting = deque(action for action in late if action.stage == rank)
    for _ in range(behind):
        turns.inputs(0)
        turns.weights()
    return [*turns.order, *(action for action in late if action.stage != rank), *turns.waiting]


def _dualpipev(rank: int, ranks: int, microbatches: int) -> Order:
    """DualPipe "cut in half" (github.com/deepseek-ai/DualPipe): eight phases, counted by the ranks behind this one."""
    turns, behind = _Turns(rank, ranks), ranks - rank - 1
    for _ in range(2 * behind):
        turns.forward(0)
    for _ in range(rank + 1):
        turns.forward(0)
        turns.forward(1)
    for _ in range(behind):
        turns.inputs(1)
        turns.weights()
        turns.forward(1)
    for _ in range(microbatches - 2 * ranks + rank + 1):
        turns.forward(0)
        turns.backward(1)
        turns.forward(1)
        turns.backward(0)
    for _ in range(behind):
        turns.backward(1)
        turns.forward(1)
        turns.backward(0)
    _leave(turns, rank)
    for _ in range(behind):
        turns.weights()
        turns.inputs(0)
    while turns.waiting:
        turns.weights()
    return turns.order


def _leave(turns: _Turns, rank: int) -> None:
    """The sixth phase of DualPipeV: backward alone, in the second half of it only for the gradients of inputs."""
    for number in range(2 * (rank + 1)):
        step = turns.inputs if number > rank else turns.backward
        step(1 - number % 2)


class Pass(NamedTuple):
    """An action and when it is computed."""

    action: Action
    start: float
    end: float


class Durations(NamedTuple):
    """How long the passes of a whole rank take, and a message; those of a chunk take their share."""

    forward: float = 1.0
    inputs: float = 1.0
    weights: float = 1.0
    message: float = 0.0

    def of(self, kind: Kind) -> float:
        """Of one pass."""
        whole = self.inputs + self.weights
        return {"F": self.forward, "I": self.inputs, "W": self.weights, "B": whole}[kind]


def simulate(
    orders: Sequence[Order],
    durations: Durations | Sequence[Durations] = Durations(),  # noqa: B008 - never changed
    shares: Sequence[float] | None = None,
    *,
    crossing: bool = False,
) -> list[list[Pass]]:
    """When each rank computes what: as soon as the rank is free and what the pass needs has come.

    durations: of a whole rank, or of each stage. shares: cost of each stage as a share of the mean rank's; by default
    all stages cost the same, and with durations of each stage there are none. crossing: F with the
    B behind it is one piece of work, as where kernels of both overlap (DualPipe); hornbook computes one after the
    other. Raises ValueError where the orders wait for each other for ever.
    """
    stages = 1 + max(action.stage for order in orders for action in order)
    if isinstance(durations, Durations):
        shares = shares or [len(orders) / stages] * stages
        forward, inputs, weights, message = durations
        times = [Durations(share * forward, share * inputs, share * weights, message) for share in shares]
    else:
        times = list(durations)
    works = [_works(order, crossing=crossing) for order in orders]
    ended: dict[tuple[str, int, int], tuple[float, int]] = {}
    timed: list[list[Pass]] = [[] for _ in orders]
    while any(works):
        before = sum(map(len, works))
        for rank, waiting in enumerate(works):
            while waiting:
                needed = [ended.get(each) for action in waiting[0] for each in needs(action, stages)]
                if None in needed:
                    break
                message = times[waiting[0][0].stage].message
                come = [at + message * (where != rank) for at, where in filter(None, needed)]
                start = max([timed[rank][-1].end if timed[rank] else 0.0, *come])
                for action in waiting[0]:
                    end = start + times[action.stage].of(action.kind)
                    timed[rank].append(Pass(action, start, end))
                    start = end
                ended |= dict.fromkeys(map(_key, waiting.popleft()), (start, rank))
        if sum(map(len, works)) == before:
            raise ValueError(f"ranks wait for each other: {', '.join(str(each[0][0]) for each in works if each)}")
    return timed


def _works(order: Order, *, crossing: bool) -> deque[Order]:
    """What is computed in one piece: each pass, or F with the B behind it."""
    works = deque[Order]()
    for action in order:
        if crossing and action.kind == "B" and works and [each.kind for each in works[-1]] == ["F"]:
            works[-1].append(action)
        else:
            works.append([action])
    return works


def _key(action: Action) -> tuple[str, int, int]:
    return "I" if action.kind == "B" else action.kind, action.stage, action.microbatch


def needs(action: Action, stages: int) -> list[tuple[str, int, int]]:
    """What must be computed before, as (F, I or W, stage, microbatch); a whole backward pass counts as I."""
    kind, stage, number = action
    match kind:
        case "F":
            return [("F", stage - 1, number)] if stage else []
        case "W":
            return [("I", stage, number)]
        case _:
            behind = [("I", stage + 1, number)] if stage + 1 < stages else []
            return [("F", stage, number), *behind]


def step_span(
    schedule: Schedule, ranks: int, chunks: int, microbatches: int, durations: Sequence[Durations], slowest: float
) -> float:
    """Time from the first pass of a step to its last; durations: of each stage.

    Only the microbatches that fill the pipeline are simulated: each further one adds `slowest`, the time of the slowest
    rank.
    """
    filling = ranks * (2 if schedule in V_SHAPED else 1)
    few = min(microbatches, filling + microbatches % ranks)
    timed = simulate(plan(schedule, ranks, chunks, few), durations)
    return max(passes[-1].end for passes in timed) + (microbatches - few) * slowest


def bubble(timed: Sequence[Sequence[Pass]]) -> float:
    """Time in which ranks wait, as a share of the time in which they compute."""
    busy = sum(each.end - each.start for passes in timed for each in passes)
    return len(timed) * max(each.end for passes in timed for each in passes) / busy - 1


def chart(timed: Sequence[Sequence[Pass]]) -> str:
    """One line for each rank, time to the right: `F3` is the forward pass of microbatch 3, dots are waiting.

    With several chunks a letter follows: `F3b` is a pass of the second.
    """
    unit = min(each.end - each.start for passes in timed for each in passes)
    several = any(len({each.action.stage for each in passes}) > 1 for passes in timed)
    width = 1 + several + len(str(max(each.action.microbatch for passes in timed for each in passes))) + 1
    lines = []
    for rank, passes in enumerate(timed):
        chunks = sorted({each.action.stage for each in passes})
        line = ""
        for each in passes:
            line += "." * (round(each.start / unit) * width - len(line))
            label = str(each.action) + ("abcdefghijklmnopqrstuvwxyz"[chunks.index(each.action.stage)] * several)
            line += label.ljust(round(each.end / unit) * width - len(line), " ")
        lines.append(f"rank {rank}  {line.rstrip()}")
    return "\n".join(lines)
