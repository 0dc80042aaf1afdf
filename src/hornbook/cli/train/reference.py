"""`hornbook reference`: log-probabilities of a reference model, for objectives that compare answers."""

from pathlib import Path
from typing import Annotated

import typer

from hornbook.cli.result import Result
from hornbook.cli.shell import Words, resolve_words
from hornbook.cli.train.training import load_torch
from hornbook.errors import quoted
from hornbook.progress import progress_bar


def reference(
    words: Words = None,
    *,
    data: Annotated[Path, typer.Option(help="A folder written by `hornbook tokenize`, of preferences or ratings.")],
    from_: Annotated[Path, typer.Option("--from", metavar="RUN|CHECKPOINT", help="The reference model.")],
) -> Result:
    """Compute what the reference model says of every answer, once, and keep it beside the data (DATA/reference).

    Give the recipe and settings of the run to come: its rows, its precision and its objective.
    """
    load_torch()
    from hornbook.run.checkpoints.path import checkpoint_path
    from hornbook.run.job.start.run_reference import compute_references

    recipe = resolve_words(words, f"data.path={data}").recipe
    with progress_bar() as progress:
        found = compute_references(recipe, checkpoint_path(from_), progress)
    lines = [f"{source}: {path}" for source, path in found["files"].items()]
    text = "\n".join([f"reference {found['digest']} ({found['reference']})", *lines])
    return Result(found, text, notes=[f"next: hornbook train RECIPE --data {quoted(data)} --from {quoted(from_)}"])
