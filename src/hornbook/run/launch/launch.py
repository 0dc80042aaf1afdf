"""The one entry to a run: `launch(...) -> exit code`. Everything it calls may be replaced.

This file holds the lock, the signals, the first files of a run directory, and the refusal of a start that would mix
two runs.
"""

import contextlib
import dataclasses
import functools
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from hornbook.data.corpus import check_data_lock
from hornbook.errors import Exit, UsageError
from hornbook.files.ballast import reserve
from hornbook.files.filesystem import is_file
from hornbook.files.run_directory import RunDir
from hornbook.files.run_lock import RunLock, process_identity
from hornbook.files.secrets import holds_secret
from hornbook.model.hf.hf_layout import parameter_shapes
from hornbook.model.init.init import check_overrides
from hornbook.parallel.device import check_device, choose_device, gpu_identity
from hornbook.parallel.offload.offload import check_offload
from hornbook.parallel.world import SETUP_SECONDS, RankInfo
from hornbook.progress import progress_bar
from hornbook.run.checkpoints.bound import base_recipe, changed_settings, recipe_in_force, recipe_on_file
from hornbook.run.checkpoints.commit import newest_step
from hornbook.run.job.continuing import refuse_missing_data, refuse_spent_time
from hornbook.run.job.control import refuse_if_held
from hornbook.run.job.directory import check_directory
from hornbook.run.job.fault_plan import check_plan, check_steps
from hornbook.run.job.heartbeat import Heartbeat
from hornbook.run.job.job import Job, Start, steered_job
from hornbook.run.job.micro_batch import settle_micro_batch
from hornbook.run.job.run_inputs import Inputs, compile_for, open_inputs
from hornbook.run.job.signals import StopNow, StopSignals
from hornbook.run.job.start.init_from import check_tokenizer
from hornbook.run.job.start.run_anchor import check_anchor
from hornbook.run.job.start.run_teacher import pin_teacher, teach
from hornbook.run.launch.consistency import compare_ranks, rank_facts
from hornbook.run.launch.launcher_env import Node, launched, ranks_per_node
from hornbook.run.launch.links import check_links
from hornbook.run.launch.node import run_node
from hornbook.run.launch.rendezvous import await_rank0, rank0_first, wait_until
from hornbook.run.launch.self_watch import watching_itself
from hornbook.run.launch.settle import settle_ranks
from hornbook.run.launch.slot_recovery import with_remedy, with_world
from hornbook.run.launch.standby import StandbyPlan
from hornbook.run.launch.supervisor import Supervisor, preload
from hornbook.run.ledger.interventions import SettingChange, ends_interventions, with_changes
from hornbook.run.ledger.ledger import At, Ledger, RunWriter, read_past
from hornbook.run.ledger.training_length import check_schedule, sets_schedule
from hornbook.run.loop.training_loop import Ready, train
from hornbook.run.machine.choose_dtype import settle_precision
from hornbook.run.observe.alerts import Alerts, await_deliveries
from hornbook.run.observe.trackers.packages import require_trackers
from hornbook.settings.layout.world import warning_about_nodes
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved
from hornbook.settings.resume_rules import resume_changes
from hornbook.settings.schema import leaves
from hornbook.settings.toml import dotted


def launch(resolved: Resolved, run: RunDir, start: Start) -> Exit:
    """Train in the run directory; DONE when finished, RESUMABLE when stopped, INTERRUPTED on a second Ctrl-C.

    Under torchrun or Slurm this process becomes one of the ranks, else it starts them: all, or those of this machine.
    Raises UsageError (the directory holds something else, a resume would change what must not change, ranks differ),
    InUseError, IntegrityError (data changed, every checkpoint damaged), DivergedError, DoesNotFitError, StorageError,
    RetriesSpentError, RankLostError.
    """
    try:
        return _launch(resolved, run, start)
    finally:
        await_deliveries()


def _launch(resolved: Resolved, run: RunDir, start: Start) -> Exit:
    with progress_bar(shown=not start.quiet) as progress:
        progress("look at the device", 0, None)
        resolved = settle_ranks(resolved, os.environ)
        device = choose_device(resolved.recipe.train.device)
        if resolved.recipe.parallel.world == 1:  # ranks look themselves: to look initialises CUDA
            check_device(device)
        resolved = settle_precision(resolved)
    place = launched(os.environ, resolved.recipe.parallel)
    recipe = (resolved := settle_micro_batch(resolved, launched=place is not None)).recipe
    if start.faults is not None:
        check_plan(start.faults.plan, recipe)
    check_offload(recipe.parallel.offload, device, recipe.optim)
    if isinstance(place, Node):
        return _join_node(resolved, run, start, place)
    if place is not None:
        if place.is_rank0:
            _warn(warning_about_nodes(recipe.parallel, ranks_per_node(os.environ)), start)
        return _join(resolved, run, start, place)
    start, resolved = check_start(resolved, run, start)
    inputs = read_inputs(resolved, start)
    compile_for(inputs)
    teach(inputs, run, start)
    check_anchor(inputs.recipe.train.loss.anchor, start)
    if inputs.recipe.parallel.world > 1:
        return _supervise(inputs, run, start)
    with StopSignals(announces=not start.quiet) as signals, RunLock(run.create(), expires=True):
        check_directory(run, start.mode)  # again: another start may have been faster
        with open_job(run, inputs, signals, start) as job:
            return _train(job)


def _supervise(inputs: Inputs, run: RunDir, start: Start) -> Exit:
    """Fork the ranks and supervise them."""
    check_supervision()
    with progress_bar(shown=not start.quiet) as progress:
        progress("load torch", 0, None)
        preload()

    # The recipe is written; the ledger has the initial checkpoint, and perhaps the changes.
    resumed = dataclasses.replace(start, mode="resume", init_from=None)

    def next_job(again: bool, world: int) -> AbstractContextManager[Job]:
        fewer = inputs
        if world != inputs.recipe.parallel.world:
            fewer = dataclasses.replace(inputs, resolved=with_world(inputs.resolved, world))
        if not again:
            return open_job(run, fewer, signals, start)
        return open_job(run, fewer, signals, restarted(fewer.recipe, run, resumed))

    def follow(rank: int, attempt: int) -> Job:
        again = restarted(inputs.recipe, run, resumed)
        return _follow(inputs, run, again, signals, attempt, owner=owner, silent=rank > 0)

    owner = process_identity(os.getpid())
    with StopSignals(announces=not start.quiet) as signals, RunLock(run.create(), shared=True, expires=True) as lock:
        check_directory(run, start.mode)
        supervisor = Supervisor(run, inputs.recipe, signals, quiet=start.quiet, renew=lock.renew, faults=start.faults)
        supervisor.listeners += alerts_of(inputs.recipe, run)
        plan = StandbyPlan(inputs, follow, _train, signals, supervisor.memory) if _may_wait(inputs.recipe) else None
        return supervisor.run(next_job, _train, plan)


def _may_wait(recipe: Recipe) -> bool:
    """Whether ranks may be forked ahead."""
    return recipe.guard.standby and choose_device(recipe.train.device).type == "cpu"


def _warn(text: str, start: Start) -> None:
    if text and not start.quiet:
        sys.stderr.write(f"warning: {text}\n")


def _join_node(resolved: Resolved, run: RunDir, start: Start, node: Node) -> Exit:
    """Start the ranks of this machine, and have them join those of the others."""
    check_supervision()
    if node.number == 0:
        _warn(warning_about_nodes(resolved.recipe.parallel, node.local_size), start)
    with progress_bar(shown=not start.quiet) as progress:
        progress("load torch", 0, None)
        preload()
    return run_node(node, functools.partial(_join, resolved, run, start), run, resolved.recipe.guard.hang_seconds)


def _join(
    resolved: Resolved, run: RunDir, start: Start, rank_info: RankInfo, heartbeat: Heartbeat | None = None
) -> Exit:
    """Be one rank of a run whose ranks a launcher started. Nothing is written before all are found equal."""
    assert rank_info.connect is not None
    if start.mode == "resume" and is_file(run.recipe):
        start, resolved = with_changed_settings(resolved, run, start)
    store, inputs = rank_info.connect(), read_inputs(resolved, start)
    teach(inputs, run, start, compute=False)
    facts = rank_facts(resolved.recipe, inputs.corpus.lock())
    device = choose_device(resolved.recipe.train.device, rank_info.local_rank, rank_info.same_devices)
    facts |= {"run directory": str(run.path.resolve()), "command": start.mode}
    compare_ranks(store, rank_info, facts, gpu_identity(device))
    if rank_info.host is not None:
        check_links(store, rank_info)
    with StopSignals(announces=rank_info.is_rank0 and not start.quiet) as signals, contextlib.ExitStack() as stack:
        # srun sends a SIGTERM when another rank has ended, which may be the second, and kills after its KillWait.
        signals.patient = "SLURM_STEP_ID" in os.environ
        if rank_info.is_rank0:
            with rank0_first(store, rank_info.size) as published:
                refuse_start(resolved.recipe, run, start)
                stack.enter_context(RunLock(run.create(), expires=True))
                check_directory(run, start.mode)
                job = stack.enter_context(open_job(run, inputs, signals, start))
                published["attempt"] = job.ledger.attempt
        else:
            job = _follow(inputs, run, start, signals, await_rank0(store)["attempt"])
        if heartbeat is None:  # nobody else sees whether this rank hangs
            heartbeat, limit = Heartbeat(rank=rank_info.rank), resolved.recipe.guard.hang_seconds
            stack.enter_context(watching_itself(heartbeat, run, job.ledger, limit))
        return _train(job.on_rank(rank_info, heartbeat))


def _follow(
    inputs: Inputs,
    run: RunDir,
    start: Start,
    signals: StopSignals,
    attempt: int,
    *,
    owner: dict[str, Any] | None = None,
    silent: bool = True,
) -> Job:
    """The job of a rank that joins an attempt begun by rank 0, or by the supervisor; rank 0 alone writes (`silent`).

    Rank 0 writes nothing more until all ranks have joined, so all read the same ledger. owner: the process that a
    person started, where it is not this one.
    """
    if not wait_until(lambda: is_file(run.recipe), SETUP_SECONDS):  # a network file system may be late to show it
        raise UsageError(f"{run.path} of rank 0 is not seen here: --out must be on a file system all machines share")
    ledger = Ledger(run, silent=silent)
    ledger.attempt = attempt
    ledger.listeners += alerts_of(inputs.recipe, run)
    output = RunWriter(run, ledger, ballast=inputs.recipe.checkpoint.ballast)
    output = output if owner is None else dataclasses.replace(output, owner=owner)
    return steered_job(inputs, start, output, signals)


def check_start(resolved: Resolved, run: RunDir, start: Start) -> tuple[Start, Resolved]:
    """(The start with its changed settings, the recipe at its first step); writes nothing. Raises as `refuse_start`."""
    refuse_start(resolved.recipe, run, start)
    return with_changed_settings(resolved, run, start) if start.mode == "resume" else (start, resolved)


def refuse_start(recipe: Recipe, run: RunDir, start: Start) -> None:
    """Raise UsageError if a start must not be made here."""
    check_directory(run, start.mode)
    require_trackers(recipe.log)
    refuse_if_held(run)
    if start.mode == "start":
        refuse_secrets((dotted(path), value) for path, value in leaves(recipe))


def refuse_secrets(settings: Iterable[tuple[str, Any]]) -> None:
    """Raise UsageError where a setting (key, value) holds a password or token: files of the run would keep it."""
    for key, value in settings:
        if any(holds_secret(str(each), key) for each in (value if isinstance(value, list) else [value])):
            raise UsageError(
                f"{key} holds what looks like a password or token, and every file of the run would keep it: "
                "leave it out, and give it to the program that needs it by an environment variable (an alert"
                " takes env:NAME as its url)"
            )


def with_changed_settings(resolved: Resolved, run: RunDir, start: Start) -> tuple[Start, Resolved]:
    """(A resume with the settings that `resolved` changes, the recipe of the run at its first step with these)."""
    resolved = pin_teacher(resolved, recipe_on_file(run, past := read_past(run)))
    changes = changed_settings(run, resolved.recipe)
    refuse_secrets((change.key, change.new) for change in changes)
    refuse_missing_data(run, resolved.recipe)
    refuse_spent_time(run, resolved.recipe, changes)
    ends = ends_interventions(changes, past.interventions)
    start = dataclasses.replace(start, changes=changes, ends_interventions=ends)
    if not (past.interventions or past.interventions_before):
        return start, resolved
    before = recipe_in_force(run, past) if ends else base_recipe(run, past)
    there = {dotted(path) for path, _ in leaves(resolved.recipe)}
    new = [SettingChange(each.key, each.old, each.new, each.key not in there) for each in changes]
    return start, Resolved(_with_alerts_of(resolved.recipe, with_changes(before, new)), resolved.origins)


def _with_alerts_of(given: Recipe, recipe: Recipe) -> Recipe:
    """`recipe` with the alerts of the one that was given, which were checked; the ledger may hold any."""
    return recipe.model_copy(update={"log": recipe.log.model_copy(update={"alerts": given.log.alerts})})


def restarted(recipe: Recipe, run: RunDir, start: Start) -> Start:
    """The start of ranks that died: with its changes, unless the ledger has them."""
    changes = resume_changes(base_recipe(run, read_past(run)), recipe)
    return dataclasses.replace(start, changes=changes, ends_interventions=start.ends_interventions and bool(changes))


def read_inputs(resolved: Resolved, start: Start) -> Inputs:
    """Open the inputs.

    Raises UsageError if an initial checkpoint has another tokenizer, an override fits no parameter, or the schedule
    or a fault plan does not fit the length of the run.
    """
    with progress_bar(shown=not start.quiet) as progress:
        progress("read the data", 0, None)
        inputs = open_inputs(pin_teacher(resolved))
    if start.mode == "start" or any(sets_schedule(change.key) for change in start.changes):
        check_schedule(inputs.recipe.optim.schedule, inputs.recipe.train.average, inputs.length)
    if start.faults is not None:
        steps, every = inputs.length.steps_from(0), inputs.recipe.checkpoint.every
        first_save = 0 if start.mode == "resume" or every == "auto" else min(every or steps, steps)
        check_steps(start.faults.plan, steps, first_save)
    model = resolved.recipe.model
    if model.init.overrides:
        check_overrides(model, parameter_shapes(model, inputs.vocab))
    if start.init_from is not None:
        check_tokenizer(start.init_from.checkpoint, inputs.tokenizer)
    return inputs


def alerts_of(recipe: Recipe, run: RunDir) -> list[Alerts]:
    """The listener of the ledger that tells of events, where the recipe asks for it."""
    return [Alerts(recipe.log.alerts, run)] if recipe.log.alerts else []


@contextlib.contextmanager
def open_job(run: RunDir, inputs: Inputs, signals: StopSignals, start: Start) -> Iterator[Job]:
    """One attempt: its ledger, and the first files of a new run. The caller holds the run's lock."""
    run.clean()
    ballast = inputs.recipe.checkpoint.ballast
    reserve(run.ballast, ballast)
    with Ledger(run) as ledger:
        ledger.listeners += alerts_of(inputs.recipe, run)
        output, lock = RunWriter(run, ledger, ballast=ballast), inputs.corpus.lock()
        job = steered_job(inputs, start, output, signals)
        if start.mode == "resume":
            check_data_lock(run.data_lock, lock)
        else:
            output.write_json(run.data_lock, lock)
            if start.init_from is not None:  # before the recipe makes this a run: a resume must know the checkpoint
                ledger.note("origin", At(), **start.init_from.fields())
            job.write_recipe()
        yield job


def check_supervision() -> None:
    """Raise UsageError where this process cannot fork ranks."""
    if sys.platform != "linux":
        raise UsageError("several ranks start as processes of this one on Linux only: use torchrun here")
    if threading.active_count() > 1:
        raise UsageError(
            f"several ranks are forks, which {threading.active_count() - 1} other threads of this process would "
            "not survive: run `hornbook train` as a process of its own"
        )


def _train(job: Job, ready: Ready | None = None) -> Exit:
    """Run the loop; errors that a person can mend get a message with the remedy."""
    try:
        return train(job, ready)
    except KeyboardInterrupt as interrupt:
        if job.rank_info.size == 1:  # of several ranks the supervisor writes it
            state: Mapping[str, Any] = job.run.read_state() or {}
            at, saved = At(state.get("step", 0), state.get("tokens", 0)), newest_step(job.run.checkpoints)
            job.ledger.note("stop", at, reason="a second signal", saved_step=saved)
        return StopNow.code_of(interrupt)
    except (RuntimeError, MemoryError, OSError) as error:
        if (known := with_remedy(job, error)) is None:
            raise
        raise known from error
    finally:
        job.inputs.loader.close()
        if job.rank_info.size > 1:  # this process may be a fork, which ends here
            await_deliveries()
