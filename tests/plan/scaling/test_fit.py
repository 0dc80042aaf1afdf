"""Fits recover the law behind synthetic runs, whatever factor the objective has."""

import numpy as np
import pytest
from jaxtyping import Float64

from hornbook.plan.scaling.approaches import envelope, parabola_vertex, parabolas, vertex_shift
from hornbook.plan.scaling.fit import Problem, Runs, bootstrap, fit_law
from hornbook.plan.scaling.laws import SumLaw, law_named

NAMES = ("E", "A", "B", "alpha", "beta")


def truth(name: str = "besiroglu") -> SumLaw:
    law = law_named(name)
    assert isinstance(law, SumLaw)
    return law


def losses(law: SumLaw, parameters: np.ndarray, tokens: np.ndarray) -> Float64[np.ndarray, " n"]:
    return np.array([law.loss(*each) for each in zip(parameters.tolist(), tokens.tolist(), strict=True)])


def grid(noise: float = 0.0, sizes: int = 20, lengths: int = 12, seed: int = 0) -> Runs:
    """Runs as Hoffmann et al. had them: 70M to 16B parameters, 5B to 500B tokens."""
    draw = np.random.default_rng(seed)
    parameters = np.repeat(np.geomspace(7e7, 1.6e10, sizes), lengths)
    tokens = np.tile(np.geomspace(5e9, 5e11, lengths), sizes) * draw.uniform(0.8, 1.25, sizes * lengths)
    noisy = np.exp(noise * draw.standard_normal(sizes * lengths))
    return Runs(parameters, tokens, losses(truth(), parameters, tokens) * noisy)


def fitted(runs: Runs) -> SumLaw:
    return fit_law(runs, name="own", parameters="all", source="runs")[0]


def test_noise_free_runs_give_the_law_back() -> None:
    found = fitted(grid(sizes=6, lengths=5))
    for name in NAMES:
        assert getattr(found, name) == pytest.approx(getattr(truth(), name), rel=1e-6)


def test_noise_of_one_percent_stays_within_the_interval() -> None:
    runs = grid(noise=0.01)
    samples = bootstrap(runs, 60, parameters="all")
    for name in NAMES:
        low, high = np.quantile([getattr(each, name) for each in samples], [0.025, 0.975])
        assert low <= getattr(truth(), name) <= high
    assert fitted(runs).exponent == pytest.approx(truth().exponent, abs=0.03)


def test_a_few_broken_runs_do_not_move_the_fit() -> None:
    """Three of 48 losses half as high again: the Huber loss bounds their pull, squares do not."""
    runs = grid(sizes=8, lengths=6)
    loss = runs.loss.copy()
    loss[::16] *= 1.5
    broken = Runs(runs.parameters, runs.tokens, loss)
    squares, _ = fit_law(broken, name="own", parameters="all", source="runs", delta=10.0)
    for name in NAMES:
        assert getattr(fitted(broken), name) == pytest.approx(getattr(truth(), name), rel=0.01)
    assert squares.A > 1.2 * truth().A or squares.A < truth().A / 1.2


def descend(problem: Problem, theta: np.ndarray, weight: float) -> np.ndarray:
    """Where BFGS with absolute tolerances stops (gradient 1e-5, as optimizers have it by default)."""

    def at(point: np.ndarray) -> tuple[float, np.ndarray]:
        weights = np.full((1, len(problem.loss)), weight)
        value, residual, slope = problem.objective(point[None], weights)
        return float(value[0]), (slope[0] * np.clip(residual[0], -problem.delta, problem.delta)[:, None] * weight).sum(
            0
        )

    inverse, (value, gradient) = np.eye(5), at(theta)
    for _ in range(2000):
        if np.abs(gradient).max() < 1e-5:
            break
        step, length = -inverse @ gradient, 1.0
        while (new := at(theta + length * step))[0] > value + 1e-4 * length * gradient @ step and length > 1e-12:
            length /= 2
        moved, turned = length * step, new[1] - gradient
        if moved @ turned > 0:
            rho, unit = 1 / (moved @ turned), np.eye(5)
            left = unit - rho * np.outer(moved, turned)
            inverse = left @ inverse @ left.T + rho * np.outer(moved, moved)
        theta, value, gradient = theta + moved, new[0], new[1]
    return theta


def test_mean_instead_of_sum() -> None:
    """The fault of the published fit: an average over runs makes absolute tolerances stop far from the minimum.

    Ours does not ask for the factor: the mean, the sum and a thousand times the sum have one minimum.
    """
    runs = grid(noise=0.01)
    problem = Problem(runs)
    ones = np.ones((1, len(runs)))
    best = problem.solve(ones)
    start = np.array([0.5, 0.0, 0.0, -0.7, -0.7])
    stopped = descend(problem, start, 1 / len(runs))
    worse = problem.objective(stopped[None], ones)[0][0]
    assert worse > 1.02 * best.objective[0]
    finer = descend(problem, stopped, 1.0)
    assert problem.objective(finer[None], ones)[0][0] < worse
    for factor in (1 / len(runs), 1000.0):
        again = problem.solve(factor * ones)
        assert again.objective[0] / factor == pytest.approx(best.objective[0], rel=1e-10)
        np.testing.assert_allclose(again.theta, best.theta, atol=1e-6)


def test_runs_of_which_the_larger_are_worse_have_a_law_within_bounds() -> None:
    """Nothing is left for the size to explain: its term becomes flat or vanishes."""
    runs = grid(sizes=4, lengths=4)
    found = fitted(Runs(runs.parameters, runs.tokens, 2 + 200 / runs.tokens**0.2 + 1e-3 * runs.parameters**0.3))
    assert min(found.A, found.alpha, found.B, found.beta) > 0
    size = found.A * runs.parameters**-found.alpha
    assert size.max() - size.min() < 0.05


def test_starts_agree() -> None:
    """Forty starts of the grid end in one minimum."""
    runs = grid(noise=0.01, sizes=8, lengths=6)
    problem, ones = Problem(runs), np.ones(len(runs))
    found = problem.refine(problem.starts(ones, 40), np.broadcast_to(ones, (40, len(runs))))
    assert np.quantile(found.objective, 0.9) == pytest.approx(found.objective.min(), rel=1e-8)


def test_gradient_is_the_slope_of_the_objective() -> None:
    runs = grid(noise=0.05, sizes=4, lengths=4)
    problem, theta, ones = Problem(runs, delta=0.02), np.array([[0.4, -0.6, -0.9, -1.2, -0.7]]), np.ones((1, 16))
    value, residual, slope = problem.objective(theta, ones)
    gradient = (slope[0] * np.clip(residual[0], -0.02, 0.02)[:, None]).sum(0)
    for i in range(5):
        moved = theta.copy()
        moved[0, i] += 1e-7
        assert (problem.objective(moved, ones)[0][0] - value[0]) / 1e-7 == pytest.approx(gradient[i], rel=1e-4)


def test_bootstrap_is_the_same_each_time() -> None:
    runs = grid(noise=0.01, sizes=4, lengths=4)
    first, second = (bootstrap(runs, 5, parameters="all", seed=3) for _ in range(2))
    assert first == second
    assert len({each.A for each in first}) == 5


# ---- Approaches 1 and 2


def isoflop(law: SumLaw, width: float, points: int = 15) -> Runs:
    """Noise-free isoFLOP curves at 1e17 to 1e21, even in log N around each optimum."""
    parameters, tokens = [], []
    for compute in np.geomspace(1e17, 1e21, 5).tolist():
        best = law.best_size(compute)
        sizes = best * np.geomspace(1 / width, width, points)
        parameters += [sizes]
        tokens += [compute / 6 / sizes]
    n, d = np.concatenate(parameters), np.concatenate(tokens)
    return Runs(n, d, losses(law, n, d))


@pytest.mark.parametrize(("width", "error"), [(2, -0.0033), (4, -0.0130), (16, -0.0510)])
def test_bias_of_approach_2_on_noise_free_runs(width: float, error: float) -> None:
    """Tokens that parabolas say, against the law: figures of arXiv 2603.22339 (15 sizes, Hoffmann's constants)."""
    law = truth("hoffmann")
    found = parabolas(isoflop(law, width))
    assert found is not None
    assert found.exponent == pytest.approx(law.exponent, abs=1e-6)
    compute = 1e24
    tokens = compute / 6 / found.best_size(compute)
    assert tokens / law.optimum(compute).tokens - 1 == pytest.approx(error, abs=6e-5)
    shift = vertex_shift(law.alpha, law.beta, width, 15)
    assert found.best_size(compute) == pytest.approx(law.best_size(compute) * np.exp(shift), rel=1e-6)


def test_no_bias_where_the_exponents_are_equal() -> None:
    law = truth().model_copy(update={"alpha": 0.31, "beta": 0.31, "A": 400.0, "B": 400.0, "E": 1.69})
    found = parabolas(isoflop(law, 16))
    assert found is not None
    assert found.best_size(1e24) == pytest.approx(law.best_size(1e24), rel=1e-9)
    assert vertex_shift(0.31, 0.31, 16, 15) == pytest.approx(0.0, abs=1e-12)


def test_approach_3_has_no_such_bias() -> None:
    law = truth("hoffmann")
    assert fitted(isoflop(law, 16)).optimum(1e24).tokens == pytest.approx(law.optimum(1e24).tokens, rel=1e-6)


def test_exponents_of_approaches_1_and_2_with_noise() -> None:
    law, draw = truth(), np.random.default_rng(1)
    runs = isoflop(law, 8)
    noisy = Runs(runs.parameters, runs.tokens, runs.loss * np.exp(0.002 * draw.standard_normal(len(runs))))
    second = parabolas(noisy)
    assert second is not None
    assert second.exponent == pytest.approx(law.exponent, abs=0.02)
    curves = []
    for size in np.geomspace(3e7, 1e10, 25).tolist():
        tokens = np.geomspace(size / 5, 400 * size, 60)
        sizes = np.full(60, size)
        curves.append(Runs(sizes, tokens, losses(law, sizes, tokens)))
    first = envelope(curves)
    assert first is not None
    assert first.exponent == pytest.approx(law.exponent, abs=0.02)


def test_too_few_runs_have_no_frontier() -> None:
    runs = grid(sizes=3, lengths=2)
    assert parabolas(runs) is None
    assert envelope([]) is None
    assert envelope([Runs(runs.parameters[:2], runs.tokens[:2], runs.loss[:2])]) is None
    assert parabola_vertex(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 0.9, 0.0])) is None


def test_computes_that_no_run_covers_are_not_on_the_frontier() -> None:
    """Between the last losses of three models and the first one of a much larger one nothing was the best."""

    def curve(size: float, first: float, losses: tuple[float, float]) -> Runs:
        compute = np.array([first, 10 * first])
        return Runs(np.full(2, size), compute / (6 * size), np.array(losses))

    models = [(2e6, 1e13, (3.5, 2.5)), (1e6, 1e13, (3.0, 2.9)), (4e6, 1e13, (4.5, 2.3)), (8e6, 1e16, (2.0, 1.9))]
    found = envelope([curve(*each) for each in models])
    assert found is not None
    assert {round(size) for _, size in found.points} == {2e6, 4e6}
    assert max(compute for compute, _ in found.points) <= 1e14
    assert found.exponent > 0
