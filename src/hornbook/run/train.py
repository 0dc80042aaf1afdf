"""The training loop. Every line that changes training is visible here."""

import time

from torch import Tensor

from hornbook.data.batch import GlobalBatch
from hornbook.errors import Exit
from hornbook.model.build import build_model, parameter_roles
from hornbook.model.config.mup import learning_factors
from hornbook.model.surgery.operate import operate
from hornbook.optim.average import WeightAverage
from hornbook.optim.build import build_optimizer
from hornbook.optim.config.average import NoAverage
from hornbook.optim.config.optim import AnyOptimizer
from hornbook.optim.config.schedule import Axis
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.axes.pipeline.cuts import settle_cuts
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.gradients.noise_scale import NoiseScale
from hornbook.parallel.offload.offload import hosted, map_state
from hornbook.parallel.owners import Owners
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import World, distributed
from hornbook.run.checkpoints.async_checkpointer import AsyncCheckpointer
from hornbook.run.control.intervene import Intervener
from hornbook.run.control.interventions import Course
from hornbook.run.control.timekeeper import Timekeeper, seconds_spent
from hornbook.run.guard.recovery import Recovery, open_guard
from hornbook.run.inputs import Inputs
from hornbook.run.job import Job
from hornbook.run.launch.heartbeat import Heartbeat
from hornbook.run.observe.observers import Observers, open_consoles, open_observers
from hornbook.run.start.initialize_or_restore import initialize_or_restore
from hornbook.run.start.micro_batch import is_out_of_memory, take_fewer_rows
from hornbook.run.state import State
from hornbook.run.step_report import Step, count_skips, diverged, is_due
from hornbook.run.training_length import Cut, TrainingLength
from hornbook.settings.recipe import Recipe

MEASURED_STEPS = 3
"""Steps after which the time-out of collectives follows from measured times."""
MIN_TIMEOUT, MAX_TIMEOUT = 120.0, 600.0
"""Bounds of that time-out in seconds: a first save may be slow, and a lost rank should be noticed within minutes."""


def train(job: Job) -> Exit:
    """Train until the end of the run (DONE) or until a stop is requested (RESUMABLE)."""
    recipe, control = job.recipe, job.control
    with distributed(recipe.parallel, recipe.train, job.rank_info) as world, open_consoles(job, world) as consoles:
        world.set_timeout(MAX_TIMEOUT)  # reading a checkpoint and the first steps take some ranks longer than others
        state = build_state(job.inputs, recipe.parallel, world)
        engine, state.fewer_rows = state.engine, list(job.ledger.past.fewer_rows)
        with (
            open_observers(job, state, consoles) as observers,
            AsyncCheckpointer(job, world, observers) as checkpointer,
        ):
            state.guard = open_guard(job)
            initialize_or_restore(job, state, checkpointer, observers)
            observers.start(job.ledger.attempt, state)
            keeper = Timekeeper(recipe.train.seconds, seconds_spent(job.run)) if recipe.train.seconds else None
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
                    return _stop(job, state, observers)
                course = intervener(requests.changes)
                searching = engine.scaler is not None and not engine.scaler.spent
                shrunk = len(state.fewer_rows)
                step = take_step(job, state, course)
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
                if is_due(state.step, course.recipe.checkpoint.every) and not step.final:
                    control.enter("save", state)
                    checkpointer.try_save(state)
                if keeper is not None and not step.final:
                    intervener.shorten(_keep_time(job, world, keeper, observers, step, course.length))
                _set_timeout(control.heartbeat, world, step, intervener.course.length, state.step - first)
            control.enter("save", state)
            checkpointer.save(state, final=True)
            observers.evaluation.score_all(state)  # every validation token, now that the last step is saved
            control.enter("end", state)
            control.refuse_rest(state)
            job.ledger.note("finish", state)
            observers.state_file.write("finished")
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
        whole = hosted(owners, config, parallel.offload, world.device)
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
    """Keep what the recipe asks for beside the training itself: an average of the weights, the noise scale."""
    engine = state.engine
    if not isinstance(recipe.train.average, NoAverage):
        axis = Axis(length.planned, length.batches)
        state.keep_average(WeightAverage(recipe.train.average, engine.named_parameters, axis))
    if recipe.log.noise_scale:
        engine.measure_part()
        state.noise = NoiseScale(recipe.log.noise_scale)


def take_step(job: Job, state: State, course: Course) -> Step:
    """One optimizer step over the next global batch."""
    recipe, length, engine = course.recipe, course.length, state.engine
    phase, started = engine.clock.phase, time.perf_counter()
    engine.clock.begin()
    lr, limits = course.learning_rate(state.tokens), None if state.guard is None else state.guard.limits(state.step + 1)
    state.optimizer.set_learning_rate(lr)
    batch, losses, waited = compute_gradients(job, state, length)
    job.control.enter("clip", state)
    with phase("optimizer"):
        norm = engine.clip_gradients(recipe.optim.clip, limits)
    job.control.enter("optimizer", state)
    part = engine.part_of_batch()
    with phase("optimizer"):  # a non-finite step changes no bit of weights and moments
        applied, (norm, *values) = engine.step_and_fetch(state.optimizer, norm, *part, *losses.values())
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
        token_hash=batch.token_hash,
        first_sample=batch.first_sample,
        num_samples=batch.num_samples,
        seconds=time.perf_counter() - started,
        data_seconds=waited,
        final=state.tokens >= length.tokens,
        phases=engine.clock.take(),
        traffic=engine.clock.traffic.take(),
        positions=batch.positions_computed,
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
        engine.zero_gradients()
        job.control.enter("forward_backward", state)
        try:
            losses = engine.forward_backward(batch.batches, batch.total_weight, key=(job.recipe.seed, state.step))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            problem = str(error)
        else:
            return batch, losses, waited
        take_fewer_rows(job, state, problem)  # what the failed pass held is free: its frames ended with `except`
        loader.seek(clock)


def _keep_time(
    job: Job, world: World, keeper: Timekeeper, observers: Observers, step: Step, length: TrainingLength
) -> TrainingLength:
    """The length of the run from here on: shorter where its steps are too slow for `train.seconds`, by rank 0's clock.

    The ledger has it before the next step, so that every later attempt shortens at the same step.
    """
    tokens = world.broadcast(keeper.tokens_in_time(step, length))
    if tokens >= length.tokens:
        return length
    seconds = {"elapsed": keeper.elapsed, "expected": keeper.expected(step.tokens, length)}
    job.ledger.note("shorten", step, length=tokens, before=length.tokens, **seconds)
    shorter = length.cut([Cut(step.tokens, tokens)])
    observers.shorten(step.step, shorter)
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


def _stop(job: Job, state: State, observers: Observers) -> Exit:
    """Record the stop; the state is saved already."""
    job.ledger.note("stop", state)
    observers.state_file.write("stopped")
    observers.note(f"stopped at step {state.step:,}; `hornbook resume {job.run.path}` goes on")
    return Exit.RESUMABLE
