"""Bytes that are counted cross ranks and are those of the formulas; what is rounded errs within its bound."""

from collections.abc import Callable
from typing import Any

import pytest

from hornbook.parallel.traffic.traffic import Traffic, TrafficReport, Volume, covered, sent_bytes
from tests.ranks import RankServer

CASES = "tests/parallel/traffic/communicating.py"
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "optimizer": {"shard": "optimizer"},
    "gradients": {"shard": "gradients"},
    "everything": {"shard": "everything"},
    "kept": {"shard": "everything", "reshard": False},
}
SMALL: dict[str, Any] = {"bucket_mb": 0.02, "compress": "bf16"}
HOW = {"reduce-scatter": "all-to-all"}
"""Kinds of collectives that gloo carries out by another one (`reduce_scatter_`)."""
MICROBATCHES = 2
Counted = Callable[[int, dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def counted(run_ranks: RankServer) -> Counted:
    """What the first rank counted in a step; all count the same. The same step is not taken twice."""
    done: dict[str, dict[str, Any]] = {}

    def count(ranks: int, settings: dict[str, Any]) -> dict[str, Any]:
        key = f"{ranks} {settings}"
        if key not in done:
            done[key], *others = run_ranks(f"{CASES}:counted", ranks, settings, MICROBATCHES)
            assert all(each["flows"] == done[key]["flows"] for each in others)
        return done[key]

    return count


def by_kind(found: dict[str, Any]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for flow, (_, size) in found["flows"].items():
        kind = HOW.get(flow.split()[1], flow.split()[1])
        totals[kind] = totals.get(kind, 0.0) + size
    return totals


def seen(found: dict[str, Any], ranks: int) -> dict[str, float]:
    return {HOW.get(kind, kind): sent_bytes(kind, size, ranks) for kind, size in found["seen"].items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_of_two_ranks_are_those_of_the_formulas(counted: Counted, layout: str) -> None:
    """METHODS 10: an all-reduce of the gradients, or of n bytes gathered and scattered as often as the layout says."""
    found = counted(2, LAYOUTS[layout])
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
        expected = {"all-gather": half * gathered, "all-to-all": half * scattered, "all-reduce": 2 * scalars}
        assert by_kind(found) == expected
        assert any(flow.endswith("reduce-scatter") for flow in found["flows"])
    assert by_kind(found) == seen(found, 2)


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (3, {"shard": "everything"}),
        (2, SMALL),
        (2, {"shard": "gradients", "compress": "bf16"}),
        (2, {"exact": True}),
        (2, {"data": 1, "tensor": 2, "sequence": True}),
        (2, {"data": 1, "context": 2}),
        (2, {"data": 1, "context": {"ranks": 2, "kind": "all-to-all"}}),
    ],
    ids=["padded", "buckets", "compressed", "exact", "tensor", "ring", "all-to-all"],
)
def test_every_collective_is_counted(counted: Counted, ranks: int, settings: dict[str, Any]) -> None:
    found = counted(ranks, settings)
    assert by_kind(found) == pytest.approx(seen(found, ranks), rel=1e-3 if settings.get("exact") else 1e-12)


def test_replicas_are_summed_once_each_and_counted(counted: Counted) -> None:
    found = counted(4, {"shard": "everything", "replicas": 2})
    blocks, rest = (4 * each for each in found["sizes"])
    flows = {flow: size for flow, (_, size) in found["flows"].items()}
    assert flows["shard reduce-scatter"] == MICROBATCHES * 0.5 * (blocks + rest)
    assert flows["replica all-reduce"] == MICROBATCHES * 2 * 0.5 * (blocks + rest) / 2


def test_small_buckets_are_more_calls_and_bfloat16_half_the_bytes(counted: Counted) -> None:
    whole, cut = (counted(2, each)["flows"]["replica all-reduce"] for each in ({}, SMALL))
    assert cut[0] > whole[0]
    assert cut[1] - 8 == (whole[1] - 8) / 2  # the loss crosses in float64


@pytest.mark.parametrize("settings", [SMALL, LAYOUTS["everything"]], ids=["ddp", "everything"])
def test_what_is_waited_for_is_communication_and_the_rest_is_hidden(counted: Counted, settings: dict[str, Any]) -> None:
    found = counted(2, settings)
    seconds, waited, phase = found["seconds"]
    assert 0 < waited < phase + 1e-9
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


@pytest.mark.parametrize("layout", ["ddp", "everything"])
def test_compressed_gradients_err_within_the_bound_that_is_stated(run_ranks: RankServer, layout: str) -> None:
    """Of p summands each is rounded once and each sum of them again: (1 + 2^-8)^p - 1 of the sum of absolute values."""
    assert (1 + 2**-8) ** 3 - 1 < 3 / 256 * 1.01
    for worst, error in run_ranks(f"{CASES}:compressed", 3, LAYOUTS[layout]):
        assert worst <= 1
        assert 1e-4 < error < 3 / 256


def test_gathers_in_bfloat16_err_as_computing_in_it_does(run_ranks: RankServer) -> None:
    for stored, rounded, between in run_ranks(f"{CASES}:gathered_in_bf16", 2, LAYOUTS["everything"]):
        assert between > 0
        assert rounded < 1.5 * stored


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
