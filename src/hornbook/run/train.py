"""The training loop. Every line that changes training is visible here."""

import time

import torch
from torch import Tensor

from hornbook.data.batch import GlobalBatch
from hornbook.errors import Exit
from hornbook.model.build import build_model, parameter_roles
from hornbook.model.config.mup import learning_factors
from hornbook.model.surgery.operate import operate
from hornbook.optim.build import build_optimizer
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.offload import map_state
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import World, distributed
from hornbook.run.checkpoints.async_checkpointer import AsyncCheckpointer
from hornbook.run.inputs import Inputs
from hornbook.run.job import Job
from hornbook.run.launch.heartbeat import Heartbeat
from hornbook.run.observe.observers import Observers, open_consoles, open_observers
from hornbook.run.start.initialize_or_restore import initialize_or_restore
from hornbook.run.start.micro_batch import is_out_of_memory, take_fewer_rows
from hornbook.run.state import State
from hornbook.run.step_report import Step, count_skips, diverged, is_due
from hornbook.run.timekeeper import Timekeeper, seconds_spent
from hornbook.run.training_length import Cut, TrainingLength

MEASURED_STEPS = 3
"""Steps after which the time-out of collectives follows from measured times."""
MIN_TIMEOUT, MAX_TIMEOUT = 120.0, 600.0
"""Bounds of that time-out in seconds: a first save may be slow, and a lost rank should be noticed within minutes."""


def train(job: Job) -> Exit:
    """Train until the end of the run (DONE) or until a stop is requested (RESUMABLE)."""
    recipe, length, control = job.recipe, job.length, job.control
    with distributed(recipe.parallel, recipe.train, job.rank_info) as world, open_consoles(job, world) as consoles:
        world.set_timeout(MAX_TIMEOUT)  # reading a checkpoint and the first steps take some ranks longer than others
        state = build_state(job.inputs, recipe.parallel, world)
        engine, state.fewer_rows = state.engine, list(job.ledger.past.fewer_rows)
        with (
            open_observers(job, state, consoles) as observers,
            AsyncCheckpointer(job, world, observers) as checkpointer,
        ):
            initialize_or_restore(job, state, checkpointer, observers)
            observers.state_file.start(job.ledger.attempt, state)
            keeper = Timekeeper(recipe.train.seconds, seconds_spent(job.run)) if recipe.train.seconds else None
            first = state.step
            while state.tokens < length.tokens:
                job.run.check()  # the run directory still has its name
                requests = control.poll(state, world.all_reduce_max)
                checkpointer.poll(state)
                if requests.save or requests.stop:
                    control.enter("save", state)
                    checkpointer.save(state)
                if requests.stop:
                    return _stop(job, state, observers)
                searching = engine.scaler is not None and not engine.scaler.spent
                shrunk = len(state.fewer_rows)
                step = take_step(job, state, length)
                if len(state.fewer_rows) > shrunk:
                    observers.note(f"memory ran out in step {state.step:,}: it has {state.micro_batch} rows at once")
                job.run.check()
                state.skips_in_a_row = count_skips(state.skips_in_a_row, skipped=step.skipped, searching=searching)
                if step.skipped:
                    job.ledger.note("skip", state, in_a_row=state.skips_in_a_row, **step.evidence())
                control.enter("observe", state)
                for observe in observers:
                    observe(step)  # console, metrics, evaluation, samples: none of them changes the state
                if state.skips_in_a_row > recipe.guard.max_skips:
                    raise diverged(recipe.guard, state.skips_in_a_row, state.step)
                if is_due(state.step, recipe.checkpoint.every) and not step.final:
                    control.enter("save", state)
                    checkpointer.try_save(state)
                if keeper is not None and not step.final:
                    length = _keep_time(job, world, keeper, observers, step, length)
                _set_timeout(control.heartbeat, world, step, length, state.step - first)
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
    engine = parallelize(model, parallel, recipe.train, world, inputs.tokenizer.vocab_size)
    roles = parameter_roles(model)
    factors = learning_factors(roles, recipe.model)
    shapes = {name: shard.shape for name, shard in engine.shards.items()}
    optimizer = build_optimizer(engine.named_parameters, roles, recipe.optim, factors, shapes, engine.owners)
    map_state(optimizer, parallel.offload)
    return State(engine, optimizer, inputs.loader, inputs.model_spec, recipe.seed)


def take_step(job: Job, state: State, length: TrainingLength) -> Step:
    """One optimizer step over the next global batch."""
    recipe, engine = job.recipe, state.engine
    started = time.perf_counter()
    clock = length.schedule_clock(state.tokens)
    lr = recipe.optim.lr * recipe.optim.schedule(clock, length.planned, length.batches)
    state.optimizer.set_learning_rate(lr)
    batch, losses, waited = compute_gradients(job, state, length)
    job.control.enter("clip", state)
    norm = engine.clip_gradients(recipe.optim.clip)
    job.control.enter("optimizer", state)
    applied = engine.step(state.optimizer)  # a non-finite step changes no bit of weights and moments
    state.advance(batch)
    loss_sum, norm, applied = fetch(losses["loss"], norm, applied)
    return Step(
        attempt=job.ledger.attempt,
        step=state.step,
        tokens=state.tokens,
        step_tokens=batch.tokens,
        loss=loss_sum / max(batch.total_weight, 1.0),
        grad_norm=norm,
        lr=lr,
        skipped=not applied,
        token_hash=batch.token_hash,
        first_sample=batch.first_sample,
        num_samples=batch.num_samples,
        seconds=time.perf_counter() - started,
        data_seconds=waited,
        final=state.tokens >= length.tokens,
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


def fetch(*scalars: Tensor) -> list[float]:
    """The values of scalars on the device, in one transfer: the only place where the loop waits for the device."""
    return torch.stack([scalar.float() for scalar in scalars]).tolist()


def _stop(job: Job, state: State, observers: Observers) -> Exit:
    """Record the stop; the state is saved already."""
    job.ledger.note("stop", state)
    observers.state_file.write("stopped")
    observers.note(f"stopped at step {state.step:,}; `hornbook resume {job.run.path}` goes on")
    return Exit.RESUMABLE
