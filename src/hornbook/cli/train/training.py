"""What train, resume and fork share: the summary of `-n`, and the answer when the run has ended."""

import os
import sys
from typing import TYPE_CHECKING, Any

from hornbook.cli.shell import answer, forget, people, reader_has_gone, say
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import fullest, newest_evaluation
from hornbook.progress import size_text

if TYPE_CHECKING:
    from hornbook.run.job import Start
    from hornbook.settings.resolve import Resolved


def load_engine() -> None:
    """Import what training needs: it takes seconds, in which something moves on a terminal."""
    from hornbook.progress import progress_bar

    with progress_bar() as progress:
        progress("load torch", 0, None)
        import hornbook.run.launch.launch  # noqa: F401 - those who need it find it loaded


def run_job(resolved: "Resolved", run: RunDir, start: "Start", *, dry_run: bool, as_json: bool) -> Exit:
    """Launch the job, or under `dry_run` say what it would be."""
    import dataclasses

    from rich.markup import escape

    from hornbook.run.launch.launch import launch
    from hornbook.run.launch.launcher_env import launcher_rank

    rank_info = launcher_rank(os.environ, resolved.recipe.parallel.data)
    follows = rank_info is not None and not rank_info.is_rank0  # rank 0 answers
    if dry_run and follows:
        return Exit.DONE
    if dry_run:
        summary = describe_job(resolved, run, start, measure=True)
        answer(summary, summary_text(summary), as_json=as_json)
        return Exit.DONE
    start = dataclasses.replace(start, argv=tuple(sys.argv), quiet=people().quiet)
    code = launch(resolved, run, start)
    if follows:
        return code
    result = describe_result(run)
    try:
        if as_json:
            answer(result, as_json=True)
        else:
            say(escape(ending(result)))
            say(escape(next_text(resolved, run, result["status"])))
    except BrokenPipeError:
        if not reader_has_gone():
            raise
        forget(sys.stdout)  # the exit code stays what the run ended with
    return code


def describe_job(resolved: "Resolved", run: RunDir, start: "Start", *, measure: bool = False) -> dict[str, Any]:
    """What a launch would do: data, model, length, files. Raises what the launch would raise, and writes nothing.

    measure: some microbatches are computed, to say how much memory and time the run takes.
    """
    from hornbook.data.loader.loader import repetition_warnings, seen_text
    from hornbook.model.config.parameter_count import count_parameters
    from hornbook.model.surgery.build import trained_parameters
    from hornbook.parallel.world import choose_device
    from hornbook.run.inputs import resumed_length, vocabulary_warning
    from hornbook.run.launch.launch import check_start, read_inputs
    from hornbook.run.ledger import Monotone, read_past
    from hornbook.run.start.plan import estimate, saved_bytes
    from hornbook.run.start.precision import describe_precision, settle_precision

    device = choose_device(resolved.recipe.train.device)
    settled = settle_precision(resolved)
    start, inputs = check_start(settled.recipe, run, start), read_inputs(settled, start)
    recipe, loader = inputs.recipe, inputs.loader
    past = read_past(run) if start.mode == "resume" else Monotone()
    length = resumed_length(inputs, past, start.changes)
    every, steps = recipe.checkpoint.every, length.steps_from(0)
    unused = vocabulary_warning(inputs)
    return {
        "run": str(run.path),
        "mode": start.mode,
        "from": start.init_from.record() if start.init_from is not None else None,
        "changes": [f"{change.key} {change.old} -> {change.new}" for change in start.changes],
        "parameters": count_parameters(recipe.model, inputs.vocab),
        "trained": trained_parameters(recipe.model, inputs.vocab, recipe.surgery),
        "surgery": [step.model_dump(mode="json") for step in recipe.surgery],
        "vocab": inputs.vocab,
        "tokenizer": inputs.tokenizer.vocab_size,
        "device": f"{device} ({recipe.train.device})" if str(device) != recipe.train.device else str(device),
        "data": loader.describe(),
        "seen": seen_text(loader, length.tokens, steps),
        "data_tokens": sum(loader.source_tokens.values()),
        "epochs": loader.index.epochs(length.tokens),
        "tokens": length.tokens,
        "steps": steps,
        "length": length.describe(),
        "precision": describe_precision(inputs.resolved),
        "saves": max(steps // every, 1) if every else 1,
        "save_bytes": saved_bytes(inputs),
        "estimate": estimate(inputs, length, *_progress(run, start)).to_json() if measure else None,
        "warnings": [
            *loader.notes,
            *repetition_warnings(loader.index.epochs(length.tokens)),
            *([unused] if unused else []),
        ],
        "files": [str(path) for path in _files(run, tensorboard=recipe.log.tensorboard)],
    }


def _progress(run: RunDir, start: "Start") -> tuple[int, float]:
    """Tokens consumed and seconds spent before this start."""
    from hornbook.run.state import read_counters
    from hornbook.run.timekeeper import seconds_spent

    if start.mode == "resume":
        return int((run.read_state() or {}).get("tokens", 0)), seconds_spent(run)
    if start.init_from is not None and start.init_from.kind == "fork":
        return int(read_counters(start.init_from.checkpoint)["tokens"]), 0.0
    return 0, 0.0


def _files(run: RunDir, *, tensorboard: bool) -> list[Any]:
    names = (run.recipe, run.env, run.data_lock, run.metrics, run.events, run.log, run.state, run.lock)
    return [*names, run.control, run.samples, run.evals, run.checkpoints, *([run.tensorboard] if tensorboard else [])]


def summary_text(summary: dict[str, Any]) -> str:
    """The same for people."""
    passes = ", ".join(f"{name} {count:.2f} times" for name, count in summary["epochs"].items())
    vocab = f"vocabulary {summary['vocab']:,} for the tokenizer's {summary['tokenizer']:,} tokens"
    lines = [
        f"run          {summary['run']} ({summary['mode']}); nothing is written now",
        *([f"from         {summary['from']['checkpoint']} ({_beginning(summary['from'])})"] if summary["from"] else []),
        *[f"change       {change}" for change in summary["changes"]],
        f"device       {summary['device']}, {summary['precision']}",
        f"model        {summary['parameters']:,} parameters, {vocab}",
        *[f"surgery      {_surgery(step)}" for step in summary["surgery"]],
        *([f"trained      {summary['trained']:,} parameters"] if summary["surgery"] else []),
        f"length       {summary['length']}",
        f"data         {summary['seen']}",
        f"             {summary['data_tokens']:,} tokens; read {passes}",
        *[f"             {line}" for line in summary["data"].splitlines()],
        *_estimate_lines(summary),
        *[f"warning      {text}" for text in summary["warnings"]],
    ]
    return "\n".join(lines)


def _estimate_lines(summary: dict[str, Any]) -> list[str]:
    """Memory, time and disk, as far as they are known."""
    found, saves = summary["estimate"], f"{summary['saves']:,} of about {size_text(summary['save_bytes'])}"
    lines = [f"checkpoints  {saves}"]
    if found is None:
        return lines
    memory, free = size_text(found["memory"]), size_text(found["free"])
    known = found["computed"]
    need = f"about {memory}" if known else f"{memory} for weights, gradients and moments alone"
    verdict = f"of {free} free" if found["fits"] else f"and {free} are free: it does not fit"
    rate = f"{found['tokens_per_second']:,.0f} tokens/s"
    how = f"{rate} in {known} computed here" if known else f"{rate} at half the rate of matrix products here"
    times = f"time         about {time_text(found['seconds'])}: {how}"
    return [f"memory       {need} {verdict}", times, *lines]


def time_text(seconds: float) -> str:
    """Seconds for people: 12 minutes."""
    if seconds < 1:
        return "under a second"
    for unit, size, most in (("seconds", 1, 100), ("minutes", 60, 100), ("hours", 3600, 48), ("days", 86400, 800)):
        if seconds / size < most:
            number = seconds / size
            return f"{number:.0f} {unit}" if number >= 10 or unit == "seconds" else f"{number:.1f} {unit}"
    return f"{seconds / (365 * 86400):,.0f} years"


def _beginning(origin: dict[str, Any]) -> str:
    return f"{origin['kind']}, with a new head" if origin.get("new_head") else origin["kind"]


def _surgery(step: dict[str, Any]) -> str:
    return ", ".join(str(value) if key == "kind" else f"{key} {value}" for key, value in step.items())


def ending(result: dict[str, Any]) -> str:
    """Where a run stands, from `describe_result`; one that a signal met before its first step has no step."""
    at = "before its first step" if result["step"] is None else f"at step {result['step']:,}"
    return f"{result['status'] or 'ended'} {at}: {result['run']}"


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
