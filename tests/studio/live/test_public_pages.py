"""The public pages in a real browser: what Pyodide computes there is what the engine computes here.

Skipped, with the reason, where Playwright, Chromium or Pyodide is missing.
"""

import json
import math
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from hornbook.studio.explore.explorer import Explorer, explorer_names, load_explorer
from hornbook.studio.explore.page_answer import answered, answered_further
from scripts.public_pages.build import CONSTRAINTS, PARTS, build
from scripts.public_pages.measure import served
from tests.studio.live.visit import Visit, expect

pytestmark = [
    pytest.mark.skipif(not (PARTS / CONSTRAINTS.name).exists(), reason="needs Pyodide: make pages downloads it"),
    pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which builds the pages"),
]
ASK = """async ([path, body]) => {
    const { site } = await import("./page/text.js");
    return site.ask(path, { body: JSON.stringify(body) });
}"""


@pytest.fixture(scope="module")
def visit(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """One visit for all tests, because Python starts but once in it; the pages are in a folder of their host."""
    folder = tmp_path_factory.mktemp("host")
    build(folder / "some" / "pages")
    with served(folder) as host:
        visit = Visit(browser, f"{host}some/pages/")
        yield visit
        visit.context.close()


def ask(visit: Visit, path: str, values: Any) -> Any:
    return visit.page.evaluate(ASK, [path, values])


def is_close(found: Any, expected: Any) -> bool:
    """Equal; floats to twelve digits, because the browser's logarithm rounds its last bit otherwise."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(is_close(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(is_close, found, expected))
    if isinstance(expected, float):
        return found is not None and math.isclose(found, expected, rel_tol=1e-12)
    return found == expected


def questions(explorer: Explorer) -> Iterator[dict[str, Any]]:
    yield {}
    yield from (dict(each.values) for each in explorer.presets)


@pytest.mark.parametrize("name", explorer_names())
def test_the_browser_computes_what_the_engine_computes(visit: Visit, name: str) -> None:
    explorer, path = load_explorer(name), f"/api/explore/{name}"
    if needs := ask(visit, path, None)["needs"]:
        pytest.skip(needs)
    for values in questions(explorer):
        expected = json.loads(json.dumps(answered(explorer, values)))
        assert is_close(ask(visit, f"{path}/answer", values), expected), values
    further = json.loads(json.dumps(answered_further(explorer, {})))
    assert is_close(ask(visit, f"{path}/further", {}), {"answer": further})
    assert visit.faults == []


def test_a_link_holds_the_state_and_the_page_is_used_by_keyboard(visit: Visit) -> None:
    visit.open("#/explore/pipeline?ranks=8", ".answer .facts")
    page, explorer = visit.page, load_explorer("pipeline")
    expect(page.locator(".copy pre").first).to_have_text(explorer.command(explorer.ask({"ranks": 8})))
    page.focus("header a")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "c-ranks":
            break
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile("ranks=9"))
    expect(page.locator(".copy pre").first).to_have_text(explorer.command(explorer.ask({"ranks": 9})))
    answer = page.inner_text(".answer")
    assert all(each.text in answer for each in explorer(ranks=9).summary.facts)
    visit.check_looks()
    page.reload()
    page.wait_for_selector(".copy pre")
    expect(page.locator(".copy pre").first).to_have_text(explorer.command(explorer.ask({"ranks": 9})))
    visit.open("#/explore/pipeline?ranks=99", "[role=alert]")
    assert "ranks = 99" in page.inner_text("[role=alert]")
    assert visit.faults == []


def test_the_list_names_every_explorer_and_what_runs_elsewhere(visit: Visit) -> None:
    visit.open("#/explore", ".cards a")
    assert visit.page.locator(".cards a").count() == len(explorer_names())
    visit.check_looks()
    visit.page.click("text=Tokenizers")
    visit.page.wait_for_selector("p.panel")
    assert "hornbook explore tokenizers --browser" in visit.page.inner_text("main")
    assert "hornbook's own code" in visit.page.inner_text("#computed")
    visit.check_looks()
    visit.page.click("header >> text=explore")
    visit.page.wait_for_selector(".cards a")
    assert visit.faults == []
