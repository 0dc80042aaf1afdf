"""What the loop does for the guard: steps go to it, its findings to the ledger, and its decisions are carried out.

A decision is taken at a step boundary, on all ranks alike, and is in the ledger before anything changes. Going back is
a resume within the process: the next attempt reads the newest checkpoint from before the data that is left out. Which
checkpoint that is changes no bit of the run, since all that is decided takes effect where that data begins.
"""

import contextlib
import json
import math
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from hornbook.data.loader.loader import positions_of
from hornbook.data.validation import HeldOut
from hornbook.errors import DivergedError, UsageError, quoted
from hornbook.evals.evaluate import Evaluator
from hornbook.optim.config.schedule_base import Axis
from hornbook.run.checkpoints import bound
from hornbook.run.checkpoints.state import State
from hornbook.run.guard.guard import Guard, Seen
from hornbook.run.guard.policy import (
    LEAST_OVERLAY,
    LOWER_RATE,
    OVERLAY_FACTOR,
    OVERLAY_STEPS,
    Action,
    Detection,
    decide,
)
from hornbook.run.guard.unigram import unigram_loss
from hornbook.run.job.job import Job
from hornbook.run.ledger.interventions import Course, Intervention, Overlay, SettingChange, propose
from hornbook.run.ledger.step_report import Step, is_due
from hornbook.run.loop.async_checkpointer import AsyncCheckpointer
from hornbook.run.loop.intervene import Intervener
from hornbook.run.observe.observers import Observers

PROBE_TOKENS = 65_536
"""Most tokens of the held-out batch; it is no larger than a batch of training."""


def open_guard(job: Job) -> Guard | None:
    """The guard of a run; None where it is off."""
    recipe, length = job.recipe, job.length
    if recipe.guard.mode == "off":
        return None
    axis, warmup = Axis(length.planned, length.batches), getattr(recipe.optim.schedule, "warmup", None)
    steps = 0 if warmup is None else length.batches.steps(0, round(axis.tokens(warmup)))
    whole, unigram = length.batches.steps(0, length.planned), None
    with contextlib.suppress(OSError, LookupError, ValueError):  # the loader says what is wrong with data
        unigram = unigram_loss(recipe)
    return Guard(recipe.guard, steps=whole, warmup=steps, suppressed=job.start.suppressed, unigram=unigram)


class StepJudge:
    """Gives the steps of an attempt to its guard, and what the guard finds to the ledger."""

    def __init__(self, job: Job, state: State) -> None:
        self.job, self._state = job, state

    @property
    def verdict(self) -> int:
        """1 where a decision waits for the step boundary; ranks take the largest."""
        guard = self._state.guard
        return int(guard is not None and guard.pending is not None)

    def is_helpless(self, step: Step) -> bool:
        """Whether nothing but the end of the run follows from too many updates refused in a row."""
        guard = self._state.guard
        return guard is None or not guard.acts or (guard.pending is None and not self._seen(step).is_finite)

    # ---- after a step

    def after(self, step: Step, course: Course) -> None:
        """Give a step to the guard, and write to the ledger what it found and what was refused."""
        state, guard, found = self._state, self._state.guard, dict[str, Any]()
        if guard is not None:
            guard.config = course.recipe.guard
            found = self._judge(guard, replace(self._seen(step), rate=course.recipe.optim.lr))
        if step.skipped:
            self.job.ledger.note("skip", state, in_a_row=state.skips_in_a_row, **found, **step.evidence())
        if guard is None:
            return
        self._probe(guard, step)
        if guard.pending is not None and not guard.acts:
            action = self._decide(guard.pending, course)
            fields = {**guard.pending.fields(), "text": action.text}
            self.job.ledger.note("observed", state, would=action.kind, **fields)
            guard.let_go()
        if self._meets_stage(step):
            guard.meet_other_text()

    def _meets_stage(self, step: Step) -> bool:
        """Whether a stage of the mixture begins within this step or the next: what was usual is no measure for it."""
        loader = self._state.loader
        starts = [stage.first for stage in loader.index.stages[1:]]
        if not starts:
            return False
        last = positions_of(loader.clock, step.num_samples, loader.skipped)[-1]
        return any(step.first_sample < start <= last for start in starts)

    def _seen(self, step: Step) -> Seen:
        state, scaler = self._state, self._state.engine.scaler
        return Seen(
            step=step.step,
            loss=step.loss,
            norm=step.grad_norm,
            applied=not step.skipped,
            in_a_row=state.skips_in_a_row,
            clock=state.loader.clock - step.num_samples,
            rows=step.num_samples,
            scale=None if scaler is None else scaler.scale,
            targets=step.targets,
        )

    def _judge(self, guard: Guard, seen: Seen) -> dict[str, Any]:
        """Fields of the record of a refused step."""
        fields: dict[str, Any] = {}
        for finding in guard.judge(seen):
            match finding.rule:
                case "D1c" | "level":
                    self._note("spike" if finding.rule == "D1c" else "level", finding)
                case "D0":
                    fields = {"rule": "D0", **finding.inputs}
                case _:
                    kind = "clip" if finding.rule == "D1a" else "skip"
                    fields = {"rule": finding.rule, **finding.inputs}
                    if not guard.acts:
                        self._note("observed", finding, would=kind)
                    elif guard.suppresses(kind, seen.step):
                        self._note("suppressed", finding, decision=kind)
        return fields

    def _note(self, kind: str, finding: Detection, **fields: Any) -> None:
        self.job.ledger.note(kind, self._state, rule=finding.rule, onset=finding.onset, **finding.inputs, **fields)

    # ---- slow divergence

    def _probe(self, guard: Guard, step: Step) -> None:
        if not self._held_out or not guard.probe_every:
            return
        asked = guard.wants_probe
        if not asked and not is_due(step.step, guard.probe_every):
            return
        loss = self._probe_loss(step)
        z = guard.probed(step.step, loss)
        if asked or (z > 0 and guard.pending is not None):
            self.job.ledger.note("probe", self._state, loss=loss, z=z, asked=asked)

    def _probe_loss(self, step: Step) -> float:
        def proceed() -> bool:
            self.job.control.enter("evaluate", step)
            return True

        engine = self._state.engine
        with engine.weights_to_evaluate():
            report = self._evaluator.evaluate(engine, self._held_out, with_tasks=False, proceed=proceed)
        return report.objective

    @cached_property
    def _evaluator(self) -> Evaluator:
        inputs, recipe = self.job.inputs, self.job.recipe
        return Evaluator(inputs.corpus, inputs.tokenizer, recipe, recipe.train.sequence)

    @cached_property
    def _held_out(self) -> dict[str, HeldOut]:
        """The same rows at every probe; none where the data has no validation text."""
        inputs = self.job.inputs
        if not inputs.corpus.validation:
            return {}
        tokens = min(PROBE_TOKENS, inputs.recipe.train.batch_tokens)
        return self._evaluator.rows(max(tokens // len(inputs.corpus.validation), inputs.recipe.train.sequence))

    def _decide(self, finding: Detection, course: Course) -> Action:
        """course: the settings in force, with what people and the guard changed on the way."""
        guard = self._state.guard
        assert guard is not None
        words = guard.config.swaps
        if finding.rule == "rate":
            words = [f"optim.lr={course.recipe.optim.lr * LOWER_RATE:g}"]
        swaps = [word for word in words if self._changes(course, word)]
        ledger = self.job.ledger.now
        action = decide(finding, ledger.decisions, course.recipe.guard.mode, guard.spans, swaps)
        if not action.undo:
            return action
        undone = [each.describe() for each in ledger.interventions if each.step >= action.effective_step]
        return replace(action, text=f"{'; '.join(undone)} is undone")

    def _changes(self, course: Course, word: str) -> tuple[SettingChange, ...]:
        """What a setting would change; nothing where the run does not have it."""
        try:
            return propose(course.resolved, [word], self._state.matched_rate)
        except UsageError:
            return ()


class Recovery(StepJudge):
    """The guard's hands, for one attempt or several within a process."""

    def __init__(self, job: Job, state: State, saver: AsyncCheckpointer, observers: Observers) -> None:
        super().__init__(job, state)
        self._saver, self._observers, self._world = saver, observers, state.engine.world

    # ---- at a step boundary

    def act(self, intervener: Intervener) -> Intervener:
        """Decide about what is pending, and do it. DivergedError where the run pauses."""
        guard, job = self._state.guard, self.job
        assert guard is not None
        pending = guard.pending
        text = self._world.broadcast_text("" if pending is None else json.dumps(asdict(pending)))
        if not text:
            job.ledger.note("warning", self._state, text="ranks disagree about whether the run diverges")
            guard.let_go()
            return intervener
        finding = Detection(**json.loads(text))
        action = self._decide(finding, intervener.course)
        kind = "swap" if action.swap else "overlay" if action.overlay else action.kind
        if guard.suppresses(kind, self._state.step) or guard.suppresses(action.kind, self._state.step):
            self._note("suppressed", replace(finding, inputs={}), decision=kind, inputs=finding.inputs)
            guard.let_go()
            return intervener
        if action.kind == "pause":
            raise self._pause(finding, action.text)
        job.control.enter("save", self._state)
        self._saver.forget(self._state)
        checkpoint = self._saver.newest_up_to(action.effective_step)
        if not checkpoint:
            raise self._pause(finding, f"there is no checkpoint of step {action.effective_step:,} or before")
        return self._go_back(intervener, finding, action, checkpoint)

    def _pause(self, finding: Detection, why: str) -> DivergedError:
        job = self.job
        job.ledger.note("pause", self._state, **finding.fields(), text=why)
        guard = self._state.guard
        assert guard is not None
        evidence = job.run.incidents / f"guard-step-{self._state.step:08d}.json"
        if job.output.is_rank0:
            job.run.incidents.mkdir(exist_ok=True)
        job.output.write_json(evidence, {"finding": asdict(finding), "guard": guard.state()})
        typed_run = quoted(job.run.path)
        if finding.rule == "rate":
            return DivergedError(
                f"paused at step {self._state.step:,}: {finding.reason}, and {why}. Start again with a tenth of it: "
                f"`hornbook train {quoted(job.run.recipe)} --out NEW --optim.lr {job.recipe.optim.lr * LOWER_RATE:g}`"
            )
        return DivergedError(
            f"paused at step {self._state.step:,}: the run diverges since step {finding.onset:,} ({finding.reason}), "
            f"and {why}. `hornbook why {typed_run}@{finding.onset}` shows the text of these steps, {evidence.name} "
            f"in incidents/ what the guard saw. `hornbook resume {typed_run}` goes on from the newest checkpoint, "
            f"with a lower --optim.lr or a smaller --optim.clip{other_remedy(finding, guard, str(job.run.path))}"
        )

    def _go_back(self, intervener: Intervener, finding: Detection, action: Action, checkpoint: str) -> Intervener:
        job, state = self.job, self._state
        skipped = [self._window(action)] if action.first <= action.last else []
        made = self._intervention(intervener.course, action)
        fields: dict[str, Any] = {**finding.fields(), "effective_step": action.effective_step}
        fields |= {"left_out": action.last - action.first + 1, "windows": skipped, "checkpoint": checkpoint}
        if action.undo:
            fields |= {"undo": True, "recipe_before": bound.digest_of(job.run.recipe)}
        if made is not None:
            place = {"step": made.step, "tokens": made.tokens, "swap": action.swap}
            fields["intervention"] = {**place, **made.fields()}
            fields["recipe_before"] = bound.digest_of(job.run.recipe)
        job.ledger.note("rollback", state, **fields, text=action.text)
        self._observers.metrics.sync()
        self._observers.note(
            f"step {state.step:,}: the run diverges since step {finding.onset:,} ({finding.reason}); back to "
            f"{checkpoint}, {action.text}"
        )
        job.ledger.begin_attempt()
        start = replace(job.start, mode="resume", init_from=None, changes=(), ends_interventions=False)
        self.job = job = replace(job, start=start)
        if action.undo or made is not None:
            job.write_recipe()
        if intervener.course.blend is not None:
            blend = intervener.course.blend
            state.use_activation(blend.before, blend.after, 0.0)
        state.saved_course = job.saved_course
        self._saver.restore(state)
        past = job.ledger.past
        state.fewer_rows = list(past.fewer_rows)
        state.loader.skip(past.skipped_ranges)
        self._saver.pass_on_notes(state)
        self._observers.evaluation.losses.clear()
        return Intervener(job, self._world, state, self._observers, self._saver)

    def _window(self, action: Action) -> tuple[int, int]:
        """The half-open range of positions that the steps of an action read, or would."""
        guard, skipped = self._state.guard, self._state.loader.skipped
        assert guard is not None
        first, end = guard.clock_before(action.first), guard.clock_before(action.last + 1)
        return int(positions_of(first, 1, skipped)[0]), int(positions_of(end - 1, 1, skipped)[0]) + 1

    def _intervention(self, course: Course, action: Action) -> Intervention | None:
        """What changes where the window begins, beside the data."""
        guard, state = self._state.guard, self._state
        assert guard is not None
        step, sequence = action.effective_step, state.loader.index.sequence
        tokens = state.tokens - (state.loader.clock - guard.clock_before(action.first)) * sequence
        if action.swap:
            return Intervention(step, tokens, self._changes(course, action.swap))
        if not action.overlay:
            return None
        steps = guard.spans.of(OVERLAY_STEPS, LEAST_OVERLAY)
        span = round(course.length.batches.tokens_of(steps, tokens))
        return Intervention(step, tokens, overlay=Overlay(OVERLAY_FACTOR, span, span))


def other_remedy(finding: Detection, guard: Guard, run: str) -> str:
    """What else helps, to end a message: by what was found."""
    if finding.rule == "D0":
        return f"; `hornbook doctor {quoted(run)} --step {finding.onset}` names the first module that is not finite"
    if finding.rule == "D4":
        return "; or with --train.precision bf16, which needs no loss scale"
    if finding.rule != "D1b":
        return ""
    above = math.ceil(2 * max(guard.config.clip_z, *guard.state()["norm_zs"]))
    return (
        f"; if the text is sound and only new to the run, with --guard.clip_z {above} --guard.skip_norm_z {above}: "
        "then it is learned"
    )
