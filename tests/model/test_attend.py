"""Every way to compute attention equals the formula, in values and gradients; documents do not see each other."""

import pytest
import torch
from torch import Tensor

from hornbook.model.attend import attend, reference_attention
from hornbook.model.blocks import QUERIES, BlockAttention, plan
from hornbook.model.position import Lengths
from hornbook.model.sight import Sight, as_tuples, mask

Shape = tuple[int, int, int, int, int]
SHAPES: list[tuple[Shape, Lengths | None]] = [
    # batch, heads, kv_heads, queries, keys
    ((2, 4, 4, 1, 1), None),
    ((2, 4, 4, 17, 17), None),
    ((2, 4, 4, 2 * QUERIES + 30, 2 * QUERIES + 30), None),
    ((2, 4, 2, QUERIES + 1, QUERIES + 1), None),
    ((1, 4, 1, 140, 140), None),
    ((2, 2, 1, 1, 50), None),
    ((2, 2, 1, 40, 150), None),
    ((2, 2, 2, 12, 12), [(12,), (12,)]),
    ((3, 4, 2, 300, 300), [(300,), (100, 130, 70), (1, 1, 1, 255, 42)]),
    ((1, 2, 2, 20, 20), [(13, 7)]),
]


def heads(shape: Shape, dtype: torch.dtype, grad: bool = True) -> list[Tensor]:
    batch, heads, kv_heads, queries, keys = shape
    sizes = [(batch, heads, queries, 8), (batch, kv_heads, keys, 8), (batch, kv_heads, keys, 8)]
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_(grad) for size in sizes]


def compare(parts: list[Tensor], lengths: Lengths | None, tolerance: float, way=attend) -> None:
    sight = Sight(lengths=as_tuples(lengths))
    out = way(*parts, sight)
    exact = [part.detach().double().requires_grad_() for part in parts]
    want = reference_attention(*exact, sight)
    assert out.shape == want.shape
    assert float((out - want).detach().abs().max()) < tolerance
    grad = torch.randn_like(out)
    wanted = torch.autograd.grad(want, exact, grad.double())
    for got, true in zip(torch.autograd.grad(out, parts, grad), wanted, strict=True):
        assert float((got - true).abs().max()) < tolerance * max(1.0, float(true.abs().max()))


@pytest.mark.parametrize(("shape", "lengths"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_attention_equals_the_formula(shape: Shape, lengths: Lengths | None, dtype: torch.dtype) -> None:
    compare(heads(shape, dtype), lengths, 1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize(("shape", "lengths"), SHAPES)
def test_attention_in_bfloat16(shape: Shape, lengths: Lengths | None) -> None:
    """Scores of deviation 1 and size below 6 are rounded to 2^-9 of themselves, so probabilities to about 1 %."""
    compare(heads(shape, torch.bfloat16), lengths, 0.03)


@pytest.mark.parametrize(("shape", "lengths"), SHAPES)
def test_probabilities_computed_again_are_equal(
    shape: Shape, lengths: Lengths | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = heads(shape, torch.float32)
    grad = torch.randn(parts[0].shape)
    kept = torch.autograd.grad(BlockAttention.apply(*parts, lengths, True), parts, grad)
    monkeypatch.setattr("hornbook.model.blocks.KEPT", 0)
    again = torch.autograd.grad(BlockAttention.apply(*parts, lengths, True), parts, grad)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


@pytest.mark.parametrize(("shape", "lengths"), [SHAPES[1], SHAPES[6], SHAPES[9]])
def test_gradients_by_finite_differences(shape: Shape, lengths: Lengths | None) -> None:
    parts = heads(shape, torch.float64)
    small = [part[:1, :2, :, :2].detach().requires_grad_() for part in parts]
    torch.autograd.gradcheck(lambda q, k, v: BlockAttention.apply(q, k, v, lengths, True), small, fast_mode=True)


def test_torchs_attention_is_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that other devices and compiled blocks take."""
    monkeypatch.setattr("hornbook.model.attend.FEW_QUERIES", 10**9)
    for shape, lengths in SHAPES:
        compare(heads(shape, torch.float32), lengths, 1e-5)


def test_blocks_cover_every_query_once_and_see_what_the_mask_shows() -> None:
    lengths = [(300,), (100, 130, 70), (1, 1, 1, 255, 42)]
    seen = torch.zeros(3, 300, 300, dtype=torch.bool)
    times = torch.zeros(3, 300, dtype=torch.int64)
    for block in plan(300, 300, 3, tuple(lengths)):
        assert 0 <= block.begin <= block.first
        times[block.rows, block.first : block.last] += 1
        for i in range(block.last - block.first):
            first, last = block.begin + int(block.starts[i]), block.begin + int(block.ends[i])
            assert last <= block.end
            seen[block.rows, block.first + i, first:last] = True
    assert torch.all(times == 1)
    assert torch.equal(seen, mask(Sight(lengths=tuple(lengths)), 3, 300, 300))
