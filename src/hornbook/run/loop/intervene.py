"""Changes of settings at a step boundary, on all ranks alike: those of the ledger again, then new requests.

Rank 0 reads a request; all ranks judge it in the same way. It is refused as a whole, or written to the ledger, before
anything changes. Then its file goes, and the state follows.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

from hornbook.errors import UsageError
from hornbook.optim.config.optim import AnyOptimizer
from hornbook.parallel.world import World
from hornbook.run.checkpoints import bound
from hornbook.run.checkpoints.state import State
from hornbook.run.job.control import Request
from hornbook.run.job.job import Job
from hornbook.run.job.run_inputs import load_kernels
from hornbook.run.ledger.interventions import (
    ActivationBlend,
    Course,
    Intervention,
    propose,
    rewarm_tokens,
    span_tokens,
)
from hornbook.run.ledger.ledger import At
from hornbook.run.ledger.training_length import TrainingLength, check_schedule, sets_schedule
from hornbook.run.loop.async_checkpointer import AsyncCheckpointer
from hornbook.run.observe.observers import Observers

ACTIVATION = "model.mlp.activation"


class Intervener:
    """Keeps the settings in force of one attempt."""

    def __init__(self, job: Job, world: World, state: State, observers: Observers, saver: AsyncCheckpointer) -> None:
        self._job, self._world, self._state, self._observers, self._saver = job, world, state, observers, saver
        self.course = job.course.before(state.step)
        """The settings in force at the next step."""
        if state.optimizer.config != self.course.recipe.optim:  # settings of a resume ended interventions
            saver.forget(state)
            state.follow(self.course.recipe)
        self.blend()

    def __call__(self, requests: int) -> Course:
        """Make the changes that are due before the next step; `requests`: how many new ones rank 0 has."""
        while (due := self.course.due(self._state.step)) is not None:
            self._follow(self.course.next(), due)
        for file, request in self._requests(requests):
            try:
                intervention, course = self._judge(request)
            except UsageError as error:
                self._job.control.refuse(file, self._state, str(error))
                self._observers.note(f"refused at step {self._state.step:,}: {error}")
            else:
                if (guard := self._state.guard) is not None and guard.acts and self._guards(course, intervention):
                    self._job.control.enter("save", self._state)
                    self._saver.save(self._state)  # the guard goes back here if the change does harm
                self._record(file, request, intervention, course)
                if course.blend is not None and course.blend is not self.course.blend:
                    self._measure(course, course.blend)
                self._follow(course, intervention)
        return self.course

    def _requests(self, count: int) -> Iterator[tuple[str, Request]]:
        for _ in range(count):
            taken = self._job.control.take_change()
            text = "" if taken is None else json.dumps([taken[0], taken[1].model_dump_json()])
            file, request = json.loads(self._world.broadcast_text(text))
            yield file, Request.model_validate_json(request)

    def _judge(self, request: Request) -> tuple[Intervention, Course]:
        """(the intervention that a request asks for, the course after it). UsageError where it cannot be."""
        course, at = self.course, At(self._state.step, self._state.tokens)
        changes = propose(course.resolved, request.settings, self._state.matched_rate)
        activation = any(each.key == ACTIVATION for each in changes)
        if request.blend is not None and not activation:
            raise UsageError(f"a blend belongs to a change of {ACTIVATION}")
        length = course.after(Intervention(at.step, at.tokens, changes)).length  # steps are those from here on
        rewarm = None if request.rewarm is None else span_tokens(request.rewarm, length, at.tokens)
        rewarm = rewarm_tokens(changes, length, at.tokens) if rewarm is None else rewarm
        blend = span_tokens(request.blend, length, at.tokens)
        intervention = Intervention(at.step, at.tokens, changes, rewarm, blend)
        after = course.after(intervention)
        if any(sets_schedule(each.key) for each in changes):
            check_schedule(after.recipe.optim.schedule, after.recipe.train.average, after.length)
        after.to_end()  # what the ledger says of later steps must fit
        if after.recipe.optim != course.recipe.optim:
            self._try_optimizer(after.recipe.optim)
        return intervention, after

    def _try_optimizer(self, config: AnyOptimizer) -> None:
        """Raise UsageError where an optimizer cannot be built, or cannot update a parameter."""
        try:
            self._state.new_optimizer(config)
        except (ValueError, TypeError) as error:  # of a rule from outside
            raise UsageError(f"optim.kind: {type(config).__name__} cannot be built: {error}") from error

    def _record(self, file: str, request: Request, intervention: Intervention, course: Course) -> None:
        """Write it to the ledger, then to recipe.toml, then remove the request."""
        job, fields = self._job, intervention.fields()
        before = bound.digest_of(job.run.recipe)
        text = {"reason": request.reason, "text": intervention.describe(), "file": file, "recipe_before": before}
        job.ledger.note("intervention", self._state, **fields, **text)
        job.output.write(job.run.recipe, course.to_end().resolved.to_toml())
        job.control.remove(file)

    def _follow(self, course: Course, intervention: Intervention) -> None:
        state = self._state
        if course.recipe.optim != self.course.recipe.optim:
            self._saver.forget(state)
            state.follow(course.recipe)
        if course.recipe.model != self.course.recipe.model:
            self._job.control.enter("setup", state)
            load_kernels(course.recipe.model, course.recipe.train, state.spec.vocab)
            self._job.control.heartbeat.expect_change()
        if self._guards(course, intervention) and state.guard is not None:
            span = intervention.rewarm_tokens
            state.guard.change(state.step, course.length.batches.steps(state.tokens, state.tokens + span))
        elif course.recipe != self.course.recipe and state.guard is not None:
            state.guard.rearm()  # what was usual is no measure for other settings
        growth = course.length.rows(state.tokens) / self.course.length.rows(state.tokens)
        if growth > 1:
            self._job.control.heartbeat.expect_growth(growth)
        self.course = course
        self.blend()
        self._observers.change(course)
        rate = f"the learning rate of step {state.step + 1:,} is {course.learning_rate(state.tokens):.3g}"
        self._observers.note(f"changed after step {state.step:,}: {intervention.describe()}; {rate}")

    def _guards(self, course: Course, intervention: Intervention) -> bool:
        """Whether a person changes the optimizer or the batch: the guard compares with the loss before."""
        new, old = course.recipe, self.course.recipe
        if (new.optim, new.train.batch_tokens) == (old.optim, old.train.batch_tokens):
            return False
        swaps = (each.effective_step for each in self._job.ledger.now.decisions if each.kind == "swap")
        return new.model == old.model and intervention.step not in swaps

    def blend(self) -> None:
        """Give the MLPs the activation of the next step."""
        if (blend := self.course.blend) is not None:
            self._state.use_activation(blend.before, blend.after, blend.share(self._state.tokens))

    def _measure(self, course: Course, blend: ActivationBlend) -> None:
        """Write to the ledger how the loss changes with the new activation, on rows that are trained on next."""
        state, rows = self._state, self._state.micro_batch
        self._job.control.enter("evaluate", state)
        before = state.probe(rows)
        load_kernels(blend.after, course.recipe.train, state.spec.vocab)
        state.use_activation(blend.before, blend.after, 1.0)
        after = state.probe(rows)
        state.use_activation(blend.before, blend.after, 0.0)
        text = f"loss {before:.4f} with the old activation, {after:.4f} with the new one"
        self._job.ledger.note("activation", state, text=text, loss_before=before, loss_after=after, rows=rows)
        self._observers.note(text)

    def shorten(self, length: TrainingLength) -> None:
        """Go on with another length."""
        self.course = replace(self.course, length=length)
