"""`hornbook fetch`: download public corpora, and print the settings that read them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, people
from hornbook.errors import UsageError
from hornbook.progress import progress_bar, size_text
from hornbook.text.ingest.corpora.corpora import CORPORA, PublicCorpus, corpus_of

if TYPE_CHECKING:
    from hornbook.text.ingest.corpora.fetch import Remote


def fetch(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|URL", help="A corpus or a URL. Without it: list the corpora.")
    ] = None,
    variables: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="A part, such as language=de or crawl=CC-MAIN-2025-05."),
    ] = None,
    *,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="By default corpora/NAME.")] = None,
    files: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of files.")] = 1,
    everything: Annotated[bool, typer.Option("--all", help="Fetch all files.")] = False,
    dry_run: DryRun = False,
) -> Result:
    """Download a public corpus, or a part of it, and print the settings with which prepare reads it.

    Interrupted downloads resume, and published digests are checked. -n prints each URL and its size.
    """
    if name is None:
        return Result({"corpora": [_row(corpus) for corpus in CORPORA.values()]}, corpus_table())
    from hornbook.text.ingest.corpora.fetch import fetch as download
    from hornbook.text.ingest.corpora.fetch import plan

    corpus = corpus_of(name)
    remotes, total = plan(corpus, _given(variables or []), None if everything else files)
    folder = out or Path("corpora") / corpus.name
    lines = _plan_lines(corpus, remotes, total, folder)
    people().print("\n".join(lines), markup=False)
    if not dry_run:
        with progress_bar() as progress:
            download(remotes, folder, progress=progress)
    section = _section(corpus, remotes, folder)
    listed = [{"url": each.url, "path": str(folder / each.name), "bytes": each.size} for each in remotes]
    return Result({"dry_run": dry_run, "files": listed, "of": total, "section": section}, section)


def _given(words: list[str]) -> dict[str, str]:
    given = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r}: write KEY=VALUE, such as language=de")
        given[key] = value
    return given


def _row(corpus: PublicCorpus) -> dict[str, Any]:
    fields = ("name", "what", "size", "licence", "cites", "note")
    return {name: getattr(corpus, name) for name in fields} | {"variables": dict(corpus.variables)}


def corpus_table() -> str:
    """The list of corpora, for people."""
    lines: list[str] = []
    for corpus in CORPORA.values():
        parts = " ".join(f"{key}={value}" for key, value in corpus.variables.items())
        lines += [
            f"{corpus.name}  {corpus.what}",
            f"    size     {corpus.size}",
            f"    licence  {corpus.licence}",
            f"    see      {corpus.cites}",
            *([f"    choose   {parts}"] if parts else []),
            *([f"    note     {corpus.note}"] if corpus.note else []),
        ]
    return "\n".join([*lines, "", "next: hornbook fetch NAME -n shows what would be downloaded"])


def _plan_lines(corpus: PublicCorpus, remotes: "list[Remote]", total: int, folder: Path) -> list[str]:
    known = [each.size for each in remotes if each.size is not None]
    lines = [
        f"{each.url}  {size_text(each.size) if each.size is not None else 'size unknown'}"
        f"{'  with a published digest' if each.digest else ''}"
        for each in remotes
    ]
    unknown = "" if len(known) == len(remotes) else " and what the server does not say"
    lines.append(f"{len(remotes):,} of {total:,} files, {size_text(sum(known))}{unknown}, into {folder}")
    if corpus.licence:
        lines.append(f"licence: {corpus.licence}; see {corpus.cites}")
    return [*lines, f"note: {corpus.note}"] if corpus.note else lines


def _section(corpus: PublicCorpus, remotes: "list[Remote]", folder: Path) -> str:
    """The [text.sources] section of a recipe. Files that must be unpacked first are named as they will be then."""
    import tomli_w

    from hornbook.text.ingest.inputs import NAMED_ONLY, format_of

    kinds = {(format_of(each.name) or ("",))[0] for each in remotes}
    named = bool(kinds & set(NAMED_ONLY))
    paths = [str(folder / each.name) for each in remotes] if named else [str(folder)]
    return tomli_w.dumps({"text": {"sources": {corpus.name: {"paths": paths, **corpus.source}}}})
