"""8-bit codes: the map of the paper, the error of a block, zero."""

import numpy as np
import pytest
import torch

from hornbook.optim.low_precision.codes import BLOCK, dequantize, dynamic_map, encode, quantize


@pytest.mark.parametrize("signed", [True, False])
def test_the_map_is_that_of_dynamic_tree_quantization(signed: bool) -> None:
    """Dettmers et al. 2022, section 2: a sign, e zeros (10^-e), a one, and a fraction of the bits that are left."""
    bits, values = 7 if signed else 8, {0.0, 1.0}
    for zeros in range(7):
        fractions = 2 ** (bits - 1 - zeros)
        for fraction in range(fractions):
            value = 10.0**-zeros * (0.1 + 0.9 * (fraction + 0.5) / fractions)
            values |= {value, -value} if signed else {value}
    found = dynamic_map(signed).double()
    assert len(values) == len(found) == 256
    assert torch.allclose(found, torch.tensor(sorted(values), dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("signed", [True, False])
def test_a_code_is_that_of_the_nearest_value(signed: bool) -> None:
    x = torch.rand(200_000, generator=torch.Generator().manual_seed(0)) ** 8
    x = torch.cat([x, torch.tensor([0.0, 1.0, 1e-7, 0.1, 0.01, 1e-6]), dynamic_map(signed).abs()])
    x = torch.cat([x, -x]) if signed else x
    values = dynamic_map(signed)
    found = (values[encode(x, signed).int()] - x).abs()
    edges = (values[1:] + values[:-1]) / 2
    nearest = (values[torch.bucketize(x, edges)] - x).abs()
    counted = x > 0 if not signed else torch.full_like(x, True, dtype=torch.bool)
    assert bool((found - nearest <= 2e-7 * (1e-6 if signed else 2.0) + 4e-7 * x.abs())[counted].all())


@pytest.mark.parametrize("signed", [True, False])
def test_every_value_has_its_own_code(signed: bool) -> None:
    assert encode(dynamic_map(signed), signed).tolist() == list(range(256))


def test_a_second_moment_above_zero_is_never_lost() -> None:
    x = torch.tensor([[1.0, 1e-30, 0.0, 1e-7]])
    codes, scales = quantize(x, signed=False)
    assert codes.tolist() == [[255, 1, 0, 1]]
    assert scales.tolist() == [[1.0]]


@pytest.mark.parametrize("shape", [(3, 300), (2, 2, 5), (1, BLOCK), (4, 2 * BLOCK + 1)])
def test_the_error_of_a_block_is_bounded_by_its_own_largest(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator) * 10 ** torch.randn(*shape[:-1], 1, generator=generator)
    codes, scales = quantize(x, signed=True)
    assert codes.shape == x.shape
    assert scales.shape == (*shape[:-1], -(-shape[-1] // BLOCK))
    found = dequantize(codes, scales, signed=True)
    blocks = scales.repeat_interleave(BLOCK, -1)[..., : shape[-1]]
    assert bool(((found - x).abs() <= 0.0075 * blocks).all())
    again = quantize(found, signed=True)[0]
    assert np.mean((again != codes).numpy()) < 0.01  # the largest of a block may be negative: there is no -1.0


def test_blocks_of_zeros_and_of_denormal_numbers_become_zeros() -> None:
    codes, scales = quantize(torch.tensor([[0.0, 0.0], [1e-40, -1e-41]]), signed=True)
    assert codes.tolist() == [[127, 127], [127, 127]]
    assert scales.flatten().tolist() == [0.0, 0.0]
    assert not dequantize(codes, scales, signed=True).any()
