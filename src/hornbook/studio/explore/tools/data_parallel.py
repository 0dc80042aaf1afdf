"""Data parallelism: five schemes in virtual time, with real gradients of a small problem."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from hornbook.parallel.traffic.virtual_time import (
    Course,
    Law,
    Workers,
    in_rounds,
    sums,
    through_server,
    with_neighbours,
)
from hornbook.settings.fields import Config
from hornbook.studio.explore.explorer import Preset, explorer, slider
from hornbook.studio.explore.views import Answer, Bar, Bars, Curves, Facts, Line, Span, Table, Timeline, fact

Scheme = Literal["synchronous", "bounded", "asynchronous", "gossip", "local"]
SCHEMES: dict[Scheme, str] = {
    "synchronous": "all wait for all, at every step",
    "bounded": "a server; the fastest waits for the slowest",
    "asynchronous": "a server; nobody waits",
    "gossip": "each averages with two neighbours",
    "local": "several steps alone, then all average",
}
GRADIENTS = 30
"""Per worker."""
DRAWN = 16.0
"""Times of a gradient that the timeline shows."""


class DataParallelQuestion(Config):
    """Workers, how they differ in speed, and a scheme."""

    scheme: Scheme = "synchronous"
    """Whom a worker waits for. `bounded` and `asynchronous` use a parameter server."""
    workers: int = slider(8, 2, 16)
    """Machines, each with a copy of the weights and rows of its own."""
    law: Law = "exponential"
    """How the time of a gradient varies, with mean 1."""
    slow: float = slider(1.0, 1.0, 8.0)
    """Factor on all times of worker 0: 1 means that it is as fast as the others."""
    message: float = slider(0.05, 0.0, 1.0)
    """Time in which a copy of the weights crosses a link, in times of a gradient."""
    average: Literal["ring", "halving and doubling", "tree", "server"] = "ring"
    """How `synchronous` and `local` average over all workers."""
    bound: int = slider(3, 1, 32)
    """With `bounded`: gradients that a worker may be ahead of the slowest one."""
    every: int = slider(8, 2, 32)
    """With `local`: steps between two averages."""
    rate: float = slider(0.5, 0.01, 1.5, logarithmic=True)
    """The learning rate."""
    parameters: float = slider(1e9, 1e6, 1e12, logarithmic=True)
    """Weights of the model whose bytes are counted, in 16 bits."""


def course_of(question: DataParallelQuestion, scheme: Scheme) -> Course:
    """The simulation of a scheme on the question's workers."""
    workers = Workers(question.workers, question.law, question.slow)
    common = question.workers * GRADIENTS, question.rate
    whole = question.message * sums(question.workers)[question.average].longest
    if scheme in ("bounded", "asynchronous"):
        bound = question.bound if scheme == "bounded" else math.inf
        return through_server(workers, bound, *common, question.message)
    if scheme == "gossip":
        return with_neighbours(workers, *common, 2 * question.message)
    return in_rounds(workers, question.every if scheme == "local" else 1, *common, whole)


def _losses(courses: Mapping[Scheme, Course]) -> Curves:
    lines = [Line(name=scheme, x=course.times, y=course.losses) for scheme, course in courses.items()]
    return Curves(title="Loss over time", curves=lines, x="times of a gradient", x_unit="", logarithmic="y")


def _timeline(course: Course, workers: int) -> Timeline:
    spans = list[Span]()
    for work in course.works:
        if work.start < DRAWN:
            spans.append(Span(row=work.worker, start=work.start, end=work.end, kind="gradient"))
            if work.resumed > work.end:
                spans.append(Span(row=work.worker, start=work.end, end=work.resumed, kind="waits or sends"))
    return Timeline(
        title=f"The first {DRAWN:g} times of a gradient",
        rows=[f"worker {each}" for each in range(workers)],
        spans=spans,
    )


def _traffic(question: DataParallelQuestion) -> Table:
    size = 2 * question.parameters
    return Table(
        title="One average over all workers",
        note="Time is in times of a gradient, without latency. Servers that share the weights divide a server's bytes.",
        columns={"way": None, "messages in turn": "", "busiest machine sends": "bytes", "time": ""},
        rows=[
            [name, each.rounds, each.sent * size, each.longest * question.message]
            for name, each in sums(question.workers).items()
        ],
        chosen=list(sums(question.workers)).index(question.average),
    )


def _staleness(course: Course) -> Bars:
    counts = Counter(course.staleness)
    width = max(1, -(-(max(counts) + 1) // 16))
    bars = [
        Bar(
            name=f"{low}" if width == 1 else f"{low} to {low + width - 1}",
            parts={"gradients": sum(counts[each] for each in range(low, low + width))},
        )
        for low in range(0, max(counts) + 1, width)
    ]
    note = "Updates that others made to the weights while a gradient was computed from older ones."
    return Bars(title="Staleness of gradients", note=note, bars=bars, unit="count")


def _waits(course: Course) -> float:
    """Share of time in which workers compute nothing."""
    spent = sum(each.resumed - each.start for each in course.works)
    return 1 - sum(each.end - each.start for each in course.works) / spent


def _compare(question: DataParallelQuestion) -> Answer:
    courses: dict[Scheme, Course] = {scheme: course_of(question, scheme) for scheme in SCHEMES}
    end = min(each.times[-1] for each in courses.values())
    rows = list[list[Any]]()
    for scheme, course in courses.items():
        last = max(at for at, time in enumerate(course.times) if time <= end)
        staleness = sum(course.staleness) / len(course.staleness)
        rows.append([scheme, SCHEMES[scheme], course.rate, _waits(course), staleness, course.losses[last]])
    table = Table(
        title="All schemes on these workers",
        note=f"Losses are those at time {end:.3g}. A bound of staleness does not help against a worker that is always "
        "slow: the others reach the bound, and then take its pace.",
        columns={
            "scheme": None,
            "waiting": None,
            "gradients in a time": "",
            "waits or sends": "share",
            "staleness": "",
            "loss": "",
        },
        rows=rows,
        chosen=list(SCHEMES).index(question.scheme),
    )
    return Answer(schemes=table, losses=_losses(courses))


@explorer(
    "Data parallelism",
    asks="Whom should workers wait for, and what does waiting less cost?",
    code=(
        "parallel.traffic.virtual_time:through_server",
        "parallel.traffic.virtual_time:in_rounds",
        "parallel.traffic.virtual_time:with_neighbours",
        "parallel.data_parallel:Unsharded",
    ),
    presets=(
        Preset(
            "A slow worker and a bound", {"scheme": "bounded", "slow": 4, "message": 0}, "Ho et al. 2013: bound of SSP"
        ),
        Preset("Slow links", {"scheme": "local", "every": 16, "message": 0.5}, "arXiv 1805.09767: local SGD"),
        Preset("Gossip", {"scheme": "gossip", "workers": 16, "message": 0.2}, "arXiv 1705.09056: D-PSGD"),
    ),
    further=_compare,
)
def data_parallel(question: DataParallelQuestion) -> Answer:
    """Each worker has a copy of the weights and computes gradients of rows of its own. If all wait for all, the result
    is that of one machine with a larger batch, and the slowest worker sets the pace. Schemes that wait less compute
    more gradients in the same time, from weights that are older or differ. hornbook trains with the first scheme; the
    other four are simulated here, event by event, with real gradients of a small least-squares problem."""
    course = course_of(question, question.scheme)
    courses: dict[Scheme, Course] = {question.scheme: course}
    if question.scheme != "synchronous":
        courses["synchronous"] = course_of(question, "synchronous")
    return Answer(
        summary=Facts(
            title="Pace",
            facts=[
                fact("gradients in the time of one", course.rate),
                fact("workers", question.workers),
                fact("time that workers wait or send", _waits(course), "share"),
                fact("staleness in the mean", sum(course.staleness) / len(course.staleness)),
                fact(f"loss after {GRADIENTS} gradients of each worker", course.losses[-1]),
            ],
        ),
        timeline=_timeline(course, question.workers),
        losses=_losses(courses),
        staleness=_staleness(course),
        traffic=_traffic(question),
    )
