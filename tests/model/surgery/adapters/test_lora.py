"""LoRA, rsLoRA, DoRA and bottlenecks: identity at the start, merging, gradients, counts, bad input."""

import pytest
import torch

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.surgery_config import BottleneckConfig, Dora, Freeze, Lora
from hornbook.model.layers.linear import Linear, fused_linear
from hornbook.model.surgery.adapters.lora import merged_tensors
from hornbook.model.surgery.added_values import added_parameters
from hornbook.model.surgery.operate import operate
from tests.model.surgery.conftest import CONFIGS, VOCAB, Operated, ids, logits, spoil

STEPS = [
    Lora(rank=4),
    Lora(rank=4, scaling="root_rank"),
    Dora(rank=4),
    Lora(rank=2, targets=["*.query", "*.mlp.down"]),
]


@pytest.mark.parametrize("base", CONFIGS)
@pytest.mark.parametrize("step", [*STEPS, BottleneckConfig(width=8)])
@pytest.mark.parametrize("rows", [1, 2])
def test_the_first_step_computes_what_the_base_computes_bit_for_bit(
    operated: Operated, base: str, step: Lora, rows: int
) -> None:
    tokens = ids(rows)  # 48 positions take each layer by itself, 96 the fused product
    assert torch.equal(logits(operated(base, step), tokens), logits(operated(base), tokens))


@pytest.mark.parametrize("base", CONFIGS)
@pytest.mark.parametrize("step", STEPS)
@torch.no_grad()
def test_merged_equals_unmerged(operated: Operated, base: str, step: Lora) -> None:
    model, tokens = spoil(operated(base, step)), ids()
    expected = logits(model, tokens)
    assert (expected - logits(operated(base), tokens)).abs().max() > 0.1
    plain = operated(base)
    for name, tensor in merged_tensors(model):
        plain.get_parameter(name).copy_(tensor)
    torch.testing.assert_close(logits(plain, tokens), expected, atol=1e-5 * float(expected.abs().max()), rtol=0)


def test_a_bottleneck_cannot_be_merged(operated: Operated) -> None:
    with pytest.raises(UsageError, match=r"blocks\.0\.attention\.out\.adapter \(Bottleneck\) cannot be merged"):
        merged_tensors(operated("llama", BottleneckConfig(width=8)))


@pytest.mark.parametrize("base", CONFIGS)
@pytest.mark.parametrize("step", [Lora(rank=4), Dora(rank=4), BottleneckConfig(width=8)])
def test_every_adapted_layer_takes_part(operated: Operated, base: str, step: Lora) -> None:
    """No kernel may read a weight past its adapter: each adapter alone changes the output, and gets a gradient."""
    tokens = ids()
    expected = logits(operated(base), tokens)
    model = operated(base, step)
    names = [n for n, p in model.named_modules() if n.endswith(".adapter")]
    assert len(names) == {"bottleneck": 4}.get(step.kind, 14 if base == "llama" else 12)
    for name in names:
        part = model.get_submodule(name)
        before = {key: value.clone() for key, value in part.state_dict().items()}
        spoil(part)
        found = logits(model, tokens)
        assert not torch.allclose(found, expected, atol=1e-4), name
        found.square().mean().backward()
        assert all(p.grad is not None and bool(p.grad.any()) for p in part.parameters()), name
        part.load_state_dict(before)


@pytest.mark.parametrize("base", CONFIGS)
def test_counts_and_what_is_trained(operated: Operated, base: str) -> None:
    model = operated(base, Lora(rank=3))
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == set(added_parameters(model))
    sizes = [m.weight.shape for m in model.modules() if isinstance(m, Linear)]
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == sum(3 * (a + b) for a, b in sizes)
    roles = parameter_roles(model)
    assert {roles[name] for name in trained} == {"matrix"}
    assert parameter_roles(operated(base, Dora()))["blocks.0.mlp.up.adapter.magnitude.weight"] == "vector"


def test_first_values_depend_on_seed_and_name_alone(operated: Operated) -> None:
    first, fewer = operated("llama", Lora()), operated("llama", Lora(targets=["blocks.1.mlp.up"]))
    name = "blocks.1.mlp.up.adapter.a"
    assert torch.equal(first.get_parameter(name), fewer.get_parameter(name))
    assert not torch.equal(first.get_parameter(name), operated("llama", Lora(), seed=1).get_parameter(name))
    a = first.get_parameter("blocks.0.mlp.down.adapter.a")
    bound = a.shape[1] ** -0.5
    assert 0.9 * bound < float(a.detach().abs().max()) <= bound
    assert abs(float(a.detach().std()) / (bound / 3**0.5) - 1) < 0.1


@torch.no_grad()
def test_dora_has_the_papers_form(operated: Operated) -> None:
    """y = m * (W + s B A) x / |W + s B A|, against that formula."""
    model = spoil(operated("gpt2", Dora(rank=4)))
    layer = model.get_submodule("blocks.0.attention.out")
    assert isinstance(layer, Linear)
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    part = layer.adapter
    moved = layer.weight + (16 / 4) * part.b @ part.a  # pyright: ignore
    expected = x @ (part.magnitude.weight[:, None] * moved / moved.norm(dim=1, keepdim=True)).T + layer.bias  # pyright: ignore
    torch.testing.assert_close(layer(x), expected)


def test_the_fused_product_equals_layer_by_layer(operated: Operated) -> None:
    model = spoil(operated("gpt2", Lora(rank=4, targets=["*.query", "*.value"])))
    attention = model.get_submodule("blocks.0.attention")
    layers = [attention.query, attention.key, attention.value]  # pyright: ignore
    x = torch.randn(2, 64, 32, generator=torch.Generator().manual_seed(0))
    expected = torch.cat([layer(x) for layer in layers], -1)  # pyright: ignore
    torch.testing.assert_close(fused_linear(x, layers), expected)  # pyright: ignore


def test_bfloat16_stays_bfloat16(operated: Operated) -> None:
    for step in (Lora(), Dora(), BottleneckConfig(width=8)):
        model = spoil(operated("llama", step))
        model.compute_dtype = torch.bfloat16
        assert model(ids())[0].dtype == torch.bfloat16


def test_freezing_by_glob(operated: Operated) -> None:
    model = operated("llama", Freeze(names=["blocks.0.*", "embedding.weight"]))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, _ in model.named_parameters() if n.startswith(("blocks.0.", "embedding."))}
    logits(model, ids()).sum().backward()
    assert all((p.grad is None) == (name in frozen) for name, p in model.named_parameters())


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Lora(targets=["*.q_proj"]), r"'\*\.q_proj' matches no linear layer; near are blocks"),
        (Lora(targets=["embedding"]), "matches no linear layer"),
        (Lora(rank=33), r"rank: blocks\.0\.attention\.query is 32 x 32, so a rank of at most 32 .* found 33"),
        (BottleneckConfig(width=40), "gives 32 values, found 40"),
        (Freeze(names=["block.*"]), "matches no parameter; near are blocks"),
    ],
)
def test_bad_input_names_key_expected_and_found(step: Lora, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        operate(build_model(CONFIGS["llama"], VOCAB), [step])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_head_has_no_gradient_and_the_rest_the_same(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    head = build_model(CONFIGS["llama"], VOCAB, "cpu").head
    assert head is not None
    with torch.no_grad():
        head.weight.normal_(generator=generator)
    states, found = torch.randn(2, 48, 32, generator=generator).to(dtype), []
    for trained in (True, False):
        head.weight.requires_grad_(trained)
        hidden = states.clone().requires_grad_()
        head.losses(hidden, ids(), torch.ones(2, 48))["loss"].backward()
        found.append(hidden.grad)
        assert (head.weight.grad is not None) is trained
        head.weight.grad = None
    assert torch.equal(found[0], found[1])
