"""Stochastic rounding: unbiased, keyed, and exact where there is nothing to round."""

import pytest
import torch
from torch import Tensor

from hornbook.kernels.compiled import compiled
from hornbook.kernels.scalar import mix32
from hornbook.optim.low_precision.stochastic import _mix32, draw_key, draws, round_stochastically

COUNT = 1_000_000


def drawn(step: int = 1, first: int = 0, count: int = COUNT) -> tuple[Tensor, Tensor]:
    return draws(draw_key("w", step), first, count)


@pytest.mark.parametrize("x", [1.0, 1.001, -1.0037, 3.14159, 1e-30, -2.7e20])
def test_the_mean_is_the_value(x: float) -> None:
    """E[SR(x)] = x over 10^6 draws, within five standard errors; both neighbours occur and nothing else."""
    values = torch.full((COUNT,), x)
    for bits in (drawn()[0], drawn()[0] >> 16, drawn()[1]):
        rounded = round_stochastically(values, bits).double()
        neighbours = rounded.unique()
        assert len(neighbours) <= 2
        gap = float(neighbours.max() - neighbours.min())
        assert abs(float(rounded.mean()) - float(values[0].double())) <= 5 * gap / 2 / COUNT**0.5


def test_what_bfloat16_can_hold_stays() -> None:
    x = torch.randn(1000).bfloat16().float()
    x = torch.cat([x, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40 * 0])])
    rounded = round_stochastically(x, drawn(count=len(x))[0])
    assert torch.equal(rounded.float().nan_to_num(7.0), x.nan_to_num(7.0))
    assert torch.equal(torch.signbit(rounded[:-2]), torch.signbit(x[:-2]))


def test_draws_are_those_of_the_whole_parameter() -> None:
    whole = drawn(first=2**32 - 500, count=1000)
    parts = [drawn(first=2**32 - 500 + first, count=250) for first in range(0, 1000, 250)]
    for number in range(2):
        assert torch.equal(torch.cat([part[number] for part in parts]), whole[number])


def test_steps_parameters_and_words_are_independent() -> None:
    """Correlations of 16-bit draws stay within five standard errors of zero."""
    others = [drawn()[0] & 0xFFFF, drawn()[0] >> 16, drawn()[1] & 0xFFFF, drawn(step=2)[0] & 0xFFFF, drawn(step=2)[1]]
    others.append(draws(draw_key("v", 1), 0, COUNT)[0] & 0xFFFF)
    others.append(drawn(first=1)[0] & 0xFFFF)
    table = torch.stack([(each & 0xFFFF).double() for each in others])
    assert bool((torch.corrcoef(table) - torch.eye(len(table))).abs().max() < 5 / COUNT**0.5)
    assert bool((table.mean(1) / 32767.5 - 1).abs().max() < 5 / (3 * COUNT) ** 0.5)


def test_kernels_scramble_as_the_reference_does() -> None:
    import numpy as np

    @compiled
    def scrambled(values):
        return np.array([mix32(value) for value in values])

    x = np.random.default_rng(0).integers(0, 2**32, 1000, dtype=np.uint32)
    assert scrambled(x).tolist() == _mix32(torch.from_numpy(x.astype(np.int64))).tolist()
