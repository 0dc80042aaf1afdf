"""Every way to compute attention equals the formula, in values and gradients; what is not seen has no influence."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hornbook.model.attention.attend import attend
from hornbook.model.attention.mask import AttentionMask, DocumentLengths
from hornbook.model.attention.tiled_attention import Scoring
from hornbook.model.attention.tiles import QUERIES, plan_tiles
from hornbook.model.layers.dropout import AttentionDropout
from tests.model.attention.reference import dense_mask, reference_attention

Parts = tuple[Tensor, Tensor, Tensor]


class Shape(NamedTuple):
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int


PIECES = ((300,), (100, 130, 70), (1, 1, 1, 255, 42))
WIDE = Shape(3, 4, 2, 300, 300)
CAUSAL: list[tuple[Shape, AttentionMask]] = [
    (Shape(2, 4, 4, 1, 1), AttentionMask()),
    (Shape(2, 4, 4, 17, 17), AttentionMask()),
    (Shape(2, 4, 4, 2 * QUERIES + 30, 2 * QUERIES + 30), AttentionMask()),
    (Shape(1, 4, 1, 140, 140), AttentionMask()),
    (Shape(2, 2, 1, 1, 50), AttentionMask()),
    (Shape(2, 2, 1, 40, 150), AttentionMask()),
    (Shape(2, 2, 2, 12, 12), AttentionMask(lengths=((12,), (12,)))),
    (WIDE, AttentionMask(lengths=PIECES)),
    (Shape(1, 2, 2, 20, 20), AttentionMask(lengths=((13, 7),))),
]
OTHER: list[tuple[Shape, AttentionMask]] = [
    (WIDE, AttentionMask(lengths=PIECES, window=17)),
    (Shape(2, 2, 1, 5, 150), AttentionMask(window=9)),
    (WIDE, AttentionMask(lengths=PIECES, prefixes=((50,), (0, 130, 3), (1, 0, 0, 200, 5)))),
    (WIDE, AttentionMask("bidirectional")),
    (WIDE, AttentionMask("bidirectional", PIECES)),
    (WIDE, AttentionMask("bidirectional", PIECES, window=30)),
    (Shape(3, 4, 2, 200, 90), AttentionMask("cross")),
    (Shape(3, 4, 2, 200, 90), AttentionMask("cross", None, ((80, 10), (90,), (1, 89)))),
    (Shape(3, 4, 2, 200, 90), AttentionMask("cross", ((150, 50), (0, 200), (100, 100)), ((30, 60), (40, 50), (0, 90)))),
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
OPTIONS = {
    "plain": (),
    "scale": ("scale",),
    "softcap": ("softcap",),
    "bias": ("bias",),
    "sinks": ("sinks",),
    "dropout": ("dropout",),
    "all": ("scale", "softcap", "bias", "sinks", "dropout"),
}


def draw(shape: Shape, dtype: torch.dtype) -> Parts:
    """Query, key, and a value of another width."""
    generator = torch.Generator().manual_seed(0)

    def one(heads: int, time: int, dim: int) -> Tensor:
        return torch.randn(shape.batch, heads, time, dim, generator=generator).to(dtype).requires_grad_()

    return one(shape.heads, shape.queries, 8), one(shape.kv_heads, shape.keys, 8), one(shape.kv_heads, shape.keys, 6)


def each(parts: Parts, change: Callable[[Tensor], Tensor]) -> Parts:
    query, key, value = parts
    return change(query), change(key), change(value)


def options(names: tuple[str, ...], shape: Shape, dtype: torch.dtype) -> dict[str, Any]:
    """Values of the options; parameters are float32 at least, and the table is larger than it has to be."""
    wide, generator = torch.promote_types(dtype, torch.float32), torch.Generator().manual_seed(1)
    values = {
        "scale": 0.7,
        "softcap": 2.0,
        "bias": torch.randn(shape.heads, 2 * shape.keys + 5, generator=generator).to(wide).requires_grad_(),
        "sinks": torch.randn(shape.heads, generator=generator).to(wide).requires_grad_(),
        "dropout": AttentionDropout(7 * torch.arange(shape.batch) + 5, 0.3),
    }
    return {name: values[name] for name in names}


def leaves(parts: Parts, chosen: dict) -> list[Tensor]:
    return [*parts, *(value for value in chosen.values() if isinstance(value, Tensor))]


def compare(
    shape: Shape, mask: AttentionMask, dtype: torch.dtype, tolerance: float, names: tuple[str, ...] = ()
) -> None:
    parts, chosen = draw(shape, dtype), options(names, shape, dtype)
    exact = each(parts, lambda part: part.detach().double().requires_grad_())
    wide: dict[str, Any] = {
        name: value.detach().double().requires_grad_() if isinstance(value, Tensor) else value
        for name, value in chosen.items()
    }
    scoring = Scoring(**{"scale": exact[0].shape[-1] ** -0.5, **wide})
    out, want = attend(*parts, mask, **chosen), reference_attention(*exact, mask, scoring)
    assert out.shape == want.shape
    assert float((out - want).detach().abs().max()) < tolerance
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    wanted = torch.autograd.grad(want, leaves(exact, wide), grad.double())
    for got, true in zip(torch.autograd.grad(out, leaves(parts, chosen), grad), wanted, strict=True):
        assert float((got - true).abs().max()) < tolerance * max(1.0, float(true.abs().max()))


@pytest.mark.parametrize(("shape", "mask"), CAUSAL + OTHER)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_attention_equals_the_formula(shape: Shape, mask: AttentionMask, dtype: torch.dtype) -> None:
    compare(shape, mask, dtype, TOLERANCE[dtype])


@pytest.mark.parametrize("names", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize(("shape", "mask"), [CAUSAL[7], CAUSAL[5], *OTHER[:3], OTHER[5], OTHER[8]])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_option_equals_the_formula(
    names: tuple[str, ...], shape: Shape, mask: AttentionMask, dtype: torch.dtype
) -> None:
    names = tuple(name for name in names if mask.kind != "cross" or name != "bias")
    compare(shape, mask, dtype, TOLERANCE[dtype], names)


@pytest.mark.parametrize("names", [(), ("bias", "sinks"), ("softcap",)], ids=["plain", "bias and sinks", "softcap"])
@pytest.mark.parametrize(("shape", "mask"), [*CAUSAL, OTHER[2], OTHER[5]])
def test_attention_in_bfloat16(shape: Shape, mask: AttentionMask, names: tuple[str, ...]) -> None:
    """Scores of deviation 1 and size below 6 are rounded to 2^-9 of themselves, so probabilities to about 1 %."""
    compare(shape, mask, torch.bfloat16, 0.03, names)


@pytest.mark.parametrize("names", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize(("shape", "mask"), [CAUSAL[2], CAUSAL[7], OTHER[5]])
def test_probabilities_computed_again_are_equal(
    shape: Shape, mask: AttentionMask, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, chosen = draw(shape, torch.float32), options(names, shape, torch.float32)
    grad = torch.randn(shape.batch, shape.heads, shape.queries, 6)

    def gradients(kept: int) -> tuple[Tensor, ...]:
        monkeypatch.setattr("hornbook.model.attention.tiled_attention.KEPT", kept)
        out = attend(*parts, mask, **chosen)
        saved = getattr(out.grad_fn, "saved_tensors", ())
        assert len(saved) == 7 + (len(plan_tiles(shape.queries, shape.keys, shape.batch, mask).tiles) if kept else 0)
        return torch.autograd.grad(out, leaves(parts, chosen), grad)

    assert all(torch.equal(a, b) for a, b in zip(gradients(10**9), gradients(0), strict=True))


@pytest.mark.parametrize(("shape", "mask"), [CAUSAL[1], CAUSAL[5], CAUSAL[8]])
def test_gradients_by_finite_differences(shape: Shape, mask: AttentionMask) -> None:
    parts = draw(shape._replace(batch=1, heads=2, kv_heads=2), torch.float64)
    chosen = options(("bias", "sinks", "softcap"), shape._replace(heads=2), torch.float64)

    def call(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
        return attend(query, key, value, mask, bias=bias, sinks=sinks, softcap=chosen["softcap"])

    torch.autograd.gradcheck(call, leaves(parts, chosen), fast_mode=True)


@pytest.mark.parametrize("names", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize(("shape", "mask"), [CAUSAL[1], CAUSAL[4], CAUSAL[5], CAUSAL[7], *OTHER])
def test_torchs_attention_is_the_other_way(
    shape: Shape, mask: AttentionMask, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way that other devices, compiled blocks and few queries take."""
    monkeypatch.setattr("hornbook.model.attention.attend.FEW_QUERIES", 10**9)
    names = tuple(name for name in names if mask.kind != "cross" or name != "bias")
    compare(shape, mask, torch.float32, 1e-5, names)


@pytest.mark.parametrize("mask", [mask for shape, mask in CAUSAL + OTHER if shape == WIDE])
def test_tiles_cover_every_query_once_and_see_what_the_mask_shows(mask: AttentionMask) -> None:
    seen = torch.zeros(3, 300, 300, dtype=torch.bool)
    times = torch.zeros(3, 300, dtype=torch.int64)
    whole = plan_tiles(300, 300, 3, mask)
    for tile in whole.tiles:
        times[tile.rows, tile.first : tile.last] += 1
        for row in range(tile.rows.start, tile.rows.stop):
            own = min(row - tile.rows.start, len(tile.starts) - 1)
            for i in range(tile.last - tile.first):
                first, last = int(tile.starts[own, i]), int(tile.ends[own, i])
                assert 0 <= first <= last <= tile.end - tile.begin
                seen[row, tile.first + i, tile.begin + first : tile.begin + last] = True
    assert torch.all(times == 1)
    assert torch.equal(seen, dense_mask(mask, 3, 300, 300).expand(3, 300, 300))
    assert whole.pairs == int(seen.sum()) - 900


def test_short_rows_share_a_tile() -> None:
    """Rows that differ in their documents alone are one product."""
    lengths = ((30, 34), (64,), (1, 63))
    assert [
        (tile.rows, tile.begin, tile.end) for tile in plan_tiles(64, 64, 3, AttentionMask(lengths=lengths)).tiles
    ] == [(slice(0, 3), 0, 64)]


def pairs(mask: AttentionMask, batch: int, queries: int, keys: int, sees: Callable[[int, int, int], bool]) -> None:
    """The mask equals what is said of each pair (row, query's position, key)."""
    got = dense_mask(mask, batch, queries, keys).expand(batch, queries, keys)
    want = [[[sees(b, q, k) for k in range(keys)] for q in range(keys - queries, keys)] for b in range(batch)]
    assert torch.equal(got, torch.tensor(want))


def test_what_is_seen() -> None:
    lengths: DocumentLengths = ((3, 5), (8,))
    piece = [[0, 0, 0, 1, 1, 1, 1, 1], [0] * 8]
    begin = [[0, 0, 0, 3, 3, 3, 3, 3], [0] * 8]
    prefix = [[2, 2, 2, 6, 6, 6, 6, 6], [4] * 8]

    def together(b: int, q: int, k: int) -> bool:
        return piece[b][q] == piece[b][k]

    pairs(AttentionMask(), 1, 8, 8, lambda _, q, k: k <= q)
    pairs(AttentionMask(), 1, 2, 8, lambda _, q, k: k <= q)
    pairs(AttentionMask(window=3), 1, 8, 8, lambda _, q, k: q - 3 < k <= q)
    pairs(AttentionMask(lengths=lengths), 2, 8, 8, lambda b, q, k: together(b, q, k) and k <= q)
    pairs(AttentionMask("bidirectional"), 1, 8, 8, lambda *_: True)
    pairs(AttentionMask("bidirectional", lengths), 2, 8, 8, together)
    pairs(
        AttentionMask("bidirectional", lengths, window=4),
        2,
        8,
        8,
        lambda b, q, k: together(b, q, k) and abs(q - k) <= 2,
    )
    # Both ways inside the first positions of a document, in order after them.
    prefixes = AttentionMask(lengths=lengths, prefixes=((2, 3), (4,)))
    pairs(prefixes, 2, 8, 8, lambda b, q, k: together(b, q, k) and (k <= q or begin[b][k] <= k < prefix[b][k]))
    across = dense_mask(AttentionMask("cross", ((2, 1),), ((1, 3),)), 1, 3, 4)
    assert across.int().tolist() == [[[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 1]]]
    assert dense_mask(AttentionMask("cross", None, ((3, 1),)), 1, 2, 4).int().tolist() == [[[1, 1, 1, 0]] * 2]


@pytest.mark.parametrize(
    "mask",
    [
        AttentionMask(lengths=PIECES[1:2]),
        AttentionMask("bidirectional", PIECES[1:2]),
        AttentionMask("bidirectional", PIECES[1:2], window=9),
    ],
)
def test_no_gradient_crosses_documents(mask: AttentionMask) -> None:
    """Not small: zero."""
    shape = Shape(1, 2, 1, 300, 300)
    parts = draw(shape, torch.float32)
    out = attend(*parts, mask, **options(("bias", "sinks"), shape, torch.float32))
    grads = torch.autograd.grad(out[:, :, 100:230].sum(), parts)
    for grad in grads:
        assert torch.all(grad[:, :, :100] == 0)
        assert torch.all(grad[:, :, 230:] == 0)
        assert torch.any(grad[:, :, 100:230] != 0)


@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
def test_packed_equals_documents_alone(kind) -> None:
    parts, lengths = draw(WIDE, torch.float32), PIECES[1]
    chosen = options(("bias",), WIDE, torch.float32)
    packed = attend(*each(parts, lambda part: part[1:2]), AttentionMask(kind, (lengths,)), **chosen)
    ends = torch.tensor(lengths).cumsum(0).tolist()
    pieces = [slice(end - length, end) for length, end in zip(lengths, ends, strict=True)]
    alone = [attend(*each(parts, lambda part, at=at: part[1:2, :, at]), AttentionMask(kind), **chosen) for at in pieces]
    assert torch.allclose(packed, torch.cat(alone, 2), atol=1e-6)


def test_a_prefix_sees_itself_and_no_target_is_leaked() -> None:
    shape = Shape(1, 2, 2, 60, 60)
    parts = draw(shape, torch.float64)
    jacobian = torch.zeros(60, 60)
    out = attend(*parts, AttentionMask(prefixes=((20,),)))
    for time in range(60):
        grad = torch.autograd.grad(out[:, :, time].sum(), parts[2], retain_graph=True)[0]
        jacobian[time] = grad.abs().sum((0, 1, 3))
    assert torch.all(jacobian[:20, :20] > 0)
    assert torch.all(jacobian[:20, 20:] == 0)
    assert torch.all(jacobian[20:].triu(21) == 0)
    assert torch.all(jacobian[20:, :20] > 0)


def test_dropout_is_a_function_of_where_it_falls() -> None:
    """The same decisions alone, in any microbatch, in any block and by the formula; and as many as asked for."""
    shape = Shape(4, 2, 2, 300, 300)
    parts = each(draw(shape, torch.float32), Tensor.detach)
    drop = AttentionDropout(torch.tensor([3, 1, 4, 159]), 0.3)
    whole = attend(*parts, AttentionMask(), dropout=drop)
    for rows in (slice(1, 2), slice(2, 4)):
        own = drop._replace(hashes=drop.hashes[rows])
        part = attend(*each(parts, lambda x, rows=rows: x[rows]), AttentionMask(), dropout=own)
        assert torch.equal(part, whole[rows])
    late = attend(parts[0][:, :, 250:], parts[1], parts[2], AttentionMask(), dropout=drop)
    assert torch.allclose(late, whole[:, :, 250:], atol=1e-6)
    keep = drop.keep(slice(None), 2, range(300), range(300))
    assert abs(float(keep.float().mean()) - 0.7) < 5 * (0.21 / keep.numel()) ** 0.5
    for axis in (0, 1, 2, 3):
        agree = float((keep.narrow(axis, 0, 1) == keep.narrow(axis, 1, 1)).float().mean())
        assert abs(agree - 0.58) < 5 * (0.25 / (keep.numel() / keep.shape[axis])) ** 0.5


@st.composite
def cases(pick) -> tuple[Shape, AttentionMask]:
    """Any lengths, windows and prefixes; some pieces are empty."""
    kind = pick(st.sampled_from(["causal", "bidirectional", "cross"]))
    pieces = [[pick(st.integers(0, 90)) for _ in range(pick(st.integers(1, 4)))] for _ in range(2)]
    keys = max(*map(sum, pieces), 17)
    lengths = tuple((*row, keys - sum(row)) for row in pieces)
    shape = Shape(2, 2, 1, keys, keys)
    window = pick(st.none() | st.integers(1, 100))
    if kind == "cross":
        own = [[pick(st.integers(0, 60)) for _ in row] for row in lengths]
        queries = max(*map(sum, own), 17)
        filled = tuple((*row[:-1], queries - sum(row[:-1])) for row in own)
        return shape._replace(queries=queries), AttentionMask("cross", filled, lengths)
    if kind == "bidirectional":
        return shape, AttentionMask("bidirectional", lengths, window=window)
    prefixes = tuple(tuple(pick(st.integers(0, length)) for length in row) for row in lengths)
    queries = pick(st.integers(min(17, keys), keys))
    return shape._replace(queries=queries), AttentionMask(lengths=lengths, window=window, prefixes=prefixes)


@settings(max_examples=40, deadline=None)
@given(case=cases(), names=st.sampled_from(list(OPTIONS.values())))
def test_any_case_equals_the_formula(case: tuple[Shape, AttentionMask], names: tuple[str, ...]) -> None:
    shape, mask = case
    names = tuple(name for name in names if mask.kind != "cross" or name != "bias")
    compare(shape, mask, torch.float64, 1e-10, names)


def test_a_window_as_wide_as_the_row_hides_nothing() -> None:
    parts = draw(WIDE, torch.float32)
    assert torch.equal(attend(*parts, replace(AttentionMask(), window=300)), attend(*parts, AttentionMask()))
