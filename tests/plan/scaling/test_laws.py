"""Published laws against the figures that their papers and repositories print."""

import math

import pytest

from hornbook.errors import UsageError
from hornbook.plan.devices.hardware import device_named
from hornbook.plan.scaling.compute import PETAFLOPS_DAY, nearest, petaflops_days, published_compute
from hornbook.plan.scaling.laws import (
    KaplanLaw,
    SumLaw,
    data_constrained,
    law_named,
    minimum,
    published_laws,
)

CHINCHILLA = 5.76e23
"""Operations of Chinchilla's training."""


def sum_law(name: str) -> SumLaw:
    law = law_named(name)
    assert isinstance(law, SumLaw)
    return law


@pytest.mark.parametrize(
    ("parameters", "tokens", "loss"), [(6.34e9, 242e9, 2.2256440889984477), (8.67e9, 178e9, 2.2269634075087867)]
)
def test_loss_of_repeated_text(parameters: float, tokens: float, loss: float) -> None:
    """The two allocations of the data-constrained paper's repository, to the last digits."""
    assert data_constrained().repeated_loss(parameters, tokens, 25e9) == pytest.approx(loss, rel=1e-15)


def test_best_allocation_of_repeated_text() -> None:
    """The repository finds 7.0224e9 parameters and 9.4935 epochs on a grid; ours is within it and not worse."""
    law = data_constrained()
    best = law.constrained(1e22, 25e9)
    assert best.parameters == pytest.approx(7.0224e9, rel=1e-3)
    assert best.tokens == pytest.approx(237.337e9, rel=1e-3)
    assert best.tokens / 25e9 == pytest.approx(9.4935, rel=1e-3)
    assert best.loss is not None
    assert best.loss <= law.repeated_loss(7.0224e9, 1e22 / 6 / 7.0224e9, 25e9)


def test_enough_text_leaves_the_law_as_it_is() -> None:
    law = data_constrained()
    free = law.optimum(1e20)
    assert law.constrained(1e20, 1e15).parameters == pytest.approx(free.parameters, rel=1e-4)
    assert law.repeated_loss(free.parameters, free.tokens, 1e15) == pytest.approx(free.loss, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "compute", "ratio"),
    [
        ("hoffmann", CHINCHILLA, 92.6),  # what its printed constants say, against the 20 of its text
        ("besiroglu", CHINCHILLA, 18.4),
        ("besiroglu", 1e21, 21.6),
        ("rule-of-20", CHINCHILLA, 20.0),
        ("muennighoff", CHINCHILLA, 19.6),
    ],
)
def test_tokens_per_parameter(name: str, compute: float, ratio: float) -> None:
    assert law_named(name).optimum(compute).ratio == pytest.approx(ratio, rel=2.5e-3)


def test_rounded_exponents_move_the_optimum() -> None:
    """The other fault that the replication names: those of the TeX source give 34 and 59."""
    exact = sum_law("hoffmann").model_copy(update={"alpha": 0.3392, "beta": 0.2849})
    assert exact.optimum(1e21).ratio == pytest.approx(34.0, abs=0.05)
    assert exact.optimum(CHINCHILLA).ratio == pytest.approx(59.1, abs=0.05)


def test_70b_and_1_4t_tokens() -> None:
    best = law_named("rule-of-20").optimum(6 * 70e9 * 1.4e12)
    assert best.parameters == pytest.approx(70e9, rel=1e-12)
    assert best.tokens == pytest.approx(1.4e12, rel=1e-12)


@pytest.mark.parametrize("law", published_laws(), ids=lambda law: law.name)
@pytest.mark.parametrize("compute", [1e15, 1e20, 1e25])
def test_an_optimum_spends_the_budget_and_is_one(law: SumLaw, compute: float) -> None:
    best = law.optimum(compute)
    assert best.compute == pytest.approx(compute, rel=1e-12)
    if best.loss is None or isinstance(law, KaplanLaw):
        return  # Kaplan's size comes from a fit of its own, not from its loss
    for factor in (0.9, 1.1):
        other = law.loss(best.parameters * factor, best.tokens / factor)
        assert other is not None
        assert other > best.loss


def test_kaplans_sizes() -> None:
    """Its power laws at 1 petaFLOP/s-day, and its joint loss (table 2) where one of the two is endless."""
    law = law_named("kaplan")
    assert isinstance(law, KaplanLaw)
    assert law.best_size(PETAFLOPS_DAY) == pytest.approx(1.3e9)
    assert law.best_size(10 * PETAFLOPS_DAY) / 1.3e9 == pytest.approx(10**0.73)
    assert law.loss(1e9, math.inf) == pytest.approx((6.4e13 / 1e9) ** 0.076)
    assert law.loss(math.inf, 1e9) == pytest.approx((1.8e13 / 1e9) ** 0.103)


def test_deepseeks_sizes_and_tokens_share_the_compute() -> None:
    """Its two equations were fitted apart: 5.8316 C^0.4757 tokens (arXiv 2401.02954)."""
    assert law_named("deepseek").optimum(1e21).tokens == pytest.approx(5.8316 * 1e21**0.4757, rel=1e-3)


def test_serving_nothing_is_the_plain_optimum() -> None:
    law = sum_law("besiroglu")
    best = law.optimum(1e21)
    assert best.loss is not None
    assert law.served(best.loss, 0.0).parameters == pytest.approx(best.parameters, rel=1e-5)


def test_serving_much_asks_for_a_smaller_model_of_the_same_loss() -> None:
    law, compute, tokens = sum_law("besiroglu"), 1e21, 1e12
    plain = law.optimum(compute)
    assert plain.loss is not None
    served = law.served(plain.loss, tokens)
    assert served.loss == pytest.approx(plain.loss, rel=1e-12)
    assert served.parameters < plain.parameters / 2
    assert served.compute > compute

    def cost(size: float, read: float) -> float:
        return 6 * size * read + 2 * size * tokens

    least = cost(served.parameters, served.tokens)
    for factor in (0.8, 0.99, 1.01, 1.25):
        size = served.parameters * factor
        assert cost(size, law.tokens_for(size, plain.loss)) > least
    assert law.tokens_for(1e6, plain.loss) == math.inf


def test_unknown_law() -> None:
    with pytest.raises(UsageError, match="known are kaplan, hoffmann"):
        law_named("nobody")


def test_minimum_of_a_curve_that_is_infinite_at_one_end() -> None:
    assert minimum(lambda x: math.inf if x <= 1 else (x - 3) ** 2, 0.0, 10.0) == pytest.approx(3.0, abs=1e-7)


# ---- petaFLOP/s-days


@pytest.mark.parametrize("row", published_compute(), ids=lambda row: row.name)
def test_table_d1_of_the_gpt3_paper(row: object) -> None:
    """Every row as printed, to its three digits."""
    found = next(each for each in published_compute() if each is row)
    assert found.petaflops_days == pytest.approx(found.days, rel=5e-3)


def test_days_by_name() -> None:
    days = {row.name: round(row.petaflops_days, 2) for row in published_compute()}
    assert days["BERT-base"] == 1.89
    assert days["BERT-large"] == 6.16
    assert days["RoBERTa-large"] == 49.31
    assert days["T5-3B"] == 104.17
    assert days["T5-11B"] == 381.94
    assert days["GPT-3-small"] == 2.60
    assert days["GPT-3-13B"] == 267.71
    assert days["GPT-3-175B"] == 3637.50


def test_a_petaflops_day_is_eight_v100_days() -> None:
    v100 = device_named("V100")
    assert 8 * v100.rate("fp16") * 86400 == pytest.approx(PETAFLOPS_DAY)
    assert petaflops_days(PETAFLOPS_DAY) == 1


def test_nearest_published_model() -> None:
    assert nearest(3e23).name == "GPT-3-175B"
    assert nearest(1e18).name == "BERT-base"
