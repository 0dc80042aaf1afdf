"""Every page in a real browser: no error on the console, no request elsewhere, nothing cut off, all of it by keyboard.

Skipped, with the reason, where Playwright or Chromium is missing.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hornbook.studio.explore.explorer import controls, explorer_names, load_explorer
from hornbook.studio.explore.views import Facts
from tests.processes import PATIENCE_SECONDS
from tests.studio.conftest import make_run_in, score

sync_api: Any = pytest.importorskip("playwright.sync_api", reason="needs the package playwright (extra dev)")
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
WIDTHS, SCHEMES = (320, 768, 1440), ("light", "dark")
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Visit:
    """A page, with what went wrong on it."""

    def __init__(self, browser: Any, root: str) -> None:
        self.context = browser.new_context(viewport={"width": 1440, "height": 900})
        self.page, self.faults, self.host = self.context.new_page(), list[str](), root.split("/?", maxsplit=1)[0]
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.faults.append(said.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", self._look_at)
        self.page.set_default_timeout(1000 * PATIENCE_SECONDS)
        self.page.goto(root)

    def _look_at(self, request: Any) -> None:
        if not request.url.startswith((self.host, "data:")):
            self.faults.append(f"a request to {request.url}")

    def open(self, path: str, drawn: str) -> None:
        """Go to a page, and wait for what it draws."""
        self.page.goto(self.host + path)
        self.page.wait_for_selector(drawn)


UNNAMED = """() => [...document.querySelectorAll('input, select, textarea, button, a, [role=img]')].filter(at =>
    !(at.labels?.length || at.getAttribute('aria-label') || at.textContent.trim()) && at.checkVisibility())
    .map(at => at.outerHTML.slice(0, 120))"""
WEAK = """() => {
    const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgb = text => {
        paint.clearRect(0, 0, 1, 1); paint.fillStyle = text; paint.fillRect(0, 0, 1, 1);
        return [...paint.getImageData(0, 0, 1, 1).data];
    };
    const linear = part => part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const behind = at => {
        for (let node = at; node; node = node.parentElement) {
            const found = rgb(getComputedStyle(node).backgroundColor);
            if (found[3] > 250) return found;
        }
        return [255, 255, 255];
    };
    const weak = [];
    for (const at of document.querySelectorAll('main *')) {
        if (at.closest('svg, .hidden, button:disabled') || !at.checkVisibility()) continue;
        if (![...at.childNodes].some(node => node.nodeType === 3 && node.textContent.trim())) continue;
        const style = getComputedStyle(at), pair = [light(rgb(style.color)), light(behind(at))].sort((a, b) => b - a);
        const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
        if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) weak.push(`${at.textContent.slice(0, 40)}: ${ratio}`);
    }
    return weak;
}"""
"""Texts whose contrast to what is behind them is less than 4.5, or 3 where they are large (WCAG 2.2, 1.4.3)."""


@pytest.mark.parametrize(("path", "drawn"), PAGES.items())
def test_a_page_is_whole_at_every_width_and_readable_in_both_themes(
    browser: Any, root: str, path: str, drawn: str
) -> None:
    visit = Visit(browser, root)
    visit.open(path, drawn)
    page = visit.page
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (scheme, width)
        assert page.evaluate(WEAK) == [], scheme
    assert page.evaluate(UNNAMED) == []
    assert page.inner_text("h1").strip()
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
    sync_api.expect(visit.page.locator(".copy pre").first).to_have_text(explorer.command(question))
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
