"""The bound: one step's matrix products alone, forward and backward, in the same shapes and dtype.

Attention counts with the half of the score matrix that a causal row needs, as products in blocks of 128 queries.
Outputs go to preallocated memory, so nothing but the products is timed. Usage: bound.py '{...}'.
"""

import json
import sys
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
    head = linear_products(tokens, width, shape["vocab"], dtype)

    def step(_: torch.Tensor) -> float:
        for _layer in range(shape["layers"]):
            for a, b, out in products:
                torch.matmul(a, b, out=out)
        for a, b, out in head:
            torch.mm(a, b, out=out)
        return 0.0

    serve(step, shape)


if __name__ == "__main__":
    main()
