"""`hornbook why`: which documents made a step what it was."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.result import Result, columns
from hornbook.cli.shell import DryRun
from hornbook.cli.train.runs import step_place
from hornbook.errors import UsageError, quoted
from hornbook.files.run_directory import RunDir
from hornbook.progress import progress_bar

if TYPE_CHECKING:
    from hornbook.run.diagnose.blame import Blame, Blamed
    from hornbook.run.doctor.exposure import StepSamples

SHOWN = 20
"""Documents in the table; `--json` has all."""
_HEADER = ("document", "source", "sample", "share", "loss", "z", "adds", "repeated", "non-text", "copies", "passes")


def why(
    place: Annotated[str, typer.Argument(metavar="RUN@STEP", help="A run and one of its steps; RUN with --skipped.")],
    *,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The step as this attempt did it, before the run went back.")
    ] = None,
    skipped: Annotated[
        bool, typer.Option("--skipped", help="All documents that the run skipped, in place of one step.")
    ] = False,
    exclude: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write those with a reason (with --skipped: all) as a list.")
    ] = None,
    dry_run: DryRun = False,
) -> Result:
    """Show the documents of a step, those that made it unusual first: loss, repetitions, copies, characters.

    `hornbook prepare ... --exclude FILE` leaves the documents of such a list out.
    """
    with progress_bar() as progress:
        progress("read the step", 0, None)
        blame, value, head = _skipped(place, attempt) if skipped else _step(place, attempt)
    value |= {"documents": [each.to_json() for each in blame.documents], "marked": len(blame.marked)}
    lines = [*head, *_text(blame)]
    if value.get("skipped") and not blame.marked and not blame.problem:
        lines.append(otherwise(value))
    if exclude is not None:
        chosen = blame.documents if skipped else blame.marked
        value["excluded"] = len({each.ref.id for each in chosen})
        lines.append(_exclude(exclude, chosen, value, dry_run=dry_run))
    return Result(value, "\n".join(lines))


def _step(place: str, attempt: int | None) -> "tuple[Blame, dict[str, Any], list[str]]":
    from hornbook.run.diagnose.blame import blame_step, skips_of

    run, step = step_place(place)
    blame, samples = blame_step(run, step, attempt)
    skips = skips_of(run, samples)
    value = {"run": str(run.path), "step": step, "attempt": samples.record["attempt"], "skipped": skips}
    value |= {key: samples.record.get(key) for key in ("loss", "gradient_norm", "token_hash")}
    value |= {"other_attempts": list(samples.other_attempts), **_measured(blame)}
    return blame, value, [_first_line(place, samples), *skips]


def _skipped(place: str, attempt: int | None) -> "tuple[Blame, dict[str, Any], list[str]]":
    from hornbook.run.diagnose.blame import blame_skipped

    if attempt is not None:
        raise UsageError(f"--attempt {attempt} belongs to one step: RUN@STEP")
    run = RunDir(Path(place)).must_exist()
    blame = blame_skipped(run)
    return blame, {"run": str(run.path), "step": None, **_measured(blame)}, []


def _measured(blame: "Blame") -> dict[str, Any]:
    usual = None if blame.usual is None else blame.usual._asdict()
    return {"weights": blame.weights, "loss_before": blame.loss, "usual": usual, "problem": blame.problem}


def _first_line(place: str, samples: "StepSamples") -> str:
    record = samples.record
    loss, norm = (_number(record.get(key)) for key in ("loss", "gradient_norm"))
    others = f"; attempt {', '.join(map(str, samples.other_attempts))} read others" if samples.other_attempts else ""
    return f"{place} (attempt {record['attempt']}{others}): loss {loss}, gradient norm {norm}"


def _text(blame: "Blame") -> list[str]:
    if blame.problem:
        lines = [blame.problem if not blame.documents else f"no losses: {blame.problem}"]
    else:
        assert blame.loss is not None
        usual = (
            "" if blame.usual is None else f"; usual is {blame.usual.median:.4f} ({blame.usual.documents:,} documents)"
        )
        lines = [f"by {blame.weights}: loss {blame.loss:.4f}{usual}"]
    if not blame.documents:
        return lines
    shown = blame.documents[:SHOWN]
    lines += ["", columns([_HEADER, *map(_row, shown)])]
    if more := len(blame.documents) - len(shown):
        lines.append(f"and {more:,} more: --json")
    lines.append("")
    lines += reason_lines(blame)
    return lines if blame.marked else [*lines, "no document has a reason to be blamed"]


def reason_lines(blame: "Blame") -> list[str]:
    """Documents with their reasons, those with most blame first; pieces of one document with one reason once."""
    pieces = Counter(f"{each.ref.source} {each.ref.id}: {'; '.join(each.reasons)}" for each in blame.marked)
    return [f"{text} ({count} pieces)" if count > 1 else text for text, count in list(pieces.items())[:SHOWN]]


def otherwise(value: dict[str, Any]) -> str:
    """What to do about a step that was skipped, and whose documents are like others."""
    if value["loss"] is None:
        at = f"{quoted(value['run'])} --step {value['step']}"
        return f"it was not finite: `hornbook doctor {at}` computes it again and names the module"
    return (
        "if its text is sound and only new to the run, raise guard.clip_z and guard.skip_norm_z above its z_norm "
        "(events.jsonl), and it is learned"
    )


def _row(each: "Blamed") -> tuple[str, ...]:
    ref = each.ref
    shares = (each.share, each.repeated, each.non_text)
    share, repeated, odd = (f"{100 * value:.1f} %" for value in shares)
    adds = "-" if each.excess is None else f"{each.excess:+.3f}"
    z = "-" if each.z is None else f"{each.z:.1f}"
    counts = str(each.copies), str(each.passes)
    return (ref.id, ref.source, f"{each.sample:,}", share, _number(each.loss), z, adds, repeated, odd, *counts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _exclude(path: Path, chosen: "Sequence[Blamed]", value: dict[str, Any], *, dry_run: bool) -> str:
    """Write the list of documents; returns a line about it."""
    from hornbook.text.refinery.exclusions import write_exclusions

    if not chosen:
        return f"{path} is not written: no document has a reason"
    by = {"run": value["run"], "step": value["step"]}
    if dry_run:
        return f"{path} would have {value['excluded']:,} documents"
    entries = (
        {"id": each.ref.id, "source": each.ref.source, "origin": each.ref.origin, "shard": each.ref.shard,
         "reason": "; ".join(each.reasons) or "skipped by the run", "loss": each.loss, **by}
        for each in chosen
    )  # fmt: skip
    count = write_exclusions(path, entries)
    return (
        f"{path}: {count:,} documents; prepare the text without them: `hornbook prepare ... --exclude {quoted(path)}`"
    )
