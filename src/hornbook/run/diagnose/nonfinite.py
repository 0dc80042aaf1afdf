"""Computes a step of a run again, from the checkpoint before it, and names the first module that is not finite.

The steps between are made again too, in memory, in one process. Nothing of the run is written. On one process instead
of several, or on another machine, last bits may differ; a step that diverged does so all the same, or the report says
that it was finite.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.files.run_directory import RunDir
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.world import distributed
from hornbook.run.checkpoints.bound import base_recipe
from hornbook.run.checkpoints.state import State
from hornbook.run.diagnose.weights_at import newest_before
from hornbook.run.job.job import Job, Start, silent_job
from hornbook.run.job.run_inputs import open_inputs
from hornbook.run.ledger.interventions import Course
from hornbook.run.ledger.ledger import read_past
from hornbook.run.ledger.step_report import count_skips
from hornbook.run.loop.guard_recovery import StepJudge, open_guard
from hornbook.run.loop.training_loop import build_state, compute_gradients, take_step
from hornbook.settings.resolve import Resolved


@dataclass(frozen=True)
class Recomputed:
    """What was found in a step."""

    step: int
    checkpoint: str
    """From which the steps were made again; "" from initial values."""
    loss: float
    finite: bool
    module: str = ""
    """The first module, in the order of computation, that gave or got something that is not finite."""
    where: str = ""
    """`weights`, `forward`, `loss` or `backward`."""
    samples: tuple[int, int] = (0, 0)
    """First sample of the step, and their number."""

    def __str__(self) -> str:
        made = f"step {self.step:,} again, from {self.checkpoint or 'initial values'}: loss {self.loss:.6g}"
        if self.finite:
            return (
                f"{made}; everything is finite. If it was not in the run, the fault has passed: it was the machine "
                "(`hornbook doctor --deep` checks it), or a fault plan"
            )
        first, count = self.samples
        return f"{made}; first not finite: {self.module} ({self.where}); samples {first:,} to {first + count - 1:,}"


def recompute(run: RunDir, step: int) -> Recomputed:
    """Make step `step` again. UsageError where the run has no such step, or no checkpoint before it."""
    past = read_past(run.must_exist())
    base = Resolved(base_recipe(run, past), {})
    before = newest_before(run, past, step)
    if before is None and past.init_from:
        raise UsageError(f"{run.path} has no checkpoint before step {step}: those before it were deleted")
    inputs = open_inputs(base)
    inputs.loader.micro_batch = base.recipe.train.micro_rows
    with (
        distributed(ParallelConfig(), base.recipe.train) as world,
        contextlib.closing(inputs.loader),
    ):
        job = silent_job(inputs, run, Start("resume", quiet=True))
        state = build_state(inputs, ParallelConfig(), world)
        state.layers, state.fewer_rows, state.saved_course = None, list(past.fewer_rows), job.saved_course
        state.guard = open_guard(job)
        if before is not None:
            state.read(before)
        else:
            state.fill(inputs.initial_values())
        state.loader.skip(past.skipped_ranges)
        course = _to_step(job, state, step)
        return _watch(job, state, course, "" if before is None else before.name)


def _to_step(job: Job, state: State, step: int) -> Course:
    """Make the steps up to `step` - 1; returns the settings in force at `step`."""
    course, judge = job.course.before(state.step), StepJudge(job, state)
    while True:
        while course.due(state.step) is not None:
            course = course.next()
            state.follow(course.recipe)
        if course.blend is not None:
            blend = course.blend
            state.use_activation(blend.before, blend.after, blend.share(state.tokens))
        if state.tokens >= course.length.tokens:
            raise UsageError(f"{job.run.path} ends with step {state.step}, so it has no step {step}")
        if state.step == step - 1:
            return course
        searching = state.engine.scaler is not None and not state.engine.scaler.spent
        made = take_step(job, state, course)
        state.skips_in_a_row = count_skips(state.skips_in_a_row, skipped=made.skipped, searching=searching)
        judge.after(made, course)  # what it clips and refuses is part of the step


def _watch(job: Job, state: State, course: Course, checkpoint: str) -> Recomputed:
    """Forward and backward of the next step, with hooks on every module."""
    step, engine = state.step + 1, state.engine
    found: list[tuple[str, str]] = []
    weights = (name for name, each in engine.model.named_parameters() if not _is_finite(each))
    found += [(name, "weights") for name in weights][:1]
    with _hooks(engine.model, found):
        batch, losses, _ = compute_gradients(job, state, course.length)
    loss = float(losses["loss"]) / max(batch.total_weight, 1.0)
    if not found and not torch.isfinite(losses["loss"]):
        found.append(("head", "loss"))
    gradients = (
        name for name, each in engine.named_parameters.items() if each.grad is not None and not _is_finite(each.grad)
    )
    found += [(name, "backward") for name in gradients][:1]
    samples = batch.first_sample, batch.num_samples
    if not found:
        return Recomputed(step, checkpoint, loss, True, samples=samples)
    return Recomputed(step, checkpoint, loss, False, *found[0], samples=samples)


@contextlib.contextmanager
def _hooks(model: nn.Module, found: list[tuple[str, str]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_hook(partial(_see, name or "model", found)).remove)
        yield


def _see(name: str, found: list[tuple[str, str]], _: nn.Module, __: Any, result: Any) -> None:
    """Note the first module whose output is not finite, and the first whose output's gradient is not."""
    for tensor in result if isinstance(result, tuple) else (result,):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        if not found and not _is_finite(tensor):
            found.append((name, "forward"))
        if tensor.requires_grad:
            tensor.register_hook(partial(_see_gradient, name, found))


def _see_gradient(name: str, found: list[tuple[str, str]], gradient: Tensor) -> None:
    if not found and not _is_finite(gradient):
        found.append((name, "backward"))


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
