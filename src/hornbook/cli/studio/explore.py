"""`hornbook explore`: explainers that ask the engine, in the terminal or in a browser."""

from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result
from hornbook.errors import UsageError

if TYPE_CHECKING:
    from hornbook.studio.explore.explorer import Explorer


def explore(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME] [--setting value]...", help="An explorer, and its settings.")
    ] = None,
    *,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page of it in a browser.")] = False,
    real: Annotated[bool, typer.Option("--real", help="Do it for real, small, on this machine.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0: any that is free.")] = 8765,
) -> Result:
    """See what a setting does before you train: memory, schedules, pipelines. The numbers are the engine's own.

    Without a name it lists the explorers, with a name it prints an answer. `hornbook explore NAME settings` lists what
    you can change. The page has the same answers with sliders, and a link for each.
    """
    from hornbook.studio.explore.explorer import load_explorer
    from hornbook.studio.explore.page_answer import list_explorers

    names, values = _split(words)
    explorer = load_explorer(names[0]) if names else None
    if browser:
        return _open(explorer, values, port)
    if explorer is None:
        from hornbook.cli.result import columns

        found = list_explorers()
        return Result({"explorers": found}, columns([(each["name"], each["asks"]) for each in found]))
    return _settings(explorer) if names[1:] == ["settings"] else _answer(explorer, values, real=real)


def _split(words: list[str] | None) -> tuple[list[str], dict[str, str]]:
    """(name and `settings`, value by setting); a setting without a value is true, `no_` before it makes it false."""
    from hornbook.settings.sources import split_words

    names, overrides = split_words(words or [])
    if len(names) > 2 or names[1:] not in ([], ["settings"]):
        raise UsageError(f"name one explorer, not {' '.join(names)}: write settings as --setting value")
    values = dict[str, str]()
    for key, equals, value in (each.partition("=") for each in overrides):
        name = key.replace("-", "_")
        values[name if equals else name.removeprefix("no_")] = (
            value if equals else str(not name.startswith("no_")).lower()
        )
    return names, values


def _settings(explorer: "Explorer") -> Result:
    """The settings of an explorer, with their defaults and bounds."""
    from hornbook.cli.result import columns
    from hornbook.studio.explore.explorer import controls, value_text

    found = controls(explorer)
    rows = [["setting", "default", "values", "meaning"]]
    for each in found:
        bounds = f"{each.low:g} to {each.high:g}" if each.low is not None and each.high is not None else each.kind
        rows.append([f"--{each.name}", value_text(each.default), " ".join(each.choices) or bounds, each.help])
    return Result({"settings": [each.model_dump(mode="json") for each in found]}, columns(rows))


def _answer(explorer: "Explorer", values: dict[str, str], *, real: bool) -> Result:
    from hornbook.studio.explore.measure import measured
    from hornbook.studio.explore.page_answer import described_answer, with_texts
    from hornbook.studio.explore.text_views import answer_text

    question = explorer.ask(values)
    if real:
        answer = measured(explorer, question)
        return Result({"answer": with_texts(answer)}, answer_text(answer))
    answer, further = explorer.answer(question), explorer.further and explorer.further(question)
    found = described_answer(explorer, question, answer) | {"further": further and with_texts(further)}
    text = "\n\n".join(answer_text(each) for each in (answer, further) if each)
    notes = [f"more settings: hornbook explore {explorer.name} settings; in a browser: --browser"]
    return Result(found, text, notes=notes)


def _open(explorer: "Explorer | None", values: dict[str, str], port: int) -> Result:
    """The page, with these settings in its link."""
    from urllib.parse import urlencode

    from hornbook.cli.shell import runs_folder
    from hornbook.cli.studio.watch import open_page

    path = "/explore" if explorer is None else f"/explore/{explorer.name}"
    if explorer is not None:
        explorer.ask(values)
    return open_page([runs_folder()], port=port, path=f"{path}?{urlencode(values)}" if values else path)
