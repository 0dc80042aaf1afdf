"""Memory by phase: published figures, and what must hold of every layout."""

import tomllib
from pathlib import Path

import pytest

from benchmarks.plan.mixed import MixedHolding
from hornbook.errors import UsageError
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.mlp_config import ExpertsConfig, GLUConfig, PlainMLPConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import count_parameters
from hornbook.model.config.part import Rows
from hornbook.parallel.axes.pipeline.forecast import fullest
from hornbook.parallel.config import ParallelConfig, SelectiveRecompute
from hornbook.plan.counts.share import tensor_share
from hornbook.plan.devices.hardware import Device, parse_cluster
from hornbook.plan.holding.own import HOLES
from hornbook.plan.planned_memory import RankMemory, estimate_memory
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

GIB = 2**30
MODELS = tomllib.loads(Path(__file__).with_name("published_models.toml").read_text(encoding="utf-8"))


def model_of(row: list[int]) -> ModelConfig:
    _, layers, width, heads, keys, dim, hidden, vocab, tied, bias, norm, experts, active = row
    attention = FullAttentionConfig(kv_heads=keys, head_dim=dim, bias=bool(bias), qk_norm="head" if norm else "none")
    mlp = ExpertsConfig(count=experts, active=active, hidden=hidden) if experts else GLUConfig(hidden=hidden)
    model = ModelConfig(layers=layers, width=width, heads=heads, vocab=vocab, attention=attention, mlp=mlp)
    return model.model_copy(update={"head": model.head.model_copy(update={"tied": bool(tied)})})


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_published_models(name: str) -> None:
    row = MODELS[name]
    assert count_parameters(model_of(row), row[7]) == row[0]


def test_gpt3_in_float32_takes_700_gigabytes() -> None:
    recipe = resolve("gpt3-175b", environ={}).recipe
    assert recipe.model.vocab is not None
    assert 4 * count_parameters(recipe.model, recipe.model.vocab) == pytest.approx(700e9, rel=0.005)


@pytest.mark.parametrize(
    ("shard", "gigabytes"), [("none", 120), ("optimizer", 31.4), ("gradients", 16.6), ("everything", 1.88)]
)
def test_stages_of_zero_take_what_its_paper_says(shard: str, gigabytes: float) -> None:
    """Figure 1 of arXiv 1910.02054: 7.5B parameters on 64 ranks."""
    recipe = Recipe(parallel=ParallelConfig.model_validate({"data": 64, "shard": shard}))
    state = MixedHolding(gradients=2.0).state(recipe, 7_500_000_000)
    assert sum(state.values()) == pytest.approx(gigabytes * 1e9, rel=0.003)


KORTHIKANTI = {
    "22B": (48, 6144, 64, 4, 1, 1, 59.25, 9.5625, 45.5625),
    "175B": (96, 12288, 96, 1, 8, 3, 66.84375, 12.3515625, 45.5625),
    "530B": (105, 20480, 128, 1, 35, 3, 114.0234375, 23.076171875, 31.640625),
    "1T": (128, 25600, 160, 1, 64, 1, 131.25, 26.5625, 32.958984375),
}


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_activations_are_those_of_korthikanti(name: str) -> None:
    """Figure 1 of arXiv 2205.05198, 8 tensor ranks: without and with sequence parallelism and less kept."""
    layers, width, heads, rows, stages, chunks, whole, less, state = KORTHIKANTI[name]
    model = ModelConfig(
        layers=layers,
        width=width,
        heads=heads,
        attention=FullAttentionConfig(dropout=0.1),
        mlp=PlainMLPConfig(),
        dropout=0.1,
    )
    share, holding = tensor_share(model, 8), MixedHolding(stores_scores=True)
    plain = Recipe(model=model)
    again = Recipe(model=model, parallel=ParallelConfig(recompute=SelectiveRecompute()))
    each = layers // (stages * chunks)
    schedule = "interleaved" if chunks > 1 else "1f1b"
    most = max(map(sum, fullest(schedule, 0, stages, chunks, 2 * stages)))
    for recipe, stream_ranks, gib in ((plain, 1, whole), (again, 8, less)):
        found = holding.blocks(recipe, share, Rows(rows, 2048, 2, stream_ranks=stream_ranks))[0].whole
        assert most * each * found == gib * GIB
    held = 12 * layers * width**2 // (8 * stages)
    assert sum(holding.state(plain, held).values()) == state * GIB


# ---- hornbook's own


def estimate(*words: str, cluster: str = "8xH100") -> list[RankMemory]:
    recipe = resolve(
        None,
        ["model.layers=8", "model.width=256", "model.heads=8", "model.vocab=4096", "train.sequence=512", *words],
        environ={},
    ).recipe
    return estimate_memory(recipe, 4096, parse_cluster(cluster).device)


def test_state_is_shared_as_zero_shares_it() -> None:
    whole, shared = estimate("parallel.data=8")[0], estimate("parallel.data=8", "parallel.shard=everything")[0]
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(shared.peak, name) == pytest.approx(getattr(whole.peak, name) / 8, rel=0.01)
    assert whole.peak.weights == 4 * whole.parameters


@pytest.mark.parametrize("average", ["none", "mean"])
def test_weights_on_the_host_leave_the_device(average: str) -> None:
    words = ["parallel.data=4", "parallel.shard=everything", "train.batch_tokens=16384", f"train.average={average}"]
    names = ("optimizer", "parameters", "activations")
    moved = [f"parallel.offload.{name}={str(name != 'activations').lower()}" for name in names]
    (plain,), (held,) = estimate(*words), estimate(*words, "parallel.offload=cpu", *moved)
    left, gone = held.phases["update"], plain.phases["update"]
    assert (left.weights, left.gradients, left.optimizer) == (0, 0, 0)
    assert (plain.elsewhere, held.elsewhere) == (0, gone.weights + gone.gradients + gone.optimizer)
    assert gone.total - left.total == held.elsewhere


def test_blocks_of_multi_token_prediction_are_held_and_their_losses_gradients_too() -> None:
    plain, further = estimate()[0], estimate("model.mtp=sequential", "model.mtp.depth=2")[0]
    assert further.parameters > plain.parameters + 2 * 12 * 256**2
    assert further.peak.weights == 4 * further.parameters
    gradients = 2 * 4 * 4096 * 256  # of the matrix to the vocabulary, by the loss of each
    blocks = plain.phases["loss"].activations / 8
    assert further.phases["loss"].activations > plain.phases["loss"].activations + gradients + 1.5 * blocks


def test_recomputed_blocks_keep_their_input_alone() -> None:
    kept, again = estimate()[0], estimate("parallel.recompute=block")[0]
    stream = 2 * 8 * 512 * 256
    blocks = again.phases["loss"].activations - 8 * stream
    assert 0 < blocks < 0.2 * kept.phases["loss"].activations
    assert again.phases["backward"].temporaries > kept.phases["backward"].temporaries


def test_the_first_stage_holds_as_many_microbatches_as_there_are_stages() -> None:
    found = estimate("parallel.pipeline=4", "train.micro_batch=2", "train.batch_tokens=65536")
    assert [rank.under_way for rank in found] == [4, 3, 2, 1]
    assert found[0].phases["loss"].activations > 2 * found[3].phases["loss"].activations
    assert found[0].phases["loss"].logits == 0 < found[3].phases["loss"].logits
    assert {name for rank in found for name in rank.phases} == {"loss", "backward", "update"}


def test_the_peak_is_the_worst_phase_and_not_the_sum_of_all() -> None:
    rank = estimate()[0]
    totals = [phase.total for phase in rank.phases.values()]
    assert rank.peak.total == max(totals) < sum(totals)
    assert rank.phases["update"].activations == 0


def test_tensor_ranks_divide_what_lies_between_products_with_sequence_parallelism_alone() -> None:
    one, four, divided = (
        estimate(*words)[0].phases["loss"].activations
        for words in ([], ["parallel.tensor=4"], ["parallel.tensor=4", "parallel.sequence=true"])
    )
    assert one / 4 <= divided < four < one


def test_a_part_that_does_not_say_what_it_keeps_is_named() -> None:
    with pytest.raises(UsageError, match="keep"):
        estimate("model.mlp={kind='experts', count=4, active=2, hidden=64, capacity=1.0}")


def test_a_gpu_keeps_sums_in_place_of_probabilities() -> None:
    cpu = Device(name="a CPU", fp32=1.0, memory=64, bandwidth=50)
    words = ["model.layers=2", "model.width=256", "model.heads=8", "train.sequence=256", "train.compile=true"]
    recipe = resolve(None, words, {}).recipe
    sizes = [
        estimate_memory(recipe, 64, device)[0].phases["loss"].activations
        for device in (cpu, parse_cluster("H100").device)
    ]
    pairs = 128 * 128 + 128 * 256  # two tiles of 128 queries
    layers, rows, heads = 2, 8, 8
    assert sizes[0] - sizes[1] == layers * rows * heads * (2 * pairs - 4 * 256)


def test_without_compilation_a_gpu_keeps_what_each_operation_does() -> None:
    compiled, eager = (estimate(f"train.compile={word}", "train.precision=bf16")[0] for word in ("true", "false"))
    layers, tokens, width, hidden = 8, 8 * 512, 256, 704
    # float32 copies in place of inputs of norms, values beside queries and keys, an activation and a product
    more = layers * tokens * (2 * 2 * width + 2 * 2 * width + 2 * 2 * hidden)
    assert eager.phases["loss"].activations - compiled.phases["loss"].activations == more


def test_gradients_of_one_microbatch_come_with_its_backward_pass() -> None:
    one = estimate("train.micro_batch=8", "train.batch_tokens=4096")[0].phases
    two = estimate("train.micro_batch=8", "train.batch_tokens=8192")[0].phases
    assert one["loss"].gradients == 0 < one["update"].gradients == two["loss"].gradients
    assert one["loss"].activations == two["loss"].activations


def test_weights_cast_for_products_are_held_once_for_all_microbatches_of_a_pipeline() -> None:
    words = ("parallel.pipeline.stages=4", "parallel.pipeline.cuts=[2, 4, 6]", "train.micro_batch=2")
    many = estimate(*words, "train.precision=bf16", "train.batch_tokens=65536")
    cast = 2 * 2 * (4 * 256 * 256 + 3 * 256 * 704)
    assert (many[1].under_way, many[2].under_way) == (3, 2)
    first, second = (rank.phases["loss"].activations for rank in many[1:3])
    shared = 8 * 2 * 512 * 4  # positions, which all blocks read
    assert first - 3 * (first - second) == pytest.approx(cast, abs=shared)


def test_a_cpu_holds_holes_of_low_rank_updates_and_what_a_kernel_would_not_keep() -> None:
    """`python -m benchmarks.plan.runs "lora fp32"` measures a whole step."""
    words = ["model.layers=2", "model.width=256", "model.heads=4", "train.sequence=256", "train.micro_batch=4"]
    recipe = resolve("tiny", [*words, "train.precision=fp32", 'surgery=["lora"]'], {}).recipe
    cpu = Device(name="a CPU", fp32=1.0, memory=64, bandwidth=50)
    real, traced = (estimate_memory(recipe, 64, cpu, traced=each)[0].kept for each in (False, True))
    hidden, outputs = recipe.model.hidden, 5 * 256 + 2 * recipe.model.hidden
    layer, tokens = hidden + HOLES * outputs, 4 * 256
    plain = resolve("tiny", [*words, "train.precision=fp32"], {}).recipe
    base, base_traced = (estimate_memory(plain, 64, cpu, traced=each)[0].kept for each in (False, True))
    frozen = 2 * 2 * 4 * tokens * 256  # norms' float32 copies that a trace of trained ones keeps
    assert real - base - (traced - base_traced) == pytest.approx(2 * 4 * tokens * layer + frozen, rel=0.02)


def test_every_other_product_is_kept_in_the_order_they_are_computed() -> None:
    """torchtitan's selective option `op`: of query, key, value, out, gate, up, down the odd ones, and attention."""
    model = resolve("llama-3-8b", environ={}).recipe.model
    recipe = Recipe(model=model, parallel=ParallelConfig(recompute=SelectiveRecompute()))
    rows = Rows(1, 8192, 2)
    kept = MixedHolding(keeps_products=True).blocks(recipe, model, rows)[0].whole
    products = {"query": 4096, "value": 1024, "gate": 14336, "down": 4096}
    assert kept == 8192 * (2 * (4096 + 4096 + sum(products.values())) + 4 * 32)
