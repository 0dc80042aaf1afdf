"""The bits a kernel gives do not depend on where its buffers lie.

Before a loop over two arrays the compiler asks at run time whether they are close, and if so takes one value at a time;
a sum in such a loop then has other bits. The last test here failed while the softmax summed in the loop that stores.
"""

import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from numba import njit
from torch import Tensor

from hornbook.kernels.scalar import OPTIONS, bf16, f32
from hornbook.kernels.team import Kernel, chunks, is_bf16, launch
from hornbook.model.cpu import cpu_dropout as dropout
from hornbook.model.cpu import cpu_loss as loss
from hornbook.model.cpu import cpu_norm as norm
from hornbook.model.cpu import gate, heads, softmax

ROWS, TIME, HEADS, KV_HEADS = 64, 8, 2, 1
Case = tuple[Kernel, int, tuple[int | float, ...], list[Tensor]]


def case(name: str, dtype: torch.dtype, width: int) -> Case:
    """A kernel, its rows, its numbers and its tensors."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype)

    starts, ends = torch.zeros(width, dtype=torch.int64), torch.arange(1, width + 1)
    targets, weights, rates = torch.randint(0, width, (ROWS,)), torch.rand(ROWS), torch.rand(ROWS)
    x, both, block = draw(ROWS, width), draw(ROWS, 2 * width), draw(4, width, width)
    groups = HEADS + 2 * KV_HEADS
    turned = [draw(2, count, TIME, width) for count in (HEADS, KV_HEADS, KV_HEADS)]
    angles = [torch.randn(1, TIME, width // 2) for _ in range(2)]
    fused, shape = draw(2, TIME, groups * width), (TIME, HEADS, KV_HEADS, width, 0, width // 2)
    weight, partial = torch.randn(width), torch.zeros(chunks(ROWS), width)
    seen, biased = (width, width, 4 * width, 0, 0.3), (width, width, 4 * width, 0, 4, 2 * width - 1, width - 1, 0.3)
    of_loss = [x, targets, weights, rates]
    table, sinks, rest = torch.randn(4, 2 * width - 1), torch.randn(4), torch.zeros(4 * width)
    dropped = (4, width, width, 1 << 48, 1 << 24, (3 << 24) + 5, 2**23, 2.0)
    cases: dict[str, Case] = {
        "swiglu": (gate._forward_kernel, ROWS, (width,), [both, x]),
        "swiglu_backward": (gate._backward_kernel, ROWS, (width,), [both, x, draw(ROWS, 2 * width)]),
        "norm": (norm._forward_kernel, ROWS, (width, 1e-5), [x, weight, draw(ROWS, width), rates]),
        "norm_backward": (norm._backward_kernel, ROWS, (width,), [x, weight, rates, x + 1, draw(ROWS, width), partial]),
        "loss": (softmax._cross_entropy_kernel, ROWS, (width, 1), of_loss),
        "loss_terms": (loss._terms_kernel, ROWS, (width, 1, width - 1, 0.1, 1e-2, 5.0), [*of_loss, rates + 1]),
        "softmax": (softmax._softmax_kernel, 4 * width, seen, [block, starts, ends]),
        "biased_softmax": (softmax._biased_kernel, 4 * width, biased, [block, starts, ends, table, sinks, rest]),
        "softmax_backward": (softmax._backward_kernel, 4 * width, seen, [block, block + 1, starts, ends]),
        "diagonals": (softmax._diagonal_kernel, 4, (width, width), [block, torch.zeros(4, 2 * width - 1)]),
        "attention_dropout": (dropout._kernel, 4 * width, dropped, [block, targets[:1], block + 1]),
        "split": (heads._kernel, 2 * TIME, (0, *shape, 0), [fused, *turned, *angles]),
        "merge": (heads._kernel, 2 * TIME, (1, *shape, 0), [fused, *turned, *angles]),
        "split_neighbours": (heads._kernel, 2 * TIME, (0, *shape, 1), [fused, *turned, *angles]),
    }
    return cases[name]


def place(tensors: list[Tensor], draw: random.Random | None) -> list[Tensor]:
    """Copies in one block of memory: in any order and close together, or a mebibyte apart."""
    order, end, begins = list(range(len(tensors))), 64, {}
    if draw:
        draw.shuffle(order)
    for number in order:
        begins[number] = end
        end += tensors[number].nbytes + (draw.choice((0, 0, 64, 128)) if draw else 1 << 20)
        end = -(-end // 64) * 64
    block = torch.zeros(end, dtype=torch.uint8)
    copies = []
    for number, tensor in enumerate(tensors):
        here = block[begins[number] : begins[number] + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        copies.append(here.copy_(tensor))
    return copies


NAMES = ["swiglu", "swiglu_backward", "norm", "norm_backward", "loss", "softmax", "biased_softmax", "softmax_backward"]
NAMES += ["loss_terms", "diagonals", "attention_dropout", "split", "merge", "split_neighbours"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [8, 16, 40])
@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_neighbours(name: str, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    kernel, rows, numbers, tensors = case(name, dtype, width)
    apart = place(tensors, None)
    launch(kernel, rows, is_bf16(tensors[0]), *numbers, *apart)
    assert not all(torch.equal(x, y) for x, y in zip(apart, tensors, strict=True))  # it did something
    draw = random.Random(0)
    for _ in range(50):
        close = place(tensors, draw)
        launch(kernel, rows, is_bf16(tensors[0]), *numbers, *close)
        assert all(torch.equal(x, y) for x, y in zip(apart, close, strict=True))


def before_scratch(tensor: Tensor, scratch_bytes: int, run: Callable[[Tensor], None]) -> Tensor | None:
    """The tensor after `run`, in memory that ends where a scratch of so many bytes then begins; None without such."""
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    blocks, result = [], None
    for _ in range(100):
        here, behind = library.malloc(tensor.nbytes + 8), library.malloc(scratch_bytes)
        blocks += [here, behind]
        if 0 < behind - here < tensor.nbytes + 64:
            library.free(blocks.pop())  # whoever asks next for so much gets it
            memory = (ctypes.c_char * tensor.nbytes).from_address(here)
            copy = torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape).copy_(tensor)
            run(copy)
            result = copy.clone()
            break
    for block in blocks:
        library.free(block)
    return result


@pytest.mark.skipif(sys.platform != "linux", reason="places memory by habits of glibc's malloc")
def test_a_softmax_does_not_depend_on_where_its_scratch_lies() -> None:
    torch.manual_seed(0)
    tried = 0
    for width in (12, 40):
        kernel, rows, numbers, (block, starts, ends) = case("softmax", torch.float32, width)
        block = block[:1].clone()

        def run(scores: Tensor, kernel=kernel, rows=rows // 4, numbers=numbers, starts=starts, ends=ends) -> None:
            launch(kernel, rows, 0, *numbers, scores, starts, ends)

        want = block.clone()
        run(want)
        for extra in range(16, 200, 8):
            for _ in range(3):
                got = before_scratch(block, 4 * width + extra, run)
                tried += got is not None
                assert got is None or torch.equal(got, want)
    if not tried:
        pytest.skip("no two blocks of memory came to lie side by side")


@pytest.mark.parametrize("name", ["norm_backward", "loss", "softmax"])
def test_a_dtype_compiled_alone_has_the_bits_of_both_in_one(name: str) -> None:
    """Each kernel was once a callback that chose between two branches; runs of that time can be computed again."""

    def choosing(kernel: Kernel) -> Kernel:
        body = njit(inline="always", **OPTIONS)(kernel._function)

        def both(first: Any, last: Any, chunk: Any, a: Any, values: Any) -> None:  # noqa: ARG001
            if a[0]:
                body(first, last, chunk, a, bf16)
            else:
                body(first, last, chunk, a, f32)

        return Kernel(both)

    together: Kernel | None = None
    for dtype in (torch.float32, torch.bfloat16):
        for width in (16, 40, 384):
            torch.manual_seed(0)
            kernel, rows, numbers, tensors = case(name, dtype, width)
            together = together or choosing(kernel)
            apart, chosen = place(tensors, None), place(tensors, None)
            launch(kernel, rows, is_bf16(tensors[0]), *numbers, *apart)
            launch(together, rows, is_bf16(tensors[0]), *numbers, *chosen)
            assert all(torch.equal(x, y) for x, y in zip(apart, chosen, strict=True))
