"""Loads of experts are the engine's, and copies between ranks are those of all possible choices."""

from itertools import combinations

import numpy as np
import pytest
import torch

from hornbook.model.config.mlp_config import expert_room
from hornbook.model.mlp.balance import over_capacity
from hornbook.parallel.axes.tensor.divide import portion
from hornbook.plan.counts.routing import loads_of, other_ranks, sent_bytes, untrained_choices
from hornbook.studio.explore.real import traced
from hornbook.studio.explore.recipes import recipe_of


@pytest.mark.parametrize("capacity", [None, 0.01, 0.5, 1.0, 1.25, 9.0])
@pytest.mark.parametrize(("experts", "active"), [(4, 1), (8, 2), (7, 7)])
def test_loads_are_the_engines(experts: int, active: int, capacity: float | None) -> None:
    draw = np.random.default_rng(0)
    scores = draw.random((3, 50, experts)) * np.linspace(0.2, 1, experts)  # some experts are preferred
    choices = scores.argsort(-1)[..., -active:]
    room = 50 if capacity is None else expert_room(capacity, active, experts, 50)
    dropped = over_capacity(torch.from_numpy(choices), experts, room).numpy()
    loads = loads_of(choices, experts, capacity)
    assert loads.served.tolist() == np.bincount(choices[~dropped], minlength=experts).tolist()
    assert loads.dropped.tolist() == np.bincount(choices[dropped], minlength=experts).tolist()
    assert loads.share_dropped == pytest.approx(dropped.mean())


def test_numbers_of_loads_by_hand() -> None:
    even = loads_of(np.array([[[0], [1], [2], [3]]]), 4, None)
    assert (even.busiest, even.evenness, even.unused, even.share_dropped) == pytest.approx((1, 1, 0, 0))
    one = loads_of(np.array([[[2], [2], [2], [2]]]), 4, 1.0)
    assert (one.busiest, one.evenness, one.unused, one.share_dropped) == pytest.approx((4, 0, 3, 3 / 4))
    half = loads_of(np.array([[[0], [1], [0], [1]]]), 4, 1.5)
    assert (half.busiest, half.evenness, half.unused, half.share_dropped) == pytest.approx((2, 1 / 2, 2, 1 / 2))


@pytest.mark.parametrize(
    ("experts", "active", "ranks"), [(8, 2, 4), (8, 2, 8), (7, 3, 3), (6, 6, 2), (5, 1, 5), (4, 2, 1)]
)
def test_other_ranks_are_those_of_all_choices(experts: int, active: int, ranks: int) -> None:
    parts = [portion(experts, ranks, rank) for rank in range(ranks)]
    owners = [rank for rank, part in enumerate(parts) for _ in range(part.first, part.last)]
    copies = [
        len({owners[each] for each in chosen} - {own})
        for chosen in combinations(range(experts), active)
        for own in range(ranks)
    ]
    assert other_ranks(experts, active, ranks) == pytest.approx(np.mean(copies))


def test_untrained_routers() -> None:
    data = b"abcabc" * 200
    choices = untrained_choices(data, 8, 3)
    for each in choices.values():
        assert each.shape == (1, 1200, 3)
        assert all(len(set(row)) == 3 for row in each[0].tolist())
    assert loads_of(choices["at random"], 8, None).evenness > 0.99
    assert len(np.unique(choices["by the byte alone"][0], axis=0)) == 3
    assert untrained_choices(data, 4, 4)["at random"].shape == (1, 1200, 4)


def test_sent_bytes_are_those_of_a_step() -> None:
    """Rank 0 of two on tensors without values, where each token goes to both ranks; backward sends no numbers."""
    rows = {"train.micro_batch": 1, "train.batch_tokens": 512, "train.sequence": 256, "train.precision": "bf16"}
    recipe = recipe_of("tiny-mixtral", rows | {"parallel.expert": 2})
    (exchanged,) = [each for each in traced(recipe).collectives if each.kind == "all_to_all"]
    forward = sent_bytes(256, 2.0, recipe.model.width, 2, 2)
    backward = forward - 256 * 2 * 2 * 8
    assert exchanged.num_bytes == recipe.model.layers * (forward + backward)
