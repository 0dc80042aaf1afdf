"""The engine of one process: exact accumulation, guarded updates, and looking without touching."""

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from hornbook.data.batch import Batch
from hornbook.errors import IntegrityError
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.mlp_config import GLUConfig
from hornbook.model.config.model_config import LMHead, ModelConfig
from hornbook.model.init.init import initialize
from hornbook.model.layers.linear import Linear
from hornbook.model.mlp.blend import set_activation
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.clipping_config import AnyClip, NormClip, StepLimits, ValueClip
from hornbook.optim.config.optim import AdamW
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel import compiled_model as compiled
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.settings.training import TrainConfig

VOCAB = 64
CONFIG = ModelConfig(layers=2, width=32, heads=2, head=LMHead(tied=False))


pytestmark = pytest.mark.usefixtures("one_thread")


def make_engine(config: ModelConfig = CONFIG, recompute: str = "none", **train: object) -> Engine:
    model = build_model(config, VOCAB)
    parallel = ParallelConfig.model_validate({"recompute": recompute})
    engine = parallelize(model, parallel, TrainConfig.model_validate({"precision": "fp32", "device": "cpu", **train}))
    initialize(model, config, seed=3)
    return engine


def make_batch(rows: int, sequence: int = 16, seed: int = 0, masked: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (rows, sequence), generator=generator)
    weights = torch.ones(rows, sequence)
    weights[:, sequence - masked :] = 0.0
    return Batch(
        tokens=tokens,
        targets=torch.randint(0, VOCAB, (rows, sequence), generator=generator),
        weights=weights,
        positions=torch.arange(sequence).expand(rows, -1),
        document_lengths=[(sequence,)] * rows,
        samples=torch.arange(rows) + 100 * seed,
        sources=torch.zeros(rows, dtype=torch.int64),
    )


class Replayed(torch.autograd.Function):
    """A weight whose gradient each backward pass writes into the same memory, as each replay of a CUDA graph does."""

    @staticmethod
    def forward(ctx, weight: Tensor, memory: Tensor) -> Tensor:
        ctx.memory = memory
        return weight.clone()

    @staticmethod
    def backward(ctx, *grads: Tensor):
        return ctx.memory.copy_(grads[0]).detach(), None


class ReplayedWeight(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.memory = torch.zeros_like(weight)

    def forward(self, weight: Tensor) -> Tensor:
        return Replayed.apply(weight, self.memory)


@pytest.mark.parametrize("sizes", [[4], [2, 2], [1, 2, 1]])
def test_gradients_outlive_the_memory_of_graphs(sizes: list[int]) -> None:
    """`train.cuda_graphs`: a replay overwrites the gradients of the microbatch before, which must be summed by then."""
    batches, plain, replayed = split(make_batch(4), sizes), make_engine(), make_engine()
    for layer in replayed.model.modules():
        if isinstance(layer, Linear):
            layer.code = ReplayedWeight(layer.weight)
    replayed._compiled.keeps_memory = True
    for _ in range(2):
        for engine in (plain, replayed):
            engine.zero_gradients()
            engine.forward_backward(batches, 64.0)
        wanted, got = gradients(plain), gradients(replayed)
        assert all(torch.allclose(got[name], want, rtol=1e-5, atol=1e-7) for name, want in wanted.items())


def split(batch: Batch, sizes: list[int]) -> list[Batch]:
    parts, first = [], 0
    for size in sizes:
        rows = slice(first, first + size)
        fields = {name: getattr(batch, name) for name in Batch.__dataclass_fields__ if name != "is_empty"}
        parts.append(Batch(**{name: field[rows] for name, field in fields.items() if field is not None}))
        first += size
    return parts


def gradients(engine: Engine) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in engine.named_parameters.items() if p.grad is not None}


def test_ragged_microbatches_equal_one_big_batch() -> None:
    """The weights differ between rows, so that a mean of means would be another number."""
    engine = make_engine()
    whole = make_batch(7)
    whole.weights[0, 3:] = 0.0
    whole.weights[5, 10:] = 0.0
    total = float(whole.weights.sum())
    engine.zero_gradients()
    one = engine.forward_backward([whole], total)
    expected = gradients(engine)
    engine.zero_gradients()
    many = engine.forward_backward(split(whole, [1, 3, 2, 1]), total)
    torch.testing.assert_close(many["loss"], one["loss"], rtol=1e-6, atol=0)
    assert expected.keys() == engine.named_parameters.keys()
    for name, gradient in gradients(engine).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=1e-6 * float(expected[name].abs().max()))


def test_gradient_is_that_of_the_mean_over_all_targets() -> None:
    """Against plain autograd through plain logits."""
    engine = make_engine()
    batches = [make_batch(2, seed=1, masked=4), make_batch(3, seed=2)]
    total = sum(float(batch.weights.sum()) for batch in batches)
    engine.zero_gradients()
    losses = engine.forward_backward(batches, total)
    found = gradients(engine)
    engine.zero_gradients()
    nats = torch.zeros(())
    for batch in batches:
        hidden, _ = engine.model(batch.tokens, batch.positions)
        assert engine.model.head is not None
        logits = engine.model.head.logits(hidden)
        nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
        nats = nats + (nll * batch.weights.flatten()).sum()
    (nats / total).backward()
    torch.testing.assert_close(losses["loss"], nats.detach(), rtol=1e-6, atol=0)
    for name, gradient in gradients(engine).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=2e-7)


def test_the_same_step_has_the_same_bits() -> None:
    engine = make_engine()
    batches = split(make_batch(6), [2, 2, 2])
    engine.zero_gradients()
    engine.forward_backward(batches, 96.0)
    first = gradients(engine)
    engine.zero_gradients()
    engine.forward_backward(batches, 96.0)
    assert all(torch.equal(gradient, first[name]) for name, gradient in gradients(engine).items())


@pytest.mark.parametrize("limit", [0.0, 0.1, 1e6])
def test_clipping_is_by_the_global_norm(limit: float) -> None:
    engine = make_engine()
    engine.zero_gradients()
    engine.forward_backward([make_batch(4)], 64.0)
    before = gradients(engine)
    norm = engine.clip_gradients(limit)
    expected = torch.cat([gradient.double().flatten() for gradient in before.values()]).norm()
    torch.testing.assert_close(norm.double(), expected, rtol=1e-6, atol=0)
    scale = min(1.0, limit / (float(norm) + 1e-6)) if limit else 1.0
    for name, gradient in gradients(engine).items():
        torch.testing.assert_close(gradient, before[name] * scale, rtol=1e-6, atol=1e-12)
    if scale == 1.0:
        assert all(torch.equal(gradient, before[name]) for name, gradient in gradients(engine).items())


def weights_of(engine: Engine) -> dict[str, Tensor]:
    return {name: shard.tensor.detach().clone() for name, shard in engine.shards.items()}


def snapshot(engine: Engine, optimizer: Optimizer) -> dict[str, Tensor]:
    return weights_of(engine) | {f"{name}.{each.name}": tensor.clone() for name, each, tensor in optimizer.state()}


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def take_step(
    engine: Engine,
    optimizer: Optimizer,
    batch: Batch,
    spoil: tuple[str, float] | None = None,
    limits: StepLimits | None = None,
) -> float:
    engine.zero_gradients()
    engine.forward_backward([batch], float(batch.weights.sum()))
    if spoil is not None:
        gradient = engine.named_parameters[spoil[0]].grad
        assert gradient is not None
        gradient.view(-1)[gradient.numel() // 2] = spoil[1]
    engine.clip_gradients(1.0, limits)
    return float(engine.step(optimizer))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e38, -1e38])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_bad_gradient_anywhere_changes_no_bit(value: float, precision: str) -> None:
    engine = make_engine(precision=precision)
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(engine.model), AdamW())
    assert take_step(engine, optimizer, make_batch(2, seed=1)) == 1.0
    before = snapshot(engine, optimizer)
    for name in engine.named_parameters:
        assert take_step(engine, optimizer, make_batch(2, seed=2), spoil=(name, value)) == 0.0
        assert same_bits(snapshot(engine, optimizer), before), name

    twin = make_engine(precision=precision)
    other = build_optimizer(twin.named_parameters, parameter_roles(twin.model), AdamW())
    take_step(twin, other, make_batch(2, seed=1))
    for each, its in ((engine, optimizer), (twin, other)):
        assert take_step(each, its, make_batch(2, seed=3)) == 1.0
    assert same_bits(snapshot(engine, optimizer), snapshot(twin, other))


def test_a_loss_that_is_not_finite_is_refused_even_if_gradients_were_fine() -> None:
    engine = make_engine()
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(engine.model), AdamW())
    engine.zero_gradients()
    engine.forward_backward([make_batch(2)], 32.0)
    engine._sums = (torch.tensor(float("inf")), *engine._sums[1:])
    before = snapshot(engine, optimizer)
    engine.clip_gradients(1.0)
    assert float(engine.step(optimizer)) == 0.0
    assert same_bits(snapshot(engine, optimizer), before)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_beyond_its_limits_is_refused_and_says_nothing_about_the_scale(precision: str) -> None:
    engine = make_engine(precision=precision)
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(engine.model), AdamW())
    assert take_step(engine, optimizer, make_batch(2)) == 1.0
    before, scale = snapshot(engine, optimizer), engine.scaler and engine.scaler.state()
    batch = make_batch(2, seed=1)
    engine.zero_gradients()
    losses = engine.forward_backward([batch], weight := float(batch.weights.sum()))
    norm, loss = float(engine.clip_gradients(0.0)), float(losses["loss"]) / weight
    spike = StepLimits(spike_norm=0.99 * norm, spike_loss=0.99 * loss)
    for limits in (StepLimits(norm=0.99 * norm), StepLimits(loss=0.99 * loss), spike):
        assert take_step(engine, optimizer, batch, limits=limits) == 0.0
        assert engine.step_and_fetch(optimizer, losses["loss"])[0] is False
        assert same_bits(snapshot(engine, optimizer), before)
        assert (engine.scaler and engine.scaler.state()) == scale
    halves = {"spike_norm": 0.99 * norm, "spike_loss": 1.01 * loss}  # a spike is both in one step
    assert take_step(engine, optimizer, batch, limits=StepLimits(norm=1.01 * norm, loss=1.01 * loss, **halves)) == 1.0
    assert not same_bits(snapshot(engine, optimizer), before)


@pytest.mark.parametrize("how", [NormClip(limit=0), NormClip(limit=1e-3), ValueClip(limit=1e3)])
def test_a_norm_that_stands_out_is_cut_and_another_keeps_every_bit(how: AnyClip) -> None:
    engine, batch = make_engine(), make_batch(2)
    found = []
    for limits in (None, StepLimits(norm_over=1e6, norm_to=0.5), StepLimits(norm_over=1e-6, norm_to=1e-2)):
        engine.zero_gradients()
        engine.forward_backward([batch], float(batch.weights.sum()))
        norm = float(engine.clip_gradients(how, limits))
        found.append((norm, gradients(engine)))
    (norm, plain), (_, same), (told, cut) = found
    assert same_bits(plain, same)
    assert told == norm > 1e-2  # the norm before is told
    after = torch.cat([each.flatten() for each in cut.values()]).norm()
    expected = 1e-3 if isinstance(how, NormClip) and how.limit else 1e-2
    assert float(after) == pytest.approx(expected, rel=1e-3)


def test_a_bad_step_does_not_spoil_the_next() -> None:
    engine = make_engine()
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(engine.model), AdamW())
    assert take_step(engine, optimizer, make_batch(2), spoil=("norm.weight", float("nan"))) == 0.0
    assert take_step(engine, optimizer, make_batch(2)) == 1.0


def test_evaluation_equals_the_training_loss_and_touches_nothing() -> None:
    engine = make_engine(CONFIG.model_copy(update={"dropout": 0.5}))
    batch = make_batch(3)
    engine.zero_gradients()
    loss = engine.forward_backward([batch], 48.0)["loss"]
    before, weights = gradients(engine), weights_of(engine)
    state = torch.get_rng_state()
    nll = engine.evaluate(batch)
    logits = engine.logits(batch.tokens)
    assert nll.shape == batch.targets.shape
    torch.testing.assert_close(nll.sum(), loss, rtol=1e-6, atol=0)
    reference = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
    torch.testing.assert_close(nll.flatten(), reference, rtol=1e-5, atol=1e-6)
    assert engine.model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(gradient, before[name]) for name, gradient in gradients(engine).items())
    assert same_bits(weights_of(engine), weights)


def test_dropout_follows_seed_step_and_sample_only() -> None:
    engine = make_engine(CONFIG.model_copy(update={"dropout": 0.3}))
    whole = make_batch(4)

    def loss(batches: list[Batch], key: tuple[int, int] | None) -> float:
        engine.zero_gradients()
        return float(engine.forward_backward(batches, 64.0, key)["loss"])

    keyed = loss([whole], (1, 5))
    torch.manual_seed(99)
    assert loss([whole], (1, 5)) == keyed
    assert loss(split(whole, [1, 2, 1]), (1, 5)) == pytest.approx(keyed, rel=1e-6)
    others = {loss([whole], key) for key in ((1, 6), (2, 5), None)}
    assert keyed not in others
    assert len(others) == 3


def test_recomputation_changes_no_bit() -> None:
    config = CONFIG.model_copy(update={"dropout": 0.2})
    plain, again = make_engine(config), make_engine(config, recompute="block")
    for engine in (plain, again):
        engine.zero_gradients()
        engine.forward_backward([make_batch(3)], 48.0, (1, 2))
    assert list(plain.named_parameters) == list(again.named_parameters)
    assert same_bits(gradients(plain), gradients(again))


def test_recomputation_keeps_less() -> None:
    """Bytes saved for backward, counted by autograd's own hooks."""

    def saved_bytes(engine: Engine) -> int:
        total, seen = 0, set()

        def pack(tensor: Tensor) -> Tensor:
            nonlocal total
            if tensor.untyped_storage().data_ptr() not in seen:
                seen.add(tensor.untyped_storage().data_ptr())
                total += tensor.untyped_storage().nbytes()
            return tensor

        batch = make_batch(8, sequence=64)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            engine.model(batch.tokens, batch.positions, batch.document_lengths)
        return total

    assert saved_bytes(make_engine(recompute="block")) < 0.5 * saved_bytes(make_engine())


def test_streams_carry_every_bit_and_refuse_what_does_not_fit() -> None:
    source, target = make_engine(), make_engine(CONFIG.model_copy(update={"layers": 2}))
    tensors = {name: torch.randn_like(tensor) for name, tensor in weights_of(source).items()}
    target.load_stream(tensors.items())
    assert same_bits(weights_of(target), tensors)
    with pytest.raises(IntegrityError, match=r"norm\.weight is missing"):
        target.load_stream((name, tensor) for name, tensor in tensors.items() if name != "norm.weight")
    with pytest.raises(IntegrityError, match="other is not of this model"):
        target.load_stream([*tensors.items(), ("other", torch.zeros(2))])
    with pytest.raises(IntegrityError, match=r"norm\.weight has shape \[3\], not \[32\]"):
        target.load_stream((tensors | {"norm.weight": torch.zeros(3)}).items())


def test_a_batch_without_targets_is_harmless() -> None:
    engine = make_engine()
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(engine.model), AdamW())
    engine.zero_gradients()
    assert float(engine.forward_backward([make_batch(2, masked=16)], 0.0)["loss"]) == 0.0
    assert float(engine.clip_gradients(1.0)) == 0.0
    assert float(engine.step(optimizer)) == 1.0
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights_of(engine).values())


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler handles its own warnings, and cannot where they are errors
def test_compiled_blocks_compute_the_same() -> None:
    plain, compiled = make_engine(), make_engine(compile=True)
    for engine in (plain, compiled):
        engine.zero_gradients()
        engine.forward_backward([make_batch(4)], 64.0)
    assert list(plain.named_parameters) == list(compiled.named_parameters)
    for name, gradient in gradients(compiled).items():
        torch.testing.assert_close(gradient, gradients(plain)[name], rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("default")  # the compiler cannot work where its own warnings are errors
def test_compiled_blocks_follow_a_blend_of_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph for each end and one for all that is between them."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    before, after = (CONFIG.model_copy(update={"mlp": GLUConfig(activation=name)}) for name in ("gelu", "relu"))
    engines, graphs, losses = [make_engine(before, compile=each) for each in (False, True)], [], []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        for engine in engines:
            set_activation(engine.model, before, after, share)
            engine.zero_gradients()
            losses.append(float(engine.forward_backward([make_batch(4)], 64.0)["loss"]))
        expected = gradients(engines[0])
        for name, gradient in gradients(engines[1]).items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
        graphs.append(counters["stats"]["unique_graphs"])
    assert losses[::2] == pytest.approx(losses[1::2], rel=1e-6)
    assert len(set(losses[::2])) == 5
    assert graphs == [1, 2, 2, 2, 3]


def test_gradients_of_logits_that_fp16_cannot_hold_are_scaled_before_they_vanish() -> None:
    found = {}
    for precision in ("fp32", "fp16"):
        engine, batch = make_engine(precision=precision), make_batch(2)
        best, second = engine.logits(batch.tokens).topk(2).values.unbind(-1)
        surest = int((best - second).argmax())
        with torch.no_grad():
            engine.named_parameters["head.weight"].mul_(18.0 / (best - second).max())
        batch.weights.zero_().view(-1)[surest] = 1.0
        batch.targets.copy_(engine.logits(batch.tokens).argmax(-1))
        engine.forward_backward([batch], 1.0)
        engine.clip_gradients(0.0)
        others = torch.arange(VOCAB) != batch.targets.view(-1)[surest]
        found[precision] = gradients(engine)["head.weight"][others]
    assert 0 < found["fp32"].abs().max() < 6e-8
    assert (found["fp16"] - found["fp32"]).norm() < 0.1 * found["fp32"].norm()


def test_noise_on_embeddings_is_of_training_alone() -> None:
    batch, losses = make_batch(4), []
    for noise, key in ((0.0, (1, 2)), (9.0, (1, 2)), (9.0, (1, 2)), (9.0, (1, 3)), (9.0, None)):
        engine = make_engine(neftune=noise)
        losses.append(float(engine.forward_backward([batch], 64.0, key)["loss"]))
        if noise:
            assert engine.evaluate(batch).equal(make_engine().evaluate(batch))
    plain, first, again, later, keyless = losses
    assert first == again
    assert len({plain, first, later}) == 3
    assert keyless == plain
    whole = make_engine(neftune=9.0)
    parts = whole.forward_backward(split(batch, [1, 3]), 64.0, (1, 2))["loss"]
    torch.testing.assert_close(float(parts), first, rtol=1e-6, atol=0)
