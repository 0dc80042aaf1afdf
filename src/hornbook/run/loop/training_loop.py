"""The training loop. Every line that changes training is visible here."""

import contextlib
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from hornbook.data.batch import GlobalBatch
from hornbook.errors import Exit, quoted
from hornbook.evals.config import NoStop
from hornbook.kernels.device_errors import device_error
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.mup import learning_factors
from hornbook.model.surgery.operate import operate
from hornbook.optim.average import WeightAverage
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.average_config import NoAverage
from hornbook.optim.config.optim import AnyOptimizer
from hornbook.optim.config.schedule_base import Axis
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.axes.pipeline.cuts import settle_cuts
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.gradients.noise_scale import NoiseScale
from hornbook.parallel.offload.offload import hosted, map_state
from hornbook.parallel.owners import Owners
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import RankInfo, World, distributed
from hornbook.run.checkpoints.state import State
from hornbook.run.job.heartbeat import Heartbeat
from hornbook.run.job.job import Job
from hornbook.run.job.micro_batch import is_out_of_memory, take_fewer_rows
from hornbook.run.job.run_inputs import Inputs
from hornbook.run.job.timekeeper import Timekeeper, seconds_spent
from hornbook.run.layers.layer_statistics import LayerStatistics
from hornbook.run.ledger.interventions import Course
from hornbook.run.ledger.step_report import Step, count_skips, diverged
from hornbook.run.ledger.token_costs import work_of
from hornbook.run.ledger.training_length import Cut, TrainingLength
from hornbook.run.loop.async_checkpointer import AsyncCheckpointer
from hornbook.run.loop.guard_recovery import Recovery, open_guard
from hornbook.run.loop.initialize_or_restore import initialize_or_restore
from hornbook.run.loop.intervene import Intervener
from hornbook.run.loop.recompute import Recompute
from hornbook.run.observe.early_stop import EarlyStop
from hornbook.run.observe.observers import Observers, open_consoles, open_observers
from hornbook.settings.recipe import Recipe

MEASURED_STEPS = 3
"""Steps after which the time-out of collectives follows from measured times."""
MIN_TIMEOUT, MAX_TIMEOUT = 120.0, 600.0
"""Bounds of that time-out in seconds: a first save may be slow, and a lost rank should be noticed within minutes."""


@dataclass(frozen=True)
class Ready:
    """A rank that has met the others and built its model before there is work."""

    world: World
    state: State


@contextlib.contextmanager
def get_ready(inputs: Inputs, rank_info: RankInfo) -> Iterator[Ready]:
    """Meet the other ranks and build the model, whose parameters have no values yet."""
    recipe = inputs.recipe
    with distributed(recipe.parallel, recipe.train, rank_info) as world:
        yield Ready(world, build_state(inputs, recipe.parallel, world))


def train(job: Job, ready: Ready | None = None) -> Exit:
    """Train until the end of the run (DONE) or until a stop is requested (RESUMABLE)."""
    recipe, control = job.recipe, job.control
    met = distributed(recipe.parallel, recipe.train, job.rank_info) if ready is None else nullcontext(ready.world)
    with met as world, open_consoles(job, world) as consoles:
        world.set_timeout(MAX_TIMEOUT)  # reading a checkpoint and the first steps take some ranks longer than others
        state = build_state(job.inputs, recipe.parallel, world) if ready is None else ready.state
        engine, state.fewer_rows = state.engine, list(job.ledger.past.fewer_rows)
        with (
            open_observers(job, state, consoles) as observers,
            AsyncCheckpointer(job, world, observers) as checkpointer,
        ):
            state.guard = open_guard(job)
            initialize_or_restore(job, state, checkpointer, observers)
            observers.start(job.ledger.attempt, state)
            keepers, again = _length_keepers(job, state), Recompute(job, state, observers.note)
            intervener, first = Intervener(job, world, state, observers, checkpointer), state.step
            recovery = Recovery(job, state, checkpointer, observers)
            while state.tokens < intervener.course.length.tokens:
                job.run.check()  # the run directory still has its name
                requests = control.poll(state, world.all_reduce_max, recovery.verdict)
                checkpointer.poll(state)
                if requests.verdict:
                    intervener = recovery.act(intervener)  # the state may be another now
                if requests.save or requests.stop:
                    control.enter("save", state)
                    checkpointer.save(state)
                if requests.stop:
                    return _stop(job, state, observers, requests.stop)
                course = intervener(requests.changes)
                searching = engine.scaler is not None and not engine.scaler.spent
                shrunk = len(state.fewer_rows)
                step = take_step(job, state, course, again)
                intervener.blend()
                if len(state.fewer_rows) > shrunk:
                    observers.note(f"memory ran out in step {state.step:,}: it has {state.micro_batch} rows at once")
                job.run.check()
                state.skips_in_a_row = count_skips(state.skips_in_a_row, skipped=step.skipped, searching=searching)
                recovery.after(step, course)
                control.enter("observe", state)
                for observe in observers:
                    observe(step)  # console, metrics, evaluation, samples: none of them changes the state
                if state.skips_in_a_row > course.recipe.guard.max_skips and recovery.is_helpless(step):
                    raise diverged(course.recipe.guard, state.skips_in_a_row, state.step)
                checkpointer.keep(state, course.recipe.checkpoint.every, step)
                for keeper in () if step.final else keepers:
                    length = intervener.course.length
                    intervener.shorten(_keep_length(job, world, keeper, observers, step, length))
                _set_timeout(control.heartbeat, world, step, intervener.course.length, state.step - first)
            control.enter("save", state)
            checkpointer.save(state, final=True)
            observers.conclude(state, job.run)  # scores every validation token, now that the last step is saved
            control.enter("end", state)
            control.refuse_rest(state)
            job.ledger.note("finish", state)
            observers.state_file.write("finished")
            job.output.drop_ballast()
            return Exit.DONE


def build_state(inputs: Inputs, parallel: ParallelConfig, world: World) -> State:
    """Model, optimizer and clock of a run; the parameters have no values yet."""
    recipe = inputs.recipe
    model = build_model(recipe.model, inputs.vocab, device="meta")
    operate(model, recipe.surgery)  # adapters, frozen parts, rounded weights
    parallel = settle_cuts(parallel, recipe.model, inputs.vocab, recipe.train.sequence)
    engine = parallelize(model, parallel, recipe.train, world, inputs.tokenizer.vocab_size)
    roles = parameter_roles(model)
    factors = learning_factors(roles, recipe.model)
    shapes = engine.shapes

    def make_optimizer(config: AnyOptimizer, owners: Owners) -> Optimizer:
        whole = hosted(owners, config, parallel.offload, world)
        optimizer = build_optimizer(engine.named_parameters, roles, config, factors, shapes, whole)
        map_state(optimizer, parallel.offload)
        return optimizer

    inputs.loader.pinned = world.device.type == "cuda"
    optimizer = make_optimizer(recipe.optim, engine.owners)
    engine.penalties.names = optimizer.decaying
    state = State(engine, optimizer, inputs.loader, inputs.model_spec, recipe.seed, make_optimizer)
    _keep_statistics(state, recipe, inputs.length)
    return state


def _keep_statistics(state: State, recipe: Recipe, length: TrainingLength) -> None:
    """Keep what the recipe asks for beside the training itself: averages of the weights, statistics, noise scale."""
    engine = state.engine
    if not isinstance(recipe.train.average, NoAverage):
        axis = Axis(length.planned, length.batches)
        state.keep_average(WeightAverage(recipe.train.average, engine.named_parameters, axis))
    if recipe.log.statistics_every:
        state.layers = LayerStatistics(engine, recipe.log.statistics_every)
    if recipe.log.noise_scale:
        engine.measure_part()
        state.noise = NoiseScale(recipe.log.noise_scale)


def take_step(job: Job, state: State, course: Course, again: Recompute | None = None) -> Step:
    """One optimizer step over the next global batch; `again` computes a step once more that would be refused."""
    recipe, length, engine = course.recipe, course.length, state.engine
    phase, started = engine.clock.phase, time.perf_counter()
    engine.clock.begin()
    lr, guard = course.learning_rate(state.tokens), state.guard
    limits = None if guard is None else guard.limits(state.step + 1, length.rows(state.tokens))
    state.optimizer.set_learning_rate(lr)
    batch, losses, waited = compute_gradients(job, state, length)
    if again is not None:
        again.audit.audit_if_due(batch)
    job.control.enter("clip", state)
    if state.layers is not None:
        state.layers.begin(state.step + 1)
    with phase("optimizer"):
        norm = engine.clip_gradients(recipe.optim.clip, limits)
    job.control.enter("optimizer", state)
    part = engine.part_of_batch()
    with phase("optimizer"):  # a non-finite step changes no bit of weights and moments
        applied, found = engine.step_and_fetch(state.optimizer, norm, *part, *losses.values())
    same = False
    if not applied and again is not None:
        applied, found, same = again.refused(batch, recipe.optim.clip, limits, found)
    norm, *values = found
    before = state.tokens
    state.advance(batch)
    sums = zip(losses, values[len(part) :], strict=True)
    terms = {name: each / max(batch.total_weight, 1.0) for name, each in sums}
    if applied and state.average is not None:
        state.average.update(before, state.tokens)
    if applied and state.noise is not None:
        state.noise.update(values[: len(part)], norm, batch.total_weight)
    return Step(
        attempt=job.ledger.attempt,
        step=state.step,
        tokens=state.tokens,
        step_tokens=batch.tokens,
        loss=terms.pop("loss"),
        grad_norm=norm,
        lr=lr,
        skipped=not applied,
        recomputed=same,
        token_hash=batch.token_hash,
        first_sample=batch.first_sample,
        num_samples=batch.num_samples,
        seconds=time.perf_counter() - started,
        data_seconds=waited,
        final=state.tokens >= length.tokens,
        phases=engine.clock.take(),
        traffic=engine.clock.traffic.take(),
        positions=batch.positions_computed,
        targets=batch.total_weight,
        noise=None if state.noise is None else state.noise.record(),
        clipped=limits.norm_to if limits is not None and applied and norm > limits.norm_over else None,
        terms=terms,
    )


def compute_gradients(job: Job, state: State, length: TrainingLength) -> tuple[GlobalBatch, dict[str, Tensor], float]:
    """(the next global batch, its losses, seconds waited for it); again with fewer rows at once if memory runs out."""
    engine, loader, world = state.engine, state.loader, state.engine.world
    rows, clock = length.rows(state.tokens), loader.clock
    following = length.rows(state.tokens + rows * length.sequence)
    while True:
        loader.micro_batch = state.micro_batch
        job.control.enter("data", state)
        started = time.perf_counter()
        with engine.clock.phase("data"):
            batch = loader.take(rows, world.data_rank, world.data_size, following)
        waited = time.perf_counter() - started
        job.control.enter("forward_backward", state)
        try:
            losses = state.forward_backward(batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            problem = str(device_error(error))
        else:
            return batch, losses, waited
        take_fewer_rows(job, state, problem)  # what the failed pass held is free: its frames ended with `except`
        loader.seek(clock)


class LengthKeeper(Protocol):
    """What may shorten a run."""

    def tokens_in_time(self, step: Step, length: TrainingLength) -> int:
        """Length in tokens, called once a step; that of `length` where nothing changes."""
        ...

    def evidence(self, step: Step, length: TrainingLength) -> dict[str, Any]:
        """Why, for the ledger."""
        ...


def _length_keepers(job: Job, state: State) -> list[LengthKeeper]:
    """By the clock (`train.seconds`), and by validation losses (`eval.stop`)."""
    recipe, keepers = job.recipe, list[LengthKeeper]()
    if recipe.train.seconds:
        work = work_of(recipe.model, recipe.data, job.inputs.vocab, recipe.train.sequence)
        keepers.append(Timekeeper(recipe.train.seconds, seconds_spent(job.run), work=work))
    if not isinstance(recipe.eval.stop, NoStop):
        keepers.append(EarlyStop(recipe.eval.stop, recipe.optim.schedule, job, state.step))
    return keepers


def _keep_length(
    job: Job, world: World, keeper: LengthKeeper, observers: Observers, step: Step, length: TrainingLength
) -> TrainingLength:
    """The length of the run from here on, by rank 0's keeper.

    The ledger has it before the next step, so that every later attempt shortens at the same step.
    """
    tokens = world.broadcast(keeper.tokens_in_time(step, length))
    if tokens >= length.tokens:
        return length
    evidence = keeper.evidence(step, length)
    job.ledger.note("shorten", step, length=tokens, before=length.tokens, **evidence)
    shorter = length.cut([Cut(step.tokens, tokens)])
    observers.shorten(step.step, shorter, str(evidence["reason"]))
    return shorter


def _set_timeout(heartbeat: Heartbeat, world: World, step: Step, length: TrainingLength, done: int) -> None:
    """Set the time-out of collectives after `done` steps of this attempt, longer where the next batch is larger."""
    growth = length.rows(step.tokens) / step.num_samples
    if growth > 1:
        heartbeat.expect_growth(growth)
    if done == MEASURED_STEPS or (done > MEASURED_STEPS and growth > 1):
        world.set_timeout(longest_wait(heartbeat))


def longest_wait(heartbeat: Heartbeat) -> float:
    """Seconds after which a rank that waits for another gives up: far more than any phase took so far."""
    return min(max(20 * heartbeat.slowest_seconds, MIN_TIMEOUT), MAX_TIMEOUT)


def _stop(job: Job, state: State, observers: Observers, reason: str) -> Exit:
    """Record the stop; the state is saved already."""
    job.ledger.note("stop", state, reason=reason)
    observers.state_file.write("stopped")
    why = f" ({job.control.deadline.describe()})" if reason == "deadline" else ""
    observers.note(f"stopped at step {state.step:,}{why}; `hornbook resume {quoted(job.run.path)}` goes on")
    return Exit.RESUMABLE
