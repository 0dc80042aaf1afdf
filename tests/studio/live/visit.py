"""A visit of a real browser to the studio's pages.

A test module that imports it is skipped, with the reason, where Playwright or Chromium is missing.
"""

import shutil
from typing import Any

import pytest

from tests.processes import PATIENCE_SECONDS

sync_api: Any = pytest.importorskip("playwright.sync_api", reason="needs the package playwright (extra dev)")
expect = sync_api.expect
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("needs Chromium: apt-get install chromium", allow_module_level=True)
WIDTHS, SCHEMES = (320, 768, 1440), ("light", "dark")
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

    def check_looks(self) -> None:
        """At every width and in both themes nothing is cut off, all has a name, and texts can be read."""
        page = self.page
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
                assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (scheme, width)
            weak = page.evaluate(WEAK)
            assert not weak, (scheme, weak)
        unnamed = page.evaluate(UNNAMED)
        assert not unnamed, unnamed
        assert page.inner_text("h1").strip()
