"""The picture: well-formed, complete, of its own; and the page around it."""

import json
import math
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from hornbook.studio.chart import page, picture
from hornbook.studio.curve_history import History, read_history
from hornbook.studio.page_layout import Chart, make_chart
from hornbook.studio.svg import LIGHT
from tests.studio.conftest import MakeRun, score

SPACE = "{http://www.w3.org/2000/svg}"


def falling(steps: int) -> list[float | None]:
    return [3 + 5 * math.exp(-step / 100) + 0.02 * math.sin(7 * step) for step in range(steps)]


@pytest.fixture
def histories(make_run: MakeRun) -> list[History]:
    events: list[dict[str, Any]] = [{"kind": "save", "step": 50}, {"kind": "resume", "step": 50, "attempt": 2}]
    one = make_run("one", falling(300), events=events, scores={100: score(2.0), 200: score(1.5)})
    return [read_history(run, "step") for run in (one, make_run("two", falling(200)))]


def texts(chart: Chart) -> list[str]:
    root = ElementTree.fromstring(picture(chart))
    return [element.text or "" for element in root.iter(f"{SPACE}text")]


def test_every_figure_is_there_with_its_title(histories: list[History]) -> None:
    chart = make_chart(histories, "step")
    assert [panel.title for panel in chart.panels] == [
        "loss",
        "bits per byte: code",
        "bits per byte: prose",
        "bits per byte: all sources",
        "gradient norm",
        "learning rate",
        "tokens/s",
    ]
    found = texts(chart)
    assert {"one", "two", "loss", "step", "saved", "resumed"} <= set(found)
    assert {"code", "prose", "all sources"} <= set(texts(make_chart(histories[:1], "step")))
    tops = [panel.y.end for panel in chart.panels]
    assert all(panel.y.start < top for panel, top in zip(chart.panels, tops[1:], strict=False))
    assert chart.panels[-1].y.start < chart.height


def test_one_run_has_a_colour_for_each_source(histories: list[History]) -> None:
    (bits,) = [panel for panel in make_chart(histories[:1], "step").panels if panel.title == "bits per byte"]
    assert [each.colour for each in bits.curves] == ["0", "1", "2"]


def test_several_runs_have_a_panel_for_each_source(make_run: MakeRun) -> None:
    runs = [make_run(name, falling(200), scores={100: score(2.0), 200: score(1.5)}) for name in ("one", "two")]
    chart = make_chart([read_history(run, "step") for run in runs], "step")
    panels = [panel for panel in chart.panels if panel.title.startswith("bits per byte: ")]
    assert [panel.title for panel in panels] == [f"bits per byte: {name}" for name in ("code", "prose", "all sources")]
    assert [[each.colour for each in panel.curves] for panel in panels] == [["0", "1"]] * 3
    (loss,) = [panel for panel in chart.panels if panel.title == "loss"]
    shown = {(each.run, each.curve.kind, each.colour) for each in loss.curves if each.curve.kind != "median"}
    assert shown == {(0, "steps", "0"), (0, "held out", "0"), (1, "steps", "1"), (1, "held out", "1")}


def test_the_picture_needs_nothing_else_and_has_two_sets_of_colours(histories: list[History]) -> None:
    text = picture(make_chart(histories, "step"))
    assert re.findall(r"https?://[^\"' ]*", text) == ["http://www.w3.org/2000/svg"]
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"<script|href|url\(", text)


def test_a_spike_stays_in_a_thinned_curve_and_beyond_a_cut_axis(make_run: MakeRun) -> None:
    losses = falling(50_000)
    losses[33_333] = 812.5
    chart = make_chart([read_history(make_run("long", losses), "step")], "step")
    loss = chart.panels[0]
    every = next(each for each in loss.curves if each.curve.kind == "steps")
    assert len(every.x) < 3 * 960
    assert every.y[every.x.index(33_334)] == 812.5
    assert loss.y.high < 20
    arrows = [title.text for title in ElementTree.fromstring(picture(chart)).iter(f"{SPACE}title")]
    assert "812.5" in arrows
    assert any("loss spike" in text for text in texts(chart))


def test_the_loss_may_be_logarithmic(histories: list[History]) -> None:
    assert not make_chart(histories, "step").panels[0].y.log
    assert make_chart(histories, "step", log=True).panels[0].y.log
    assert not make_chart(histories, "step", log=True).panels[1].y.log


def test_there_are_no_half_steps(make_run: MakeRun) -> None:
    chart = make_chart([read_history(make_run("a", falling(20)), "step")], "step")
    assert 7.5 in chart.x.ticks(8)
    below = ElementTree.fromstring(picture(chart)).iterfind(f"{SPACE}text[@text-anchor='middle']")
    assert [element.text for element in below] == ["5", "10", "15", "20"]


def test_gaps_break_the_line(make_run: MakeRun) -> None:
    chart = make_chart([read_history(make_run("a", [3.0, 2.0, None, None, 4.0, None, 1.0, 1.5]), "step")], "step")
    (line,) = [e for e in ElementTree.fromstring(picture(chart)).iter(f"{SPACE}path") if e.get("class") == "line c0"][
        :1
    ]
    assert line.get("d", "").count("M") == 3
    assert line.get("d", "").count("h.1") == 1


@pytest.mark.parametrize("name", ['<b>&"', "a\x1b[31m", "\udcff", "x" * 300])
def test_odd_names_harm_nothing(histories: list[History], name: str) -> None:
    odd = [History(name, each.curves, each.events) for each in histories]
    for chosen in (odd, odd[:1]):
        chart = make_chart(chosen, "step")
        ElementTree.fromstring(picture(chart).encode())
        assert "<b>" not in page(chart)


def test_many_runs_and_one_step(make_run: MakeRun) -> None:
    many = [read_history(make_run(f"run-{number}", [2.0]), "tokens") for number in range(30)]
    chart = make_chart(many, "tokens")
    assert {each.colour for each in chart.panels[0].curves} == {str(number) for number in range(len(LIGHT))}
    assert set(texts(chart)) >= {f"run-{number}" for number in range(30)}
    ElementTree.fromstring(picture(chart))


def test_a_page_has_the_picture_and_its_figures(histories: list[History]) -> None:
    chart = make_chart(histories, "step")
    text = page(chart)
    assert picture(chart) in text
    assert "default-src 'none'" in text
    assert 'cursor.style.display = "none"; cursor.setAttribute("y1"' in text  # no line before the pointer comes
    assert re.findall(r"https?://[^\"' ]*", text) == ["http://www.w3.org/2000/svg"]
    (data,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', text)
    found = json.loads(data)
    assert found["runs"] == ["one", "two"]
    loss = found["panels"][0]["curves"][0]
    assert (loss["run"], loss["name"], loss["x"][0], loss["y"][0]) == (0, "every step", 1.0, 8.0)


def test_signs_at_one_place_stand_beside_each_other(make_run: MakeRun) -> None:
    events = [{"kind": "save", "step": 10}, {"kind": "resume", "step": 10, "attempt": 2}, {"kind": "save", "step": 30}]
    chart = make_chart([read_history(make_run("a", falling(40), events=events), "step")], "step")
    signs = ElementTree.fromstring(picture(chart)).iterfind(f"{SPACE}path[{SPACE}title]")
    places = {sign[0].text: float(sign.get("transform", "")[10:].split()[0]) for sign in signs}
    place = round(chart.x.pixel(10))
    assert places["step 10, attempt 2: resumed"] == place
    assert places["step 10, attempt 1: saved"] == place - 10
