"""Weak and strong scaling: counts, what stays, what falls, and points that no layout can have."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.cli.plan.scale import scaling_text
from hornbook.errors import Exit, UsageError
from hornbook.plan.at_scale.simulation import Scaling, device_counts, simulate_scaling
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.planner import plan_run
from hornbook.settings.resolve import resolve
from hornbook.studio.scale_chart import scale_picture

COUNTS = (8, 64, 512)


@pytest.fixture(scope="module")
def simulated() -> Scaling:
    recipe = resolve("gpt2-1.5b", ("train.batch_tokens=262144", "train.tokens=10G"), environ={}).recipe
    return simulate_scaling(recipe, parse_cluster("8xH100"), COUNTS)


def test_counts_double_up_to_the_last() -> None:
    assert device_counts("8..100") == [8, 16, 32, 64, 100]
    assert device_counts("8..8") == [8]
    assert device_counts("1..4") == [1, 2, 4]


@pytest.mark.parametrize("text", ["8", "8..", "16..8", "0..8", "8-16", "8..99999999"])
def test_other_spans_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--scale"):
        device_counts(text)


def test_strong_scaling_keeps_the_batch_and_weak_scaling_the_share_of_a_device(simulated: Scaling) -> None:
    strong, weak = simulated.curves
    assert [point.batch_tokens for point in strong.points] == [262144] * 3
    assert [point.batch_tokens // point.devices for point in weak.points] == [262144 // 8] * 3
    assert strong.points[0] == weak.points[0]
    assert strong.points[0].efficiency == 1
    efficiencies = [point.efficiency for point in strong.points if point.fits]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert weak.points[1].efficiency > max(strong.points[1].efficiency, 0.9)


def test_the_first_point_is_the_plan_of_that_cluster(simulated: Scaling) -> None:
    recipe = resolve("gpt2-1.5b", ("train.batch_tokens=262144", "train.tokens=10G"), environ={}).recipe
    plan = plan_run(recipe, parse_cluster("8xH100"), search=True)
    point = simulated.curves[0].points[0]
    assert point.layout == plan.best
    assert plan.upkeep is not None
    assert point.upkeep == plan.upkeep
    assert point.days == pytest.approx(10e9 / plan.best.tokens_per_second / 86400 / plan.upkeep.goodput)


@pytest.mark.parametrize(("cluster", "node"), [("2x4xH100", 4), ("4xH100", 8), ("8xH100", 8)])
def test_machines_are_those_that_were_named(cluster: str, node: int) -> None:
    recipe = resolve("tiny", ["train.batch_tokens=65536"], environ={}).recipe
    assert simulate_scaling(recipe, parse_cluster(cluster), (8,)).cluster.node == node


def test_failures_grow_with_the_devices_and_a_batch_of_few_rows_ends_the_curve(simulated: Scaling) -> None:
    strong, weak = simulated.curves
    first, second, third = weak.points
    assert first.upkeep is not None
    assert third.upkeep is not None
    assert first.upkeep.mtbf_seconds == pytest.approx(64 * third.upkeep.mtbf_seconds)
    assert first.upkeep.goodput > third.upkeep.goodput
    assert second.fits
    recipe = resolve("gpt2-124m", ("train.batch_tokens=8192",), environ={}).recipe
    few = simulate_scaling(recipe, parse_cluster("8xH100"), (8, 4096)).curves[0].points
    assert [point.fits for point in few] == [True, False]
    assert few[1].layout is None
    assert strong.points[2].devices == 512


def test_the_text_and_the_picture_say_that_it_is_a_simulation(simulated: Scaling) -> None:
    text = scaling_text(simulated)
    assert "a simulation, nothing of it was measured" in text
    assert text.count("zero-") + text.count("ddp") + text.count("pipeline") >= 5
    picture = ET.fromstring(scale_picture(simulated))
    words = "".join(picture.itertext())
    assert "simulated" in words
    assert all(name in words for name in ("strong", "weak", "linear", "compute", "messages", "bubble", "goodput"))
    paths = [each.get("d") or "" for each in picture.iter("{http://www.w3.org/2000/svg}path")]
    drawn = 2 * (3 + 3 + 2)  # in each panel its lines, and samples of them in the legend
    assert sum("L" in path for path in paths) == drawn


def test_the_command_writes_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "gpt2-124m", "--cluster", "H100", "--scale", "1..2"]
    assert main([*words, "--plot", str(tmp_path / "s.svg")]) == Exit.DONE
    assert "strong scaling" in capsys.readouterr().out
    assert (tmp_path / "s.svg").read_text().startswith("<svg")
    assert main([*words, "--plot", str(tmp_path / "s.png")]) == Exit.USAGE
    assert main(["plan", "gpt2-124m", "--cluster", "H100", "--plot", str(tmp_path / "t.svg")]) == Exit.USAGE
