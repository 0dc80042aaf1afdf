"""`hornbook recipes ls | show | copy`: the recipes that come with hornbook."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hornbook.cli.shell import WORDS, DryRun, Json, Words, answer, resolve_words, split_target
from hornbook.errors import UsageError

app = typer.Typer(help="The recipes that come with hornbook.", no_args_is_help=True, add_completion=False)

Name = Annotated[str, typer.Argument(metavar="RECIPE", help="A name from `hornbook recipes ls`.")]


@app.command("ls")
def list_recipes(as_json: Json = False) -> None:
    """List them, with their size and length of training."""
    from hornbook.recipe_files import shipped_recipes

    rows = [summary(name, text) for name, text in shipped_recipes().items()]
    width = max(len(row["name"]) for row in rows)
    lines = [
        f"{row['name']:<{width}}  {short(row['parameters']):>6} parameters  {short(row['tokens']):>5} tokens  "
        f"{row['about']}"
        for row in rows
    ]
    answer({"recipes": rows}, "\n".join(lines), as_json=as_json)


@app.command(context_settings=WORDS)
def show(words: Words = None, as_json: Json = False) -> None:
    """Print a recipe with every value it resolves to, and count its parameters."""
    from hornbook.parameters import parameter_counts

    if split_target(words)[0] is None:
        raise UsageError("which recipe? `hornbook recipes ls` lists them")
    resolved = resolve_words(words)
    counts = parameter_counts(resolved.recipe.model, rows_of(resolved.recipe))
    value = {
        "recipe": resolved.recipe.model_dump(mode="json"),
        "origins": resolved.origins,
        "parameters": counts,
        "total": sum(counts.values()),
    }
    parts = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    answer(value, f"# {sum(counts.values()):,} parameters: {parts}\n{resolved.to_toml()}", as_json=as_json)


@app.command()
def copy(
    name: Name,
    out: Annotated[Path | None, typer.Argument(help="File to write; by default RECIPE.toml here.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Copy a recipe to a file of your own, to be changed."""
    from hornbook.recipe_files import shipped_recipes

    if name not in shipped_recipes():
        raise UsageError(f"there is no shipped recipe {name}; there are {', '.join(shipped_recipes())}")
    path = out if out is not None else Path(f"{name}.toml")
    if path.is_dir():
        path = path / f"{name}.toml"
    if path.exists():
        raise UsageError(f"{path} is there already: name another file")
    if not dry_run:
        path.write_text(shipped_recipes()[name], encoding="utf-8")
    text = f"would write {path}" if dry_run else f"{path}: change it, then hornbook train {path}"
    answer({"path": str(path), "written": not dry_run}, text, as_json=as_json)


def summary(name: str, text: str) -> dict[str, Any]:
    """What `ls` tells of a recipe; `about` is the first comment line of the file."""
    from hornbook.parameters import count_parameters
    from hornbook.resolve import resolve

    recipe = resolve(name, environ={}).recipe
    about = text.splitlines()[0].lstrip("# ")
    count = count_parameters(recipe.model, rows_of(recipe))
    return {"name": name, "about": about, "parameters": count, "tokens": recipe.train.tokens}


def rows_of(recipe: Any) -> int:
    """Rows of the recipe's embedding, as far as known before the tokenizer exists."""
    from hornbook.parameters import embedding_rows

    return embedding_rows(recipe.model, getattr(recipe.text.tokenizer, "vocab", 0))


def short(number: int | None) -> str:
    """A count with a suffix: 124M, 1.24B."""
    if number is None:
        return "-"
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)
