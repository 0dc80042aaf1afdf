"""The training loop. Every line that changes training is visible here."""

import time

import torch
from torch import Tensor

from hornbook.errors import Exit
from hornbook.model.build import build_model, parameter_roles
from hornbook.model.config.mup import learning_factors
from hornbook.model.surgery.operate import operate
from hornbook.optim.build import build_optimizer, set_learning_rate
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import World, distributed
from hornbook.run.checkpoints.saves import open_saves
from hornbook.run.guard import Guard
from hornbook.run.horizon import Cut, Horizon
from hornbook.run.job import Inputs, Job
from hornbook.run.launch.pulse import Pulse
from hornbook.run.observe.consoles import open_consoles
from hornbook.run.observe.observers import Observers, is_due, open_observers
from hornbook.run.start.begin import begin
from hornbook.run.state import State
from hornbook.run.step_report import Step
from hornbook.run.timekeeper import Timekeeper, seconds_spent

MEASURED_STEPS = 3
"""After so many steps it is known how long a rank may be waited for."""
LEAST_WAIT, GREATEST_WAIT = 120.0, 600.0
"""Bounds of that time in seconds: a first save may be slow, and nobody should wait for half an hour."""


def train(job: Job) -> Exit:
    """Train until the horizon (DONE) or until someone asks to stop (RESUMABLE)."""
    recipe, horizon = job.recipe, job.horizon
    with distributed(recipe.parallel, recipe.train, job.place) as world, open_consoles(job, world) as consoles:
        world.set_timeout(GREATEST_WAIT)  # reading a checkpoint and the first steps take one rank longer than another
        state = build_state(job.inputs, recipe.parallel, world)
        engine = state.engine
        guard = Guard(recipe.guard)
        with open_observers(job, engine, consoles) as observers, open_saves(job, world, observers) as saves:
            begin(job, world, state, saves, observers)  # newest complete save, else what the run starts from
            observers.heartbeat.start(job.ledger.attempt, state)
            keeper = Timekeeper(recipe.train.seconds, seconds_spent(job.run)) if recipe.train.seconds else None
            first = state.step
            while state.tokens < horizon.tokens:
                job.run.check()  # still there, under its name
                orders = job.inbox.poll(state, world.all_reduce_max)
                saves.poll(state)
                if orders.save or orders.stop:
                    job.pulse.enter("save", state)
                    saves.save(state)
                if orders.stop:
                    return _stop(job, state, observers)
                searching = engine.scaler is not None and not engine.scaler.spent
                step = take_step(job, state, horizon)
                job.run.check()
                verdict = guard.judge(not step.skipped, state.skips_in_a_row, expected=searching)
                state.skips_in_a_row = verdict.in_a_row
                if verdict.skipped:
                    job.ledger.note("skip", state, in_a_row=verdict.in_a_row, **step.evidence())
                job.pulse.enter("observe", state)
                for observe in observers:
                    observe(step)  # console, metrics, evaluation, samples: they look and never touch
                if verdict.exhausted:
                    raise guard.error(verdict, state.step)
                if is_due(state.step, recipe.checkpoint.every) and not step.final:
                    job.pulse.enter("save", state)
                    saves.try_save(state)
                if keeper is not None and not step.final:
                    horizon = _keep_time(job, world, keeper, observers, step, horizon)
                _allow_time(job, world, step, horizon, state.step - first)
            job.pulse.enter("save", state)
            saves.save(state, final=True)
            observers.evaluation.score_all(state)  # every validation token, now that the last step is safe
            job.pulse.enter("end", state)
            job.inbox.refuse_rest(state)
            job.ledger.note("finish", state)
            observers.heartbeat.beat("finished")
            return Exit.DONE


def build_state(inputs: Inputs, parallel: ParallelConfig, world: World) -> State:
    """Model, optimizer and clock of a run, before any parameter has its value."""
    recipe = inputs.recipe
    model = build_model(recipe.model, inputs.vocab, device="meta")
    operate(model, recipe.surgery)  # adapters, frozen parts, rounded weights
    engine = parallelize(model, parallel, recipe.train, world, inputs.tokenizer.vocab_size)
    roles = parameter_roles(model)
    factors = learning_factors(roles, recipe.model)
    optimizer = build_optimizer(engine.named_parameters, roles, recipe.optim, factors)
    return State(engine, optimizer, inputs.loader, inputs.model_spec, recipe.seed)


def take_step(job: Job, state: State, horizon: Horizon) -> Step:
    """One optimizer step over the next global batch."""
    recipe, engine = job.recipe, state.engine
    started = time.perf_counter()
    job.pulse.enter("data", state)
    rows = horizon.rows(state.tokens)
    following = horizon.rows(state.tokens + rows * horizon.sequence)
    batch = state.loader.take(rows, engine.world.rank, engine.world.size, following)
    arrived = time.perf_counter()
    clock = horizon.schedule_clock(state.tokens)
    lr = recipe.optim.lr * recipe.optim.schedule(clock, horizon.planned, horizon.batches)
    set_learning_rate(state.optimizer, lr)
    engine.zero_gradients()
    job.pulse.enter("forward_backward", state)
    losses = engine.forward_backward(batch.batches, batch.total_weight, key=(recipe.seed, state.step))
    job.pulse.enter("clip", state)
    norm = engine.clip_gradients(recipe.optim.clip)
    job.pulse.enter("optimizer", state)
    applied = engine.step(state.optimizer)  # a non-finite step leaves every bit of weights and moments as it was
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
        data_seconds=arrived - started,
        final=state.tokens >= horizon.tokens,
    )


def _keep_time(
    job: Job, world: World, keeper: Timekeeper, observers: Observers, step: Step, horizon: Horizon
) -> Horizon:
    """The length of the run from here on: shorter where its steps are too slow for `train.seconds`, by rank 0's clock.

    The ledger has it before the next step, so that every later attempt shortens at the same step.
    """
    length = world.broadcast(keeper.length(step, horizon))
    if length >= horizon.tokens:
        return horizon
    seconds = {"elapsed": keeper.elapsed, "expected": keeper.expected(step.tokens, horizon)}
    job.ledger.note("shorten", step, length=length, before=horizon.tokens, **seconds)
    shorter = horizon.cut([Cut(step.tokens, length)])
    observers.shorten(step.step, shorter)
    return shorter


def _allow_time(job: Job, world: World, step: Step, horizon: Horizon, done: int) -> None:
    """How long a rank may be waited for: known after `done` steps, and longer where the next batch is larger."""
    growth = horizon.rows(step.tokens) / step.num_samples
    if growth > 1:
        job.pulse.expect(growth)
    if done == MEASURED_STEPS or (done > MEASURED_STEPS and growth > 1):
        world.set_timeout(longest_wait(job.pulse))


def longest_wait(pulse: Pulse) -> float:
    """Seconds after which a rank that waits for another gives up: far more than anything took so far."""
    return min(max(20 * pulse.slowest_seconds, LEAST_WAIT), GREATEST_WAIT)


def fetch(*scalars: Tensor) -> list[float]:
    """The numbers of some scalars on the device, all at once: the only place where the loop waits for it."""
    return torch.stack([scalar.float() for scalar in scalars]).tolist()


def _stop(job: Job, state: State, observers: Observers) -> Exit:
    """What was asked for is on disk; say so and leave."""
    job.ledger.note("stop", state)
    observers.heartbeat.beat("stopped")
    for tell in observers.notes:
        tell(f"stopped at step {state.step:,}; `hornbook resume {job.run.path}` goes on")
    return Exit.RESUMABLE
