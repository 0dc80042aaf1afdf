"""Every page in a real browser: no error on the console, no request elsewhere, nothing cut off, all of it by keyboard.

Skipped, with the reason, where Playwright or Chromium is missing.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hornbook.studio.explore.explorer import controls, explorer_names, load_explorer
from hornbook.studio.explore.views import Facts
from tests.studio.conftest import make_run_in, score
from tests.studio.live.visit import Visit, expect

EVENTS = [{"kind": "start", "step": 0}, {"kind": "restart", "step": 30, "reason": "a rank was lost"}]
PAGES = {
    "/": "h1",
    "/run/a": ".charts canvas",
    "/run/a?tab=events": "table",
    "/run/a?tab=settings": "h1",
    "/run/a?tab=control": "form",
    "/compare?run=a&run=b": ".charts canvas",
    "/explore": ".cards a",
    **{f"/explore/{name}": ".answer .panel" for name in explorer_names()},
}
"""Path -> what is there once the page is drawn."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The link of a server that shows two runs."""
    folder = tmp_path_factory.mktemp("runs")
    make_run_in(folder, "a", [4.0 - step / 50 for step in range(100)], events=EVENTS, scores={50: score(1.0)})
    make_run_in(folder, "b", [5.0 - step / 40 for step in range(100)])
    words = [sys.executable, "-m", "hornbook", "watch", str(folder), "--no-browser", "--port", "0"]
    spoken = os.environ | {"HORNBOOK_QUIET": ""}  # another module's -q would leave the link unsaid
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=spoken) as process:
        try:
            assert process.stderr is not None
            yield next(line for line in process.stderr if "token=" in line).strip()
        finally:
            process.terminate()


@pytest.mark.parametrize(("path", "drawn"), PAGES.items())
def test_a_page_is_whole_at_every_width_and_readable_in_both_themes(
    browser: Any, root: str, path: str, drawn: str
) -> None:
    visit = Visit(browser, root)
    visit.open(path, drawn)
    visit.check_looks()
    assert visit.faults == []
    visit.context.close()


@pytest.mark.parametrize("name", explorer_names())
def test_an_explorer_is_used_by_keyboard_and_shows_what_the_engine_computes(browser: Any, root: str, name: str) -> None:
    explorer, reached = load_explorer(name), set[str]()
    visit = Visit(browser, root)
    visit.open(f"/explore/{name}", ".answer .panel")
    visit.page.focus("header a")
    found = controls(explorer)
    single = {f"c-{each.name}" for each in found if each.kind != "several"}
    for _ in range(20 + 8 * len(found)):
        visit.page.keyboard.press("Tab")
        reached.add(visit.page.evaluate("document.activeElement.id"))
        if single <= reached:
            break
    assert single <= reached
    slider = next((each for each in found if each.kind in ("integer", "number")), None)
    if slider is not None:
        visit.page.focus(f"#c-{slider.name}")
        visit.page.keyboard.press("ArrowRight")
        visit.page.wait_for_url(re.compile(f"{slider.name}="))
    question = explorer.question()
    if explorer.presets:
        preset = explorer.presets[-1]
        visit.page.locator(".presets button", has_text=preset.name).click()
        question = explorer.ask(preset.values)
    expect(visit.page.locator(".copy pre").first).to_have_text(explorer.command(question))
    shown = visit.page.inner_text(".answer")
    for view in explorer.answer(question).views().values():
        assert view.title in shown
        if isinstance(view, Facts):
            assert all(each.text in shown for each in view.facts), view.title
    assert visit.faults == []
    visit.context.close()


def test_a_wrong_link_is_explained_and_can_be_left(browser: Any, root: str) -> None:
    visit = Visit(browser, root)
    visit.page.goto(f"{visit.host}/explore/pipeline?ranks=99")
    visit.page.wait_for_selector("[role=alert]")
    assert "ranks = 99" in visit.page.inner_text("[role=alert]")
    visit.page.click("text=Start again")
    visit.page.wait_for_selector(".answer .facts")
    visit.page.goto(f"{visit.host}/explore/pipelines")
    visit.page.wait_for_selector(".problem")
    assert "did you mean pipeline?" in visit.page.inner_text(".problem")
    visit.context.close()
