"""The bound: one step's matrix products alone, forward and backward, in the same shapes and dtype.

Attention counts with the half of the score matrix that a causal row needs, as products in blocks of 128 queries.
Outputs go to preallocated memory, so nothing but the products is timed. A float32 product of two matrices is that of
torch's BLAS or of oneDNN, whichever is faster here. Usage: bound.py '{...}'.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from worker import serve

BLOCK = 128


def linear_products(tokens: int, inputs: int, outputs: int, dtype: torch.dtype):
    """Forward, input gradient and weight gradient of one linear layer, as (a, b, out) of torch.mm."""
    x, w, y = (torch.randn(*s, dtype=dtype) * 0.02 for s in ((tokens, inputs), (outputs, inputs), (tokens, outputs)))
    new = [torch.empty(*s, dtype=dtype) for s in ((tokens, outputs), (tokens, inputs), (outputs, inputs))]
    return [(x, w.T, new[0]), (y, w, new[1]), (y.T, x, new[2])]


def attention_products(rows: int, heads: int, sequence: int, width: int, dtype: torch.dtype):
    """The six products of one attention, block by block: scores, values, and the gradients of both factors of each."""
    products = []
    part = torch.randn(rows * heads, sequence, width, dtype=dtype) * 0.02
    for start in range(0, sequence, BLOCK):
        end = min(start + BLOCK, sequence)
        q, k = part[:, start:end], part[:, :end]
        p = torch.randn(rows * heads, end - start, end, dtype=dtype) * 0.02
        scores, out, grad = torch.empty_like(p), torch.empty_like(q), torch.empty_like(k)
        products += [(q, k.transpose(1, 2), scores)] * 2 + [(p, k, out)] * 2 + [(p.transpose(1, 2), q, grad)] * 2
    return products


def faster(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    """The faster way to make a product: the least of three times of each counts."""
    ways: list[Callable[[], object]] = [lambda: torch.matmul(a, b, out=out)]
    if a.dim() == 2 and a.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(a, b.T, None, "none", [], ""))
    return min(ways, key=lambda way: min(_seconds(way) for _ in range(3))) if len(ways) > 1 else ways[0]


def _seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def main() -> None:
    spec = json.loads(sys.argv[1])
    shape = spec["shape"]
    dtype = torch.bfloat16 if spec["precision"] == "bf16" else torch.float32
    rows, sequence, width, hidden = shape["rows"], shape["sequence"], shape["width"], shape["hidden"]
    tokens, products = rows * sequence, []
    first = 2 * hidden if shape["gated"] else hidden
    for inputs, outputs in ((width, 3 * width), (width, width), (width, first), (hidden, width)):
        products += linear_products(tokens, inputs, outputs, dtype)
    products += attention_products(rows, shape["heads"], sequence, width // shape["heads"], dtype)
    layer = [faster(*each) for each in products]
    head = [faster(*each) for each in linear_products(tokens, width, shape["vocab"], dtype)]

    def step(_: torch.Tensor) -> float:
        for act in [*layer * shape["layers"], *head]:
            act()
        return 0.0

    serve(step, shape)


if __name__ == "__main__":
    main()
