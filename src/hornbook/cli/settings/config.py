"""`hornbook config show | explain | schema | check`: the settings, their origins and their types."""

import json
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from hornbook.cli.result import CommandGroup, Json, Result
from hornbook.cli.shell import WORDS, Words, people, resolve_words, split_target, split_targets
from hornbook.errors import UsageError
from hornbook.files.durable import write_atomic
from hornbook.settings.resolve import ConfigError, resolve
from hornbook.settings.show import explain_text, explanation, json_schema

app = CommandGroup(help="Show, explain and check settings.", no_args_is_help=True, add_completion=False)


@app.command(context_settings=WORDS)
def show(words: Words = None) -> Result:
    """Print all settings with their origins, as a recipe that gives the same run."""
    resolved = resolve_words(words)
    value = {"recipe": resolved.recipe.model_dump(mode="json"), "origins": resolved.origins}
    return Result(value, resolved.to_toml())


@app.command(context_settings=WORDS)
def explain(
    words: Annotated[list[str], typer.Argument(metavar="KEY [RECIPE|RUN] [--section.key value]...")],
) -> Result:
    """Explain a setting: what it does, its type, limits and default, and where its value comes from."""
    targets, overrides = split_targets(words)
    if not 1 <= len(targets) <= 2:
        raise UsageError("write hornbook config explain KEY [RECIPE], such as hornbook config explain optim.lr tiny")
    resolved = resolve(targets[1] if len(targets) > 1 else None, overrides)
    known = explanation(resolved.recipe, resolved.origins, targets[0].lstrip("-"))
    return Result(known, explain_text(known))


@app.command()
def schema() -> Result:
    """Print the JSON schema of recipes, for editors and forms."""
    found = json_schema()
    return Result(found, json.dumps(found, indent=2, ensure_ascii=False))


@app.command(context_settings=WORDS)
def check(
    words: Words = None,
    mend: Annotated[bool, typer.Option("--mend", help="Replace former names of settings in the file.")] = False,
    as_json: Json = False,
) -> Result:
    """Check a recipe and print all problems at once. Exit code 2 if there are any.

    A former name of a setting is no problem: it keeps working, and a line says the present name.
    """
    target, overrides = split_target(words)
    if target is None:
        raise UsageError("name a recipe: hornbook config check RECIPE")
    mended = {"mended": _mend(Path(target))} if mend else {}
    try:
        resolved = resolve(target, overrides)
    except ConfigError as error:
        if not as_json:
            raise
        problems = [vars(problem) for problem in error.problems]
        return Result({"ok": False, "problems": problems, **mended}, code=error.exit_code)
    given = sum(origin != "default" for origin in resolved.origins.values())
    text = f"{target} is valid; {given} of {len(resolved.origins)} settings differ from their defaults"
    return Result({"ok": True, "problems": [], "settings": len(resolved.origins), "given": given, **mended}, text)


def _mend(path: Path) -> list[str]:
    """Replace former names of settings in a recipe file of valid TOML; prints and returns a line for each."""
    from hornbook.settings.renamed import mend

    if not path.is_file():
        raise UsageError(f"--mend rewrites a recipe file, and {path} is not a file")
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
    lines = [f"{path}:{line}  {sentence}" for line, sentence in changes]
    for line in lines:
        people().print(line, markup=False)
    return lines
