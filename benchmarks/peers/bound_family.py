"""The bound of an encoder's or encoder-decoder's step: its matrix products alone. Usage: bound_family.py '{...}'.

The masked head counts at the masked places alone, which is all that the loss needs.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from bound import linear_products
from family_data import TARGET
from worker import serve

WIDTH, HEADS = 384, 6
MASKED = 0.15


def attention_products(rows: int, queries: int, keys: int, dtype: torch.dtype) -> list[Any]:
    """The six products of one attention in which every query sees every key."""
    q, k = (torch.randn(rows * HEADS, length, WIDTH // HEADS, dtype=dtype) * 0.02 for length in (queries, keys))
    p = torch.randn(rows * HEADS, queries, keys, dtype=dtype) * 0.02
    scores, out, grad = torch.empty_like(p), torch.empty_like(q), torch.empty_like(k)
    return [(q, k.transpose(1, 2), scores)] * 2 + [(p, k, out)] * 2 + [(p.transpose(1, 2), q, grad)] * 2


def encoder_products(rows: int, sequence: int, dtype: torch.dtype) -> list[Any]:
    """One layer of BERT."""
    linears = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 1536), (1536, WIDTH))
    found = [each for shape in linears for each in linear_products(rows * sequence, *shape, dtype)]
    return found + attention_products(rows, sequence, sequence, dtype)


def pair_products(rows: int, sequence: int, dtype: torch.dtype) -> list[Any]:
    """One layer of T5 v1.1's encoder and one of its decoder."""
    hidden = ((WIDTH, 2 * 1024), (1024, WIDTH))
    source = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), *hidden, (WIDTH, 2 * WIDTH))  # the last: keys and values for targets
    target = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), *hidden, (WIDTH, WIDTH), (WIDTH, WIDTH))
    found = [each for shape in source for each in linear_products(rows * sequence, *shape, dtype)]
    found += [each for shape in target for each in linear_products(rows * TARGET, *shape, dtype)]
    for queries, keys in ((sequence, sequence), (TARGET, sequence), (TARGET, TARGET)):
        found += attention_products(rows, queries, keys, dtype)
    return found


def main() -> None:
    spec = json.loads(sys.argv[1])
    shape, dtype = spec["shape"], torch.bfloat16 if spec["precision"] == "bf16" else torch.float32
    rows, sequence = shape["rows"], shape["sequence"]
    if spec["family"] == "encoder":
        counted = round(MASKED * rows * sequence)
        layers, products = 6, encoder_products(rows, sequence, dtype)
        head = linear_products(counted, WIDTH, WIDTH, dtype) + linear_products(counted, WIDTH, shape["vocab"], dtype)
    else:
        layers, products = 4, pair_products(rows, sequence, dtype)
        head = linear_products(rows * TARGET, WIDTH, shape["vocab"], dtype)

    def step(_: torch.Tensor) -> float:
        for a, b, out in [*products * layers, *head]:
            torch.matmul(a, b, out=out)
        return 0.0

    serve(step, shape)


if __name__ == "__main__":
    main()
