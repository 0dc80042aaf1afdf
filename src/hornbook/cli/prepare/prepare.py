"""`hornbook prepare`: clean and deduplicate raw text."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hornbook.cli.result import Result, table
from hornbook.cli.shell import DryRun, split_targets
from hornbook.errors import UsageError, quoted
from hornbook.files.extras import install_command
from hornbook.progress import progress_bar, size_text
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.resolve import resolve
from hornbook.settings.show import toml_value
from hornbook.settings.toml import dotted
from hornbook.text.config.text import TextConfig
from hornbook.text.refinery.exclusions import read_exclusions
from hornbook.text.refinery.pipeline.funnel import Funnel, SourceFunnel

_ENDING = re.compile(
    r"(\.warc)?\.(txt|md|py|jsonl?|parquet|arrow|[ct]sv|html?|tex|warc|wet|xml|zip|tar|tgz)?(\.(gz|zst|bz2|xz))?$",
    re.IGNORECASE,
)

_LABELS_SHOWN, _FILES_SHOWN = 12, 5
Phase = Literal["measure", "decide", "write"]


def prepare(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [PATH]... [--section.key value]...",
            help="A recipe; files, folders, globs and URLs (each becomes a source); settings.",
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(metavar="DATA", help="Folder to write.")],
    text_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column or key of the text in the PATHs.")
    ] = None,
    id_field: Annotated[str | None, typer.Option(metavar="NAME", help="Column or key of the document ids.")] = None,
    encoding: Annotated[
        str | None, typer.Option(metavar="NAME", help="Encoding of the PATHs where it is not UTF-8: windows-1252.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Number of processes; 0: one per core.")] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first damaged row, with exit code 3.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the result of an earlier prepare.")] = False,
    phase: Annotated[Phase | None, typer.Option(help="Run one phase only; see --shard.")] = None,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="With --phase: run tasks I, I+N, I+2N ..., counted from 1.")
    ] = "1/1",
    exclude: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Leave out the documents of a list that `hornbook why` wrote."),
    ] = None,
    on: Annotated[Literal["here", "ray"], typer.Option(help="Run tasks on this machine or on a Ray cluster.")] = "here",
    dry_run: DryRun = False,
) -> Result:
    """Read text, normalise it, drop empty documents and duplicates, and count every row.

    A killed prepare resumes. Any number of workers writes the same bytes. Rows that cannot be read are listed in
    DATA/quarantine.jsonl.
    """
    from hornbook.text.refinery.pipeline.prepare import prepare as run
    from hornbook.text.refinery.pipeline.prepare import prepare_share

    config = text_config(words or [], strict, {"text_field": text_field, "id_field": id_field, "encoding": encoding})
    if exclude:
        names = [name for path in exclude for name in read_exclusions(path, config.sources)]
        config = config.model_copy(update={"exclude": list(dict.fromkeys([*config.exclude, *names]))})
    if phase is not None:
        if dry_run or overwrite:
            raise UsageError("--phase cannot be combined with --dry-run or --overwrite: choose another --out instead")
        with progress_bar() as progress:
            done = prepare_share(config, out, phase, _share(shard), workers=workers, progress=progress, on=on)
        return Result({"data": str(out), "phase": phase, "done": done}, done)
    if shard != "1/1":
        raise UsageError("--shard needs --phase: `--phase measure --shard 1/8`, then decide, then write")
    if dry_run:
        return _plan(config, out)
    with progress_bar() as progress:
        funnel = run(config, out, workers=workers, overwrite=overwrite, progress=progress, on=on)
    lines = [_passed_over_text(name, counts) for name in config.sources if (counts := _passed_over(config, name))]
    tables = funnel_tables(funnel, out)
    lines += _held_out_note(config, out)
    return Result({"data": str(out), **funnel.to_json()}, report=[tables[0], *lines, *tables[1:]])


def _held_out_note(config: TextConfig, out: Path) -> list[str]:
    """A line where `text.validation` holds out none of few documents."""
    from hornbook.text.splits import share_held_out

    shards = {name: sorted((out / "documents" / name).glob("*.parquet")) for name in config.sources}
    _, note = share_held_out(shards, config.sources, config.validation)
    return [f"note: {note}"] if note else []


def _passed_over(config: TextConfig, name: str) -> Mapping[str, int]:
    from hornbook.text.ingest.inputs import passed_over
    from hornbook.text.ingest.labels.parallel import stamped_inputs

    return passed_over(config.sources[name], stamped_inputs(name, config.sources[name], config.labels))


def _share(words: str) -> slice:
    index, slash, count = words.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise UsageError(f"--shard {words}: write I/N with I from 1 to N, such as 3/8")
    return slice(int(index) - 1, None, int(count))


def text_config(words: Sequence[str], strict: bool, fields: Mapping[str, str | None]) -> TextConfig:
    """The [text] section given by the words: that of the recipe, with one source for each path.

    fields: settings of the sources that are named by a path, None where nobody gave one.
    """
    targets, overrides = split_targets(words)
    recipe = targets.pop(0) if targets and is_recipe(targets[0]) else None
    given = {field: value for field, value in fields.items() if value is not None}
    if given and not targets:
        field = next(iter(given))
        option = f"--{field.replace('_', '-')}"
        raise UsageError(f"{option} needs a PATH on the command line; in a recipe, set text.sources.NAME.{field}")
    if strict:
        overrides = [*overrides, "text.strict=true"]
    named = name_sources(targets)
    for name, path in named.items():
        overrides += source_settings(name, {"paths": [path]})
    if given and hasattr(resolve(recipe, overrides).recipe.text.labels, "text") and "text_field" in given:
        # of labelled sets this section names the fields
        overrides.append(f"text.labels.text={given.pop('text_field')}")
    overrides += [word for name in named for word in source_settings(name, given)]
    config = resolve(recipe, overrides).recipe.text
    if named:
        config = config.model_copy(update={"sources": {name: config.sources[name] for name in named}})
    if not config.sources:
        where = f"recipe {recipe} has no text.sources" if recipe else "no path and no recipe is named"
        raise UsageError(
            f"there is nothing to prepare: {where}; name files or folders: hornbook prepare PATH... --out DATA"
        )
    return config


def source_settings(name: str, values: Mapping[str, Any]) -> list[str]:
    """Settings of one source, written as on the command line."""
    shown = {field: toml_value(value) if isinstance(value, list) else value for field, value in values.items()}
    return [f"{dotted(('text', 'sources', name, field))}={value}" for field, value in shown.items()]


def is_recipe(word: str) -> bool:
    """Whether the first word names a recipe: a TOML file, a run, or a shipped recipe unless a path has its name."""
    if word.endswith(".toml"):
        return True
    path = Path(word)
    if path.exists():
        return (path / "recipe.toml").is_file()
    return word in shipped_recipes()


def name_sources(paths: Sequence[str]) -> dict[str, str]:
    """Source name -> path. The name is the last part of the path without globs and endings, with a number if taken."""
    named: dict[str, str] = {}
    for path in paths:
        parts = [part for part in path.split("/") if part.strip(".") and not any(char in part for char in "*?[")]
        stem = _ENDING.sub("", parts[-1]) if parts else ""
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip(".-") or "text"
        name, number = stem, 2
        while name in named:
            name, number = f"{stem}-{number}", number + 1
        named[name] = path
    return named


def _plan(config: TextConfig, out: Path) -> Result:
    from hornbook.text.ingest.inputs import passed_over
    from hornbook.text.refinery.pipeline.plan import list_all, plan

    inputs = list_all(config)
    tasks = plan(config, inputs, out / "work")
    sources = {
        name: {
            "files": len(files),
            "bytes": sum(file.size for file in files),
            "shards": sum(task.source == name for task in tasks),
            "passed_over": dict(passed_over(config.sources[name], files)),
        }
        for name, files in inputs.items()
    }
    lines = [f"would write {out}:"]
    lines += [
        f"  {name}: {_count(each['files'], 'file')}, {size_text(each['bytes'])}, {_count(each['shards'], 'shard')}"
        for name, each in sources.items()
    ]
    lines += [
        f"  {_passed_over_text(name, each['passed_over'])}" for name, each in sources.items() if each["passed_over"]
    ]
    lines.append(f"  steps: {', '.join(step.kind for step in config.steps)}; nothing written")
    return Result({"dry_run": True, "data": str(out), "sources": sources}, "\n".join(lines))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _passed_over_text(name: str, counts: Mapping[str, int]) -> str:
    shown = ", ".join(
        f"{count:,} {what}" for what, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    )
    pdf = f"; .pdf: {install_command('documents')}" if ".pdf" in counts else ""
    return f"{name}: not read: {shown} (name a file or a glob to read it; docs/sources.md has the formats){pdf}"


def funnel_tables(funnel: Funnel, out: Path) -> list[Any]:
    """The funnel for people: a table, the file with the skipped rows, and the next command."""
    from hornbook.text.refinery.pipeline.folder import MISSING_TEXT

    shown = table("From raw text to clean documents", ["source", ""], ["rows", "share", "text"])
    parts = dict(funnel.sources)
    if len(parts) > 1:
        parts["all"] = funnel.total()
    for name, source in parts.items():
        for row in _funnel_rows(name, source):
            shown.add_row(*row)
        shown.add_section()
    quarantined = funnel.total().quarantined
    skipped = sum(tally.rows for tally in quarantined.values())
    notes = f"{skipped:,} skipped rows are listed in {out / 'quarantine.jsonl'}\n" if skipped else ""
    if MISSING_TEXT in quarantined:
        notes += _missing_text(out)
    notes += "".join(_nothing_kept(name, out) for name, source in funnel.sources.items() if not source.kept.rows)
    notes += _labels_text(funnel.labels)
    return [shown, f"{notes}next: hornbook tokenize {quoted(out)}"]


def _missing_text(out: Path) -> str:
    """The files with rows without a text, the largest loss first, with their rows, bytes and columns."""
    from hornbook.text.refinery.pipeline.folder import MISSING_TEXT, skipped_rows

    files: dict[str, list[Any]] = {}
    for row in skipped_rows(out, MISSING_TEXT):
        seen = files.setdefault(row["file"], [0, 0, row["reason"]])
        seen[0], seen[1] = seen[0] + row["rows"], seen[1] + row["bytes"]
    largest = sorted(files.items(), key=lambda each: -each[1][1])
    lines = [f"{path}: {rows:,} rows, {size_text(size)}: {why}\n" for path, (rows, size, why) in largest[:_FILES_SHOWN]]
    more = f"and {len(files) - _FILES_SHOWN:,} more files\n" if len(files) > _FILES_SHOWN else ""
    return f"{''.join(lines)}{more}if the text is in another column: --text-field NAME\n"


def _nothing_kept(name: str, out: Path) -> str:
    """A line for a source of which nothing is kept, with the first row of it that could not be read."""
    from hornbook.text.refinery.pipeline.folder import skipped_rows

    row = next(skipped_rows(out, source=name), None)
    why = f": {row['file']}:{row['line']}: {row['reason']}" if row else ""
    return f"warning: source {name} keeps nothing{why}\n"


def _labels_text(counts: Mapping[str, int]) -> str:
    """Number of kept texts, or words, by label, most common first; empty if the labels have no names."""
    if not counts:
        return ""
    common = sorted(counts.items(), key=lambda each: -each[1])[:_LABELS_SHOWN]
    shown = [f"{name} {count:,}" for name, count in common if count]
    more = [f"{len(counts) - len(common):,} more"] if len(counts) > len(common) else []
    unseen = [name for name, count in counts.items() if not count]
    note = f"note: no kept row has the label {', '.join(map(repr, unseen))} of text.labels.labels\n" if unseen else ""
    return f"{len(counts):,} labels: {', '.join([*shown, *more])}\n{note}"


def _funnel_rows(name: str, source: SourceFunnel) -> list[tuple[str, ...]]:
    def line(first: str, label: str, rows: int, size: int, style: str = "") -> tuple[str, ...]:
        share = f"{rows / max(source.read.rows, 1):.1%}"
        cells = (first, label, f"{rows:,}", share, size_text(size))
        return tuple(f"[{style}]{cell}[/]" if style and cell else cell for cell in cells)

    rows = [line(name, "read", source.read.rows, source.read.bytes)]
    for reason, tally in sorted(source.quarantined.items()):
        rows.append(line("", f"- damaged: {reason}", tally.rows, tally.bytes, "yellow"))
    for reason, tally in sorted(source.dropped.items()):
        rows.append(line("", f"- {reason}", tally.rows, tally.bytes, "dim"))
    rows.append(line("", "= kept", source.kept.rows, source.kept.bytes, "bold green"))
    for counter, (documents, changes) in sorted(source.changed.items()):
        what = f"{size_text(changes)} cut" if counter == "cut" else _count(changes, "change")
        rows.append(("", f"[dim]  {counter}[/]", f"[dim]{documents:,}[/]", "", f"[dim]{what}[/]"))
    return rows
