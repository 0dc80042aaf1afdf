"""One rank of a large run on fake tensors: its memory by formula, its collectives, and what cannot be foreseen."""

import pytest

from hornbook.errors import UsageError
from hornbook.model.config.parameter_count import count_parameters
from hornbook.plan.counts.held_counts import held_values
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.planned_memory import estimate_memory
from hornbook.run.diagnose.simulate import Simulation, simulate
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

VOCAB = 128
SMALL = ("model.layers=2", "model.width=64", "model.heads=4", "train.sequence=32", "train.micro_batch=1")
SMALL += ("train.device=cpu", "train.precision=fp32", "train.batch_tokens=4096")
TWO = "train.batch_tokens=64"
"""Two microbatches of one process: a step of them is simulated as it is, not extrapolated from two smaller ones."""


def recipe(*words: str) -> Recipe:
    return resolve(None, [*SMALL, *words], environ={}).recipe


def calls(found: Simulation) -> dict[tuple[str, tuple[str, ...]], int]:
    """Bytes of each kind of collective over each set of axes."""
    return {(row.kind, row.axes): row.num_bytes for row in found.collectives}


def test_one_process_sends_nothing_and_holds_all():
    found = simulate(recipe(TWO), VOCAB, 0)
    size = 4 * count_parameters(recipe().model, VOCAB)
    assert found.collectives == []
    assert (found.state["weights"], found.state["gradients"]) == (size, size)
    assert found.state["moments"] == pytest.approx(2 * size, rel=0.01)
    assert found.peak > sum(found.state.values())


def test_whole_copies_sum_their_gradients_once_a_step():
    found = simulate(recipe("parallel.data=64"), VOCAB, 63)
    size = 4 * count_parameters(recipe().model, VOCAB)
    assert found.axes == {"replica": (63, 64)}
    assert calls(found)["all_reduce", ("replica",)] == pytest.approx(size, rel=0.01)
    assert found.memory["weights"] == size


@pytest.mark.parametrize("shard", ["optimizer", "gradients", "everything"])
def test_shares_of_zero_are_those_of_its_formulas(shard: str):
    found = simulate(recipe("parallel.data=16", f"parallel.shard={shard}", "train.batch_tokens=1024"), VOCAB, 5)
    size = 4 * count_parameters(recipe().model, VOCAB)
    for name, factor in (("weights", 1), ("gradients", 1), ("moments", 2)):
        assert found.state[name] == pytest.approx(factor * size / 16, rel=0.05), name
    assert calls(found)["all_gather", ("shard",)] >= size
    assert calls(found)["reduce_scatter", ("shard",)] >= size


def test_hybrid_sharding_has_two_axes_and_a_large_world():
    words = ("parallel.data=128", "parallel.shard=everything", "parallel.replicas=4")
    found = simulate(recipe(*words), VOCAB, 100)
    assert found.axes == {"replica": (3, 4), "shard": (4, 32)}
    kinds = {(row.kind, row.axes, row.ranks) for row in found.collectives}
    assert {("all_gather", ("shard",), 32), ("all_reduce", ("replica",), 4)} <= kinds


def test_tensor_ranks_hold_their_part_and_sum_activations():
    found = simulate(recipe("parallel.data=2", "parallel.tensor=4", "train.batch_tokens=128"), VOCAB, 6)
    assert found.axes == {"replica": (1, 2), "tensor": (2, 4)}
    assert ("all_reduce", ("tensor",)) in calls(found)
    assert found.state["weights"] < 4 * count_parameters(recipe().model, VOCAB) / 3


def test_a_step_of_many_microbatches_is_that_of_few_and_what_each_adds():
    words = ("parallel.data=4", "parallel.shard=everything", "train.sequence=32")
    three, many = (simulate(recipe(*words, f"train.batch_tokens={128 * count}"), VOCAB, 0) for count in (3, 40))
    two, four = (simulate(recipe(*words, f"train.batch_tokens={128 * count}"), VOCAB, 0) for count in (2, 4))
    each = {kind: size - calls(two)[kind] for kind, size in calls(three).items()}
    assert calls(four) == {kind: size + each[kind] for kind, size in calls(three).items()}
    assert calls(many) == {kind: size + 37 * each[kind] for kind, size in calls(three).items()}
    assert many.peak == pytest.approx(three.peak, rel=0.01)


def test_recomputation_takes_less_memory():
    whole, less = (
        simulate(recipe("train.sequence=256", "train.batch_tokens=512", *words), VOCAB, 0)
        for words in ((), ("parallel.recompute=block",))
    )
    assert less.peak < whole.peak


def test_a_mixture_of_experts_has_equal_loads():
    words = ("model.mlp.kind=experts", "model.mlp.count=4", "model.mlp.active=2", "model.mlp.hidden=32")
    words += ("train.batch_tokens=512",)
    assert simulate(recipe(*words, "parallel.data=8"), VOCAB, 0).peak > 0
    found = simulate(recipe(*words, "parallel.data=2", "parallel.expert=4"), VOCAB, 3)
    assert found.axes == {"replica": (0, 2), "expert": (3, 4)}
    assert ("all_to_all", ("expert",)) in calls(found)


def test_a_rank_outside_of_the_world_is_refused():
    with pytest.raises(UsageError, match="--rank 8: the ranks of a world of 8 are 0 to 7"):
        simulate(recipe("parallel.data=8"), VOCAB, 8)


@pytest.mark.parametrize(("schedule", "layers", "tokens"), [("1f1b", 3, 4096), ("zbv", 5, 256)])
def test_a_rank_of_a_pipeline_holds_its_stages_and_sends_to_its_neighbour(schedule: str, layers: int, tokens: int):
    words = (f"model.layers={layers}", f"parallel.pipeline={{stages=2,schedule='{schedule}'}}", "parallel.data=2")
    made = recipe(*words, "parallel.shard=everything", f"train.batch_tokens={tokens}")
    held = held_values(made.model, VOCAB, made.parallel, made.train.sequence)
    states = 2 * made.parallel.pipeline.chunks_per_rank - 1  # messages of hidden states and gradients per microbatch
    for rank, values in ((0, held[0]), (3, held[1])):
        found = simulate(made, VOCAB, rank)
        assert found.axes == {"pipeline": (rank // 2, 2), "shard": (rank % 2, 2)}
        assert found.state["weights"] == pytest.approx(4 * values / 2, rel=0.01)
        sent = 4 * 32 * 64 * found.microbatches * states
        assert calls(found)["send", ("pipeline",)] == pytest.approx(sent, rel=0.5)


@pytest.mark.parametrize("kind", ["sequential", "parallel"])
@pytest.mark.parametrize(
    ("layout", "rank", "stage"),
    [("parallel.tensor=2", 1, 0), ("parallel.pipeline=2", 0, 0), ("parallel.pipeline=2", 1, 1)],
)
def test_the_planner_knows_what_ranks_hold_of_multi_token_prediction(layout: str, rank: int, stage: int, kind: str):
    sizes = "model.layers=2", "train.sequence=256", "train.batch_tokens=768", "train.precision=bf16"
    made = recipe(f"model.mtp={{kind='{kind}',depth=2}}", *sizes, layout)
    found = simulate(made, VOCAB, rank)
    planned = estimate_memory(made, VOCAB, parse_cluster("8xH100").device, traced=True)[stage]
    assert planned.parameters == found.parameters
    assert planned.kept == pytest.approx(found.kept, rel=1e-3)


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "dualpipev"])
def test_a_finished_microbatch_keeps_nothing_where_backward_is_in_two_parts(schedule: str):
    """Within what caught gradients take, of which the planner knows nothing."""
    words = "model.layers=4", "train.sequence=256", "train.micro_batch=1", "train.batch_tokens=1024"
    made = recipe(*words, "train.precision=bf16", f"parallel.pipeline={{stages=2,schedule='{schedule}'}}")
    for rank, planned in enumerate(estimate_memory(made, VOCAB, parse_cluster("8xH100").device, traced=True)):
        assert planned.kept == pytest.approx(simulate(made, VOCAB, rank).kept, rel=0.1)
