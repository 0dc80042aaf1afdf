"""Observers that run the model: validation losses and samples of text."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from hornbook.data.config.objectives import Infill
from hornbook.data.validation import HeldOut
from hornbook.errors import DivergedError, quoted
from hornbook.evals.evaluate import Evaluator, Report
from hornbook.evals.loss import LossScores
from hornbook.files.run_status import evaluations, fullest
from hornbook.model.config.head_config import LabelHeadConfig
from hornbook.model.config.replaced_config import ReplacedHead
from hornbook.model.generate.generate import generate
from hornbook.model.generate.prompts import MASK, encode_prompt, encode_spelled, fill_masks
from hornbook.parallel.engine import Engine
from hornbook.run.checkpoints.manifest import ValidationLoss
from hornbook.run.job.job import Job
from hornbook.run.ledger.ledger import Position
from hornbook.run.ledger.step_report import Step, is_due
from hornbook.run.observe.console import Console
from hornbook.settings.recipe import Recipe
from hornbook.text.tokenizer.tokenizer import Tokenizer

SAMPLE_TEMPERATURE, SAMPLE_TOP_K = 0.8, 50


CATCH_UPS = 8
"""How often in an interval of evaluations a postponed one is tried again."""


class TimeShare:
    """The share of a process's time that evaluations took, and whether another fits into `limit`.

    The first one is done at any rate: what it takes is known afterwards.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.training = self.evaluating = 0.0
        """Seconds of steps, and of evaluations."""
        self.losses = self.tasks = 0.0
        """Seconds that the last evaluation's losses took, and the last tasks."""
        self.owed = False
        """An evaluation was put off."""

    @property
    def share(self) -> float:
        """Share of evaluations in the time so far."""
        return self.evaluating / max(self.training + self.evaluating, 1e-9)

    def add(self, seconds: float, tasks: float | None) -> None:
        """Count an evaluation, of which `tasks` seconds were tasks; None: there were none."""
        self.evaluating += seconds
        self.losses = seconds - (tasks or 0.0)
        self.tasks = self.tasks if tasks is None else tasks
        self.owed = False

    def fits(self, seconds: float) -> bool:
        """Whether the share stays within the limit with so many seconds more."""
        return self.evaluating + seconds <= self.limit * (self.training + self.evaluating + seconds)

    @property
    def level(self) -> int:
        """What fits: 2 losses and tasks, 1 losses, 0 nothing yet."""
        if self.limit >= 1 or not self.evaluating or self.fits(self.losses + self.tasks):
            return 2
        return int(self.fits(self.losses))


class Evaluation:
    """Validation loss and bits-per-byte per source, every `eval.every` steps and at the end.

    Every evaluation scores the same rows, `eval.tokens` of each source, so that losses can be compared along the run:
    `checkpoint.best` rests on them. After the last step, once it is saved, all rows are scored too.
    """

    def __init__(self, job: Job, engine: Engine, consoles: Sequence[Console]) -> None:
        self._job, self._engine, self._consoles = job, engine, consoles
        inputs, recipe = job.inputs, job.recipe
        self._evaluator = Evaluator(inputs.corpus, inputs.tokenizer, recipe, recipe.train.sequence)
        if recipe.eval.tasks:
            self._evaluator.tasks  # noqa: B018 - made now: a file that is changed later does not end the run
        self.time = TimeShare(recipe.eval.share)
        self.losses: dict[int, ValidationLoss] = {}
        """Validation loss of this attempt by step."""

    def __call__(self, step: Step) -> None:
        if not self._job.inputs.corpus.validation:
            return
        self.time.training += step.seconds
        every = self._job.recipe.eval.every
        due = is_due(step.step, every)
        if step.final:
            self._evaluate(step, last=True)
        elif due or (self.time.owed and is_due(step.step, max(every // CATCH_UPS, 1))):
            self._evaluate_in_time(step, due=due)

    def _evaluate_in_time(self, step: Step, *, due: bool) -> None:
        """Evaluate as much as `eval.share` allows, by the clock of rank 0."""
        level = self.time.level if self.time.limit >= 1 else self._engine.world.broadcast(self.time.level)
        said = f"evaluations took {self.time.share:.1%} of the time, and eval.share is {self.time.limit:.1%}"
        self.time.owed = level == 0
        if level == 1 and self._job.recipe.eval.tasks:
            self._note(f"tasks are left out: {said}")
        elif level == 0 and due:
            self._note(f"evaluation comes later: {said}")
        if level:
            self._evaluate(step, with_tasks=level == 2)

    def score_start(self, at: Position) -> None:
        """Score imported weights before the first step, unless an earlier attempt did."""
        done = self._job.output.is_rank0 and self._record(at.step) is not None
        if self._job.inputs.corpus.validation and not self._engine.world.all_reduce_max([done])[0]:
            self._evaluate(at)

    @cached_property
    def _rows(self) -> dict[str, HeldOut]:
        return self._evaluator.rows(self._job.recipe.eval.tokens)

    def _evaluate(self, at: Position, *, last: bool = False, with_tasks: bool = True) -> None:
        started = time.monotonic()
        report = self._score(self._rows, at, last=last, with_tasks=with_tasks)
        self.time.add(time.monotonic() - started, report.task_seconds if with_tasks else None)
        if self._gives_way(at, last=last):
            return
        record = report.as_dict()
        named = "objective " * ("objective" in record["all"])  # earlier versions went by the generator's loss
        self.losses[at.step] = ValidationLoss(report.objective, named + record["rows"])
        self._write(at.step, self._position(at) | {"seconds": round(time.monotonic() - started, 3)} | record)
        self._job.ledger.note("evaluation", at, **record)
        self._show_scores(report)

    def _position(self, at: Position) -> dict[str, Any]:
        average = self._job.recipe.train.average
        weights = {"weights": "average"} if average.kind != "none" and average.evaluate else {}
        share = {"share": round(self.time.share, 4)} if self.time.limit < 1 else {}
        return {"attempt": self._job.ledger.attempt, "step": at.step, "tokens": at.tokens} | weights | share

    def score_all(self, at: Position) -> None:
        """Score every validation token at the end of the run, unless that was done. A stop signal ends it early."""
        if not self._job.inputs.corpus.validation or self._has_all(at.step):
            return
        started = time.monotonic()
        report = self._score({name: part.whole for name, part in self._rows.items()}, at, with_tasks=False)
        if self._gives_way(at):
            self._note(f"not all validation text was scored; `hornbook eval {quoted(self._job.run.path)}` does it")
            return
        record = report.as_dict()
        before = self._record(at.step) or self._position(at) | record
        whole = {"seconds": round(time.monotonic() - started, 3)} | record
        self._write(at.step, before | {"whole": whole})
        self._job.ledger.note("evaluation", at, whole=record)
        self._show_scores(report)

    def _has_all(self, step: int) -> bool:
        """Whether the record of this step covers all rows; ranks learn it from rank 0."""
        record = self._record(step) if self._job.output.is_rank0 else None
        done = record is not None and fullest(record)["all"].get("read") == sum(part.of for part in self._rows.values())
        return bool(self._engine.world.all_reduce_max([done])[0])

    def _record(self, step: int) -> dict[str, Any] | None:
        return next((each for each in evaluations(self._job.run) if each.get("step") == step), None)

    def _write(self, step: int, record: dict[str, Any]) -> None:
        self._job.output.write_json(self._job.run.evals / f"step-{step:08d}.json", record)

    def _show_scores(self, report: Report) -> None:
        total = report.total
        for console in self._consoles:
            if isinstance(total, LossScores):
                console.scored(total.bits_per_byte, report.coverage)
        self._note(f"validation loss {total.loss:.4f}, {total.summary}, on {report.coverage}")
        for name, scores in report.tasks.items():
            self._note(f"{name}: {scores.summary}")

    def _note(self, text: str) -> None:
        for console in self._consoles:
            console.note(text)

    def _gives_way(self, at: Position, *, last: bool = False) -> bool:
        """Whether a stop was requested: an unfinished evaluation is dropped, except after the last step."""
        self._job.control.enter("evaluate", at)
        (interrupted,) = self._engine.world.all_reduce_max([self._job.control.interrupted])
        return bool(interrupted) and not last

    def _score(
        self, rows: Mapping[str, HeldOut], at: Position, *, last: bool = False, with_tasks: bool = True
    ) -> Report:
        with self._engine.weights_to_evaluate():
            return self._evaluator.evaluate(
                self._engine, rows, with_tasks=with_tasks, proceed=lambda: not self._gives_way(at, last=last)
            )


class Samples:
    """Text made of a fixed prompt with a fixed seed: a decoder continues it, others fill its masks or its end."""

    def __init__(self, job: Job, engine: Engine, consoles: Sequence[Console]) -> None:
        self._job, self._engine, self._consoles = job, engine, consoles
        self._every = job.recipe.eval.sample_every or job.recipe.eval.every
        labelled = isinstance(job.recipe.model.head, LabelHeadConfig | ReplacedHead)  # such a model predicts no text
        staged = job.recipe.parallel.pipeline.stages > 1  # no rank has the whole model
        self._prompt = "" if labelled or staged else job.recipe.eval.prompt
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []

    def __call__(self, step: Step) -> None:
        prompt = self._prompt
        if not prompt or not (step.final or is_due(step.step, self._every)):
            return
        with self._engine.weights_to_evaluate():
            try:
                text = self._fill(prompt) if self._job.recipe.model.kind == "encoder" else self._continue(prompt, step)
            except DivergedError as error:  # on all ranks alike; whether the run ends is the guard's to say
                for console in self._consoles:
                    console.note(f"no sample: {error}")
                return
        record = {"attempt": step.attempt, "step": step.step, "tokens": step.tokens, "prompt": prompt, "text": text}
        self._job.output.write_json(self._job.run.samples / f"step-{step.step:08d}.json", record)
        for console in self._consoles:
            console.note(f"sample {prompt}{text}")
        for listener in self.listeners:
            listener(record)

    def _continue(self, prompt: str, step: Step) -> str:
        tokenizer, recipe = self._job.inputs.tokenizer, self._job.recipe
        with self._engine.evaluation_mode() as model:
            text = prompt if model.encoder is None else prompt + _hole(recipe, tokenizer)
            begun = encode_prompt(model, tokenizer, text, self._job.inputs.decoder_start)
            made = generate(
                model,
                begun.tokens,
                memory=begun.memory,
                max_tokens=recipe.eval.sample_tokens,
                temperature=SAMPLE_TEMPERATURE,
                top_k=SAMPLE_TOP_K,
                seed=recipe.seed,
                stop=(tokenizer.end_id,),
                vocab=tokenizer.vocab_size,
                length=recipe.model.position.length,
                agree=self._engine.world.broadcast,
            )
            tokens = []
            self._job.control.enter("sample", step)
            for token in made:
                self._job.control.enter("sample", step)
                tokens.append(token)
            return tokenizer.decode(tokens)

    def _fill(self, prompt: str) -> str:
        """The likeliest tokens for each mask in the prompt, or for one after it."""
        tokenizer = self._job.inputs.tokenizer
        mask = "" if any(each in prompt for each in (MASK, _hole(self._job.recipe, tokenizer).strip())) else f" {MASK}"
        with self._engine.evaluation_mode() as model:
            tokens = encode_spelled(tokenizer, prompt + mask)
            found = fill_masks(model, tokens, tokenizer.special.mask, tokenizer.vocab_size, count=3)
            return f"{mask}: {'; '.join(each.describe(tokenizer) for each in found)}"


def _hole(recipe: Recipe, tokenizer: Tokenizer) -> str:
    """The token for missing text, as in training: a mask, or the first sentinel; "" where there is none."""
    special = tokenizer.special
    masks = recipe.model.kind == "encoder" or isinstance(recipe.data.objective, Infill) or not special.sentinels
    missing = special.mask if masks else special.sentinels[0]
    return "" if missing is None else tokenizer.decode([missing])
