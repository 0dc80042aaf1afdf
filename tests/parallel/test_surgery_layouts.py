"""Models after surgery on ranks that divide blocks or matrices equal one process: losses, norms, gradients, weights."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.parallel.axes.tensor.variants import variant
from tests.parallel.layouts import EXACT, FIGURES
from tests.parallel.trajectory import Result, Run, compare, perform
from tests.ranks import RankServer

Performer = Callable[[Run], Result]
ALL = ["blocks.*"]
STEPS: dict[str, list[dict[str, Any]]] = {
    "lora": [{"kind": "lora", "rank": 3}],
    "dora": [{"kind": "dora", "rank": 2, "scaling": "root_rank"}],
    "ia3": [{"kind": "ia3"}],
    "inputs": [{"kind": "ia3", "targets": ["*.mlp.up", "*.out"], "inputs": ["*.mlp.up"]}],
    "bottleneck": [{"kind": "bottleneck", "width": 5}],
    "gated": [{"kind": "llama_adapter_v2", "length": 3, "below": 1}],
    "qlora": [{"kind": "nf4", "block": 16}, {"kind": "lora", "rank": 2}],
    "upper": [{"kind": "lora", "rank": 2, "targets": ["blocks.2.*"]}],
    "lower": [{"kind": "freeze", "names": ["embedding.*", "blocks.[01].*"]}],
    "learned": [{"kind": "fake_quant", "group": 16, "scales": "learned"}],
}
STAGES: dict[str, dict[str, Any]] = {
    "1f1b": {"stages": 2},
    "zbv": {"stages": 2, "schedule": "zbv"},
    "shared": {"stages": 2, "schedule": "zb-h1", "world": 2, "shard": "everything"},
}
TENSOR: dict[str, dict[str, Any]] = {
    "2": {"tensor": 2},
    "2 parts": {"tensor": 2, "sequence_parallel": True},
    "4 parts": {"tensor": 4, "sequence_parallel": True},
    "2x2 parts everything": {"tensor": 2, "sequence_parallel": True, "world": 2, "shard": "everything"},
    "2x2 stages": {"tensor": 2, "stages": 2},
    "2x2 parts stages": {"tensor": 2, "sequence_parallel": True, "stages": 2, "schedule": "zb-h1"},
}
WIDE = ("lora", "dora", "ia3", "bottleneck", "upper", "lower")
QUICK_TENSOR = {("lora", "2x2 stages"), ("dora", "2x2 parts everything"), ("ia3", "4 parts"), ("bottleneck", "2 parts")}
QUICK = {("lora", "shared"), ("dora", "1f1b"), ("qlora", "zbv"), ("upper", "1f1b"), ("lower", "shared")}


@pytest.fixture(scope="module")
def done(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Performer:
    """The result of a run; the same run is not done twice."""
    known: dict[str, Result] = {}

    def result(run: Run) -> Result:
        if repr(run) not in known:
            known[repr(run)] = perform(run_ranks, run, tmp_path_factory.mktemp("run") / "weights")
        return known[repr(run)]

    return result


def check(done: Performer, kind: str, model: str = "llama", **settings: Any) -> None:
    """Four layers: schedules of two stages for each rank have one of their own for each."""
    common: dict[str, Any] = {"sizes": variant(model) | {"layers": 4}, "sequence": 23, "steps": 2}
    run = Run(**common, microbatches=3, precision="fp64", surgery=STEPS[kind], **settings)
    difference = compare(done(run), done(run.alone))
    assert max(getattr(difference, name) for name in FIGURES) < EXACT, difference


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, layout, marks=() if (kind, layout) in QUICK else pytest.mark.slow)
        for kind in STEPS
        for layout in STAGES
    ],
)
def test_stages_of_a_pipeline(done: Performer, kind: str, layout: str) -> None:
    check(done, kind, **STAGES[layout])


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, layout, marks=() if (kind, layout) in QUICK_TENSOR else pytest.mark.slow)
        for kind in WIDE
        for layout in TENSOR
    ],
)
def test_ranks_that_divide_matrices(done: Performer, kind: str, layout: str) -> None:
    """With four ranks two have the same key-value head, and what is added to it."""
    check(done, kind, **TENSOR[layout])


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("neox", "inputs"),
        ("direct", "dora"),
        *(
            pytest.param(model, kind, marks=pytest.mark.slow)
            for model, kind in [("neox", "dora"), ("mixed", "lora"), ("olmo", "lora"), ("experts", "lora")]
        ),
    ],
)
@pytest.mark.parametrize("layout", ["2", pytest.param("2 parts", marks=pytest.mark.slow)])
def test_other_parts_and_biases(done: Performer, model: str, kind: str, layout: str) -> None:
    """Biases of divided layers, latents, experts that share; two changes of one input (`inputs`)."""
    check(done, kind, model, **TENSOR[layout])
