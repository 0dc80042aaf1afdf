"""`hornbook recipes ls | show | copy`: the shipped recipes."""

from collections.abc import Iterator
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.result import CommandGroup, Result
from hornbook.cli.shell import WORDS, DryRun, Words, resolve_words, split_target
from hornbook.errors import UsageError, quoted
from hornbook.model.config.flops import Operations, operations_per_token, state_bytes
from hornbook.model.config.parameter_count import count_parameters, embedding_rows, parameter_counts
from hornbook.model.config.saved_bytes import SavedBytes
from hornbook.plan.counts.held_counts import held_values
from hornbook.plan.counts.share import activation_bytes
from hornbook.plan.search import number_words as numbers
from hornbook.settings.layout.world import smallest_world
from hornbook.settings.recipe import Recipe
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.resolve import resolve

if TYPE_CHECKING:
    from hornbook.settings.training import TrainConfig

app = CommandGroup(help="List, show and copy the shipped recipes.", no_args_is_help=True, add_completion=False)

Name = Annotated[str, typer.Argument(metavar="RECIPE", help="A name from `hornbook recipes ls`.")]


WIDTH = 100
"""Width of the output in columns."""


@app.command("ls")
def list_recipes() -> Result:
    """List all recipes by family, with their size and training length."""
    rows = [summary(name, text) for name, text in shipped_recipes().items()]
    rows.sort(key=_place)
    return Result({"recipes": rows}, "\n".join(table(rows)))


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    """Sort key: small recipes first, starting with `tiny`; then by family and size."""
    return row["family"] != "tiny", row["family"], row["name"] != "tiny", row["parameters"], row["name"]


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of `ls`, with an empty one between families."""
    names = max(len(row["name"]) for row in rows)
    indent = names + 22
    yield f"{'recipe':<{names}}  parameters  tokens"
    family = None
    for row in rows:
        if row["family"] != family:
            family = row["family"]
            yield ""
        sizes = f"{short(row['parameters']):>10}  {short(row['tokens']):>6}"
        about = wrap(row["about"], WIDTH - indent)
        yield f"{row['name']:<{names}}  {sizes}  {about[0]}"
        yield from (" " * indent + line for line in about[1:])


@app.command(context_settings=WORDS)
def show(words: Words = None) -> Result:
    """Print all settings of a recipe, and its parameters, operations per token, bytes of state and steps."""
    if split_target(words)[0] is None:
        raise UsageError("name a recipe: `hornbook recipes ls` lists them")
    resolved = resolve_words(words)
    recipe, rows = smallest_world(resolved).recipe, rows_of(resolved.recipe)
    counts = parameter_counts(recipe.model, rows)
    operations = operations_per_token(recipe.model, rows, recipe.train.sequence)
    held = max(held_values(recipe.model, rows, recipe.parallel, recipe.train.sequence))
    state = state_bytes(held, recipe.parallel, recipe.optim, recipe.train.item_bytes)
    kept = _kept(recipe, rows)
    value = {
        "recipe": resolved.recipe.model_dump(mode="json"),
        "origins": resolved.origins,
        "parameters": counts,
        "total": sum(counts.values()),
        "flops_per_token": {
            name: asdict(each) | {"matrices": each.matrices, "total": each.total} for name, each in operations.items()
        },
        "state_bytes": state,
        "activation_bytes": None if kept is None else asdict(kept) | {"total": kept.total},
        "batches": [list(level) for level in recipe.train.ramp.levels(recipe.train.batch_tokens)],
    }
    lines = [parameter_line(counts)]
    lines += [operation_line(name, each, recipe.train.sequence) for name, each in operations.items()]
    lines.append(state_line(state, recipe.parallel.world))
    lines += [] if kept is None else [activation_line(kept, recipe.train)]
    lines += [length] if (length := length_line(recipe.train)) else []
    header = [part for line in lines for part in wrap(line, WIDTH, initial_indent="# ", subsequent_indent="#   ")]
    return Result(value, "\n".join([*header, resolved.to_toml()]))


def parameter_line(counts: dict[str, int]) -> str:
    """Number of parameters, in total and by part."""
    parts = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    return f"{sum(counts.values()):,} parameters: {parts}"


def operation_line(name: str, operations: Operations, sequence: int) -> str:
    """Operations per token, and the convention by which they are counted."""
    return (
        f"{short(operations.total)} FLOPs per {name}, forward and backward: {short(operations.matrices)} in matrices "
        f"(6 x {short(operations.weights)}), {short(operations.attention)} in attention (the pairs that see each other "
        f"in rows of {sequence:,}; over all pairs, as PaLM counts: {short(operations.all_pairs)})"
    )


def state_line(state: dict[str, int], ranks: int) -> str:
    """Bytes that stay in memory between steps."""
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in state.items())
    where = " in each process" if ranks > 1 else ""
    return f"{gigabytes(sum(state.values()))} of state{where}: {parts} (float32)"


def _kept(recipe: Recipe, vocab: int) -> SavedBytes | None:
    """Bytes kept for backward of a microbatch; None where they are not known before the model runs."""
    try:
        return activation_bytes(recipe, vocab, recipe.train.micro_rows)
    except UsageError:
        return None


def activation_line(kept: SavedBytes, train: "TrainConfig") -> str:
    """Bytes that a microbatch keeps until its backward pass."""
    parts = {"blocks": kept.blocks, "head": kept.head, "the rest": kept.ends + kept.shared}
    shown = ", ".join(f"{name} {gigabytes(size)}" for name, size in parts.items())
    again = f"; {gigabytes(kept.recomputed)} while a block is computed again" if kept.recomputed else ""
    rows = f"{train.micro_rows:,} row{'' if train.micro_rows == 1 else 's'} of {train.sequence:,}"
    held = "fp32" if train.precision == "fp32" else "16-bit"
    return f"{gigabytes(kept.total)} of activations for {rows} ({held}): {shown}{again}"


def length_line(train: "TrainConfig") -> str | None:
    """Number and size of the steps; None if the training length depends on the data."""
    from hornbook.run.ledger.training_length import training_length

    return None if train.tokens is None else training_length(train, lambda _: 0).describe()  # no epochs are counted


def gigabytes(size: int) -> str:
    """Bytes in units of 10^9, to three digits or whole."""
    return f"{size / 1e9:,.0f} GB" if size >= 100e9 else f"{size / 1e9:.3g} GB"


@app.command()
def copy(
    name: Name,
    out: Annotated[Path | None, typer.Argument(help="File to write; by default RECIPE.toml here.")] = None,
    dry_run: DryRun = False,
) -> Result:
    """Copy a recipe to a file for you to edit."""
    if name not in shipped_recipes():
        family = [known for known in shipped_recipes() if known.startswith(name)]
        close = family[:3] or get_close_matches(name, shipped_recipes(), n=2)
        hint = f"did you mean {' or '.join(close)}?" if close else "`hornbook recipes ls` lists them"
        raise UsageError(f"there is no recipe {name}: {hint}")
    path = out if out is not None else Path(f"{name}.toml")
    if path.is_dir():
        path = path / f"{name}.toml"
    if path.exists():
        raise UsageError(f"{path} already exists: name another file")
    if not dry_run:
        path.write_text(shipped_recipes()[name], encoding="utf-8")
    text = f"would write {path}" if dry_run else f"{path}: edit it, then run hornbook train {quoted(path)}"
    return Result({"path": str(path), "written": not dry_run}, text)


def summary(name: str, text: str) -> dict[str, Any]:
    """The row of a recipe in `ls`; `about` is the first comment line of the file."""
    recipe = resolve(name, environ={}).recipe
    about = text.splitlines()[0].lstrip("# ")
    count = count_parameters(recipe.model, rows_of(recipe))
    family = name.partition("-")[0]
    return {"name": name, "family": family, "about": about, "parameters": count, "tokens": recipe.train.tokens}


def rows_of(recipe: Any) -> int:
    """Number of embedding rows of a recipe, as far as it is known before the tokenizer exists."""
    return embedding_rows(recipe.model, getattr(recipe.text.tokenizer, "vocab", 0))


def short(number: float | None) -> str:
    """A count with a suffix: 124M, 1.24B, 15T."""
    return "-" if number is None else numbers.short(number).replace(" ", "")
