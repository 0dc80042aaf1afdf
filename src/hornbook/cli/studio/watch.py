"""`hornbook watch`: a live page of runs, on this machine alone."""

import secrets
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hornbook.cli.result import Result
from hornbook.cli.shell import runs_folder, say
from hornbook.errors import UsageError


def watch(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN|FOLDER", help="Runs, or folders of runs; by default $HORNBOOK_RUNS, or ./runs."),
    ] = None,
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 8765,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show runs, and let nobody change one.")] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> Result:
    """Watch runs in a browser: curves as they grow, events, layers, samples, settings; and tell a run what to do.

    The page is on 127.0.0.1 alone, behind a link that is new at each start. It reads the files of runs, so that it
    shows dead runs and copies of runs too, and training never waits for it. Ctrl-C ends it.
    """
    for place in folders or ():
        if not place.is_dir():
            raise UsageError(f"{place}: no such folder: name a run, or a folder of runs")
    return open_page(folders or [runs_folder()], port=port, read_only=read_only, browser=browser)


def open_page(
    folders: Sequence[Path], *, port: int, path: str = "/", read_only: bool = False, browser: bool = True
) -> Result:
    """Serve the studio until a signal comes, and open the page at `path`, which may have a query."""
    from hornbook.serve.server import Address, serve_app
    from hornbook.studio.live.app import Dashboard, build_app
    from hornbook.studio.live.run_view import Runs

    runs, token = Runs(folders), secrets.token_urlsafe(16)
    dashboard = Dashboard(runs, read_only=read_only)
    count = len(runs.all())

    def report(bound: int) -> None:
        link = f"http://127.0.0.1:{bound}{path}{'&' if '?' in path else '?'}token={token}"
        say(f"{count} run{'' if count == 1 else 's'} in {', '.join(map(str, folders))}; Ctrl-C ends")
        say(f"[bold]{link}[/]")
        if browser:
            webbrowser.open(link)

    serve_app(build_app(dashboard, token), Address(port=port), report, drain_seconds=5, ending=dashboard.ending.set)
    return Result({"runs": count}, None, report=["the page has ended"])
