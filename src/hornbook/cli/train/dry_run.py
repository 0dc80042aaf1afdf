"""`-n` of train, resume and fork: describe a run, with its memory and time, without writing anything."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hornbook.files.run_directory import RunDir
from hornbook.progress import size_text

if TYPE_CHECKING:
    from hornbook.run.job.job import Start
    from hornbook.settings.recipe import Recipe
    from hornbook.settings.resolve import Resolved


def describe_job(resolved: "Resolved", run: RunDir, start: "Start", *, measure: bool = False) -> dict[str, Any]:
    """Data, model, length and files of a run; `measure` adds estimates. Raise what the launch would raise."""
    from hornbook.data.loader.loader import repetition_warnings, seen_text
    from hornbook.model.config.parameter_count import count_parameters
    from hornbook.model.hf.hf_config import describe_class
    from hornbook.model.surgery.operate import trained_parameters
    from hornbook.parallel.device import choose_device
    from hornbook.parallel.offload.offload import check_offload
    from hornbook.run.diagnose.estimate import estimate, saved_bytes
    from hornbook.run.job.continuing import rate_jump
    from hornbook.run.job.job import course_of
    from hornbook.run.job.micro_batch import settle_micro_batch
    from hornbook.run.job.run_inputs import vocabulary_warning
    from hornbook.run.job.start.init_from import InitFrom
    from hornbook.run.launch.launch import check_start, read_inputs
    from hornbook.run.ledger.ledger import Monotone, read_past
    from hornbook.run.machine.choose_dtype import describe_precision, settle_precision

    device, settled = choose_device(resolved.recipe.train.device), settle_micro_batch(settle_precision(resolved))
    check_offload(settled.recipe.parallel.offload, device, settled.recipe.optim)
    start, settled = check_start(settled, run, start)
    inputs = read_inputs(settled, start)
    recipe, loader = inputs.recipe, inputs.loader
    (at, spent), past = _progress(run, start), read_past(run) if start.mode == "resume" else Monotone()
    length = course_of(inputs, past, start).to_end().length
    initial = start.init_from or InitFrom.from_record(past.init_from)
    other = 0 if initial is None else initial.other_text
    every, steps, pipeline = recipe.checkpoint.every, length.steps_from(0), _pipeline(recipe, inputs.vocab)
    return {
        "run": str(run.path),
        "mode": start.mode,
        "from": start.init_from.record() if start.init_from is not None else None,
        "changes": [f"{change.key} {change.old} -> {change.new}" for change in start.changes],
        "parameters": count_parameters(recipe.model, inputs.vocab),
        "trained": trained_parameters(recipe.model, inputs.vocab, recipe.surgery),
        "surgery": [step.model_dump(mode="json") for step in recipe.surgery],
        "export": describe_class(recipe.model),
        "vocab": inputs.vocab,
        "tokenizer": inputs.tokenizer.vocab_size,
        "device": f"{device} ({recipe.train.device})" if str(device) != recipe.train.device else str(device),
        "data": loader.index.describe(),
        "seen": seen_text(loader, length.tokens - other, length.steps_from(other)),
        "data_tokens": sum(loader.index.source_tokens.values()),
        "epochs": loader.index.epochs(length.tokens - other),
        "tokens": length.tokens,
        "steps": steps,
        "length": length.describe(),
        "precision": describe_precision(inputs.resolved),
        "saves": None if every == "auto" else max(steps // every, 1) if every else 1,
        "save_bytes": saved_bytes(inputs),
        "estimate": estimate(inputs, length, at[1], spent).to_json() if measure else None,
        "pipeline": pipeline,
        "warnings": [
            *([pipeline["warning"]] if pipeline and pipeline["warning"] else []),
            *loader.index.notes,
            *repetition_warnings(loader.index.epochs(length.tokens - other)),
            *filter(None, [vocabulary_warning(inputs), rate_jump(inputs, run, start, past, at)]),
        ],
        "files": [str(path) for path in _files(run, tensorboard=recipe.log.tensorboard)],
    }


def _pipeline(recipe: "Recipe", vocab: int) -> dict[str, Any] | None:
    from hornbook.parallel.axes.pipeline.forecast import plan_pipeline

    shape = recipe.model, vocab, recipe.train.sequence
    found = plan_pipeline(recipe.parallel, *shape, recipe.train.num_microbatches)
    return None if found is None else asdict(found) | {"text": str(found), "warning": found.warning}


def _progress(run: RunDir, start: "Start") -> tuple[tuple[int, int], float]:
    """((steps done, tokens consumed), seconds spent) before this start."""
    from hornbook.run.checkpoints.state import read_counters
    from hornbook.run.job.timekeeper import seconds_spent

    if start.mode == "resume":
        state = run.read_state() or {}
        return (int(state.get("step", 0)), int(state.get("tokens", 0))), seconds_spent(run)
    if start.init_from is not None and start.init_from.kind == "fork":
        counters = read_counters(start.init_from.checkpoint)
        return (int(counters["step"]), int(counters["tokens"])), 0.0
    return (0, 0), 0.0


def _files(run: RunDir, *, tensorboard: bool) -> list[Any]:
    names = (run.recipe, run.env, run.plan, run.data_lock, run.metrics, run.events, run.log, run.state, run.lock)
    return [*names, run.control, run.samples, run.evals, run.checkpoints, *([run.tensorboard] if tensorboard else [])]


def summary_text(summary: dict[str, Any]) -> str:
    """The text of a description."""
    passes = ", ".join(f"{name} {count:.2f} times" for name, count in summary["epochs"].items())
    vocab = f"vocabulary {summary['vocab']:,} for the tokenizer's {summary['tokenizer']:,} tokens"
    lines = [
        f"run          {summary['run']} ({summary['mode']}); nothing is written now",
        *([f"from         {summary['from']['checkpoint']} ({_beginning(summary['from'])})"] if summary["from"] else []),
        *[f"change       {change}" for change in summary["changes"]],
        f"device       {summary['device']}, {summary['precision']}",
        f"model        {summary['parameters']:,} parameters, {vocab}",
        f"exports as   {summary['export']}",
        *[f"surgery      {_surgery(step)}" for step in summary["surgery"]],
        *([f"trained      {summary['trained']:,} parameters"] if summary["surgery"] else []),
        f"length       {summary['length']}",
        f"data         {summary['seen']}",
        f"             {summary['data_tokens']:,} tokens; read {passes}",
        *[f"             {line}" for line in summary["data"].splitlines()],
        *_pipeline_lines(summary),
        *_estimate_lines(summary),
        *[f"warning      {text}" for text in summary["warnings"]],
    ]
    return "\n".join(lines)


def _pipeline_lines(summary: dict[str, Any]) -> list[str]:
    found = summary["pipeline"]
    if found is None:
        return []
    return [f"pipeline     {found['text']}", *(f"             {line}" for line in found["chart"].splitlines())]


def _estimate_lines(summary: dict[str, Any]) -> list[str]:
    """Lines for memory, time and disk, as far as they are known."""
    found, saves = summary["estimate"], f"{_count(summary['saves'])} of about {size_text(summary['save_bytes'])}"
    lines = [f"checkpoints  {saves}"]
    if found is None:
        return lines
    memory, free = size_text(found["memory"]), size_text(found["free"])
    known = found["computed"]
    need = f"about {memory}" if known else f"at least {memory}"
    verdict = f"of {free} free" if found["fits"] else f"and {free} are free: it does not fit"
    rate = f"{found['tokens_per_second']:,.0f} tokens/s"
    how = f"{rate} in {known} computed here" if known else f"{rate} at half the rate of matrix products here"
    about = "about " if found["seconds"] >= 1 else ""
    times = f"time         {about}{time_text(found['seconds'])}: {how}"
    return [f"memory       {need} {verdict}", times, *lines]


def time_text(seconds: float) -> str:
    """Seconds for people: about 12 minutes."""
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


def _count(saves: int | None) -> str:
    """The number of saves; None: it follows from measurements (`checkpoint.every = "auto"`)."""
    return "as many as measurements say," if saves is None else f"{saves:,}"
