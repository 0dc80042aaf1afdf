"""Physics of a step's time: kernels, messages, what a trainer hides."""

from collections import Counter
from typing import Any

import pytest

from hornbook.model.config.flops import step_operations
from hornbook.model.config.parameter_count import count_parameters
from hornbook.parallel.world import AXES
from hornbook.plan.devices.collective_times import LINK_HOP, NETWORK_HOP, Group, group
from hornbook.plan.devices.device_rates import calibration, rates_of, shares_of
from hornbook.plan.devices.hardware import known_devices, parse_cluster
from hornbook.plan.planner import trainer_of
from hornbook.plan.step_time import StepTime, estimate_step
from hornbook.plan.trainer import Trainer
from hornbook.plan.update_work import START_SECONDS, Multiply, Work, attention_work, filled
from hornbook.settings.resolve import resolve


def step(*words: str, cluster: str = "8xA100", **trainer: Any) -> StepTime:
    recipe = resolve("llama-1b", ["train.precision=bf16", *words], environ={}).recipe
    return estimate_step(recipe, 128256, parse_cluster(cluster), Trainer(**trainer))


def test_stored_scores_take_longer_than_a_fused_kernel() -> None:
    fused, stored = step(), step(stored_scores=True)
    assert stored.compute > 1.1 * fused.compute
    layer = resolve("llama-1b", environ={}).recipe.model.layer(0)
    work = attention_work(layer, 4096, 2048, 2, stored=True)
    assert work.products == 4.0 * 4096 * 2048 * layer.heads * layer.head_dim
    crooked = layer.model_copy(update={"attention": layer.attention.model_copy(update={"head_dim": 60})})
    slower = attention_work(crooked, 4096, 2048, 2, stored=True)
    assert slower.products == pytest.approx(work.products * 60 / layer.head_dim)
    rates = rates_of(parse_cluster("A100").device, "bf16")
    bytes_alone = slower.moved / rates.bandwidth
    assert slower.forward(rates) == pytest.approx(bytes_alone + slower.products / rates.vector)
    assert work.forward(rates) == pytest.approx(work.moved / rates.bandwidth + work.products / rates.wide)


def test_an_asynchronous_message_hides_behind_its_own_product_only() -> None:
    """Nearly all of it where products are long; of short ones as much as they take."""
    words, rows = ["parallel.tensor=8", "parallel.sequence=true"], "train.micro_batch=16"
    shown = step(*words, rows).tensor
    hidden = step(*words, rows, asynchronous=True).tensor
    assert 0.1 * shown < hidden < shown
    narrow = [f"model.mlp.hidden={size}" for size in (8192, 1024)]
    wide, thin = (step(*words, rows, each, asynchronous=True).tensor for each in narrow)
    assert wide < thin < shown


def test_selective_recomputation_gathers_a_divided_stream_again() -> None:
    words = ["train.compile=false", "parallel.tensor=8", "parallel.recompute=selective", "train.micro_batch=16"]
    for divided, low, high in (("true", 0.2, 0.25), ("false", 0.0, 1e-9)):
        alone, more = (step(*words, f"parallel.sequence={divided}", again=again) for again in (0.0, 1e-6))
        blocks = more.tensor  # of which the head has a part
        assert low * blocks <= more.recompute - alone.recompute <= high * blocks


def test_blocks_of_multi_token_prediction_take_the_time_of_blocks_and_of_the_head() -> None:
    """Nearly in the proportion of operations."""
    plain, further = (step(*words) for words in ((), ("model.mtp=sequential", "model.mtp.depth=2")))
    models = [
        resolve("llama-1b", words, environ={}).recipe.model
        for words in ([], ["model.mtp=sequential", "model.mtp.depth=2"])
    ]
    operations = [step_operations(model, 128256, 2048, (2048, 0)).causal for model in models]
    assert further.compute / plain.compute == pytest.approx(operations[1] / operations[0], rel=0.05)


def test_a_generator_takes_the_time_of_its_own_blocks() -> None:
    cluster, seconds = parse_cluster("8xA100"), dict[float, float]()
    for share in (0.0, 0.25, 1.0):
        words = ["data.objective.kind=replaced", "model.head.kind=replaced", f"model.head.generator.share={share}"]
        recipe = resolve("bert-base", words if share else [], environ={}).recipe
        seconds[share] = estimate_step(recipe, 30522, cluster, trainer_of(recipe)).compute
    assert 1.05 < seconds[0.25] / seconds[0] < 1.5
    assert 1.8 < seconds[1.0] / seconds[0] < 2.2


def test_a_device_is_not_faster_than_its_host_starts_kernels() -> None:
    rates = rates_of(parse_cluster("H100").device, "bf16")
    assert Work((Multiply(8, 8, 8),), calls=100).forward(rates) == pytest.approx(100 * START_SECONDS)
    large = Multiply(2**16, 2**13, 2**13)
    assert Work((large,), calls=100).forward(rates) > large.flops / rates.products > 100 * START_SECONDS


def test_backward_adds_to_the_gradient_in_its_own_precision() -> None:
    rates = rates_of(parse_cluster("H100").device, "bf16")
    few = Multiply(16, 4096, 4096)  # rows so few that bytes count
    assert few.backward(rates, 2, 4.0) - few.backward(rates, 2, 2.0) == pytest.approx(4 * 4096**2 / rates.bandwidth)
    many = Multiply(2**16, 4096, 4096)
    assert many.backward(rates, 2, 4.0) == many.backward(rates, 2, 2.0)


@pytest.mark.parametrize("cluster", ["H100", "8xH100"])
def test_frozen_weights_have_no_gradients_to_compute_and_to_send(cluster: str) -> None:
    """Backward of an adapter's base has one product for each of forward, not two; the adapter adds to both."""
    words = [f"parallel.data={cluster.removesuffix('xH100') if 'x' in cluster else 1}", "train.micro_batch=4"]
    recipe = resolve("llama-1b", ["train.precision=bf16", *words], environ={}).recipe
    frozen = [["train.precision=bf16", f'surgery=["{kind}"]', *words] for kind in ("prompt", "lora")]
    tuned = [resolve("llama-1b", each, environ={}).recipe for each in frozen]
    found = [estimate_step(each, 128256, parse_cluster(cluster), trainer_of(each)) for each in (recipe, *tuned)]
    whole, prompt, lora = found
    assert 0.66 * whole.compute < prompt.compute < 0.85 * whole.compute
    assert prompt.compute < lora.compute < 1.4 * prompt.compute
    assert max(prompt.update, lora.update) < 0.05 * whole.update
    assert max(prompt.data, lora.data) <= 0.05 * whole.data
    longer = (recipe.train.sequence + 16) / recipe.train.sequence  # by the vectors of the prompt
    assert whole.recompute < prompt.recompute < longer**2 * whole.recompute
    assert lora.recompute > prompt.recompute


def test_casts_cost_where_products_are_narrow() -> None:
    device = parse_cluster("H100").device
    wide, narrow = rates_of(device, "bf16"), rates_of(device, "float8")
    inside, head = Multiply(2**14, 4096, 4096), Multiply(2**14, 4096, 4096, wide=True)
    assert Work((inside,)).forward(narrow) - inside.forward(narrow, 2) == pytest.approx(3 * 2**26 / narrow.bandwidth)
    assert Work((head,)).forward(narrow) == head.forward(narrow, 2) == head.forward(wide, 2)


def test_the_last_wave_of_tiles_is_not_full() -> None:
    """On 108 units 112 tiles of 256 by 128 take two waves, 96 one; a product smaller than a wave is cut inside."""
    assert filled(2048, 12 * 128, 1, 108) == pytest.approx(96 / 108)
    assert filled(2048, 14 * 128, 1, 108) == pytest.approx(0.92 * 224 / 324)  # smaller tiles waste less
    assert filled(2**16, 2**14, 1, 108) > 0.99
    assert filled(128, 128, 1, 108) == 0.5
    assert filled(128, 128, 1, 0) == 1.0
    assert filled(64, 4096, 64, 132) < filled(4096, 4096, 1, 132)


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
    beside, waiting = (estimate_step(recipe, 128256, slow, Trainer(waits=each)) for each in (False, True))
    assert waiting.total > 1.1 * beside.total
    assert waiting.tensor > beside.tensor == 0


def test_a_scattered_stream_reaches_the_next_stage_sooner() -> None:
    words = ["parallel.pipeline=4", "parallel.tensor=8", "train.micro_batch=8"]
    recipe = resolve("llama-1b", ["train.precision=bf16", *words], environ={}).recipe
    cluster = parse_cluster("4x8xA100")
    cluster = cluster.model_copy(update={"device": cluster.device.model_copy(update={"network": 1.0})})
    whole, part = (estimate_step(recipe, 128256, cluster, Trainer(scatters=each)) for each in (False, True))
    assert part.bubble < 0.7 * whole.bubble
    assert part.compute == whole.compute


def test_shares_are_six_and_say_what_they_were_fitted_on() -> None:
    names = {each.name for each in known_devices()}
    for name, shares in calibration().items():
        assert name == "default" or name in names
        values = shares.model_dump(exclude={"fitted_on"})
        assert len(values) == 6
        assert all(0.1 <= each <= 0.95 for each in values.values())
        assert shares.fitted_on
    assert shares_of(parse_cluster("H100").device) == calibration()["H100 SXM"]
    assert shares_of(parse_cluster("RTX4090").device) == calibration()["default"]


def test_a_published_utilisation_is_that_of_another_model() -> None:
    """NVIDIA prints 66.07 % for Nemotron-15B on 16 H100 (DGX Cloud recipes v25.04, bf16, 2.66 s): all pairs of a row,
    and weights of keys and values as if no heads shared them. Of the model as it is, causal, it is 55 %."""
    words = ["model.layers=32", "model.width=6144", "model.heads=48", "model.mlp=mlp", "model.mlp.hidden=24576"]
    words += ["model.vocab=256000", "model.head.tied=false", "train.sequence=4096", "model.position.length=4096"]
    found = {}
    for keys in (48, 8):
        model = resolve(None, [*words, f"model.attention.kv_heads={keys}"], environ={}).recipe.model
        found[keys] = step_operations(model, 256000, 4096, (64 * 4096, 0))
    could = 16 * 2.66 * parse_cluster("H100").device.rate("bf16")
    rounded = 0.005 / 2.66  # of a step's seconds
    assert 100 * found[48].palm / could == pytest.approx(66.07, rel=rounded)
    assert 100 * found[8].causal / could == pytest.approx(55.4, abs=0.3)


def test_single_operations_are_slower_than_compiled_ones() -> None:
    assert step(fused=False).compute > 1.1 * step().compute


def test_torch_reaches_less_of_the_best_attention_on_hopper() -> None:
    words = ["train.sequence=32768", "model.position.length=32768", "train.batch_tokens=262144", "train.micro_batch=1"]
    best, torch = (step(*words, cluster="H100", attention=each).compute for each in (1.0, None))
    assert torch > 1.2 * best
    assert step(*words, attention=1.0) == step(*words)  # on an A100 it is the best


def test_attention_that_grows_over_a_run_counts_by_its_mean() -> None:
    """Rows of 2,048 tokens that see 1,024 of them take the time of rows of 1,024."""
    ramp = ["data.sequence_ramp.kind=linear", "data.sequence_ramp.start_tokens=1024", "train.tokens=1e9"]
    rows = ["train.micro_batch=4", "train.sequence=2048"]
    whole, half = step(*rows), step("train.micro_batch=8", "train.sequence=1024")
    never, midway, at_once = (
        step(*rows, *ramp, f"data.sequence_ramp.over_tokens={over}") for over in ("1e9", "5e8", "1")
    )
    assert never.compute == pytest.approx(half.compute)
    assert midway.compute == pytest.approx((whole.compute + half.compute) / 2)
    assert at_once.compute == pytest.approx(whole.compute, rel=1e-6)
    assert half.compute < 0.99 * whole.compute


def test_a_head_of_texts_computes_one_token_of_each() -> None:
    words = ["data.objective=labels", "model.head.kind=classification", "model.head.labels=[yes,no]"]
    recipe = resolve("bert-base", words, environ={}).recipe
    assert trainer_of(recipe).targets == 1 / recipe.train.sequence
    masked = resolve("bert-base", environ={}).recipe
    assert trainer_of(masked).targets == 0.15


def test_gradients_of_weights_in_16_bits_are_summed_in_32() -> None:
    """As ranks send them: `tests/studio/explore/test_measure.py` counts their bytes."""
    for words, gradient, weight in (
        ([], 4, 4),
        (["train.precision=bf16-pure"], 4, 2),
        (["train.precision=bf16-pure", "parallel.compress=bf16", "parallel.data=2", "train.micro_batch=8"], 2, 2),
    ):
        trainer = trainer_of(resolve("tiny", words, environ={}).recipe)
        assert (trainer.gradient_bytes, trainer.weight_bytes) == (gradient, weight)


def test_a_host_that_waits_for_each_kernel_adds_its_time() -> None:
    """20 kernels of a block forward, 40 backward and 20 again, of each microbatch; as many of the head's five."""
    words = ["parallel.data=8", "train.micro_batch=1", "parallel.recompute=block"]
    free, waits = step(*words), step(*words, gap=42e-6)
    recipe = resolve("llama-1b", words, environ={}).recipe
    microbatches = recipe.train.num_microbatches / 8
    waited = waits.compute + waits.recompute - free.compute - free.recompute
    assert waited == pytest.approx(microbatches * 40e-6 * (80 * recipe.model.layers + 15))


@pytest.mark.parametrize(
    ("ranks", "stride"), [(2, 1), (3, 1), (6, 1), (8, 1), (12, 1), (24, 1), (3, 2), (6, 4), (4, 8)]
)
def test_a_ring_is_as_fast_as_the_cards_of_its_smallest_part(ranks: int, stride: int) -> None:
    """Compared with the machines of every group of ranks: 3 neighbours on machines of 8 are on two for some."""
    cluster = parse_cluster("24x8xH100")
    parts = []
    for first in range(0, cluster.count, ranks * stride):
        for offset in range(stride):
            machines = Counter((first + offset + stride * number) // 8 for number in range(ranks))
            parts.append(min(machines.values()) if len(machines) > 1 else ranks)
    found = group(cluster, ranks, stride, 450e9, 50e9)
    assert found.inside == min(parts)
    assert found.bandwidth == (450e9 if found.inside == ranks else min(450e9, 50e9 * found.inside))


def test_a_group_fits_a_rack_that_it_does_not_divide() -> None:
    assert group(parse_cluster("64x4xGB200"), 64, 1, 900e9, 50e9).inside == 64


def test_expert_ranks_are_neighbours_as_in_the_world() -> None:
    """With 4 of them on machines of 8 the ranks of 4 tensor ranks lie on two machines."""
    words = ["parallel.tensor=4", "parallel.expert=4", "parallel.sequence=true", "train.micro_batch=1"]
    recipe = resolve("mixtral-8x7b", ["train.precision=bf16", *words], environ={}).recipe
    cluster = parse_cluster("2x8xH100")
    assert AXES[-1] == Trainer().innermost
    assert AXES[-2] == "tensor"
    ours, others = (estimate_step(recipe, 32000, cluster, Trainer(innermost=axis)) for axis in ("expert", "tensor"))
    assert ours.tensor > 1.5 * others.tensor


def test_gradients_of_whole_models_cross_behind_backward_where_other_axes_are_divided() -> None:
    """`hornbook.parallel.data_parallel.Unsharded` sums early among data ranks alone."""
    shown = {}
    for words in (["parallel.data=8"], ["parallel.data=8", "parallel.tensor=2"], ["parallel.data=4"]):
        recipe = resolve("llama-1b", ["train.precision=bf16", *words], environ={}).recipe
        cluster = parse_cluster(f"{recipe.parallel.world // 8 or 1}x8xA100")
        shown[tuple(words)] = estimate_step(recipe, 128256, cluster, trainer_of(recipe)).data
        bare = estimate_step(recipe, 128256, cluster, Trainer(beside_data=False)).data
        early = recipe.parallel.world == recipe.parallel.data
        assert shown[tuple(words)] == pytest.approx(bare * (0.1 if early else 1.0))


@pytest.mark.parametrize(("shard", "rounds"), [("optimizer", 1), ("gradients", 16), ("everything", 16)])
def test_replicas_add_up_their_shards_as_often_as_gradients_are_scattered(shard: str, rounds: int) -> None:
    """Once a step with ZeRO-1, after each of 16 microbatches with the others: torch's FSDP does it by each block."""
    words = [f"parallel.shard={shard}", "parallel.data=16", "train.micro_batch=1"]
    time = {}
    for network in (50.0, 5.0):
        cluster = parse_cluster("2x8xA100")
        cluster = cluster.model_copy(update={"device": cluster.device.model_copy(update={"network": network})})
        recipe = resolve("llama-1b", ["train.precision=bf16", *words, "parallel.replicas=2"], environ={}).recipe
        time[network] = estimate_step(recipe, 128256, cluster, Trainer(beside_data=False)).data
    share = shares_of(parse_cluster("A100").device).network
    gradients = 4.0 * count_parameters(recipe.model, 128256) / 8
    assert time[5.0] - time[50.0] == pytest.approx(rounds * gradients / share * (1 / 5e9 - 1 / 50e9), rel=1e-3)


def test_each_block_of_a_sharded_model_goes_round_the_ring_on_its_own() -> None:
    """Scatters and gathers have no tree: on 4,096 machines the first byte takes 57 ms to come round."""
    cluster, blocks = parse_cluster("4096x8xA100"), 16
    words = ["parallel.data=32768", "train.batch_tokens=134217728", "train.micro_batch=1"]
    for shard, calls in (("optimizer", 2), ("gradients", 2), ("everything", 3)):
        recipe = resolve("llama-1b", ["train.precision=bf16", f"parallel.shard={shard}", *words], environ={}).recipe
        data = estimate_step(recipe, 128256, cluster, Trainer(beside_data=False)).data
        assert data > calls * blocks * (28672 * LINK_HOP + 4096 * NETWORK_HOP)
