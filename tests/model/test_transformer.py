"""The Transformer: documents, positions, cache, shapes by composition."""

import copy

import pytest
import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config import head_config as config_head
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.config import model_config as config
from hornbook.model.config import position_config as config_position
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.norm_config import LayerNormConfig
from hornbook.model.layers.dropout import row_keys
from hornbook.model.transformer import Transformer

VOCAB = 61
LLAMA = config.ModelConfig(
    layers=2, width=32, heads=4, attention=FullAttentionConfig(kv_heads=2), mlp=config_mlp.GLUConfig(hidden=48)
)
QWEN3 = config.ModelConfig(
    layers=2,
    width=32,
    heads=4,
    attention=FullAttentionConfig(kv_heads=2, head_dim=12, qk_norm="head"),
    head=config_head.LMHead(tied=False),
)
GPT2 = config.ModelConfig(
    layers=2,
    width=32,
    heads=4,
    attention=FullAttentionConfig(bias=True, out_bias=True),
    mlp=config_mlp.PlainMLPConfig(),
    norm=LayerNormConfig(),
    position=config_position.LearnedPositionsConfig(length=200),
)
CONFIGS = [pytest.param(cfg, id=name) for name, cfg in (("llama", LLAMA), ("qwen3", QWEN3), ("gpt2", GPT2))]


def tokens(batch: int, time: int) -> Tensor:
    return torch.randint(0, VOCAB, (batch, time), generator=torch.Generator().manual_seed(time))


@pytest.mark.parametrize("cfg", CONFIGS)
@torch.no_grad()
def test_packed_documents_equal_documents_alone(cfg: config.ModelConfig, random_model) -> None:
    model, ids = random_model(cfg, VOCAB), tokens(2, 150)
    lengths = [(40, 1, 109), (150,)]
    packed = model(ids, lengths=lengths)[0]
    for row, documents in enumerate(lengths):
        for part, own in zip(packed[row].split(documents), ids[row].split(documents), strict=True):
            alone = model(own[None])[0][0]
            assert float((part - alone).abs().max() / alone.abs().max()) < 1e-5


@pytest.mark.parametrize("cfg", CONFIGS)
def test_no_gradient_crosses_documents_or_time(cfg: config.ModelConfig, random_model) -> None:
    model, ids = random_model(cfg, VOCAB), tokens(1, 60)
    inputs = []
    model.embedding.register_forward_hook(lambda *call: inputs.append(call[2].requires_grad_()) or call[2])
    hidden = model(ids, lengths=[(25, 35)])[0]
    grad = torch.autograd.grad(hidden[0, 40].sum(), inputs[0])[0][0].abs().sum(-1)
    assert torch.all(grad[:25] == 0)
    assert torch.all(grad[25:41] > 0)
    assert torch.all(grad[41:] == 0)


@pytest.mark.parametrize("cfg", CONFIGS)
@pytest.mark.parametrize("pieces", [[1] * 5, [20, 1, 1], [3, 30, 1]])
@torch.no_grad()
def test_cached_equals_uncached(cfg: config.ModelConfig, pieces: list[int], random_model) -> None:
    model, ids = random_model(cfg, VOCAB), tokens(2, sum(pieces))
    cache, parts = KVCache(capacity=4), []
    for piece in ids.split(pieces, dim=1):
        parts.append(model(piece, cache=cache)[0])
    assert cache.length == sum(pieces)
    whole = model(ids)[0]
    assert float((torch.cat(parts, 1) - whole).abs().max() / whole.abs().max()) < 1e-5


@pytest.mark.parametrize("cfg", CONFIGS)
def test_positions_given_equal_positions_counted(cfg: config.ModelConfig, random_model) -> None:
    model, ids = random_model(cfg, VOCAB), tokens(2, 30)
    counted = model(ids)[0]
    assert torch.equal(model(ids, positions=torch.arange(30).expand(2, 30))[0], counted)
    shifted = model(ids, positions=torch.arange(30).expand(2, 30) + 7)[0]
    if cfg.position.kind == "rope":  # attention sees differences of positions alone
        assert torch.allclose(shifted, counted, atol=1e-4)
    else:
        assert not torch.allclose(shifted, counted, atol=1e-2)


def test_learned_positions_end(random_model) -> None:
    with pytest.raises(UsageError, match=r"201 positions asked for.*200"):
        random_model(GPT2, VOCAB)(tokens(1, 201))


@pytest.mark.parametrize("cfg", CONFIGS)
def test_bfloat16_follows_float32(cfg: config.ModelConfig, random_model) -> None:
    model, ids = random_model(cfg, VOCAB), tokens(2, 140)
    exact = model(ids)[0]
    model = copy.deepcopy(model)
    model.compute_dtype = torch.bfloat16
    rounded = model(ids)[0]
    assert rounded.dtype == torch.bfloat16
    # Some tens of roundings of 2^-9 each along the way.
    assert float((rounded - exact).detach().norm() / exact.detach().norm()) < 0.05
    loss = model.head.losses(rounded, ids, torch.ones(ids.shape))["loss"]
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32


@pytest.mark.parametrize("cfg", CONFIGS)
def test_gradients_equal_those_of_plain_torch(cfg: config.ModelConfig, random_model) -> None:
    """In float64 no kernel of ours runs, so the same model is its own slow reference."""
    model, ids = random_model(cfg, VOCAB), tokens(2, 150)
    exact = copy.deepcopy(model).double()
    exact.compute_dtype = torch.float64
    lengths, weights = [(40, 110), (150,)], torch.rand(2, 150)
    for one in (model, exact):
        loss = one.head.losses(one(ids, lengths=lengths)[0], ids.roll(-1, 1), weights.to(one.compute_dtype))["loss"]
        (loss / weights.sum()).backward()
    assert_gradients_close(model, exact)


def assert_gradients_close(model: Transformer, reference: Transformer) -> None:
    """Every gradient to 1e-4 of its size: float32's 1e-7 over a thousand additions with cancellation."""
    wanted = {name: parameter.grad for name, parameter in reference.named_parameters()}
    # Softmax does not see key biases, so their gradients are rounding alone: measured against the largest of all.
    largest = max(float(grad.norm()) for grad in wanted.values())
    for name, got in model.named_parameters():
        assert float((got.grad - wanted[name]).norm()) < 1e-4 * float(wanted[name].norm()) + 1e-7 * largest, name


@pytest.mark.parametrize("cfg", CONFIGS)
def test_roles_cover_every_parameter_once(cfg: config.ModelConfig) -> None:
    model = build_model(cfg, VOCAB)
    roles, names = parameter_roles(model), [name for name, _ in model.named_parameters()]
    assert sorted(roles) == sorted(names)
    assert set(model.state_dict()) == set(names)
    assert roles["embedding.weight"] == "embedding"
    assert roles["blocks.1.attention.query.weight"] == roles["blocks.0.mlp.down.weight"] == "matrix"
    assert roles["norm.weight"] == "norm"
    assert ("head.weight" in roles) == (not cfg.head.tied)
    if cfg is GPT2:
        assert roles["positions.weight"] == "position"
        assert roles["blocks.0.mlp.up.bias"] == roles["blocks.0.attention.out.bias"] == "vector"
        assert roles["norm.bias"] == "norm"


def test_names_are_the_documented_ones() -> None:
    names = set(build_model(QWEN3, VOCAB).state_dict())
    block = {f"blocks.0.attention.{p}.weight" for p in ("query", "key", "value", "out", "query_norm", "key_norm")}
    block |= {f"blocks.0.{p}.weight" for p in ("norm1", "norm2", "mlp.gate", "mlp.up", "mlp.down")}
    assert names == {"embedding.weight", "norm.weight", "head.weight"} | block | {
        name.replace(".0.", ".1.") for name in block
    }


def test_a_model_on_meta_holds_no_memory() -> None:
    assert all(parameter.is_meta for parameter in build_model(LLAMA, VOCAB).parameters())


def test_a_stage_is_the_model_with_blocks_deleted(random_model) -> None:
    whole, ids = random_model(LLAMA, VOCAB), tokens(2, 20)
    first, second = copy.deepcopy(whole), copy.deepcopy(whole)
    del first.blocks["1"], second.blocks["0"]
    first.norm = second.embedding = None
    positions = torch.arange(20)[None]
    hidden = second(first(ids, positions)[0], positions)[0]
    assert torch.equal(hidden, whole(ids)[0])
    assert set(second.blocks.state_dict()) < set(whole.blocks.state_dict())


def test_dropout_is_keyed_by_sample_not_by_batch(random_model) -> None:
    cfg = LLAMA.model_copy(update={"dropout": 0.2})
    model, ids = random_model(cfg, VOCAB), tokens(4, 24)
    keys = row_keys(1, 5, torch.arange(4))
    whole = model(ids, keys=keys)[0]
    assert torch.allclose(model(ids[2:3], keys=keys[2:3])[0], whole[2:3], atol=1e-5)
    assert torch.equal(model(ids, keys=keys)[0], whole)
    assert not torch.allclose(model(ids)[0], whole, atol=1e-2)
    other = model(ids, keys=row_keys(1, 6, torch.arange(4)))[0]
    assert not torch.allclose(other, whole, atol=1e-2)


def test_deepcopy_keeps_the_tie() -> None:
    model = build_model(LLAMA, VOCAB, "cpu")
    twin: Transformer = copy.deepcopy(model)
    assert twin.head.matrix is twin.embedding.weight
    assert twin.head.matrix is not model.head.matrix


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler cannot work where its own warnings are errors
@pytest.mark.parametrize("cfg", CONFIGS)
def test_compiled_blocks_equal_eager_ones(cfg: config.ModelConfig, random_model) -> None:
    eager, ids = random_model(cfg, VOCAB), tokens(2, 40)
    compiled = copy.deepcopy(eager)
    for block in compiled.blocks.values():
        block.compile()
    lengths = [(15, 25), (40,)]
    for one in (eager, compiled):
        one.head.losses(one(ids, lengths=lengths)[0], ids, torch.ones(ids.shape))["loss"].backward()
    assert_gradients_close(compiled, eager)
