"""What train, resume and fork share: the summary of `-n`, and the answer when the run has ended."""

import os
import sys
from typing import TYPE_CHECKING, Any

from hornbook.cli.shell import answer, forget, people, reader_has_gone, say
from hornbook.errors import Exit
from hornbook.rundir import RunDir
from hornbook.runstatus import fullest, newest_evaluation

if TYPE_CHECKING:
    from hornbook.resolve import Resolved
    from hornbook.run.launch import Start


def load_engine() -> None:
    """Import what training needs: it takes seconds, in which something moves on a terminal."""
    from hornbook.progress import progress_bar

    with progress_bar() as progress:
        progress("load torch", 0, None)
        import hornbook.run.launch  # noqa: F401 - those who need it find it loaded


def run_job(resolved: "Resolved", run: RunDir, start: "Start", *, dry_run: bool, as_json: bool) -> Exit:
    """Launch the job, or under `dry_run` say what it would be."""
    import dataclasses

    from hornbook.run.joining import joined_place
    from hornbook.run.launch import launch

    if dry_run:
        summary = describe_job(resolved, run, start)
        answer(summary, summary_text(summary), as_json=as_json)
        return Exit.DONE
    start = dataclasses.replace(start, argv=tuple(sys.argv), quiet=people().quiet)
    code = launch(resolved.recipe, run, origins=resolved.origins, start=start)
    place = joined_place(os.environ, resolved.recipe.parallel.data)
    if place is not None and not place.leads:
        return code  # rank 0 answers
    result = describe_result(run)
    try:
        if as_json:
            answer(result, as_json=True)
        else:
            say(f"{result['status']} at step {result['step']:,}: {run.path}")
            say(next_text(resolved, run, result["status"]))
    except BrokenPipeError:
        if not reader_has_gone():
            raise
        forget(sys.stdout)  # the exit code stays what the run ended with
    return code


def describe_job(resolved: "Resolved", run: RunDir, start: "Start") -> dict[str, Any]:
    """What a launch would do: data, model, length, files. Raises what the launch would raise, and writes nothing."""
    from hornbook.data.loader import repetition_warnings
    from hornbook.journal import read_records
    from hornbook.model.surgery.build import trained_parameters
    from hornbook.parameters import count_parameters
    from hornbook.run.job import cut_horizon, open_inputs
    from hornbook.run.launch import changed_settings, check_directory
    from hornbook.run.ledger import Monotone, replay
    from hornbook.run.origin import check_tokenizer
    from hornbook.run.precision import describe_precision, settle_precision

    check_directory(run, start.mode)
    settled, origins = settle_precision(resolved.recipe, resolved.origins)
    changes = changed_settings(run, settled) if start.mode == "resume" else []
    inputs = open_inputs(settled)
    if start.origin is not None:
        check_tokenizer(start.origin.checkpoint, inputs.tokenizer)
    recipe, loader = inputs.recipe, inputs.loader
    past = replay(record for record, _ in read_records(run.events)) if start.mode == "resume" else Monotone()
    horizon = cut_horizon(inputs, past, changes)
    every, steps = recipe.checkpoint.every, horizon.steps_from(0)
    return {
        "run": str(run.path),
        "mode": start.mode,
        "from": start.origin.record() if start.origin is not None else None,
        "changes": [f"{change.key} {change.old} -> {change.new}" for change in changes],
        "parameters": count_parameters(recipe.model, inputs.vocab),
        "trained": trained_parameters(recipe.model, inputs.vocab, recipe.surgery),
        "surgery": [step.model_dump(mode="json") for step in recipe.surgery],
        "vocab": inputs.vocab,
        "data": loader.describe(),
        "data_tokens": sum(loader.source_tokens.values()),
        "epochs": loader.index.epochs(horizon.tokens),
        "tokens": horizon.tokens,
        "steps": steps,
        "length": horizon.describe(),
        "precision": describe_precision(recipe.train.precision, origins),
        "saves": steps // every if every else 1,
        "warnings": [*loader.notes, *repetition_warnings(loader.index.epochs(horizon.tokens))],
        "files": [str(path) for path in _files(run)],
    }


def _files(run: RunDir) -> list[Any]:
    names = (run.recipe, run.env, run.data_lock, run.metrics, run.events, run.log, run.state, run.lock)
    return [*names, run.control, run.samples, run.evals, run.checkpoints]


def summary_text(summary: dict[str, Any]) -> str:
    """The same for people."""
    passes = ", ".join(f"{name} {count:.2f} times" for name, count in summary["epochs"].items())
    lines = [
        f"run          {summary['run']} ({summary['mode']})",
        *([f"from         {summary['from']['checkpoint']} ({_beginning(summary['from'])})"] if summary["from"] else []),
        *[f"change       {change}" for change in summary["changes"]],
        f"model        {summary['parameters']:,} parameters, vocabulary {summary['vocab']:,}, {summary['precision']}",
        *[f"surgery      {_surgery(step)}" for step in summary["surgery"]],
        *([f"trained      {summary['trained']:,} parameters"] if summary["surgery"] else []),
        f"length       {summary['length']}",
        f"data         {summary['data_tokens']:,} tokens; read {passes}",
        *[f"             {line}" for line in summary["data"].splitlines()],
        *[f"warning      {text}" for text in summary["warnings"]],
        "would write  " + "\n             ".join(summary["files"]),
    ]
    return "\n".join(lines)


def _beginning(origin: dict[str, Any]) -> str:
    return f"{origin['kind']}, with a new head" if origin.get("new_head") else origin["kind"]


def _surgery(step: dict[str, Any]) -> str:
    return ", ".join(str(value) if key == "kind" else f"{key} {value}" for key, value in step.items())


def next_text(resolved: "Resolved", run: RunDir, status: str | None) -> str:
    """A line with the commands that follow."""
    if status != "finished":
        return f"next: hornbook resume {run.path}"
    use = use_command(resolved.recipe.model.head.kind, str(run.path))
    return f"next: {use}; hornbook export {run.path} --out MODEL"


_OF_TOKENS = ("lm", "masked", "none")
"""Heads that say tokens; the others say labels."""


def use_command(head: str, target: str) -> str:
    """The command that uses a model, by the kind of its head."""
    return f"hornbook generate {target} -p TEXT" if head in _OF_TOKENS else f"hornbook predict {target} FILE"


def describe_result(run: RunDir) -> dict[str, Any]:
    """Where the run stands: state.json, and the newest evaluation."""
    state: dict[str, Any] = dict(run.read_state() or {})
    keys = ("status", "attempt", "step", "tokens", "total_tokens", "loss")
    newest = newest_evaluation(run)
    result = {"run": str(run.path)} | {key: state.get(key) for key in keys}
    if newest is not None:
        result["evaluation"] = {"step": newest["step"], **fullest(newest)["all"]}
    return result
