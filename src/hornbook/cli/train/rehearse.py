"""`hornbook rehearse`: a recipe, scaled down, through kills, hangs, full disks and damage; a table of what happened."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from hornbook.cli.child import hornbook
from hornbook.cli.result import Result, table
from hornbook.cli.shell import Words, resolve_words, say
from hornbook.cli.train.training import load_torch
from hornbook.errors import Exit
from hornbook.settings.resolve import Resolved, override
from hornbook.settings.sources import command_line_source

if TYPE_CHECKING:
    from hornbook.run.diagnose.rehearsal.play import Played

TEXT_BYTES, VALIDATION, VOCAB = 200_000, 0.1, 512
"""Size of the text, the share of its documents that is held out, tokens of the tokenizer."""


def rehearse(
    words: Words = None,
    *,
    data: Annotated[
        Path | None, typer.Option(help="A folder written by `hornbook tokenize`; by default a little text is made.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The cases that matter most, in some minutes.")] = False,
    out: Annotated[Path | None, typer.Option(help="Keep the runs and their logs in this new folder.")] = None,
) -> Result:
    """Train the recipe, scaled down, through kills, signals, hangs, bad numbers, a full disk and damaged checkpoints.

    Each run must end equal to one that nobody touched, bit for bit. Exit code 0 if all do, 3 if one does not.
    """
    resolved = resolve_words(words, "train.micro_batch=1")  # that size is scaled anyway, and suits any layout
    load_torch()
    with tempfile.TemporaryDirectory(prefix="hornbook-rehearsal-") as temporary:
        folder = Path(temporary) if out is None else out
        folder.mkdir(parents=True, exist_ok=True)
        if data is None:
            data = make_data(Path(temporary) / "data")
        resolved = override(resolved, [command_line_source([f"data.path={data.resolve()}"])])
        played = list(_play(resolved, folder, quick=quick))
        if out is None and any(each.problems for each in played):
            kept = shutil.copytree(folder, Path(tempfile.mkdtemp(prefix="hornbook-rehearsal-")), dirs_exist_ok=True)
            say(f"the runs and their logs are in {kept}")
    failed = sum(bool(each.problems) for each in played)
    skipped = sum(bool(each.skipped) for each in played)
    value = {"passed": len(played) - failed - skipped, "skipped": skipped, "failed": failed}
    text = f"{value['passed']} passed, {skipped} skipped, {failed} failed"
    cases = [vars(each) for each in played]
    code = Exit.INTEGRITY if failed else Exit.DONE
    return Result(value | {"cases": cases}, text, code, report=[describe(played)])


def _play(resolved: Resolved, folder: Path, *, quick: bool) -> "Iterator[Played]":
    from hornbook.run.diagnose.rehearsal.cases import all_cases
    from hornbook.run.diagnose.rehearsal.play import Rehearsal
    from hornbook.run.diagnose.rehearsal.scaled_recipe import STEPS, ranks_here, scale_down

    resolved = scale_down(resolved, ranks_here())
    rehearsal = Rehearsal(resolved, folder)
    rehearsal.play_reference()
    model = resolved.recipe.model
    say(
        f"{model.layers} layers, width {model.width}, {rehearsal.world} rank{'s' * (rehearsal.world > 1)}, {STEPS} "
        f"steps in {rehearsal.seconds:.1f} s; two runs without faults are equal"
    )
    for number, case in enumerate(all_cases()):
        if case.quick or not quick:
            played = rehearsal.play(number, case)
            told = played.skipped or "; ".join(played.problems)
            say(f"{verdict(played):<7}  {played.words}" + (f": {told}" if told else ""))
            yield played


def make_data(folder: Path) -> Path:
    """A little text of this Python's own documentation, prepared and tokenized."""
    from hornbook.text.ingest.corpora.installed import write_installed_corpus

    write_installed_corpus(folder / "raw", max_bytes=TEXT_BYTES, seed=0)
    held_out = f"--text.validation={VALIDATION}"
    hornbook("prepare", folder / "raw" / "docstrings.jsonl", "--out", folder / "data", held_out, "-q")
    hornbook("tokenize", folder / "data", "--vocab", str(VOCAB), "-q")
    return folder / "data"


def verdict(played: "Played") -> str:
    """In one word."""
    return "skipped" if played.skipped else "FAILED" if played.problems else "ok"


def describe(played: "list[Played]") -> Table:
    """The table for people."""
    made = table("rehearsal", ["", "case", "expected", "what happened"], ["seconds lost"], fold=True)
    for each in played:
        told = each.skipped or "; ".join([each.happened, *each.problems])
        lost = "" if each.skipped else f"{each.seconds_lost:.1f}"
        made.add_row(verdict(each), escape(each.words), escape(each.expected), escape(told), lost)
    return made
