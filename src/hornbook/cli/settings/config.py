"""`hornbook config show | explain | schema | check`: what is set, by whom, and what could be."""

import json
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from hornbook.cli.shell import WORDS, Json, Words, answer, people, resolve_words, split_target, split_targets
from hornbook.errors import Exit, UsageError

app = typer.Typer(help="Show, explain and check settings.", no_args_is_help=True, add_completion=False)


@app.command(context_settings=WORDS)
def show(words: Words = None, as_json: Json = False) -> None:
    """Print every setting with its origin, as a recipe that gives the same run."""
    resolved = resolve_words(words)
    value = {"recipe": resolved.recipe.model_dump(mode="json"), "origins": resolved.origins}
    answer(value, resolved.to_toml(), as_json=as_json)


@app.command(context_settings=WORDS)
def explain(
    words: Annotated[list[str], typer.Argument(metavar="KEY [RECIPE|RUN] [--section.key value]...")],
    as_json: Json = False,
) -> None:
    """Tell what a setting does, its type, limits and default, and who set it."""
    from hornbook.settings.resolve import resolve
    from hornbook.settings.show import explanation

    targets, overrides = split_targets(words)
    if not 1 <= len(targets) <= 2:
        raise UsageError("write hornbook config explain KEY [RECIPE], such as hornbook config explain optim.lr tiny")
    resolved = resolve(targets[1] if len(targets) > 1 else None, overrides)
    key = targets[0].lstrip("-")
    answer(explanation(resolved.recipe, resolved.origins, key), resolved.explain(key), as_json=as_json)


@app.command()
def schema() -> None:
    """Print the JSON schema of recipes, for editors and forms."""
    from hornbook.settings.show import json_schema

    answer({}, json.dumps(json_schema(), indent=2, ensure_ascii=False))


@app.command(context_settings=WORDS)
def check(
    words: Words = None,
    mend: Annotated[bool, typer.Option("--mend", help="Write present names for former ones into the file.")] = False,
    as_json: Json = False,
) -> Exit:
    """Check a recipe; all problems are told at once, with exit code 2.

    A setting by a former name is none: each has a line that says its present name.
    """
    from hornbook.settings.resolve import ConfigError, resolve

    target, overrides = split_target(words)
    if target is None:
        raise UsageError("which recipe? write hornbook config check RECIPE")
    mended = _mend(Path(target)) if mend else []
    for line in mended:
        people().print(line, markup=False)
    try:
        resolved = resolve(target, overrides)
    except ConfigError as error:
        if not as_json:
            raise
        problems = [vars(problem) for problem in error.problems]
        answer({"ok": False, "problems": problems, **({"mended": mended} if mend else {})}, as_json=True)
        return error.exit_code
    given = sum(origin != "default" for origin in resolved.origins.values())
    text = f"{target} is valid; {given} of {len(resolved.origins)} settings are not at their default"
    value = {"ok": True, "problems": [], "settings": len(resolved.origins), "given": given}
    answer(value | ({"mended": mended} if mend else {}), text, as_json=as_json)
    return Exit.DONE


def _mend(path: Path) -> list[str]:
    """Write present names for former ones into a recipe file; a line for each. A file that is no TOML stays."""
    from hornbook.files.durable import write_atomic
    from hornbook.settings.former import mend

    if not path.is_file():
        raise UsageError(f"--mend rewrites a recipe file of yours, and {path} is none")
    path = path.resolve()  # of a link, the file
    try:
        text = path.read_bytes().decode()
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        tomllib.loads(text.removeprefix(mark))
    except ValueError:
        return []
    mended, changes = mend(text.removeprefix(mark))
    if changes:
        mode = path.stat().st_mode
        write_atomic(path, mark + mended)
        path.chmod(mode)
    return [f"{path}:{line}  {sentence}" for line, sentence in changes]
