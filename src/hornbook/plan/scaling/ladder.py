"""A scaling law of one's own runs: the points, whether they are enough, the fit with its intervals."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from pydantic import PositiveFloat

from hornbook.errors import UsageError
from hornbook.plan.scaling.approaches import Frontier, envelope, parabolas
from hornbook.plan.scaling.fit import Runs, bootstrap, fit_law
from hornbook.plan.scaling.laws import CONSTANTS, OPERATIONS, Allocation, FittedLaw, Parameters, SumLaw, interval
from hornbook.plan.search.number_words import figure
from hornbook.settings.fields import Config

SAMPLES = 200
"""Bootstrap samples of an interval."""
LEAST_RUNS = 8
"""A law has five constants."""
LEAST_SIZES = 3
APART = 1.05
"""Factor by which sizes, or lengths, differ that count as two."""
LEAST_FALL = 1e-3
"""Of the loss, over its largest value, that size and tokens explain at least."""
POOR = 0.01
"""Median error of the losses from which on the law does not describe them; seeds differ by 0.1 to 0.3 %."""
SMALL = 0.01
"""Nats below which a floor is none."""
ALIKE = 0.99
"""Correlation of log N and log D from which on the two terms cannot be told apart."""


class Rung(Config):
    """One finished run."""

    name: str
    parameters: PositiveFloat
    tokens: PositiveFloat
    loss: PositiveFloat
    """Nats per token at its end."""
    curve: tuple[tuple[float, float], ...] = ()
    """(tokens, loss) on its way."""


class Approach(Config):
    """The frontier of approach 1 or 2."""

    exponent: float
    factor: float
    points: int


class LadderFit(Config):
    """What `hornbook ladder fit` says."""

    law: FittedLaw
    runs: int
    objective: float
    residual: float
    """Median error of the loss, relative."""
    intervals: dict[str, tuple[float, float]]
    """90 % intervals of the constants, and of the exponent a of N ~ C^a."""
    optimum: Allocation
    size_interval: tuple[float, float]
    ratio_interval: tuple[float, float]
    """90 % intervals of the optimum's parameters, and of its tokens per parameter."""
    loss_interval: tuple[float, float]
    approach_1: Approach | None
    approach_2: Approach | None
    warnings: list[str]


def fit_ladder(rungs: Sequence[Rung], *, counts: Parameters, compute: float | None = None) -> LadderFit:
    """The law of finished runs, and its optimum for `compute` operations (else ten times the largest run).

    Raises UsageError where the runs cannot determine a law.
    """
    check(rungs)
    runs = Runs(*(np.array([getattr(rung, name) for rung in rungs]) for name in ("parameters", "tokens", "loss")))
    law, objective = fit_law(runs, name="yours", parameters=counts, source=f"{len(rungs)} runs")
    check_terms(law, rungs)
    samples = bootstrap(runs, SAMPLES, parameters=counts)
    spent = OPERATIONS * runs.parameters * runs.tokens
    fitted = FittedLaw(
        **law.model_dump(exclude={"kind", "title"}),
        title=f"fitted to {len(rungs)} runs",
        samples=tuple((each.E, each.A, each.B, each.alpha, each.beta) for each in samples),
        compute=(float(spent.min()), float(spent.max())),
    )
    budget = compute or 10 * float(spent.max())
    best, drawn = fitted.optimum(budget), [each.optimum(budget) for each in samples]
    said = np.array([fitted.loss(rung.parameters, rung.tokens) for rung in rungs])
    intervals = {name: interval(getattr(each, name) for each in samples) for name in (*CONSTANTS, "exponent")}
    found = LadderFit(
        law=fitted,
        runs=len(rungs),
        objective=objective,
        residual=float(np.median(np.abs(said / runs.loss - 1))),
        intervals=intervals,
        optimum=best,
        size_interval=interval(each.parameters for each in drawn),
        ratio_interval=interval(each.ratio for each in drawn),
        loss_interval=fitted.loss_interval(best.parameters, best.tokens),
        approach_1=_approach(envelope([_curve(rung) for rung in rungs if len(rung.curve) > 1])),
        approach_2=_approach(parabolas(runs)),
        warnings=[],
    )
    return found.model_copy(update={"warnings": list(_warnings(found, budget))})


def check(rungs: Sequence[Rung]) -> None:
    """Raise UsageError where runs cannot determine the five constants of a law."""
    sizes, lengths = (_different([getattr(rung, name) for rung in rungs]) for name in ("parameters", "tokens"))
    what = f"{len(rungs)} runs of {sizes} sizes and {lengths} lengths"
    if len(rungs) < LEAST_RUNS or sizes < LEAST_SIZES or lengths < LEAST_SIZES:
        raise UsageError(
            f"{what} do not determine a scaling law of five constants: train at least {LEAST_RUNS} runs of "
            f"{LEAST_SIZES} model sizes and {LEAST_SIZES} numbers of tokens, all on the same data"
        )
    logs = np.log([[rung.parameters, rung.tokens] for rung in rungs]).T
    if abs(float(np.corrcoef(logs)[0, 1])) > ALIKE:
        raise UsageError(
            f"{what}, in which tokens follow the size: what a larger model and what more tokens bring cannot be told "
            "apart. Train some sizes on two or three numbers of tokens"
        )


def check_terms(law: SumLaw, rungs: Sequence[Rung]) -> None:
    """Raise UsageError where the fitted loss does not fall with size, or with tokens."""
    for what, values, factor, exponent in (
        ("size", [rung.parameters for rung in rungs], law.A, law.alpha),
        ("tokens", [rung.tokens for rung in rungs], law.B, law.beta),
    ):
        fall = factor * (min(values) ** -exponent - max(values) ** -exponent)
        if fall < LEAST_FALL * max(rung.loss for rung in rungs):
            raise UsageError(
                f"the loss of these runs does not fall with {what} (by {fall:.2g} nats from the least to the most): no "
                "law can be fitted. Larger models need a learning rate of their own and enough tokens; longer runs "
                "need a schedule of their own length"
            )


def _different(values: list[float]) -> int:
    ordered = sorted(values)
    return 1 + sum(after > APART * before for before, after in pairwise(ordered)) if values else 0


def _curve(rung: Rung) -> Runs:
    tokens, loss = (np.array(each) for each in zip(*rung.curve, strict=True))
    return Runs(np.full(len(loss), rung.parameters), tokens, loss)


def _approach(found: Frontier | None) -> Approach | None:
    return found and Approach(exponent=found.exponent, factor=found.factor, points=len(found.points))


def _warnings(found: LadderFit, budget: float) -> Iterator[str]:
    low, high = found.ratio_interval
    if high > 3 * low:
        between = f"{figure(low)} to {figure(high)} tokens a parameter"
        yield f"the runs leave the optimum open: {between}; more runs narrow it"
    if budget > 100 * found.law.compute[1]:
        yield f"{budget:.3g} operations are {budget / found.law.compute[1]:,.0f} times the largest run: a long way out"
    if found.residual > POOR:
        yield f"the law misses the losses by {found.residual:.1%}: runs too short for it, or of unlike settings"
    if found.intervals["E"][0] < SMALL:
        yield "the floor E may be nothing: all runs are far above it"
