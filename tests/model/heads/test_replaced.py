"""Replaced-token detection: both losses and all gradients by transformers' modules; what is drawn, how it counts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hornbook.data.batch import Batch, Detection
from hornbook.errors import UsageError
from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.replaced_config import SmallerGenerator
from hornbook.model.heads.head import Head
from hornbook.model.heads.replaced import CORRUPTED, Chosen, replaced
from hornbook.model.init.init import initialize
from hornbook.model.layers.dropout import row_keys, site_keys, uniform
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.gradients.detection import detections
from hornbook.parallel.parallelize import parallelize
from hornbook.settings.training import TrainConfig

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")  # of transformers' own imports
VOCAB, TOKENS, TIME, MASK, WEIGHT = 16, 12, 24, 3, 50.0
LENGTHS = [(24,), (17, 7), (10, 14)]
USED = [24, 17, 24]
"""Tokens of each row; the last document of the second row is padding."""
ELECTRA: dict[str, Any] = {
    "kind": "encoder",
    "layers": 2,
    "width": 32,
    "heads": 4,
    "block": {"kind": "post"},
    "attention": {"kind": "full", "bias": True, "out_bias": True},
    "mlp": {"kind": "mlp", "activation": "gelu", "hidden": 48},
    "norm": {"kind": "layer", "eps": 1e-12},
    "position": {"kind": "learned", "length": 32},
    "embedding": {"norm": True, "types": 2},
    "head": {"kind": "replaced"},
}
_LAYER = {
    "attention.out": "attention.output.dense",
    "attention": "attention.self",
    "sum_norm1": "attention.output.LayerNorm",
    "sum_norm2": "output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
}
_ENDS = {
    "embedding.weight": "electra.embeddings.word_embeddings.weight",
    "positions.weight": "electra.embeddings.position_embeddings.weight",
    "entrance.types.weight": "electra.embeddings.token_type_embeddings.weight",
    "entrance.norm": "electra.embeddings.LayerNorm",
    "entrance.project": "electra.embeddings_project",
    "head.before.dense": "discriminator_predictions.dense",
    "head.weight": "discriminator_predictions.dense_prediction.weight",
    "head.bias": "discriminator_predictions.dense_prediction.bias",
}
_GENERATOR_ENDS = {
    "entrance.project": "electra.embeddings_project",
    "head.before.dense": "generator_predictions.dense",
    "head.before.norm": "generator_predictions.LayerNorm",
    "head.bias": "generator_lm_head.bias",
}


def make_engine(**head: Any) -> Engine:
    """In float64, with weights large enough that all terms are seen."""
    config = ModelConfig.model_validate(ELECTRA | {"head": ELECTRA["head"] | head})
    train = TrainConfig.model_validate({"precision": "fp32", "device": "cpu"})
    engine = parallelize(build_model(config, VOCAB), ParallelConfig(), train, num_tokens=TOKENS)
    initialize(engine.model, config, seed=3)
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.mul_(4)
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    engine.model.double()
    engine.model.compute_dtype = torch.float64
    return engine


def make_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    originals = torch.randint(4, TOKENS, (3, TIME), generator=generator)
    real = torch.arange(TIME) < torch.tensor(USED)[:, None]
    chosen = (torch.rand(3, TIME, generator=generator) < 0.4) & real
    return Batch(
        tokens=torch.where(chosen, MASK, originals),
        targets=originals,
        weights=chosen.float(),
        positions=torch.stack([torch.cat([torch.arange(each) for each in row]) for row in LENGTHS]),
        document_lengths=LENGTHS,
        samples=torch.arange(3),
        sources=torch.zeros(3, dtype=torch.int64),
        detection=Detection(torch.tensor(USED), float(chosen.sum()) / sum(USED)),
    )


def theirs_of(name: str) -> tuple[bool, str]:
    """(Whether it is the generator's, name in transformers) of one of our parameters."""
    own, inner = name.startswith("head.generator."), name.removeprefix("head.generator.")
    if inner.startswith("blocks."):
        _, number, *rest = inner.split(".")
        path = ".".join(rest)
        ours = next(each for each in _LAYER if path.startswith(f"{each}."))
        return own, f"electra.encoder.layer.{number}.{_LAYER[ours]}{path.removeprefix(ours)}"
    ends = _GENERATOR_ENDS if own else _ENDS
    ours = next(each for each in ends if inner == each or inner.startswith(f"{each}."))
    return own, ends[ours] + inner.removeprefix(ours)


def make_theirs(engine: Engine) -> tuple[nn.Module, nn.Module]:
    """(ElectraForPreTraining, ElectraForMaskedLM) with our weights; they share the embeddings."""
    transformers = pytest.importorskip("transformers")
    common = {
        "vocab_size": VOCAB,
        "embedding_size": 32,
        "num_hidden_layers": 2,
        "max_position_embeddings": 32,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "attn_implementation": "eager",
        "pad_token_id": VOCAB - 1,  # never drawn: its row has no gradient from lookups there
    }
    sizes = (32, 4, 48), (8, 1, 12)
    names = ("hidden_size", "num_attention_heads", "intermediate_size")
    configs = [transformers.ElectraConfig(**common, **dict(zip(names, each, strict=True))) for each in sizes]
    discriminator = transformers.ElectraForPreTraining(configs[0]).double()
    generator = transformers.ElectraForMaskedLM(configs[1]).double()
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
    with torch.no_grad():
        for name, parameter in engine.model.named_parameters():
            own, theirs = theirs_of(name)
            (generator if own else discriminator).get_parameter(theirs).copy_(parameter)
    return discriminator, generator


def written_out(models: tuple[nn.Module, nn.Module], batch: Batch, corrupted: Tensor) -> tuple[Tensor, Tensor]:
    """(Mean loss of the generator, mean loss of the discriminator), each document alone."""
    masked_losses, told_losses = [], []
    for row, lengths in enumerate(batch.document_lengths):
        for start, length in zip((0, lengths[0]), lengths, strict=False):
            if start >= USED[row]:
                continue
            part = slice(start, start + length)
            tokens, targets, chosen = (each[row, part] for each in (batch.tokens, batch.targets, batch.weights > 0))
            logits = models[1](input_ids=tokens[None]).logits[0]
            masked_losses.append(F.cross_entropy(logits[chosen], targets[chosen], reduction="none"))
            labels = (corrupted[row, part] != targets).double()
            told = models[0](input_ids=corrupted[row, part][None]).logits[0]
            told_losses.append(F.binary_cross_entropy_with_logits(told, labels, reduction="none"))
    return torch.cat(masked_losses).mean(), torch.cat(told_losses).mean()


def test_losses_and_gradients_are_those_of_transformers_modules() -> None:
    engine, batch = make_engine(), make_batch()
    models, total = make_theirs(engine), float(batch.weights.sum())
    found = engine.forward_backward([batch], total)
    with torch.no_grad():
        corrupted = engine.model(**engine.inputs(batch))[1][CORRUPTED]
    chosen = batch.weights > 0
    assert torch.equal(corrupted[~chosen], batch.targets[~chosen])
    assert (corrupted[chosen] == batch.targets[chosen]).any(), "no draw is the original: the test shows less"
    assert (corrupted[chosen] != batch.targets[chosen]).any()
    masked, told = written_out(models, batch, corrupted)
    assert float(found["loss"]) / total == pytest.approx(masked.item(), rel=1e-9)
    assert float(found["detection"]) / total == pytest.approx(WEIGHT * told.item(), rel=1e-9)
    (masked + WEIGHT * told).backward()
    for name, parameter in engine.model.named_parameters():
        own, theirs = theirs_of(name)
        expected = models[1 if own else 0].get_parameter(theirs).grad
        assert expected is not None
        assert parameter.grad is not None, name
        scale = max(float(expected.abs().max()), 1e-6)
        assert float((parameter.grad - expected).abs().max()) < 1e-8 * scale + 1e-11, name


def test_draws_are_the_inverse_of_the_generators_distribution() -> None:
    engine, batch = make_engine(), make_batch()
    _, generator = make_theirs(engine)
    keys = row_keys(3, 7, batch.samples)
    with torch.no_grad():
        corrupted = engine.model(**engine.inputs(batch, keys))[1][CORRUPTED]
        again = engine.model(**engine.inputs(batch, row_keys(3, 8, batch.samples)))[1][CORRUPTED]
        logits = generator(input_ids=batch.tokens[:1]).logits[0, :, :TOKENS]
    shares = logits.softmax(-1).cumsum(-1)
    numbers = uniform(site_keys(keys, 0, 63), range(TIME), range(1), 1)[0, :, 0].double()
    expected = (shares <= numbers[:, None]).sum(1)
    chosen = batch.weights[0] > 0
    assert torch.equal(corrupted[0][chosen], expected[chosen])
    assert not torch.equal(corrupted, again)
    assert (corrupted < TOKENS).all()


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    head, count = Head(8, 4, None), 4096
    with torch.no_grad():
        head.weight.copy_(torch.randn(8, 4, generator=torch.Generator().manual_seed(2)))
    head.num_real_tokens = 6
    states = torch.tensor([0.5, -1.0, 0.3, 0.8]).expand(4, count // 4, 4)
    tokens = torch.full((4, count // 4), 7)
    chosen = Chosen(torch.arange(0, count, 2), row_keys(0, 0, torch.arange(4)))
    found = replaced(tokens, states, head, chosen).flatten()
    assert (found[1::2] == 7).all()
    expected = (head.logits(states[0, 0])[:6].softmax(-1) * (count / 2)).detach()
    counts = torch.bincount(found[::2], minlength=8)
    assert counts[6:].sum() == 0
    assert float(((counts[:6] - expected).square() / expected).sum()) < 20.5  # 99.9 % point, 5 degrees


def test_any_microbatches_add_up_to_the_same() -> None:
    batch, engine = make_batch(), make_engine()
    total = float(batch.weights.sum())
    whole = engine.forward_backward([batch], total, key=(0, 1))
    gradients = {name: each.grad for name, each in engine.named_parameters.items()}
    engine.zero_gradients()
    assert batch.detection is not None
    parts = [
        replace(
            batch,
            **{name: getattr(batch, name)[part] for name in FIELDS},
            detection=replace(batch.detection, used=batch.detection.used[part]),
        )
        for part in (slice(0, 1), slice(1, 3))
    ]
    found = engine.forward_backward(parts, total, key=(0, 1))
    for name, value in whole.items():
        assert float(found[name]) == pytest.approx(float(value), rel=1e-10)
    for name, parameter in engine.named_parameters.items():
        before = gradients[name]
        assert before is not None
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, before, rtol=1e-7, atol=1e-10)


FIELDS = ("tokens", "targets", "weights", "positions", "document_lengths", "samples", "sources")


def test_what_an_evaluation_measures() -> None:
    engine, batch = make_engine(), make_batch()
    models, total = make_theirs(engine), float(batch.weights.sum())
    measured = detections(engine, batch).double()
    with torch.no_grad():
        corrupted = engine.model(**engine.inputs(batch))[1][CORRUPTED]
        masked, told = written_out(models, batch, corrupted)
    losses, told_losses, was_replaced, told_replaced = measured.unbind(2)
    assert torch.equal(engine.evaluate(batch).double(), losses)
    assert float(losses.sum()) / total == pytest.approx(float(masked), rel=1e-5)
    assert float(told_losses.sum()) / sum(USED) == pytest.approx(float(told), rel=1e-5)
    real = torch.arange(TIME) < torch.tensor(USED)[:, None]
    assert torch.equal(was_replaced > 0, (corrupted != batch.targets) & real)
    assert 0 < float(told_replaced.sum()) < sum(USED)
    assert not told_replaced[~real].any()


@pytest.mark.filterwarnings("default")  # the compiler handles its own warnings, and cannot where they are errors
def test_an_evaluation_of_a_compiled_model_has_the_rows_of_its_batch() -> None:
    engine, batch = make_engine(), make_batch()
    expected = engine.evaluate(batch)
    engine._compiled.add_method(engine.model, "run_blocks")
    assert torch.equal(engine.evaluate(batch), expected)
    assert batch.detection is not None
    told = replace(batch.detection, used=batch.detection.used[:2])
    few = replace(batch, **{name: getattr(batch, name)[:2] for name in FIELDS}, detection=told)
    torch.testing.assert_close(engine.evaluate(few), expected[:2])


def test_a_row_in_which_nothing_counts_is_not_told() -> None:
    batch = make_batch()
    assert batch.detection is not None
    weights = batch.weights.clone()
    weights[0] = 0
    told = batch.detection.weights(replace(batch, weights=weights))
    assert told.sum(1).tolist() == [0, 17, 24]


def test_a_share_of_the_heads_and_the_width_they_have() -> None:
    model = ModelConfig.model_validate(ELECTRA | {"heads": 3, "width": 36, "head": {"kind": "replaced"}})
    generator = model.head.model_copy(update={"generator": SmallerGenerator(share=0.333)}).generator_of(model)
    assert generator is not None
    assert (generator.heads, generator.width, generator.hidden, generator.layers) == (1, 12, 16, 2)
    assert _problem(model, 0.5) == "head.generator.share"
    assert _problem(model, 0.1) == "head.generator.share"


def _problem(model: ModelConfig, share: float) -> str:
    head = model.head.model_copy(update={"generator": SmallerGenerator(share=share)})
    ((key, _),) = head.problems(model)
    return key


def test_a_discriminator_alone_has_no_loss() -> None:
    engine = make_engine(generator={"kind": "none"})
    assert engine.model.generator is None
    with pytest.raises(UsageError, match="train another head"):
        engine.forward_backward([replace(make_batch(), detection=None)], 1.0)
