"""A law of finished runs: enough of them, intervals, warnings; its file in a plan."""

import math

import numpy as np
import pytest

from hornbook.errors import UsageError
from hornbook.plan.scaling.ladder import Rung, check, fit_ladder
from hornbook.plan.scaling.laws import FittedLaw, SumLaw, interval, law_named


def rungs(noise: float = 0.002, curves: bool = False) -> list[Rung]:
    """Twenty runs on isoFLOP curves of five sizes each, with the losses of a known law."""
    law, draw, found = law_named("besiroglu"), np.random.default_rng(0), []
    for compute in (1e18, 1e19, 1e20, 1e21):
        for factor in (0.25, 0.5, 1.0, 2.0, 4.0):
            size = law.best_size(compute) * factor
            tokens = compute / 6 / size
            loss = law.loss(size, tokens)
            assert loss is not None
            way = [(part * tokens, law.loss(size, part * tokens) or 0.0) for part in np.geomspace(0.01, 1, 30)]
            found.append(
                Rung(
                    name=f"run {len(found)}",
                    parameters=size,
                    tokens=tokens,
                    loss=loss * math.exp(noise * draw.standard_normal()),
                    curve=tuple(way) if curves else (),
                )
            )
    return found


def test_a_ladder_gives_its_law_with_intervals() -> None:
    found, truth = fit_ladder(rungs(), counts="all", compute=1e22), law_named("besiroglu")
    assert isinstance(truth, SumLaw)
    best = truth.optimum(1e22)
    assert found.law.parameters == "all"
    assert found.runs == 20
    assert len(found.law.samples) == 200
    for name in ("E", "A", "B", "alpha", "beta", "exponent"):
        low, high = found.intervals[name]
        assert low < getattr(truth, name) < high
        assert low < getattr(found.law, name) < high
    assert found.size_interval[0] < best.parameters < found.size_interval[1]
    assert found.ratio_interval[0] < best.ratio < found.ratio_interval[1]
    assert found.optimum.compute == pytest.approx(1e22)
    assert found.loss_interval[0] < (best.loss or 0) < found.loss_interval[1]
    assert found.law.compute == (pytest.approx(1e18), pytest.approx(1e21))
    assert found.residual < 0.002
    assert found.approach_1 is None
    assert found.approach_2 is not None
    assert found.approach_2.points == 4
    assert found.approach_2.exponent == pytest.approx(truth.exponent, abs=0.03)


def test_curves_give_approach_1() -> None:
    found = fit_ladder(rungs(noise=0.0, curves=True), counts="all")
    assert found.approach_1 is not None
    assert found.approach_1.exponent == pytest.approx(0.513, abs=0.06)
    assert found.optimum.compute == pytest.approx(1e22)
    assert found.warnings == []


def test_a_wide_interval_and_a_far_budget_are_said() -> None:
    found = fit_ladder(rungs(noise=0.05), counts="all", compute=1e25)
    assert any("leave the optimum open" in text for text in found.warnings)
    assert any("10,000 times the largest run" in text for text in found.warnings)


def rung(parameters: float, tokens: float) -> Rung:
    return Rung(name="run", parameters=parameters, tokens=tokens, loss=3.0)


@pytest.mark.parametrize(
    ("points", "text"),
    [
        ([], "0 runs of 0 sizes and 0 lengths do not determine"),
        ([(1e6, 2e7)], "1 runs of 1 sizes"),
        ([(1e6 * n, 1e7 * n * (n % 3 + 1)) for n in range(1, 8)], "7 runs of 7 sizes"),
        ([(1e6 * (n % 2 + 1), 1e7 * n) for n in range(1, 11)], "10 runs of 2 sizes and 10 lengths"),
        ([(1e6 * n, 1e7) for n in range(1, 11)], "10 sizes and 1 lengths"),
        ([(1e6 * n, 2e7 * n) for n in range(1, 11)], "tokens follow the size"),
        ([(1e6 * n, 1e13 / n) for n in range(1, 11)], "tokens follow the size"),
    ],
)
def test_too_few_runs_are_refused(points: list[tuple[float, float]], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        check([rung(*each) for each in points])


def test_a_law_survives_its_file() -> None:
    law = fit_ladder(rungs(), counts="without embeddings").law
    again = FittedLaw.model_validate_json(law.model_dump_json())
    assert again == law
    assert again.loss_interval(1e9, 2e10) == law.loss_interval(1e9, 2e10)


def test_ends_of_an_interval_are_interpolated() -> None:
    values = np.random.default_rng(0).standard_normal(37)
    assert interval(values.tolist()) == pytest.approx(tuple(np.quantile(values, [0.05, 0.95])))
    assert interval([2.0]) == (2.0, 2.0)
