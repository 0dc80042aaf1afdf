"""`hornbook config show | explain | schema | check`: the settings, their origins and their types."""

import json
from typing import Annotated

import typer

from hornbook.cli.result import CommandGroup, Json, Result
from hornbook.cli.shell import WORDS, Words, resolve_words, split_target, split_targets
from hornbook.errors import UsageError

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
    from hornbook.settings.resolve import resolve
    from hornbook.settings.show import explanation

    targets, overrides = split_targets(words)
    if not 1 <= len(targets) <= 2:
        raise UsageError("write hornbook config explain KEY [RECIPE], such as hornbook config explain optim.lr tiny")
    resolved = resolve(targets[1] if len(targets) > 1 else None, overrides)
    key = targets[0].lstrip("-")
    return Result(explanation(resolved.recipe, resolved.origins, key), resolved.explain(key))


@app.command()
def schema() -> Result:
    """Print the JSON schema of recipes, for editors and forms."""
    from hornbook.settings.show import json_schema

    found = json_schema()
    return Result(found, json.dumps(found, indent=2, ensure_ascii=False))


@app.command(context_settings=WORDS)
def check(words: Words = None, as_json: Json = False) -> Result:
    """Check a recipe and print all problems at once. Exit code 2 if there are any."""
    from hornbook.settings.resolve import ConfigError, resolve

    target, overrides = split_target(words)
    if target is None:
        raise UsageError("name a recipe: hornbook config check RECIPE")
    try:
        resolved = resolve(target, overrides)
    except ConfigError as error:
        if not as_json:
            raise
        return Result({"ok": False, "problems": [vars(problem) for problem in error.problems]}, code=error.exit_code)
    given = sum(origin != "default" for origin in resolved.origins.values())
    text = f"{target} is valid; {given} of {len(resolved.origins)} settings differ from their defaults"
    return Result({"ok": True, "problems": [], "settings": len(resolved.origins), "given": given}, text)
