"""Bytes that are counted cross ranks and are those of the formulas; what is rounded errs within its bound."""

from typing import Any

import pytest
import torch

from hornbook.parallel.traffic.traffic import TIMES, Traffic, TrafficReport, Volume, covered, sent_bytes
from tests.ranks import RankServer

CASES = "tests/parallel/traffic/communicating.py"
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "optimizer": {"shard": "optimizer"},
    "gradients": {"shard": "gradients"},
    "everything": {"shard": "everything"},
    "kept": {"shard": "everything", "reshard": False},
}
MICROBATCHES = 2


def counted(run_ranks: RankServer, ranks: int, settings: dict[str, Any]) -> dict[str, Any]:
    first, *others = run_ranks(f"{CASES}:counted", ranks, settings, MICROBATCHES)
    assert all(each["flows"] == first["flows"] for each in others)
    return first


def by_kind(found: dict[str, Any]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for flow, (_, size) in found["flows"].items():
        totals[flow.split()[1]] = totals.get(flow.split()[1], 0.0) + size
    return totals


def seen(found: dict[str, Any], ranks: int) -> dict[str, float]:
    return {kind: TIMES[kind] * (ranks - 1) / ranks * size for kind, size in found["seen"].items()}  # type: ignore[index]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_of_two_ranks_are_those_of_the_formulas(run_ranks: RankServer, layout: str) -> None:
    """METHODS 10: an all-reduce of the gradients, or of n bytes gathered and scattered as often as the layout says."""
    found = counted(run_ranks, 2, LAYOUTS[layout])
    blocks, rest = (4 * each for each in found["sizes"])
    half, scalars = 0.5, 2 * 0.5 * 8  # of p = 2; the loss and the norm cross as one float64 each
    if layout == "ddp":
        assert by_kind(found) == {"all-reduce": 2 * half * (blocks + rest) + scalars}
    else:
        gathered = {
            "optimizer": blocks + rest,
            "gradients": blocks + rest,
            "everything": MICROBATCHES * (2 * blocks + rest),  # the rest is needed until the backward pass begins
            "kept": MICROBATCHES * (blocks + rest),
        }[layout]
        scattered = (1 if layout == "optimizer" else MICROBATCHES) * (blocks + rest)
        expected = {"all-gather": half * gathered, "reduce-scatter": half * scattered, "all-reduce": 2 * scalars}
        assert by_kind(found) == expected
    assert by_kind(found) == seen(found, 2)


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (3, {"shard": "everything"}),
        (2, {"bucket_mb": 0.02, "compress": "bf16"}),
        (2, {"shard": "gradients", "compress": "bf16"}),
        (2, {"exact": True}),
    ],
    ids=["padded", "buckets", "compressed", "exact"],
)
def test_every_collective_is_counted(run_ranks: RankServer, ranks: int, settings: dict[str, Any]) -> None:
    found = counted(run_ranks, ranks, settings)
    assert by_kind(found) == pytest.approx(seen(found, ranks), rel=1e-3 if settings.get("exact") else 1e-12)


def test_replicas_are_summed_once_each_and_counted(run_ranks: RankServer) -> None:
    found = counted(run_ranks, 4, {"shard": "everything", "replicas": 2})
    blocks, rest = (4 * each for each in found["sizes"])
    flows = {flow: size for flow, (_, size) in found["flows"].items()}
    assert flows["shard reduce-scatter"] == MICROBATCHES * 0.5 * (blocks + rest)
    assert flows["replica all-reduce"] == MICROBATCHES * 2 * 0.5 * (blocks + rest) / 2


def test_small_buckets_are_more_calls_of_the_same_bytes(run_ranks: RankServer) -> None:
    whole, cut = (counted(run_ranks, 2, each)["flows"]["replica all-reduce"] for each in ({}, {"bucket_mb": 0.02}))
    assert cut[0] > whole[0]
    assert cut[1] == whole[1]


@pytest.mark.parametrize("layout", ["ddp", "everything"])
def test_what_is_waited_for_is_communication_and_the_rest_is_hidden(run_ranks: RankServer, layout: str) -> None:
    found = counted(run_ranks, 2, {**LAYOUTS[layout], "bucket_mb": 0.02})
    seconds, waited, phase = found["seconds"]
    assert 0 < waited <= phase
    assert seconds > 0
    assert found["hidden"] == max(1 - waited / seconds, 0.0)


def test_seconds_in_flight_are_counted_once() -> None:
    assert covered([]) == 0
    assert covered([(3, 4), (0, 2), (1, 2.5), (1.5, 1.7)]) == 3.5


def test_a_report_adds_up() -> None:
    traffic = Traffic()
    ended = traffic.launch("shard", "all-gather", sent_bytes("all-gather", 300, 3))
    traffic.wait(("shard", "all-gather"), 0.0)
    ended()
    traffic.count("tensor", "send", sent_bytes("send", 7, 2))
    report = traffic.take()
    assert report.flows["shard", "all-gather"].bytes == 200
    assert report.flows["tensor", "send"] == Volume(1, 7)
    twice = (report + report).record(2)
    assert twice["hidden"] == 1.0
    assert [each["bytes"] for each in twice["flows"]] == [200, 7]
    assert traffic.take() == TrafficReport()


def gradients(
    run_ranks: RankServer, ranks: int, settings: dict[str, Any], precision: str = "fp32", rows_of: int | None = None
) -> dict[str, torch.Tensor]:
    """Whole gradients of a step, summed over the ranks."""
    whole: dict[str, torch.Tensor] = {}
    for rank in run_ranks(f"{CASES}:gradients", ranks, settings, precision, rows_of):
        for name, (start, shape, full, values) in rank["gradients"].items():
            target = whole.setdefault(name, torch.zeros(full))
            region = tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))
            target[region] = torch.tensor(values).view(shape)
    return whole


def apart(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest error of a parameter's gradient, relative to the gradient's norm."""
    return max(float((found[name] - each).norm() / each.norm()) for name, each in expected.items())


@pytest.mark.parametrize("layout", ["ddp", "everything"])
def test_compressed_gradients_err_within_the_bound_that_is_stated(run_ranks: RankServer, layout: str) -> None:
    """Of p summands each is rounded once and each sum of them again: (1 + 2^-8)^p - 1 of the sum of absolute values."""
    ranks = 3
    plain, rounded = (gradients(run_ranks, ranks, {**LAYOUTS[layout], "compress": each}) for each in ("none", "bf16"))
    own = [gradients(run_ranks, 1, {}, rows_of=rank) for rank in range(ranks)]
    share = (1 + 2**-8) ** ranks - 1
    assert share < ranks / 256 * 1.01
    for name, each in plain.items():
        bound = share * sum(part[name].abs() for part in own) / ranks  # alone, a rank's rows weigh three times as much
        assert bool(((rounded[name] - each).abs() <= bound + 1e-9).all()), name
    assert apart(rounded, plain) > 1e-4


def test_gathers_in_bfloat16_err_as_computing_in_it_does(run_ranks: RankServer) -> None:
    settings = LAYOUTS["everything"]
    exact = gradients(run_ranks, 2, settings)
    stored = gradients(run_ranks, 2, settings, "bf16")
    rounded = gradients(run_ranks, 2, {**settings, "gather": "bf16"}, "bf16")
    assert apart(rounded, stored) > 0
    assert apart(rounded, exact) < 1.5 * apart(stored, exact)


HELD = {
    "none": ({}, 1, 1, 1),
    "optimizer": ({"shard": "optimizer"}, 1, 1, 2),
    "gradients": ({"shard": "gradients"}, 1, 2, 2),
    "everything": ({"shard": "everything"}, 0, 2, 2),
    "hybrid": ({"shard": "everything", "replicas": 2}, 0, 2, 2),
}
"""Layout: settings, whether gathered weights stay, and the ranks that share gradients, moments and weights."""


@pytest.mark.parametrize("layout", HELD)
def test_bytes_of_each_rank_are_those_of_the_formulas(run_ranks: RankServer, layout: str) -> None:
    """METHODS 8, all float32, within 1 %: 4 Y of weights, 4 Y of gradients, 8 Y of moments, each divided as said."""
    settings, keeps, sharing_gradients, sharing = HELD[layout]
    for rank in run_ranks(f"{CASES}:held", 4 if layout == "hybrid" else 2, settings, "fp32"):
        size = rank["parameters"]
        shards = 4 * size / sharing
        assert rank["weights"] == pytest.approx(shards + (4 * size * keeps if layout != "none" else 0), rel=0.01)
        assert rank["gradients"] == pytest.approx(4 * size / sharing_gradients, rel=0.01)
        assert rank["moments"] == pytest.approx(8 * size / sharing, rel=0.01)


def test_gathered_bfloat16_is_half_as_large(run_ranks: RankServer) -> None:
    (first, _) = run_ranks(f"{CASES}:held", 2, {"shard": "gradients", "gather": "bf16"}, "bf16")
    assert first["weights"] == pytest.approx(first["parameters"] * (4 / 2 + 2), rel=0.01)
