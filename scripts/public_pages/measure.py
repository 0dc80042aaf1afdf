"""What public pages cost a visitor: seconds and bytes until the first answer, milliseconds of each further answer.

`python -m scripts.public_pages.measure` prints them, from build/pages in Chromium, with nothing in its cache.
"""

import gzip
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hornbook.studio.explore.explorer import explorer_names
from scripts.public_pages.build import ROOT

REPEATS = 20
ANSWERS = """async ([name, repeats]) => {
    const { site } = await import("./page/text.js"), spans = [];
    try {
        for (let turn = 0; turn < repeats; turn++) {
            const begun = performance.now();
            await site.ask(`/api/explore/${name}/answer`);
            spans.push(performance.now() - begun);
        }
    } catch (problem) { return problem.message; }
    return spans;
}"""


class Quiet(SimpleHTTPRequestHandler):
    """Files, without a line on each request."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder's files are served until the context ends."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def main() -> None:
    """Load an explorer, and ask each of them."""
    from playwright.sync_api import sync_playwright

    pages, asked = ROOT / "build" / "pages", list[str]()
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with served(pages) as address, sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"]).new_page()
        page.context.on("request", lambda request: asked.append(request.url.removeprefix(address)))
        page.set_default_timeout(600_000)
        begun = time.perf_counter()
        page.goto(f"{address}#/explore/pipeline")
        page.wait_for_selector(".answer .panel")
        seconds = time.perf_counter() - begun
        files = [(pages / (each.split("#")[0] or "index.html")).read_bytes() for each in asked if ":" not in each]
        sizes = sum(map(len, files)) / 1e6, sum(len(gzip.compress(each, 6)) for each in files) / 1e6
        print(f"first answer after {seconds:.1f} s; {sizes[0]:.1f} MB, {sizes[1]:.1f} MB if the server compresses")
        for name in explorer_names():
            spans = page.evaluate(ANSWERS, [name, REPEATS])
            print(f"{name:18}", spans if isinstance(spans, str) else f"{statistics.median(spans):.0f} ms")


if __name__ == "__main__":
    main()
