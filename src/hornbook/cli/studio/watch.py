"""`hornbook watch`: a live page of runs, on this machine alone; or a view of them in the terminal."""

import atexit
import os
import secrets
import subprocess
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.markup import escape

from hornbook.cli.child import command
from hornbook.cli.result import Json, Result
from hornbook.cli.shell import people, runs_folder, say
from hornbook.errors import UsageError
from hornbook.files.run_directory import RunDir


def watch(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN|FOLDER", help="Runs, or folders of runs; by default $HORNBOOK_RUNS, or ./runs."),
    ] = None,
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 8765,
    name: Annotated[
        str | None, typer.Option("--open", metavar="NAME", help="Open the page of this run, not the table.")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show runs, and let nobody change one.")] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    tty: Annotated[bool, typer.Option("--tty", help="Show the runs here in the terminal, without a page.")] = False,
    as_json: Json = False,
) -> Result:
    """Watch runs in a browser: curves as they grow, events, layers, samples, settings; and tell a run what to do.

    The page is on 127.0.0.1 alone, behind a link that is new at each start. It reads the files of runs, so that it
    shows dead runs and copies of runs too, and training never waits for it. Ctrl-C ends it. `--tty` shows status, loss,
    speed, time left and events in the terminal, once a second; where the output is no terminal, once.
    """
    for place in folders or ():
        if not place.is_dir():
            raise UsageError(f"{place}: no such folder: name a run, or a folder of runs")
    places = folders or [runs_folder()]
    if tty:
        from hornbook.cli.studio.terminal_view import follow, rows_of, screen
        from hornbook.studio.live.run_view import Runs

        runs = Runs(places)
        rows = follow(runs) if sys.stdout.isatty() and not as_json else rows_of(runs)
        return Result({"runs": rows}, screen(rows))
    only = [run.name for place in places if (run := RunDir(place)).exists()]
    opened = name or (only[0] if len(only) == len(places) == 1 else "")
    return open_page(places, port=port, path=page_of(opened) if opened else "/", read_only=read_only, browser=browser)


def page_of(name: str) -> str:
    """The path of the page of a run."""
    return f"/run/{quote(name, safe='')}"


def watch_beside(run: RunDir) -> None:
    """Open the page of a run, which may not be there yet, in a process that ends with this one; print its link.

    The page is up in half a second, for which this waits once. A page that cannot be opened is a line, no error.
    """
    if any(os.environ.get(name, "0") != "0" for name in ("RANK", "SLURM_PROCID")):
        return  # of ranks that torchrun or Slurm started, the first opens the page
    run.path.parent.mkdir(parents=True, exist_ok=True)
    words = command("watch", run.path.parent, "--open", run.name, "--port", "0")
    child = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)  # Ctrl-C is the run's
    atexit.register(child.terminate)
    assert child.stderr is not None
    text = ""
    while "token=" not in text and (line := child.stderr.readline()):
        text = line.strip()
    show_link(f"page of the run, until it ends: {text}" if "token=" in text else f"no page of the run: {text}")


def show_link(text: str) -> None:
    """Print a line with a link, also under -q: without the link nobody can open the page."""
    console = people()
    console.quiet = False
    console.print(f"[bold]{escape(text)}[/]")


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
        show_link(link)
        if browser:
            webbrowser.open(link)

    serve_app(build_app(dashboard, token), Address(port=port), report, drain_seconds=5, ending=dashboard.ending.set)
    return Result({"runs": count}, None, report=["the page has ended"])
