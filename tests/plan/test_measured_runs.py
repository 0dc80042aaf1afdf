"""The planner against what runs on one CPU measured (`python -m benchmarks.plan.runs`), by the rates that it had."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.plan.runs import predicted, recipe_of
from hornbook.data.objectives.spans import span_sizes
from hornbook.plan.counts.share import sides
from hornbook.plan.devices.hardware import Cluster, Device
from hornbook.plan.planner import estimate_layout, trainer_of
from hornbook.plan.step_time import estimate_step
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "plan_runs.json"


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text())


@pytest.fixture(scope="module")
def cluster(results: dict[str, Any]) -> Cluster:
    return Cluster(device=Device.model_validate(results["device"]))


def test_memory_and_time_of_all_families(results: dict[str, Any], cluster: Cluster) -> None:
    memory, time = [], []
    for name, found in results["measured"].items():
        layout = predicted(name, cluster)
        memory.append(abs(layout.worst.peak.total / found["peak_bytes"] - 1))
        time.append(abs(layout.step.total / found["seconds"] - 1))
    assert len(memory) >= 36
    assert statistics.median(memory) < 0.03
    assert statistics.median(time) < 0.05
    assert sorted(time)[int(0.75 * len(time))] < 0.1
    assert sorted(memory)[int(0.85 * len(memory))] < 0.06


def test_sides_of_span_corruption_are_those_of_its_pairs() -> None:
    recipe = resolve("tiny-t5", (), environ={}).recipe
    text = 2000
    source, target = span_sizes(text, 0.15, 3.0)
    decoder, encoder = sides(recipe)
    assert encoder == 1
    assert decoder == pytest.approx(target / source, rel=0.01)
    filled, left = sides(resolve("tiny-bart", (), environ={}).recipe)
    assert filled == 1
    assert left == pytest.approx(1 - 0.3 + 0.3 / 3)
    assert sides(resolve("tiny", (), environ={}).recipe) == (1, 1)


def test_a_masked_models_head_computes_its_targets_alone(cluster: Cluster) -> None:
    recipe, vocab = recipe_of("encoder fp32"), 4096
    trainer = trainer_of(recipe)
    assert trainer.targets == 0.15
    few = estimate_step(recipe, vocab, cluster, trainer)
    whole = estimate_step(recipe, vocab, cluster, replace(trainer, targets=1.0))
    weights = recipe.model.head.num_matmul_weights(recipe.model, vocab)
    products = 6 * 0.85 * recipe.train.batch_tokens * weights
    assert whole.total - few.total == pytest.approx(products / cluster.device.rate("fp32"), rel=0.02)


def test_each_microbatch_on_a_cpu_passes_all_weights(cluster: Cluster) -> None:
    def seconds(rows: int) -> float:
        recipe: Recipe = recipe_of("decoder bf16")
        train = recipe.train.model_copy(update={"micro_batch": rows})
        return estimate_layout(recipe.model_copy(update={"train": train}), 4096, cluster).step.total

    assert seconds(2) - seconds(4) == pytest.approx((seconds(1) - seconds(2)) / 2, rel=0.01)
    assert seconds(1) > 1.2 * seconds(4)
