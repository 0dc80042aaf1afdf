"""Data-parallel training in virtual time: random compute times, one of five schemes, and real gradients.

The trainer has bulk-synchronous data parallelism alone; the explorer `data-parallel` runs the other schemes here. The
unit of time is a gradient of a worker that is not slow, in the mean. The model is least squares on fixed data, so small
that hundreds of updates take milliseconds. Each worker draws its rows and its times from its own streams, so
that schemes differ only in what they wait for.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Law = Literal["constant", "exponential", "lognormal"]
Values = NDArray[np.float64]
FEATURES, ROWS, BATCH = 16, 512, 8
"""Sizes of the least-squares problem."""
LAWS: dict[Law, Callable[[np.random.Generator], float]] = {
    "constant": lambda _: 1.0,
    "exponential": lambda draw: draw.exponential(),
    "lognormal": lambda draw: draw.lognormal(-0.125, 0.5),
}
"""Times of a gradient, with mean 1."""


class Work(NamedTuple):
    """A worker's gradient."""

    worker: int
    start: float
    end: float
    resumed: float
    """Start of its next gradient: after messages, and after waiting for others."""


@dataclass
class Course:
    """Record of a simulation."""

    works: list[Work] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Losses at `times`, of the server's weights or of the mean of all workers' weights."""
    staleness: list[int] = field(default_factory=list)
    """Updates by others between a gradient's read of the weights and its own update."""

    def record(self, time: float, loss: float) -> None:
        """A point of the curve."""
        self.times.append(time)
        self.losses.append(loss)

    @property
    def rate(self) -> float:
        """Gradients that were applied per unit of time."""
        return len(self.works) / max(each.resumed for each in self.works)


class Workers:
    """Workers of a cluster, with the streams that each draws from."""

    def __init__(self, count: int, law: Law = "exponential", slow: float = 1.0, seed: int = 0) -> None:
        """`slow`: factor on every time of worker 0."""
        shared, *own = np.random.SeedSequence(seed).spawn(2 * count + 1)
        draw = np.random.default_rng(shared)
        scales = np.geomspace(1, 0.1, FEATURES)
        rows = draw.normal(size=(ROWS, FEATURES)) * scales
        targets = rows @ (draw.normal(size=FEATURES) / scales) + 0.1 * draw.normal(size=ROWS)
        self._rows, self._targets = rows, targets
        self._products, self._sums, self._square = rows.T @ rows, rows.T @ targets, targets @ targets
        self.count, self._law, self._slow = count, LAWS[law], slow
        self._times = [np.random.default_rng(each) for each in own[:count]]
        self._batches = [np.random.default_rng(each) for each in own[count:]]

    def duration(self, worker: int) -> float:
        """Time of the worker's next gradient."""
        return float(self._law(self._times[worker])) * (1.0 if worker else self._slow)

    def gradient(self, worker: int, weights: Values) -> Values:
        """Gradient of the worker's next batch."""
        chosen = self._batches[worker].integers(ROWS, size=BATCH)
        rows = self._rows[chosen]
        return (rows @ weights - self._targets[chosen]) @ rows / BATCH

    def loss(self, weights: Values) -> float:
        """Half the mean squared error over all rows."""
        return float((self._products @ weights - 2 * self._sums) @ weights + self._square) / (2 * ROWS)


def through_server(workers: Workers, bound: float, updates: int, rate: float, message: float) -> Course:
    """A parameter server under a bound of staleness (Ho et al. 2013): 0 is bulk-synchronous, infinity asynchronous.

    A worker whose clock is c continues while c minus the least clock is at most the bound, with the newest weights.
    Each gradient is divided by the number of workers, so that one of each moves the weights as far as one step of all.
    `message`: time of a copy of the weights or of a gradient on the server's link, which carries one copy at a time in
    each direction.
    """
    course, weights, version = Course(), np.zeros(FEATURES), 0
    received = sent = 0.0
    clocks, read = [0] * workers.count, [(0, weights)] * workers.count
    sums, waiting = list[Values](), dict[int, tuple[float, float]]()
    events = [(workers.duration(each), each, 0.0) for each in range(workers.count)]
    heapq.heapify(events)
    course.record(0.0, workers.loss(weights))
    while len(course.works) < updates:
        end, worker, start = heapq.heappop(events)
        seen, copy = read[worker]
        sums.append(workers.gradient(worker, copy) / workers.count)
        clocks[worker] += 1
        waiting[worker] = start, end
        course.staleness.append(version - seen)
        received = max(end, received) + message
        if bound or len(sums) == workers.count:  # with the bound 0 the server waits for all gradients of a step
            weights = weights - rate * np.sum(sums, axis=0)
            version += 1
            sums.clear()
            course.record(received, workers.loss(weights))
        for other in [each for each in waiting if clocks[each] - min(clocks) <= bound]:
            sent = max(received, sent) + message
            course.works.append(Work(other, *waiting.pop(other), sent))
            read[other] = version, weights
            heapq.heappush(events, (sent + workers.duration(other), other, sent))
    return course


def in_rounds(workers: Workers, every: int, updates: int, rate: float, message: float) -> Course:
    """Local steps (Stich 2019): each worker takes `every` steps alone, then the weights of all are averaged.

    With one step this is bulk-synchronous training, since the mean of weights after one step is a step by the mean
    gradient. `message`: time of the average, in which all wait.
    """
    course, weights, now = Course(), np.zeros(FEATURES), 0.0
    course.record(now, workers.loss(weights))
    while len(course.works) < updates:
        copies, ends = [weights] * workers.count, [now] * workers.count
        steps = list[tuple[int, float, float]]()
        for worker in range(workers.count):
            for _ in range(every):
                start, ends[worker] = ends[worker], ends[worker] + workers.duration(worker)
                steps.append((worker, start, ends[worker]))
                copies[worker] = copies[worker] - rate * workers.gradient(worker, copies[worker])
        now = max(ends) + message
        course.works += [Work(each, start, end, now if end == ends[each] else end) for each, start, end in steps]
        course.staleness += [0] * len(steps)
        weights = np.mean(copies, axis=0)
        course.record(now, workers.loss(weights))
    return course


def ring_weights(count: int) -> Values:
    """(count, count) doubly stochastic: each worker and its two neighbours on a ring have equal weights."""
    near = np.eye(count) + np.roll(np.eye(count), 1, axis=1) + np.roll(np.eye(count), -1, axis=1)
    return (near > 0) / np.count_nonzero(near[0])


def with_neighbours(workers: Workers, updates: int, rate: float, message: float) -> Course:
    """Gossip (D-PSGD, Lian et al. 2017, arXiv 1705.09056): each worker averages its weights with its neighbours' on a
    ring, subtracts its own gradient, and waits for nobody else.

    `message`: time of a copy of the weights between two neighbours.
    """
    course, mix = Course(), ring_weights(workers.count)
    weights, free = np.zeros((workers.count, FEATURES)), np.zeros(workers.count)
    course.record(0.0, workers.loss(weights[0]))
    while len(course.works) < updates:
        gradients = np.stack([workers.gradient(worker, each) for worker, each in enumerate(weights)])
        ends = free + [workers.duration(worker) for worker in range(workers.count)]
        resumed = np.where(mix > 0, ends, 0).max(axis=1) + message
        course.works += map(Work, range(workers.count), free.tolist(), ends.tolist(), resumed.tolist())
        course.staleness += [0] * workers.count
        weights, free = mix @ weights - rate * gradients, resumed
        course.record(float(free.max()), workers.loss(weights.mean(axis=0)))
    return course


class Sum(NamedTuple):
    """Cost of averaging M bytes over N workers, in copies of M."""

    rounds: int
    """Messages one after the other."""
    sent: float
    """Copies that leave the busiest machine."""
    longest: float
    """Copies that cross links one after the other: the time of the average, without latency."""


def sums(workers: int) -> dict[str, Sum]:
    """Ways to average over all workers. Thakur et al. 2005, section 4."""
    depth = math.ceil(math.log2(workers))
    share = (workers - 1) / workers
    return {
        "server": Sum(2, float(workers), 2.0 * workers),
        "tree": Sum(2 * depth, float(depth), 2.0 * depth),
        "halving and doubling": Sum(2 * depth, 2 * share, 2 * share),
        "ring": Sum(2 * (workers - 1), 2 * share, 2 * share),
    }
