"""Pruning: what is unimportant is found, and taking it out is taking it out."""

import pytest
import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.mlp_config import GLUConfig
from hornbook.model.config.model_config import LayerConfig, ModelConfig
from hornbook.model.config.position_config import AlibiConfig
from hornbook.model.init.init import initial_values
from hornbook.model.surgery.operate import fill
from hornbook.model.surgery.prune import Importance, Meter, choose, prune, pruned, whole
from hornbook.model.transformer import Transformer

VOCAB = 29
SHAPE = ModelConfig(
    layers=3, width=16, heads=4, vocab=VOCAB, attention=FullAttentionConfig(kv_heads=2), mlp=GLUConfig(hidden=12)
)
TOKENS = torch.arange(20)[None] % VOCAB


def values(seed: int = 1) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    stream = initial_values(build_model(SHAPE, VOCAB, "meta"), SHAPE, seed)
    return {name: each + 0.3 * torch.randn(each.shape, generator=draw) for name, each in stream}


def model_of(cfg: ModelConfig, tensors: dict[str, Tensor]) -> Transformer:
    return fill(build_model(cfg, VOCAB, "meta"), tensors.items(), None)


def logits(model: Transformer) -> Tensor:
    assert model.head is not None
    return model.head.logits(model(TOKENS)[0])


def measured(tensors: dict[str, Tensor]) -> Importance:
    model = model_of(SHAPE, tensors)
    model.requires_grad_(True)
    with Meter(model, SHAPE) as meter:
        for shift in range(3):
            assert model.head is not None
            hidden, _ = model(TOKENS)
            targets = (TOKENS + shift) % VOCAB
            model.head.losses(hidden, targets, torch.ones(TOKENS.shape))["loss"].backward()
            meter.take()
    return meter.importance()


def test_what_adds_nothing_is_taken_out_and_changes_nothing() -> None:
    """Silence a group of heads, some channels and a layer: they are found, and the smaller model computes the same."""
    tensors = values()
    for layer in range(3):
        tensors[f"blocks.{layer}.attention.out.weight"][:, 8 * (layer % 2) : 8 * (layer % 2) + 8] = 0
        tensors[f"blocks.{layer}.mlp.down.weight"][:, [1, 4, 5, 11 - layer]] = 0
    for name in ("attention.out.weight", "mlp.down.weight"):
        tensors[f"blocks.1.{name}"].zero_()
    new = pruned(SHAPE, heads=2, hidden=8, layers=2)
    kept = choose(measured(tensors), new)
    assert kept.layers == [0, 2]
    assert kept.heads == {0: [1], 2: [1]}
    assert 11 not in kept.channels[0]
    smaller = model_of(new, dict(prune(tensors.items(), SHAPE, kept)))
    torch.testing.assert_close(logits(smaller), logits(model_of(SHAPE, tensors)), atol=1e-5, rtol=1e-5)
    assert sum(each.numel() for each in smaller.parameters()) < sum(each.numel() for each in tensors.values())


def test_importance_is_the_derivative_of_a_gate() -> None:
    """By differences: scale what one head group, or one channel, gives by 1 + h."""
    tensors, step = values(3), 1e-3

    def loss(name: str, columns: slice, factor: float) -> float:
        scaled = {**tensors, name: tensors[name].clone()}
        scaled[name][:, columns] *= factor
        model = model_of(SHAPE, {key: each.double() for key, each in scaled.items()})
        model.compute_dtype = torch.float64
        found = logits(model.double())[0].detach().double().log_softmax(-1)
        return float(-found[torch.arange(20), TOKENS[0]].sum())

    model = model_of(SHAPE, tensors)
    model.requires_grad_(True)
    with Meter(model, SHAPE) as meter:
        assert model.head is not None
        model.head.losses(model(TOKENS)[0], TOKENS, torch.ones(TOKENS.shape))["loss"].backward()
        meter.take()
    found = meter.importance()
    for name, columns, ours in (
        ("blocks.1.attention.out.weight", slice(8, 16), found.heads[1, 1]),
        ("blocks.2.mlp.down.weight", slice(5, 6), found.channels[2, 5]),
    ):
        slope = (loss(name, columns, 1 + step) - loss(name, columns, 1 - step)) / (2 * step)
        assert float(ours) == pytest.approx(abs(slope), rel=2e-2, abs=2e-3)


def test_everything_kept_is_the_same_model() -> None:
    tensors = values()
    again = dict(prune(tensors.items(), SHAPE, whole(SHAPE)))
    assert all(torch.equal(again[name], each) for name, each in tensors.items())


@pytest.mark.parametrize(
    ("cfg", "asked", "says"),
    [
        (SHAPE, {"heads": 0}, "--heads 0: the model has 4, and one at least must stay: take 1 to 4"),
        (SHAPE, {"heads": 5}, "take 1 to 4"),
        (SHAPE, {"heads": 3}, "2 heads share keys and values, and go together: take 2, 4"),
        (SHAPE, {"layers": 0}, "--layers 0"),
        (SHAPE, {"hidden": 13}, "take 1 to 12"),
        (SHAPE.model_copy(update={"position": AlibiConfig()}), {"heads": 2}, "are others for each head"),
        (SHAPE.model_copy(update={"first": [LayerConfig()]}), {"layers": 2}, "layers differ"),
    ],
)
def test_what_cannot_be_pruned_is_named(cfg: ModelConfig, asked: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        pruned(cfg, **{"heads": None, "hidden": None, "layers": None, **asked})
