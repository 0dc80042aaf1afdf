"""Physics of a step's time: kernels, messages, what a trainer hides."""

from typing import Any

import pytest

from hornbook.plan.collectives import Group
from hornbook.plan.hardware import parse_cluster
from hornbook.plan.rates import rates_of
from hornbook.plan.step import StepTime, Traffic, estimate_step
from hornbook.plan.work import START_SECONDS, Work, attention_work
from hornbook.settings.resolve import resolve


def step(*words: str, cluster: str = "8xA100", **traffic: Any) -> StepTime:
    recipe = resolve("llama-1b", ["train.precision=bf16", *words], environ={}).recipe
    return estimate_step(recipe, 128256, parse_cluster(cluster), Traffic(**traffic))


def test_stored_scores_take_longer_than_a_fused_kernel() -> None:
    fused, stored = step(), step(stored_scores=True)
    assert stored.compute > 1.1 * fused.compute
    layer = resolve("llama-1b", environ={}).recipe.model.layer(0)
    work = attention_work(layer, 4096, 2048, 2, stored=True)
    assert work.products == 4.0 * 4096 * 2048 * layer.heads * layer.head_dim
    crooked = layer.model_copy(update={"attention": layer.attention.model_copy(update={"head_dim": 60})})
    slower = attention_work(crooked, 4096, 2048, 2, stored=True)
    assert slower.products == pytest.approx(2 * work.products * 60 / layer.head_dim)


def test_a_device_is_not_faster_than_its_host_starts_kernels() -> None:
    rates = rates_of(parse_cluster("H100").device, "bf16")
    assert Work(products=1e3, calls=100).forward(rates) == pytest.approx(100 * START_SECONDS)
    assert Work(products=1e13, calls=100).forward(rates) > 1e13 / rates.products


def test_backward_adds_to_the_gradient_in_its_own_precision() -> None:
    rates = rates_of(parse_cluster("H100").device, "bf16")
    work = Work(products=1e12, weights=1e9)
    assert work.backward(rates, 4.0) - work.backward(rates, 2.0) == pytest.approx(4e9 / rates.bandwidth)


def test_casts_cost_where_products_are_narrow() -> None:
    device = parse_cluster("H100").device
    work = Work(casts=1e9)
    assert work.forward(rates_of(device, "bf16")) == 0 < work.forward(rates_of(device, "float8"))


def test_tokens_of_experts_cross_the_network_once() -> None:
    """Eight copies among 4 machines of 8: 6 of them leave the machine, but only 2.7 machines are reached."""
    group = Group(32, 8, 8e9, 8e9, 1e9)
    assert group.exchange(1e9, 8) - group.latency == pytest.approx(6.0)
    assert group.exchange(1e9, 8, once=True) - group.latency == pytest.approx(3 * (1 - 0.75**8))
    inside = Group(8, 8, 8e9, 8e9, 1e9)
    assert inside.exchange(8e9, 2) - inside.latency == pytest.approx(2 * 7 / 8)


def test_a_ring_through_one_card_is_slower() -> None:
    words = ["parallel.data=16", "parallel.shard=everything", "train.micro_batch=1"]
    ring, alone = step(*words, cluster="2x8xA100"), step(*words, cluster="2x8xA100", one_card=True)
    assert alone.data > 2 * ring.data
    once = step(*words, cluster="2x8xA100", one_card=True, gathers="each step")
    assert once.data < alone.data / 2


def test_a_stage_that_waits_for_its_messages_is_slower() -> None:
    words = ["parallel.pipeline=4", "parallel.data=2", "train.micro_batch=1"]
    slow = parse_cluster("8xA100")
    slow = slow.model_copy(update={"device": slow.device.model_copy(update={"link": 1.0})})
    recipe = resolve("llama-1b", ["train.precision=bf16", *words], environ={}).recipe
    beside, waiting = (estimate_step(recipe, 128256, slow, Traffic(waits=each)) for each in (False, True))
    assert waiting.total > 1.1 * beside.total
    assert waiting.tensor > beside.tensor == 0
