"""Failures, checkpoints and data against published runs, and against a simulation of single failures."""

import random

import pytest

from hornbook.cli.plan.table import plan_text
from hornbook.plan.at_scale.failure_costs import (
    Upkeep,
    checkpoint_bytes,
    daly,
    estimate_upkeep,
    goodput,
    trainings,
    young,
)
from hornbook.plan.counts.adapted import adapted
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.planner import plan_run
from hornbook.run.checkpoints.interval import best_interval
from hornbook.settings.resolve import resolve

HOUR = 3600.0


def test_published_trainings_fail_as_often_as_they_say() -> None:
    llama, *_ = known = list(trainings().values())
    assert llama.name == "Llama 3 405B"
    assert llama.device_hours / 16384 == pytest.approx(3.09, abs=0.01)
    assert 54 * 24 / (llama.device_hours / 16384) == pytest.approx(419)
    by_name = {each.name: each for each in known}
    assert by_name["RSC-1"].device_hours / 16384 == pytest.approx(1.8, abs=0.01)
    assert by_name["RSC-1"].device_hours / 131072 == pytest.approx(0.23, abs=0.01)
    assert 7 * 24 / (by_name["BLOOM 176B"].device_hours / 384) == pytest.approx(1.5, abs=0.1)
    assert all("arXiv" in each.source for each in known)


def test_the_interval_is_youngs_to_first_order() -> None:
    assert young(1.0, 3.09 * HOUR) == pytest.approx(149.2, abs=0.1)
    assert daly(1.0, 3.09 * HOUR) == pytest.approx(young(1.0, 3.09 * HOUR), rel=0.01)
    assert daly(10.0, 4.0) == 4.0
    assert best_interval(1.0, 1.0, 3.09) == 149


@pytest.mark.parametrize(
    ("mtbf", "stall", "restart", "expected"), [(24 * HOUR, 1.0, 300.0, 0.992), (3.09 * HOUR, 1.0, 300.0, 0.961)]
)
def test_goodput_of_a_day_between_failures_and_of_llama_3(
    mtbf: float, stall: float, restart: float, expected: float
) -> None:
    """To first order 1 / (1 + stall / T + (T / 2 + restart) / mtbf)."""
    interval = daly(stall, mtbf)
    found = goodput(interval, stall, restart, mtbf)
    assert found == pytest.approx(expected, abs=0.002)
    assert found == pytest.approx(1 / (1 + stall / interval + (interval / 2 + restart) / mtbf), abs=0.002)


def test_goodput_is_that_of_failures_one_by_one_and_best_at_the_interval() -> None:
    mtbf, stall, restart = 2000.0, 20.0, 120.0
    best = daly(stall, mtbf)
    assert goodput(best, stall, restart, mtbf) == pytest.approx(_played(best, stall, restart, mtbf), rel=0.01)
    for other in (best / 2, best * 2):
        assert goodput(other, stall, restart, mtbf) < goodput(best, stall, restart, mtbf)
    assert goodput(1e9, 1.0, 1.0, 1.0) == 0.0


def test_a_run_that_never_gets_on_has_no_days() -> None:
    recipe = resolve("gpt3-175b", environ={}).recipe
    found = estimate_upkeep(recipe, 50304, parse_cluster("64x8xH100"), 1e5)
    assert found.days(86400.0) == pytest.approx(1 / found.goodput)
    assert found.failures(86400.0) == pytest.approx(86400 / found.goodput / found.mtbf_seconds)
    lost = found.model_copy(update={"goodput": 0.0})
    assert lost.days(86400.0) is lost.failures(86400.0) is None
    plan = plan_run(recipe, parse_cluster("64x8xH100"), search=True, top=1).model_copy(update={"upkeep": lost})
    assert "goodput 0.00%, so that no run ends: a restart takes" in plan_text(plan, explain=True)


def _played(interval: float, stall: float, restart: float, mtbf: float, segments: int = 20_000) -> float:
    """Share of the time that counts, by drawing each failure."""
    draw, passed = random.Random(1), 0.0
    for _ in range(segments):
        while (life := draw.expovariate(1 / mtbf)) < interval + stall:
            passed += life
            while (again := draw.expovariate(1 / mtbf)) < restart:
                passed += again
            passed += restart
        passed += interval + stall
    return segments * interval / passed


def test_a_run_of_llama_3s_size() -> None:
    """It had more than 90 % of effective time, with 419 interruptions."""
    recipe = resolve("llama-65b", ("parallel.data=2048", "parallel.tensor=8", "parallel.shard=optimizer"), environ={})
    found = estimate_upkeep(recipe.recipe, 128256, parse_cluster("2048x8xH100"), 1e6)
    assert isinstance(found, Upkeep)
    assert 0.9 < found.goodput < 1
    seconds = 54 * 86400 * found.goodput
    assert found.failures(seconds) == pytest.approx(419)
    assert found.days(seconds) == pytest.approx(54)
    assert found.loader_rate == 4e6
    assert found.checkpoint_bytes == pytest.approx(12 * 65e9, rel=0.03)
    assert found.write_seconds == pytest.approx(found.checkpoint_bytes / 2048e9)
    assert found.interval_seconds >= found.write_seconds


def test_a_checkpoint_of_an_adapter_has_the_adapter_alone() -> None:
    sizes = {}
    for words in ((), ('surgery=["lora"]',), ("train.average=ema", 'surgery=["lora"]')):
        recipe = resolve("llama-1b", words, environ={}).recipe
        sizes[words] = checkpoint_bytes(recipe, 128256)
    whole, lora, averaged = sizes.values()
    assert whole > 100 * lora
    trained = adapted(recipe.model, 128256, recipe.surgery).trained
    assert lora == 12 * trained  # weights and AdamW's moments in float32
    assert averaged == 16 * trained
