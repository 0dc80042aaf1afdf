"""Keyed dropout: a pure function of where it falls."""

import torch

from hornbook.model.attention.mask import AttentionMask, RowPart
from hornbook.model.forward_context import Context
from hornbook.model.layers.dropout import Dropout, embedding_noise, keep_mask, mix, row_keys, site_keys

HALF = 2**23


def mask(
    seed: int = 1, step: int = 2, samples: tuple[int, ...] = (3, 4), layer: int = 0, site: int = 1
) -> torch.Tensor:
    hashes = site_keys(row_keys(seed, step, torch.tensor(samples)), layer, site)
    return keep_mask(hashes, HALF, range(40), range(100), 100)


def test_mix_is_splitmix64() -> None:
    """The first outputs of the reference generator seeded with 0 are the mix of 0, gamma, 2 gamma."""
    gamma, base = 0x9E3779B97F4A7C15, 2**63
    want = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    got = [int(mix(torch.tensor((k * gamma + base) % 2**64 - base))) % 2**64 for k in range(3)]
    assert got == want


def test_each_part_of_the_key_changes_the_mask() -> None:
    base = mask()
    others = [mask(seed=2), mask(step=3), mask(samples=(5, 6)), mask(layer=1), mask(site=2)]
    for other in others:
        agree = float((base == other).float().mean())
        assert abs(agree - 0.5) < 0.03  # 8,000 fair coins: 5 deviations


def test_rows_do_not_depend_on_their_batch() -> None:
    assert torch.equal(mask(samples=(3, 4))[1], mask(samples=(4, 9, 3))[0])


def test_any_slice_can_be_made_alone() -> None:
    hashes = site_keys(row_keys(1, 2, torch.tensor([3])), 0, 1)
    part = keep_mask(hashes, HALF, range(10, 25), range(50, 90), 100)
    assert torch.equal(part, mask(samples=(3,))[:, 10:25, 50:90])


def test_rate_and_scale() -> None:
    dropout = Dropout(0.3, layer=0, site=0)
    keys = row_keys(1, 2, torch.arange(8))
    y = dropout(torch.ones(8, 50, 500), Context(keys=keys))
    kept = float((y != 0).float().mean())
    assert abs(kept - 0.7) < 5 * (0.21 / 200_000) ** 0.5
    assert torch.allclose(y[y != 0], torch.tensor(1 / 0.7))
    # Neighbours are independent: kept together as often as the square of kept alone.
    both = float(((y[..., 1:] != 0) & (y[..., :-1] != 0)).float().mean())
    assert abs(both - 0.49) < 0.01


def test_off_is_the_same_tensor() -> None:
    x = torch.randn(2, 3, 4)
    assert Dropout(0.5, 0, 0)(x, Context()) is x
    assert Dropout(0.0, 0, 0)(x, Context(keys=torch.arange(2))) is x


def test_float64_takes_the_formula() -> None:
    x, keys = torch.randn(2, 9, 5), row_keys(1, 2, torch.arange(2))
    dropout = Dropout(0.4, 3, 2)
    assert torch.allclose(dropout(x.double(), Context(keys=keys)).float(), dropout(x, Context(keys=keys)))


def test_parts_of_rows_are_dropped_as_the_whole() -> None:
    """A part of several runs, some of it padding, and a slice of that part."""
    layer, x, keys = Dropout(0.4, 1, 2), torch.randn(3, 13, 5), row_keys(1, 2, torch.arange(3))
    whole = layer(x, Context(keys=keys))
    for number, places in enumerate(([0, 1, 2, 3, 12], [4, 5, 6, 7, 8, 9, 10, 11])):
        part = RowPart((((0, 4), (12, 16)), ((4, 12),)), number, 13)
        padded = torch.nn.functional.pad(x[:, places], (0, 0, 0, 8 - len(places)))
        found = layer(padded, Context(mask=AttentionMask(part=part), keys=keys))
        assert torch.equal(found[:, : len(places)], whole[:, places])
    assert part.runs(2, 4) == [range(6, 10)]
    assert RowPart((((0, 4), (12, 16)),), 0, 13).runs(3, 7) == [range(3, 4), range(12, 16), range(16, 18)]


def test_noise_on_embeddings_is_a_function_of_row_and_position() -> None:
    x, keys = torch.zeros(2, 12, 16), row_keys(1, 7, torch.tensor([3, 9]))
    lengths = ((4, 8), (12,))
    noise = embedding_noise(x, keys, 60, 5.0, AttentionMask("causal", lengths))
    for row, begin, size in ((0, 0, 4), (0, 4, 8), (1, 0, 12)):
        bound = 5 / (size * 16) ** 0.5
        document = noise[row, begin : begin + size]
        assert 0.9 * bound < float(document.abs().max()) <= bound
        assert abs(float(document.mean())) < 0.2 * bound
    alone = embedding_noise(x[1:], keys[1:], 60, 5.0, AttentionMask("causal", lengths[1:]))
    assert alone[0].equal(noise[1])
    whole = embedding_noise(x[1:], keys[1:], 60, 5.0, AttentionMask("causal"))
    assert whole[0].equal(noise[1])
    assert not embedding_noise(x, keys, 61, 5.0, AttentionMask("causal", lengths)).equal(noise)
    assert not embedding_noise(x, row_keys(1, 8, torch.tensor([3, 9])), 60, 5.0, AttentionMask("causal")).equal(noise)
