"""CPU kernels against their formulas in float64: values and gradients, both dtypes, odd shapes, several threads."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hornbook.kernels import team
from hornbook.kernels.scalar import exponential
from hornbook.model.attention.position import Layout, rotate
from hornbook.model.cpu.cpu_dropout import DropoutFunction
from hornbook.model.cpu.cpu_norm import RMSNormFunction
from hornbook.model.cpu.gate import SwiGLUDown, SwiGLUFunction
from hornbook.model.cpu.heads import SplitHeads
from hornbook.model.cpu.softmax import biased_softmax_, cross_entropy_, diagonal_sums, softmax_, softmax_backward_
from hornbook.model.layers.dropout import keep_mask, mix

# Relative to the largest value: float32 sums of some hundred terms; one rounding to bfloat16 is 2^-9 = 0.002, and a
# product of two rounded values at most two of them.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
DTYPES = list(TOLERANCE)


@pytest.fixture(autouse=True, params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def close(got: Tensor, want: Tensor, dtype: torch.dtype, steps: int = 1) -> None:
    """`steps` counts roundings one after another beyond the last."""
    assert got.shape == want.shape
    got, want = got.detach().double(), want.detach().double()
    assert float((got - want).abs().max()) <= steps * TOLERANCE[dtype] * float(want.abs().max())


def check(function: Callable[..., Tensor], reference: Callable[..., Tensor], *inputs: Tensor, steps: int = 1) -> None:
    """Values and gradients of `function` equal those of `reference` over the same numbers in float64."""
    dtype = inputs[0].dtype
    leaves = [x.detach().requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    got, want = function(*leaves), reference(*exact)
    close(got, want, dtype, steps)
    grad = torch.randn_like(got)
    grads = torch.autograd.grad(got, leaves, grad)
    for mine, true, leaf in zip(grads, torch.autograd.grad(want, exact, grad.double()), leaves, strict=True):
        assert mine.dtype == leaf.dtype
        close(mine, true, dtype, steps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 5), (3, 7), (2, 65, 384)])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.rand(shape[-1]) + 0.5
    check(lambda x, w: RMSNormFunction.apply(x, w, 1e-6), lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), x, weight)


def test_rms_norm_reads_any_layout() -> None:
    x = torch.randn(2, 3, 5, 8).transpose(1, 2)
    check(lambda x: RMSNormFunction.apply(x, torch.ones(8), 1e-6), lambda x: F.rms_norm(x, (8,), None, 1e-6), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (3, 5, 14), (130, 384)])
def test_swiglu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def reference(both: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        return F.silu(gate) * up

    check(SwiGLUFunction.apply, reference, (4 * torch.randn(shape)).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_and_its_projection(dtype: torch.dtype) -> None:
    def reference(both: Tensor, weight: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        return (F.silu(gate) * up) @ weight.T

    # The product is rounded, then the projection of it (and backward likewise).
    check(SwiGLUDown.apply, reference, torch.randn(3, 5, 14).to(dtype), torch.randn(9, 7).to(dtype), steps=2)


def test_swiglu_of_large_gates_is_finite() -> None:
    both = torch.tensor([[-1e30, -200.0, -88.0, 88.0, 200.0, 1e30, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    assert torch.equal(SwiGLUFunction.apply(both).round(), torch.tensor([[0.0, 0.0, 0.0, 88.0, 200.0, 1e30]]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("heads", [(4, 4), (3, 1), (5, 0)])
@pytest.mark.parametrize(
    ("pairs", "layout"), [(3, "half"), (1, "half"), (0, "half"), (3, "interleaved"), (2, "interleaved")]
)
def test_split_heads(dtype: torch.dtype, rows: int, heads: tuple[int, int], pairs: int, layout: Layout) -> None:
    """All dims turn, some, or none."""
    dim, time = 6, 11
    angles = torch.rand(rows, time, pairs) * 6
    cos, sin = angles.cos(), angles.sin()

    def reference(fused: Tensor) -> Tensor:
        query, key, value = fused.unflatten(-1, (-1, dim)).transpose(1, 2).split([heads[0], heads[1], heads[1]], 1)
        exact = cos.double(), sin.double()
        return torch.cat([rotate(query, exact, layout), rotate(key, exact, layout), value], 1)

    fused = torch.randn(3, time, (heads[0] + 2 * heads[1]) * dim).to(dtype)
    check(lambda x: torch.cat(SplitHeads.apply(x, heads, cos, sin, layout == "interleaved"), 1), reference, fused)


QUERIES, KEYS = 33, 75


def intervals(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Starts and ends of what queries see, some nothing, and what is hidden from them."""
    starts = (torch.arange(QUERIES) // 10 * 10).repeat(rows, 1)
    ends = torch.arange(QUERIES) + KEYS - QUERIES + 1 - torch.arange(rows)[:, None] * 7
    starts[0, 4] = ends[0, 4]
    place = torch.arange(KEYS)
    return starts, ends, ((place < starts[..., None]) | (place >= ends[..., None]))[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3])
def test_softmax_of_a_block_and_its_gradient(dtype: torch.dtype, rows: int) -> None:
    starts, ends, hidden = intervals(rows)
    shape = (3, 4, QUERIES, KEYS)
    scores, grads = (8 * torch.randn(shape)).to(dtype), torch.randn(shape).to(dtype)
    got, want = scores.clone(), scores.double()
    for block in (got, want):
        softmax_(block, starts, ends, 0.3)
    close(got, want, dtype)
    assert torch.all(got[hidden.expand(shape)] == 0)
    assert torch.allclose(want.sum(-1), (starts < ends)[:, None].double().expand(3, 4, QUERIES))
    back, true = grads.clone(), grads.double()
    softmax_backward_(back, got, starts, ends, 0.3)
    softmax_backward_(true, got.double(), starts, ends, 0.3)
    close(back, true, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sinks", [None, torch.tensor([-1.0, 0.0, 3.0, 30.0])])
def test_softmax_with_scores_by_distance_and_sinks(dtype: torch.dtype, sinks: Tensor | None) -> None:
    starts, ends, hidden = intervals(3)
    scores, table = (8 * torch.randn(3, 4, QUERIES, KEYS)).to(dtype), torch.randn(4, 2 * KEYS + 11)
    got, column = scores.clone(), KEYS + 9
    rest = biased_softmax_(got, starts, ends, 0.3, table, column, sinks)
    apart = torch.arange(KEYS) - torch.arange(QUERIES)[:, None]
    full = (scores.double() * 0.3 + table.double()[:, column + apart]).masked_fill(hidden, -torch.inf)
    beside = (torch.full((4,), -torch.inf) if sinks is None else sinks).double()[:, None, None].expand(3, 4, QUERIES, 1)
    want = torch.cat([full, beside], -1).softmax(-1).nan_to_num(0)
    close(got, want[..., :KEYS], dtype)
    assert torch.all(got[hidden.expand(got.shape)] == 0)
    sees = (starts < ends)[:, None].expand(rest.shape)
    assert torch.allclose(rest[sees], want[..., KEYS].float()[sees], rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_over_equal_distances(dtype: torch.dtype) -> None:
    grads = torch.randn(2, 3, QUERIES, KEYS).to(dtype)
    want = torch.stack([grads.double().diagonal(d, 2, 3).sum(-1) for d in range(1 - QUERIES, KEYS)], -1)
    close(diagonal_sums(grads), want, torch.float32)
    close(diagonal_sums(grads.double()), want, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 17, 1000])
def test_cross_entropy(dtype: torch.dtype, vocab: int) -> None:
    logits = (5 * torch.randn(70, vocab)).to(dtype)
    targets, weights = torch.randint(0, vocab, (70,)), torch.rand(70)
    exact = logits.double().requires_grad_()
    want = F.cross_entropy(exact, targets, reduction="none") * weights
    want.sum().backward()
    losses, grads, untouched = torch.empty(70), logits.clone(), logits.clone()
    cross_entropy_(grads, targets, weights, losses, want_grad=True)
    close(losses, want, torch.float32)
    assert exact.grad is not None
    close(grads, exact.grad, dtype)
    cross_entropy_(untouched, targets, weights, losses, want_grad=False)
    assert torch.equal(untouched, logits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_equals_its_mask(dtype: torch.dtype) -> None:
    hashes, threshold = mix(torch.arange(3)), round(0.7 * 2**24)
    x = torch.randn(3, 20, 31).to(dtype)
    keep = keep_mask(hashes, threshold, range(20), range(31), 31)
    check(lambda x: DropoutFunction.apply(x, hashes, threshold, 1 / 0.7), lambda x: x * keep / 0.7, x)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_not_hidden(dtype: torch.dtype, bad: float) -> None:
    """A guard that looks at losses and gradients must see it."""
    x = torch.randn(4, 8).to(dtype)
    x[1, 3] = bad
    assert not torch.isfinite(RMSNormFunction.apply(x, torch.ones(8), 1e-6)[1]).all()
    assert not torch.isfinite(SwiGLUFunction.apply(x)[1]).all()
    if bad == float("-inf"):
        return  # a score or logit that is minus infinity is a probability of zero
    losses, logits = torch.empty(4), x.clone()
    cross_entropy_(logits, torch.zeros(4, dtype=torch.int64), torch.ones(4), losses, want_grad=True)
    assert torch.equal(torch.isfinite(losses), torch.tensor([True, False, True, True]))
    plain, biased = x[None, None].clone(), x[None, None].clone()
    whole = torch.zeros(1, 4, dtype=torch.int64), torch.full((1, 4), 8)
    softmax_(plain, *whole, 1.0)
    biased_softmax_(biased, *whole, 1.0, torch.zeros(1, 11), 3, torch.zeros(1))
    assert not torch.isfinite(plain[0, 0, 1]).all()
    assert not torch.isfinite(biased[0, 0, 1]).all()


def test_the_exponential_keeps_its_promise() -> None:
    @numba.njit
    def each(x: np.ndarray) -> np.ndarray:
        return np.array([exponential(value) for value in x])

    x = np.linspace(-87, 88, 50_001).astype(np.float32)
    want = np.exp(x.astype(np.float64))
    # The polynomial leaves out r^7 / 5040, 1.2e-7 at most; two roundings come to that.
    assert float(np.max(np.abs(each(x) - want) / want)) < 2.4e-7
    edges = each(np.array([-1e30, -np.inf, 1e30, np.inf, np.nan, 0.0], dtype=np.float32))
    np.testing.assert_array_equal(edges, np.array([0, 0, np.inf, np.inf, np.nan, 1], dtype=np.float32))


def test_sums_do_not_depend_on_threads() -> None:
    x, weight = torch.randn(300, 64), torch.rand(64, requires_grad=True)
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(torch.autograd.grad(RMSNormFunction.apply(x, weight, 1e-6).sum(), weight)[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_kernels_run_without_an_openmp_library(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(100, 8)
    want = RMSNormFunction.apply(x, torch.ones(8), 1e-6)
    monkeypatch.setattr(team, "_gomp_parallel", lambda: None)
    assert torch.equal(RMSNormFunction.apply(x, torch.ones(8), 1e-6), want)


@pytest.mark.parametrize(
    "place",
    [
        "site-packages/torch/lib/libgomp.so.1",  # wheels for Linux, arm64 and x86
        "site-packages/torch/lib/libomp.dylib",  # wheels for macOS
        "site-packages/torch.libs/libgomp-1a2b.so.1.0.0",
        "lib/libomp.dylib",  # conda
    ],
)
def test_torchs_openmp_library_is_found_where_it_is_installed(tmp_path: Path, place: str) -> None:
    library = tmp_path / place
    for other in ("torch/lib/libarm_compute.so", "torch/lib/libnvpl_blas_lp64_gomp.so.0"):
        (tmp_path / "site-packages" / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site-packages" / other).touch()
    library.parent.mkdir(parents=True, exist_ok=True)
    library.touch()
    torch_folder = tmp_path / "site-packages" / "torch"
    assert team.openmp_libraries(torch_folder, tmp_path, tmp_path / "maps") == [library]


def test_what_the_process_has_mapped_is_found_too(tmp_path: Path) -> None:
    (tmp_path / "maps").write_text(
        "7f00-7f01 r-xp 00000000 fd:00 1 /opt/a b/libgomp.so.1\n7f01-7f02 r--p 00000000 fd:00 2 /opt/libcompress.so\n"
    )
    assert team.openmp_libraries(tmp_path / "torch", tmp_path, tmp_path / "maps") == [Path("/opt/a b/libgomp.so.1")]


def test_no_rows_are_no_work() -> None:
    assert RMSNormFunction.apply(torch.empty(0, 8), torch.ones(8), 1e-6).shape == (0, 8)
