"""The state before the first step: the newest checkpoint, else the initial checkpoint, else initial values.

The ledger records the choice before the first step, with everything that the last bits of sums depend on. A run that
trains adapters writes a copy of their frozen base, `RUN/base`, once: checkpoints hold the adapters alone, and the run
no longer needs the checkpoint it was started from.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from hornbook.data.labelled.labelled import only_label
from hornbook.data.loader.loader import Loader, repetition_warnings, seen_text
from hornbook.errors import IntegrityError, UsageError
from hornbook.files.durable import storage_errors, writing_folder
from hornbook.files.filesystem import exists, is_file, list_folder
from hornbook.model.config.head_config import describe_head
from hornbook.model.config.surgery_config import adapter_of
from hornbook.model.hf.hf import read_hf, write_hf
from hornbook.model.init.init import scale_to_unit_variance, with_new_head
from hornbook.model.surgery.adapters.adapter_files import base_of, check_base, is_adapter, read_meta, tensors_digest
from hornbook.parallel.axes.pipeline.forecast import plan_pipeline
from hornbook.parallel.device import unseen_gpus, visible_gpus
from hornbook.parallel.world import World
from hornbook.run.checkpoints import bound
from hornbook.run.checkpoints.find_checkpoint import newest_verified
from hornbook.run.checkpoints.state import State
from hornbook.run.job.continuing import rate_jump
from hornbook.run.job.job import Job
from hornbook.run.job.run_inputs import vocabulary_warning
from hornbook.run.job.start.init_from import InitFrom
from hornbook.run.job.start.run_anchor import hold_weights
from hornbook.run.job.start.run_teacher import join_teacher
from hornbook.run.ledger.ledger import Monotone
from hornbook.run.loop.async_checkpointer import AsyncCheckpointer, Restored
from hornbook.run.machine.choose_dtype import slow_precision
from hornbook.run.machine.environment import bits_depend_on, describe_environment
from hornbook.run.machine.process_memory import held_by_others
from hornbook.run.observe.observers import Observers
from hornbook.settings.resolve import leaves
from hornbook.settings.toml import dotted
from hornbook.settings.training import TrainConfig

_BASE_FILES = ("*.json", "*.safetensors", "*.model", "*.txt")
"""Files of a model folder that are copied into a base."""


def initialize_or_restore(job: Job, state: State, checkpointer: AsyncCheckpointer, observers: Observers) -> None:
    """Fill the state, write the first record of this attempt into the ledger, and show the lines before the first step.

    Imported weights are evaluated before the first step, to show what training changes; their loss belongs to the first
    checkpoint too, which may be the best.
    """
    start, past = job.start, job.ledger.past if job.start.mode == "resume" else Monotone()
    state.saved_course = job.saved_course if start.mode == "resume" else None
    restored = checkpointer.restore(state)
    initial = start.init_from or InitFrom.from_record(past.init_from)
    init_from = None if restored is not None else initial
    if restored is None and past.saved_manifests:
        raise IntegrityError(
            f"{job.run.checkpoints} holds no checkpoint, though the ledger says that one was saved: put them back, "
            "or start anew in another folder"
        )
    if init_from is not None:
        if told := init_from.load(state):
            observers.note(told)
    elif restored is None:
        _initialize(job, state)
    if adapter_of(job.recipe.surgery) is not None:
        keep_base(job, state, init_from)
    hold_weights(job, state, init_from)
    join_teacher(job.recipe, state.engine)
    zeros = state.engine.zeros.share()
    if zeros == 0.0:
        raise UsageError("surgery sparse: no weight is 0: start from what `hornbook prune --sparse` wrote (--from DIR)")
    environment = _environment(job, state.engine.world)
    state.loader.skip([*past.skipped_ranges, *(start.init_from.skipped_ranges if start.init_from is not None else ())])
    jump = rate_jump(job.inputs, job.run, start, past, (state.step, state.tokens))
    job.ledger.note(start.mode, state, **_first_record(job, past, environment, restored))
    for problem in _problems(job, past, state) if job.output.is_rank0 else ():
        job.ledger.note("warning", state, text=problem)
        observers.note(f"warning: {problem}")
    stale = start.mode == "resume" and past.recipe_before == bound.digest_of(job.run.recipe) != ""
    if start.changes or stale:
        job.write_recipe()  # after the ledger: a kill between the two loses nothing
    checkpointer.pass_on_notes(state)
    for line in [*_lines(job, state, environment, restored, initial), *([f"warning: {jump}"] if jump else [])]:
        observers.note(line)
    if zeros is not None:
        observers.note(f"{zeros:.1%} of the weights of sparse layers are 0 and stay so")
    if initial is not None and initial.kind == "import" and state.step == 0:
        observers.evaluation.score_start(state)
    if init_from is not None or (restored is None and job.recipe.guard.mode == "auto"):
        checkpointer.save(state)  # the run needs the initial checkpoint no longer, and the guard may begin again here


def _problems(job: Job, past: Monotone, state: State) -> Iterator[str]:
    """What the ledger has on record and the run's folder does not."""
    if problem := bound.metrics_problem(job.run, past):
        yield problem
    lost = bound.lost_checkpoint(job.run, past)
    if lost is not None and lost > state.step:
        yield f"step {lost:,} was saved, and its checkpoint is gone: steps from {state.step + 1:,} on are made again"


def _first_record(job: Job, past: Monotone, environment: dict[str, Any], restored: Restored | None) -> dict[str, Any]:
    """The fields of the first record of this attempt."""
    start = job.start
    fields: dict[str, Any] = {"environment": environment, "argv": list(start.argv)}
    if start.init_from is not None:
        fields |= start.init_from.fields()
    if past.recipe is None or start.changes:
        fields["recipe"] = job.recipe.model_dump(mode="json")
    if start.changes:
        present = {dotted(path) for path, _ in leaves(job.recipe)}
        fields |= {"ends_interventions": True} if start.ends_interventions else {}
        fields["changes"] = [asdict(change) | {"gone": change.key not in present} for change in start.changes]
    if restored is not None:
        fields["checkpoint"] = restored.name
    if job.ledger.torn:
        fields["torn_bytes"] = job.ledger.torn
    return fields


def _initialize(job: Job, state: State) -> None:
    """Initial values by the recipe's scheme, which may read the first microbatch; the clock stays at 0."""
    state.fill(job.inputs.initial_values())
    if job.recipe.model.init.kind == "lsuv":
        batch = state.loader.take(job.recipe.train.micro_rows).batches[0]
        scale_to_unit_variance(state.engine.model, lambda: state.engine.evaluate(batch))
        state.loader.seek(0)
        if state.average is not None:
            state.average.restart()


def _lines(
    job: Job, state: State, environment: dict[str, Any], restored: Restored | None, initial: InitFrom | None
) -> Iterator[str]:
    """The lines for people before the first step. initial: what the run started from, in this attempt or an earlier."""
    init_from = None if restored is not None else initial
    source = restored.source if restored is not None else init_from and init_from.checkpoint
    if source is not None:
        yield f"step {state.step:,} restored from {source} (attempt {job.ledger.attempt})"
    if init_from is not None and init_from.new_head:
        yield f"the head ({describe_head(job.recipe.model.head)}) is new: its values are drawn, all others were read"
    yield from (f"changed: {change.key} {change.old} -> {change.new}" for change in job.start.changes)
    if job.length.cuts:
        yield f"the run was shortened on its way: {job.length.describe()}"
    if (until := job.control.deadline.clock_time()) and job.output.is_rank0:
        yield f"the run saves and stops before {until}"
    if environment.get("changed"):
        yield f"warning: the last bits may differ from the earlier attempts: {'; '.join(environment['changed'])}"
    if job.recipe.surgery:
        trained, total = state.engine.num_trained, state.engine.num_parameters
        yield f"{trained:,} of {total:,} parameters are trained ({', '.join(s.kind for s in job.recipe.surgery)})"
    yield from _pipeline_lines(job)
    other = 0 if initial is None else initial.other_text
    loader, tokens = job.inputs.loader, job.length.tokens - other
    yield f"data: {seen_text(loader, tokens, job.length.steps_from(other))}"
    if len(loader.index.sources) > 1:
        yield f"data: {_mixture(loader, tokens)}"
    if unused := vocabulary_warning(job.inputs):
        yield f"warning: {unused}"
    if not loader.corpus.validation:
        yield "warning: the data has no validation tokens, so nothing is evaluated (text.validation sets their share)"
    if (label := only_label(loader.corpus)) is not None:
        yield f"warning: every label of the training data is {label!r}: a model learns nothing else"
    yield from (f"warning: {text}" for text in _device_warnings(job.recipe.train, state.engine.world.device))
    yield from (f"warning: {note}" for note in loader.index.notes)
    yield from (f"warning: {note}" for note in repetition_warnings(loader.index.epochs(tokens)))


def _device_warnings(train: TrainConfig, device: torch.device) -> Iterator[str]:
    if train.device == "auto" and device.type == "cpu" and visible_gpus() != [] and (unseen := unseen_gpus()):
        yield f"training on the CPU: {unseen}"
    yield from filter(None, (held_by_others(device), slow_precision(train.precision, device)))


def _pipeline_lines(job: Job) -> Iterator[str]:
    recipe, train = job.recipe, job.recipe.train
    shape = recipe.model, job.inputs.vocab, train.sequence
    pipeline = plan_pipeline(recipe.parallel, *shape, train.num_microbatches)
    if pipeline is not None:
        yield f"pipeline: {pipeline}"
        if pipeline.warning:
            yield f"warning: {pipeline.warning}"
        if recipe.eval.prompt:
            yield "no samples are made: no rank has the whole model; generate from a checkpoint instead"


def _mixture(loader: Loader, tokens: int) -> str:
    """Tokens and epochs that the run will read of each source."""
    epochs = loader.index.epochs(tokens)
    read = {name: round(epochs[name] * size) for name, size in loader.index.source_tokens.items()}
    return ", ".join(f"{name} {count:,} tokens ({epochs[name]:.2f} epochs)" for name, count in read.items())


def _environment(job: Job, world: World) -> dict[str, Any]:
    """Write env.json at the first start; returns `bits_depend_on`, and under `changed` the differences since then."""
    environment = describe_environment(world, job.recipe.seed, list(job.start.argv))
    now = bits_depend_on(environment)
    try:
        before = bits_depend_on(json.loads(job.run.env.read_bytes()))
    except (OSError, ValueError):
        job.output.write_json(job.run.env, environment)
        return now
    changed = [f"{key}: {before[key]} -> {now[key]}" for key in now if before.get(key, now[key]) != now[key]]
    return now | ({"changed": changed} if changed else {})


def keep_base(job: Job, state: State, init_from: InitFrom | None) -> None:
    """Write `RUN/base` if it is not there, and set `state.spec.base_digest`. Only rank 0 does.

    init_from: the initial checkpoint; None: initial values, or the run goes on. Raises StorageError, and IntegrityError
    where the base is not that of the run's newest checkpoint.
    """
    if not job.output.is_rank0:
        return
    base = job.run.base
    if not exists(base):
        _publish_base(job, init_from, base)
    digest = tensors_digest(read_hf(base)[2])
    newest = newest_verified(job.run.checkpoints)
    if newest is not None:
        check_base(newest, read_meta(newest).base_digest, digest, base)
    state.spec = replace(state.spec, base_digest=digest)


def _publish_base(job: Job, init_from: InitFrom | None, base: Path) -> None:
    with storage_errors(base), writing_folder(base) as stage:
        if init_from is None:
            _write_initial(job, stage)
        elif init_from.new_head:  # the head that the adapters belong to is not in the checkpoint
            model, vocab = job.inputs.recipe.model, job.inputs.vocab
            values = with_new_head(read_hf(init_from.checkpoint)[2], model, vocab, job.inputs.recipe.seed)
            write_hf(stage, values, model, vocab, job.inputs.corpus.root / "tokenizer")
        else:
            source = base_of(init_from.checkpoint) if is_adapter(init_from.checkpoint) else init_from.checkpoint
            for path in sorted({path for pattern in _BASE_FILES for path in list_folder(source, pattern)}):
                if is_file(path) and path.name != "MANIFEST.json":
                    shutil.copyfile(path, stage / path.name)


def _write_initial(job: Job, stage: Path) -> None:
    if job.start.mode == "resume" and newest_verified(job.run.checkpoints) is not None:
        raise IntegrityError(f"{job.run.base}, the base of this run's adapters, is gone: put it back")
    inputs = job.inputs
    tokenizer, start = inputs.corpus.root / "tokenizer", inputs.decoder_start
    write_hf(stage, inputs.initial_values(), inputs.recipe.model, inputs.vocab, tokenizer, decoder_start=start)
