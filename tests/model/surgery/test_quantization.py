"""Integers and 4-bit floats for weights: bounds, round trips, parity with libraries, and what they cost a model."""

import pytest
import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model
from hornbook.model.config.surgery_config import FakeQuant, Grid, Integers, Lora, Nf4
from hornbook.model.layers.linear import Linear
from hornbook.model.surgery.adapters.lora import merged_tensors
from hornbook.model.surgery.operate import operate
from hornbook.model.surgery.quantization.fake_quant import LearnedQuant, RangeQuant
from hornbook.model.surgery.quantization.integers import IntegerCode, largest_code, pack, quantize, shares, unpack
from hornbook.model.surgery.quantization.nf4 import Nf4Code, levels
from hornbook.model.surgery.quantization.quantize import quantize_model
from tests.model.surgery.conftest import CONFIGS, VOCAB, Operated, ids, logits, spoil

GRIDS = [
    Grid(bits=bits, per=per, group=16, symmetric=symmetric)
    for bits in (8, 4, 3)
    for per in ("tensor", "channel", "group")
    for symmetric in (True, False)
]


def matrix(seed: int = 0) -> Tensor:
    """[24, 64], rows of different size, one of zeros, one positive."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(24, 64, generator=generator) * torch.logspace(-3, 1, 24)[:, None]
    weight[3] = 0
    weight[5].abs_()
    return weight


@pytest.mark.parametrize("grid", GRIDS)
def test_no_value_is_further_from_its_code_than_half_a_step(grid: Grid) -> None:
    weight = matrix()
    found = quantize(weight, grid)
    apart = shares((weight - found.restored()).abs(), grid)
    assert bool((apart <= found.scale / 2 * (1 + 1e-5)).all())
    low, high = (-largest_code(grid.bits), largest_code(grid.bits)) if grid.symmetric else (0, 2**grid.bits - 1)
    assert low <= int(found.codes.min())
    assert int(found.codes.max()) <= high
    assert bool((found.restored()[3] == 0).all())


@pytest.mark.parametrize("grid", GRIDS)
def test_the_round_trip_is_idempotent(grid: Grid) -> None:
    once = quantize(matrix(), grid)
    again = quantize(once.restored(), grid)
    torch.testing.assert_close(again.restored(), once.restored(), rtol=1e-6, atol=0)
    if grid.symmetric:
        assert torch.equal(again.codes, once.codes)


@pytest.mark.parametrize("symmetric", [True, False])
def test_finer_shares_are_closer(symmetric: bool) -> None:
    weight = matrix()
    errors = [
        float((weight - quantize(weight, Grid(bits=8, per=per, group=16, symmetric=symmetric)).restored()).norm())
        for per in ("tensor", "channel", "group")
    ]
    assert errors[0] > errors[1] > errors[2]


def test_a_negated_matrix_has_negated_codes() -> None:
    weight, grid = matrix(), Grid(bits=8, per="channel")
    assert torch.equal(quantize(-weight, grid).codes, -quantize(weight, grid).codes)


@pytest.mark.parametrize("grid", GRIDS)
def test_codes_are_held_without_loss(grid: Grid) -> None:
    found = quantize(matrix(), grid)
    code = IntegerCode((24, 64), grid)
    code.take(matrix())
    assert torch.equal(code.quantized().codes, found.codes)
    assert torch.equal(code(torch.empty(0)), found.restored())
    assert code.codes.numel() == 24 * 64 // (2 if grid.bits <= 4 else 1)


@pytest.mark.parametrize(("symmetric", "group"), [(True, 64), (False, 64), (True, 15), (False, 6)])
def test_what_the_kernel_restores_is_what_torch_does(
    symmetric: bool, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Grid(bits=4, per="group", group=group, symmetric=symmetric)
    four, integers = Nf4Code((7, 5 * group), group), IntegerCode((7, 5 * group), grid)
    weight = torch.randn(7, 5 * group, generator=torch.Generator().manual_seed(0))
    for code in (four, integers):
        code.take(weight)
        found = code(torch.empty(0))
        with monkeypatch.context() as patch:
            patch.setattr("hornbook.model.surgery.quantization.integers.supports", lambda _: False)
            assert torch.equal(code(torch.empty(0)), found)
    assert torch.equal(integers(torch.empty(0)), quantize(weight, grid).restored())


def test_odd_numbers_of_codes_are_packed() -> None:
    codes = torch.tensor([1, 15, 7], dtype=torch.uint8)
    assert torch.equal(unpack(pack(codes), 3), codes)


def test_nf4_has_the_published_levels() -> None:
    published = [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0]
    published += [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]
    torch.testing.assert_close(levels(), torch.tensor(published), atol=1e-6, rtol=0)


@pytest.mark.parametrize("block", [64, 32])
def test_nf4_is_as_near_as_its_levels_allow(block: int) -> None:
    weight = torch.randn(96, 128, generator=torch.Generator().manual_seed(0)) * 0.02
    code = Nf4Code((96, 128), block)
    code.take(weight)
    blocks = weight.view(-1, block)
    largest = blocks.abs().amax(1)
    assert float((code.scales() - largest).abs().max() / largest.mean()) < 0.02  # scales are themselves rounded
    widest = float(levels().diff().max()) / 2
    apart = (code(torch.empty(0)).view(-1, block) - blocks).abs().amax(1)
    assert bool((apart <= widest * largest + (code.scales() - largest).abs() + 1e-7).all())


def test_nf4_is_that_of_bitsandbytes() -> None:
    functional = pytest.importorskip("bitsandbytes").functional
    weight = torch.randn(96, 128, generator=torch.Generator().manual_seed(0)) * 0.02
    packed, state = functional.quantize_4bit(weight, quant_type="nf4", blocksize=64, compress_statistics=True)
    code = Nf4Code((96, 128), 64)
    code.take(weight)
    assert torch.equal(code.codes, packed.flatten())
    theirs = functional.dequantize_4bit(packed, state)
    torch.testing.assert_close(code(torch.empty(0)), theirs, atol=1e-3 * float(weight.abs().max()), rtol=5e-3)


def test_int8_is_that_of_torchao() -> None:
    quantization = pytest.importorskip("torchao").quantization
    weight = torch.randn(24, 64, generator=torch.Generator().manual_seed(0))
    theirs = torch.nn.Sequential(torch.nn.Linear(64, 24, bias=False))
    with torch.no_grad():
        theirs[0].weight.copy_(weight)
    quantization.quantize_(theirs, quantization.Int8WeightOnlyConfig(version=2))
    ours = quantize(weight, Grid(bits=8, per="channel")).restored()
    found = theirs[0].weight.dequantize()
    # Its range is -128 to 127: its steps are half a percent finer than ours, which are symmetric.
    torch.testing.assert_close(found, ours, atol=1.02 * float(weight.abs().max()) / 127, rtol=0)


@pytest.mark.parametrize("scales", ["range", "learned"])
@pytest.mark.parametrize("grid", [Grid(bits=4, per="group", group=16), Grid(bits=8, per="channel")])
@torch.no_grad()
def test_what_is_exported_computes_what_was_prepared(operated: Operated, scales: str, grid: Grid) -> None:
    """As plain weights, and with scales from the range as codes of the same grid too."""
    step = FakeQuant(scales=scales, **grid.model_dump())  # pyright: ignore
    model, tokens = spoil(operated("llama", step), size=0.01), ids()
    expected, plain = logits(model, tokens), operated("llama")
    for name, tensor in merged_tensors(model):
        plain.get_parameter(name).copy_(tensor)
    torch.testing.assert_close(logits(plain, tokens), expected, atol=1e-5 * float(expected.abs().max()), rtol=0)
    if scales == "range":
        quantize_model(plain, Integers(**grid.model_dump()))
        assert isinstance(plain.get_submodule("blocks.0.attention.query.code"), IntegerCode)
        assert "blocks.0.attention.query.weight" not in dict(plain.named_parameters())
        torch.testing.assert_close(logits(plain, tokens), expected, atol=1e-5 * float(expected.abs().max()), rtol=0)


def test_gradients_pass_the_rounding_inside_the_range_and_not_outside() -> None:
    layer, weight = Linear(16, 2, bias=False), torch.linspace(-1, 1, 32).view(2, 16).requires_grad_()
    RangeQuant(layer, FakeQuant(bits=4, per="tensor"))(weight).sum().backward()
    assert torch.equal(weight.grad, torch.ones(2, 16))
    weight.grad = None
    learned = LearnedQuant(layer, FakeQuant(bits=4, per="tensor", scales="learned"))
    with torch.no_grad():
        learned.scale.fill_(0.1)  # the range ends at 0.7
    learned(weight).sum().backward()
    inside = weight.detach().abs() <= 0.7
    assert torch.equal(weight.grad, inside.float())
    ratio = weight.detach() / 0.1
    slope = torch.where(inside, ratio.round() - ratio, 7 * weight.detach().sign())
    assert learned.scale.grad is not None
    torch.testing.assert_close(learned.scale.grad.squeeze(), slope.sum() / (32 * 7) ** 0.5, atol=1e-5, rtol=1e-4)


def test_rounding_happens_in_float32_whatever_the_model_computes_in(operated: Operated) -> None:
    model = operated("llama", FakeQuant(bits=8, per="channel"))
    layer = model.get_submodule("blocks.0.mlp.up")
    assert isinstance(layer, Linear)
    rounded = quantize(layer.weight, Grid(bits=8, per="channel")).restored()
    assert torch.equal(layer.matrix(torch.bfloat16), rounded.to(torch.bfloat16))


@pytest.mark.parametrize("rows", [1, 2])
def test_a_four_bit_base_with_lora_begins_as_the_four_bit_base(operated: Operated, rows: int) -> None:
    """And what is kept for backward is made again from the codes: gradients equal those of the dense weights."""
    model, tokens = operated("gpt2", Nf4(block=32), Lora(rank=4)), ids(rows)
    dense = operated("gpt2", Lora(rank=4))
    with torch.no_grad():
        for name, layer in model.named_modules():
            if isinstance(layer, Linear) and layer.code is not None:
                dense.get_parameter(f"{name}.weight").copy_(layer.matrix(torch.float32))
    torch.testing.assert_close(logits(model, tokens), logits(dense, tokens), atol=2e-5, rtol=1e-5)
    for each in (model, dense):
        spoil(each, size=0.02)
        logits(each, tokens).square().mean().backward()
    for name, parameter in dense.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(model.get_parameter(name).grad, parameter.grad, atol=1e-4, rtol=1e-3)


def test_a_weight_behind_codes_is_nowhere(operated: Operated) -> None:
    model = operated("llama", Nf4(block=32), Lora())
    layer = model.get_submodule("blocks.0.mlp.down")
    assert isinstance(layer, Linear)
    assert layer.weight.is_meta
    assert tuple(layer.weight.shape) == (32, 128)
    stored = sum(buffer.numel() * buffer.element_size() for buffer in layer.buffers())
    assert stored < 32 * 128 * 0.6  # bytes: half a byte and scales each, where float32 has four


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (FakeQuant(group=24), r"fake_quant group: blocks\.0\.attention\.query has rows of 32 values, .*16, 32"),
        (Nf4(block=64), r"nf4 block: .* rows of 32 values, which groups of 64 do not divide"),
        (FakeQuant(targets=["*.qkv"]), "matches no linear layer"),
    ],
)
def test_bad_input_names_key_expected_and_found(step: FakeQuant, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        operate(build_model(CONFIGS["llama"], VOCAB), [*([step, Lora()] if isinstance(step, Nf4) else [step])])
