"""Pipelines equal one process: losses, norms, every gradient, final weights; the passes are those of the schedule."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hornbook.parallel.axes.pipeline.pass_orders import Schedule, plan
from hornbook.parallel.config import PipelineConfig
from tests.parallel.axes.pipeline.staged import step_of
from tests.parallel.layouts import EVERY, EXACT, FIGURES, HEADS
from tests.parallel.trajectory import CLIP, Result, Run, compare, perform
from tests.ranks import RankServer

Performer = Callable[[Run], Result]
Stepper = Callable[[Run], Any]
SCHEDULES: list[Schedule] = ["gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"]
SMALL: dict[str, Any] = {"precision": "fp64", "microbatches": 5, "width": 32}


def each_of(values: Sequence[str], *quick: str) -> list[Any]:
    """Parameters of tests, of which some are quick together."""
    return [pytest.param(each, marks=() if each in quick else pytest.mark.slow) for each in values]


def staged(stages: int, schedule: Schedule = "1f1b", cuts: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"stages": stages, "schedule": schedule, "cuts": cuts}


@pytest.fixture(scope="module")
def done(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Performer:
    """The result of a run; the same run is not done twice."""
    known: dict[str, Result] = {}

    def result(run: Run) -> Result:
        if repr(run) not in known:
            known[repr(run)] = perform(run_ranks, run, tmp_path_factory.mktemp("run") / "weights")
        return known[repr(run)]

    return result


@pytest.fixture(scope="module")
def stepped(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Stepper:
    """The first step of a run; the same one is not done twice."""
    known: dict[str, Any] = {}

    def result(run: Run) -> Any:
        if repr(run) not in known:
            known[repr(run)] = step_of(run_ranks, run, tmp_path_factory.mktemp("step") / "gradients")
        return known[repr(run)]

    return result


def check_step(stepped: Stepper, run: Run, within: float = 1e-9) -> None:
    """One step of a pipeline is that of one process, every parameter's gradient included."""
    said, passes, gradients = stepped(run)
    expected, _, others = stepped(run.alone)
    for name, loss in expected["losses"].items():
        assert said["losses"][name] == pytest.approx(loss, rel=within), name
    assert said["norm"] == pytest.approx(expected["norm"], rel=within)
    assert said["evaluated"] == pytest.approx(expected["evaluated"], rel=within)
    assert said["evaluated"][0] == said["evaluated"][1], "an evaluation changed something"
    assert gradients.keys() == others.keys()
    for name, gradient in others.items():
        difference = float((gradients[name] - gradient).abs().max() / gradient.abs().max().clamp(min=1e-6))
        assert difference < within, (name, difference)
    config = PipelineConfig.model_validate({"stages": run.stages, "schedule": run.schedule})
    orders = plan(config.schedule, config.stages, config.chunks_per_rank, -(-run.microbatches // run.world))
    expected_passes = [[str(action) for action in order] for order in orders for _ in range(run.world)]
    assert passes == expected_passes, "the passes are not those of the schedule"


@pytest.mark.parametrize("schedule", each_of(SCHEDULES, "interleaved", "zb-h1", "dualpipev"))
def test_two_ranks_of_each_schedule(stepped: Stepper, schedule: Schedule) -> None:
    """Five layers, five microbatches of unequal weight, a tied embedding on both ends."""
    check_step(stepped, Run(layers=5, **SMALL, **staged(2, schedule)))


@pytest.mark.parametrize("schedule", each_of(SCHEDULES, "zbv"))
def test_four_ranks_of_each_schedule(stepped: Stepper, schedule: Schedule) -> None:
    check_step(stepped, Run(layers=9, **SMALL, **staged(4, schedule)))


@pytest.mark.parametrize("schedule", each_of(["1f1b", "interleaved", "zbv"], "1f1b"))
def test_fewer_microbatches_than_ranks(stepped: Stepper, schedule: Schedule) -> None:
    """Others hang there (torchtitan#775)."""
    check_step(stepped, Run(layers=9, **SMALL | {"microbatches": 2}, **staged(4, schedule)))


@pytest.mark.slow
def test_given_cuts_and_a_head_of_its_own(stepped: Stepper) -> None:
    check_step(stepped, Run(layers=5, tied=False, **SMALL, **staged(3, cuts=(1, 4))))


@pytest.mark.parametrize("schedule", each_of(["1f1b", "zb-h1"], "zb-h1"))
def test_losses_of_experts_on_every_stage(stepped: Stepper, schedule: Schedule) -> None:
    """Router gradients included; the biases' loads are those of the stage."""
    check_step(stepped, Run(layers=3, experts=True, **SMALL, **staged(2, schedule)))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("t5 of experts", staged(2, cuts=(1,))),
        pytest.param("t5 of experts", staged(2, "zbv", cuts=(1, 2, 3)), marks=pytest.mark.slow),
        pytest.param("bart", staged(3, cuts=(1, 3)), marks=pytest.mark.slow),
        pytest.param("bart", staged(2, "zb-h1", cuts=(2,)), marks=pytest.mark.slow),
        pytest.param("t5", staged(2, cuts=(3,)), marks=pytest.mark.slow),
        pytest.param("t5", staged(4, cuts=(1, 2, 3)), marks=pytest.mark.slow),
        pytest.param("bert", staged(2, "zb-h1"), marks=pytest.mark.slow),
        pytest.param("prefix", staged(2), marks=pytest.mark.slow),
        pytest.param("delta", staged(2), marks=pytest.mark.slow),
        pytest.param("experts", staged(2), marks=pytest.mark.slow),
    ],
)
def test_families(stepped: Stepper, marked_corpus: Path, family: str, settings: dict[str, Any]) -> None:
    """Encoder-decoders cut at the decoder, before and behind it: the memory travels along."""
    more = {"family": family, "corpus": str(marked_corpus), "sequence": 32}
    check_step(stepped, Run(**SMALL | {"microbatches": 3}, **more, **settings))


@pytest.mark.parametrize("schedule", each_of(["1f1b", "zbv"], "zbv"))
def test_kernels_of_float32(stepped: Stepper, schedule: Schedule) -> None:
    check_step(stepped, Run(layers=4, **SMALL | {"precision": "fp32"}, **staged(2, schedule)), within=1e-4)


def test_data_beside_stages(done: Performer, stepped: Stepper) -> None:
    run = Run(2, layers=3, **SMALL, **staged(2))
    check_step(stepped, run)
    check_run(done, replace(run, steps=3))


@pytest.mark.parametrize(
    ("family", "shard", "schedule", "tensor"),
    [
        ("experts", "everything", "zb-h1", 1),
        pytest.param("decoder", "optimizer", "1f1b", 2, marks=pytest.mark.slow),
        *(
            pytest.param(family, shard, schedule, 1, marks=pytest.mark.slow)
            for family, schedule in zip(EVERY, ("zb-h1", "gpipe", "zbv", "dualpipev", "interleaved"), strict=True)
            for shard in ("optimizer", "gradients", "everything")
        ),
    ],
)
def test_stages_shared_by_data_ranks(done: Performer, family: str, shard: Any, schedule: Schedule, tensor: int) -> None:
    """ZeRO-1, -2 and -3 in a pipeline; gradients of the first step included."""
    sizes = HEADS[tensor] if tensor > 1 else {}
    run = Run(2, shard, tensor=tensor, odd=family, sizes=sizes, sequence=25, steps=2, **SMALL, **staged(2, schedule))
    difference = compare(done(run), done(run.alone))
    assert max(getattr(difference, name) for name in FIGURES) < EXACT, difference


def check_run(done: Performer, run: Run, within: float = 1e-9) -> None:
    expected = done(run.alone)
    difference = compare(done(run), expected)
    assert max(difference.losses, difference.norms, difference.weights) < within, difference


@pytest.mark.parametrize(
    ("schedule", "more"),
    [
        ("1f1b", {}),
        ("zb-h1", {"experts": True, "penalty": 0.01}),
        pytest.param("interleaved", {"clip": "adaptive", "layers": 4}, marks=pytest.mark.slow),
        pytest.param("dualpipev", {"clip": "zscore", "layers": 5, "tied": False}, marks=pytest.mark.slow),
    ],
)
def test_runs_in_float64_differ_in_the_last_digits(done: Performer, schedule: Schedule, more: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"layers": 3, **SMALL, **more}
    run = Run(steps=4, **settings, **staged(2, schedule))
    if not more:
        assert min(done(run.alone).norms) > CLIP
    check_run(done, run)


def test_gradients_that_were_sent_are_released_within_the_step(run_ranks: RankServer) -> None:
    """As many are held as the pipeline has ranks, however many microbatches a step has."""
    run = Run(layers=2, width=16, microbatches=9, **staged(2))
    assert run_ranks("tests/parallel/axes/pipeline/staged.py:most_held", 2, asdict(run)) == [0, 2]


@pytest.mark.slow
def test_float32_losses(done: Performer) -> None:
    run = Run(steps=4, **SMALL | {"precision": "fp32"}, **staged(2))
    assert compare(done(run), done(run.alone)).losses < 1e-5


@pytest.mark.parametrize("precision", each_of(["fp32", "fp16"], "fp16"))
def test_a_bad_loss_on_the_last_stage_makes_all_refuse(done: Performer, precision: Any) -> None:
    run = Run(steps=3, spoil=(1, 1), **SMALL | {"precision": precision}, **staged(2, "zb-h1"))
    found, expected = done(run), done(run.alone)
    assert found.applied == expected.applied == [1.0, 0.0, 1.0]
    assert found.scales == expected.scales
