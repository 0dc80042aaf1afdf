"""Parts in their places: each kind of block is its formula, and what is refused says why."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

from hornbook.model.build_model import build_model
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.config import model_config as c
from hornbook.model.config import position_config as config_position
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.norm_config import BatchNormConfig, LayerNormConfig, NoNorm, OffsetRMSNormConfig
from hornbook.model.forward_context import Context
from hornbook.model.layers.dropout import RowDropout, row_keys
from hornbook.model.layers.norm import BatchNorm, LayerNorm, OffsetRMSNorm
from hornbook.model.mlp.mlp import activate
from hornbook.model.transformer import Source, Transformer
from hornbook.settings.resolve import ConfigError, resolve

WIDTH, VOCAB = 16, 40


def make(**parts: Any) -> Transformer:
    """A small model, every parameter random."""
    model = build_model(c.ModelConfig(**{"layers": 2, "width": WIDTH, "heads": 2, **parts}), VOCAB, "cpu")
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return model


def tokens(rows: int = 2, time: int = 9) -> Tensor:
    return torch.randint(0, VOCAB, (rows, time), generator=torch.Generator().manual_seed(1))


Block = nn.Module
FORMULAS: dict[str, tuple[c.BlockConfig, Callable[[Block, Tensor, Callable, Callable], Tensor]]] = {
    "pre": (c.PreNorm(), lambda b, x, a, m: (y := x + a(b.norm1(x))) + m(b.norm2(y))),
    "multiplied": (c.PreNorm(multiplier=0.3), lambda b, x, a, m: (y := x + 0.3 * a(b.norm1(x))) + 0.3 * m(b.norm2(y))),
    "post": (c.PostNorm(), lambda b, x, a, m: b.sum_norm2((y := b.sum_norm1(x + a(x))) + m(y))),
    "output": (c.OutputNorm(), lambda b, x, a, m: (y := x + b.out_norm1(a(x))) + b.out_norm2(m(y))),
    "sandwich": (
        c.SandwichNorm(),
        lambda b, x, a, m: (y := x + b.out_norm1(a(b.norm1(x)))) + b.out_norm2(m(b.norm2(y))),
    ),
    "parallel": (c.Parallel(), lambda b, x, a, m: x + a(b.norm1(x)) + m(b.norm2(x))),
    "shared": (c.Parallel(shared_norm=True), lambda b, x, a, m: x + a(b.norm1(x)) + m(b.norm1(x))),
}


@pytest.mark.parametrize("kind", FORMULAS)
def test_a_block_is_its_formula(kind: str) -> None:
    chosen, formula = FORMULAS[kind]
    model = make(block=chosen, position=config_position.NoPositions(), norm=LayerNormConfig())
    assert (model.norm is None) == (kind == "post")
    block, context = model.blocks["1"], Context()
    x = torch.randn(2, 9, WIDTH, generator=torch.Generator().manual_seed(2))
    y, auxiliary = block(x, context)
    assert auxiliary == {}
    wanted = formula(block, x, lambda h: block.attention(h, context), block.mlp)
    assert torch.allclose(y, wanted, atol=1e-5)
    parameters = {name.split(".")[0] for name, _ in block.named_parameters()}
    norms = {name for name in parameters if "norm" in name}
    assert len(norms) == {"sandwich": 4, "shared": 1}.get(kind, 2)


def test_norms_are_those_of_others() -> None:
    x = 3 * torch.randn(4, 7, WIDTH, generator=torch.Generator().manual_seed(3)) + 1
    ours, theirs = OffsetRMSNorm(WIDTH, OffsetRMSNormConfig(eps=1e-6)), Gemma2RMSNorm(WIDTH, eps=1e-6)
    nn.init.normal_(ours.weight)
    theirs.weight.data.copy_(ours.weight)
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    batch = BatchNorm(WIDTH, BatchNormConfig(eps=1e-5))
    nn.init.normal_(batch.weight)
    nn.init.normal_(batch.bias)
    wanted = F.batch_norm(x.flatten(0, 1), None, None, batch.weight, batch.bias, training=True, eps=1e-5)
    assert torch.allclose(batch(x), wanted.view_as(x), atol=1e-5)
    assert torch.allclose(batch(x.flatten(0, 1)), wanted, atol=1e-5)


def test_the_square_of_relu() -> None:
    assert activate(torch.tensor([-2.0, 0.0, 3.0]), "relu2").tolist() == [0.0, 0.0, 9.0]


def leak(norm: nn.Module) -> float:
    """By how much the state at a position changes when the one after it does."""
    x = torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(4))
    moved = x.clone()
    moved[:, 4] += 1.0
    return float((norm(moved) - norm(x))[:, :4].detach().abs().max())


def test_batch_norm_sees_the_future_and_layer_norm_does_not() -> None:
    batch, layer = BatchNorm(WIDTH, BatchNormConfig()), LayerNorm(WIDTH, LayerNormConfig())
    for norm in (batch, layer):
        nn.init.ones_(norm.weight)
        nn.init.zeros_(norm.bias)
    assert leak(layer) == 0
    assert leak(batch) > 0.05


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_batch_norm_is_refused_where_it_would_see_the_future(kind: str) -> None:
    with pytest.raises(ConfigError, match="would see what it is to predict"):
        resolve(None, [f"model.kind={kind}", "model.norm=batch"], {})
    assert resolve(None, ["model.kind=encoder", "model.norm=batch", "data.objective=masked"], {}).recipe


BOTH, MASKED = "model.kind=encoder_decoder", "model.kind=encoder"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["model.layers=5", "model.pattern=[{},{}]"], "model.pattern"),
        (["model.layers=1", "model.first=[{},{}]"], "model.first"),
        (["model.heads=5", "model.width=64"], "model.heads"),
        (["model.encoder_layers=2"], "model.encoder_layers"),
        (["model.head=masked"], "model.head"),
        ([BOTH, "model.block=parallel"], "model.block"),
        ([BOTH, "model.attention=latent"], "model.attention"),
        ([BOTH, "model.attention=delta"], "model.attention"),
        ([BOTH, "model.pattern=[{},{attention={kind='latent'}}]"], "model.pattern.1.attention"),
        ([BOTH, "model.encoder_layers=5", "model.pattern=[{},{}]"], "model.pattern"),
        ([BOTH, "model.encoder_layers=1", "model.first=[{},{}]"], "model.first"),
        (["model.first=[{attention_norm={kind='batch'}}]"], "model.first.0.attention_norm"),
        ([BOTH, "model.pattern=[{attention_norm={kind='batch'}}]"], "model.pattern.0.attention_norm"),
        (["model.block=parallel", "model.pattern=[{attention_norm={kind='none'}}]"], "model.pattern.0.attention_norm"),
        ([MASKED, "model.head=masked", "model.norm=batch"], "model.norm"),
        ([MASKED, "model.head=masked", "model.norm=none"], "model.norm"),
        (["model.block=parallel", "model.norm=none"], "model.norm"),
        (["model.embedding.bias=true"], "model.embedding.bias"),
        (["model.embedding.width=64", "model.head.scale=0.5"], "model.head.scale"),
        (["model.embedding.width=64", "model.init=mup", "model.init.base_width=64"], "model.head.scale"),
        (["model.width=63", "model.heads=3", "model.position=sinusoidal"], "model.width"),
        (["model.attention=latent", "model.attention.rope_dim=7"], "model.attention.rope_dim"),
        (["model.position=alibi", "model.first=[{position={kind='none'}}]"], "model.first.0.position"),
        (["model.first=[{position={kind='alibi'}}]"], "model.first.0.position.kind"),
    ],
)
def test_what_does_not_fit_is_refused_by_key(words: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(None, words, {})
    assert [problem.key for problem in caught.value.problems] == [key]


def test_first_and_pattern_say_what_each_layer_is() -> None:
    local = c.LayerConfig(attention=FullAttentionConfig(window=3))
    cfg = c.ModelConfig(
        layers=5,
        first=[c.LayerConfig(attention_norm=NoNorm(), mlp=config_mlp.PlainMLPConfig())],
        pattern=[
            local,
            c.LayerConfig(position=config_position.RopeConfig(theta=7.0), attention_norm=LayerNormConfig()),
        ],
    )
    assert [cfg.layer(i).attention.window for i in range(5)] == [None, 3, None, 3, None]
    assert [cfg.layer(i).position.theta for i in range(5)] == [1e4, 1e4, 7.0, 1e4, 7.0]
    assert [cfg.layer(i).mlp.kind for i in range(5)] == ["mlp", "glu", "glu", "glu", "glu"]
    model = build_model(cfg, VOCAB)
    assert [block.norm1 is None for block in model.blocks.values()] == [True, False, False, False, False]
    assert [isinstance(block.norm1, LayerNorm) for block in model.blocks.values()] == [False, False, True, False, True]
    assert len(model.ropes) == 2


def test_stochastic_depth_skips_rows_by_their_keys() -> None:
    drop, x = RowDropout(0.4, layer=3, site=9), torch.ones(400, 2, 3)
    keys = row_keys(1, 2, torch.arange(400))
    y = drop(x, Context(keys=keys))
    rows = y[:, 0, 0]
    assert torch.equal(y, rows[:, None, None].expand_as(y))
    assert {round(float(value), 5) for value in rows.unique()} == {0.0, round(1 / 0.6, 5)}
    assert 0.5 < float((rows > 0).float().mean()) < 0.7
    assert torch.equal(drop(x[100:], Context(keys=keys[100:])), y[100:])
    assert torch.equal(drop(x, Context()), x)


def test_an_encoder_sees_both_ways_inside_of_documents() -> None:
    model = make(kind="encoder")
    lengths = [(4, 5), (9,)]
    x = tokens()
    with torch.no_grad():
        whole, _ = model(x, lengths=lengths)
        alone, _ = model(x[:1, 4:])
        other = x.clone()
        other[0, 3] += 1
        moved, _ = model(other % VOCAB, lengths=lengths)
    assert torch.allclose(whole[0, 4:], alone[0], atol=1e-5)
    assert torch.equal(moved[0, 4:], whole[0, 4:])
    assert not torch.allclose(moved[0, 0], whole[0, 0])


def test_pieces_of_a_target_see_their_own_piece_of_the_source() -> None:
    model = make(kind="encoder_decoder", position=config_position.RelativeBucketsConfig())
    source, target = tokens(1, 9), tokens(1, 7)
    with torch.no_grad():
        whole, _ = model(target, lengths=[(3, 4)], source=Source(source, lengths=[(5, 4)]))
        alone, _ = model(target[:, 3:], source=Source(source[:, 5:]))
        other = source.clone()
        other[0, 2] = (other[0, 2] + 1) % VOCAB
        moved, _ = model(target, lengths=[(3, 4)], source=Source(other, lengths=[(5, 4)]))
    assert torch.allclose(whole[:, 3:], alone, atol=1e-5)
    assert torch.equal(moved[:, 3:], whole[:, 3:])
    assert not torch.allclose(moved[:, :3], whole[:, :3])


def test_dropout_of_the_two_stacks_is_not_the_same() -> None:
    model = make(kind="encoder_decoder", dropout=0.5, encoder_layers=2)
    layers = [int(block.add1.dropout.number) for block in model.all_blocks()]
    assert len(set(layers)) == 4
