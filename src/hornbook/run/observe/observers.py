"""Observers of the loop: each is called with every finished `Step`, looks, and touches nothing.

None of them draws from a generator, leaves a gradient or changes a mode: with and without them a run has the
same bits (a test holds them to it).
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from hornbook.data.config.objectives import Infill
from hornbook.data.validation import HeldOut
from hornbook.errors import StorageError
from hornbook.evals.corpus import Scores, score_rows, validation_rows
from hornbook.evals.loss import Score
from hornbook.files.journal import Appender
from hornbook.files.run_directory import StateRecord, Status
from hornbook.files.run_status import evaluations, fullest
from hornbook.model.config.head import LabelHeadConfig
from hornbook.model.generate.generate import generate
from hornbook.model.generate.prompts import encode_prompt, encode_spelled, fill_masks
from hornbook.parallel.engine import Engine
from hornbook.run.checkpoints.manifest import Figure
from hornbook.run.horizon import Horizon
from hornbook.run.job import Job
from hornbook.run.ledger import Position, SilentAppender
from hornbook.run.observe.console import Console
from hornbook.run.observe.event_files import EventFiles
from hornbook.run.step_report import Step
from hornbook.settings.recipe import Recipe
from hornbook.text.tokenizer.tokenizer import Tokenizer

Observer = Callable[[Step], None]

HEARTBEAT_SECONDS = 1.0
SAMPLE_TEMPERATURE, SAMPLE_TOP_K = 0.8, 50


class Metrics:
    """One line in metrics.jsonl per step."""

    def __init__(self, appender: Appender | SilentAppender) -> None:
        self._appender = appender

    def __call__(self, step: Step) -> None:
        self._appender.append(step.record())

    def sync(self) -> None:
        """Return when every line is on disk: a checkpoint must not be newer than the record of its steps."""
        self._appender.check()
        self._appender.sync()

    @property
    def extent(self) -> dict[str, Any]:
        """What the file holds, for the ledger (`Appender.extent`)."""
        return self._appender.extent


@dataclass(frozen=True)
class _Last:
    attempt: int = 0
    step: int = 0
    tokens: int = 0
    loss: float | None = None


class Heartbeat:
    """state.json, at most once a second: where the run is and that it lives."""

    def __init__(self, write: Callable[[StateRecord], None], owner: Mapping[str, Any], total_tokens: int) -> None:
        self._write_state, self._owner, self._total_tokens = write, owner, total_tokens
        self._written = -HEARTBEAT_SECONDS
        self._last = _Last()

    def __call__(self, step: Step) -> None:
        self._last = _Last(step.attempt, step.step, step.tokens, step.loss)
        if time.monotonic() - self._written >= HEARTBEAT_SECONDS:
            self.beat("running")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.beat("stopped" if issubclass(kind, KeyboardInterrupt) else "failed")

    def start(self, attempt: int, at: Position) -> None:
        """Say that the run is up, before its first step."""
        self._last = _Last(attempt, at.step, at.tokens)
        self.beat("running")

    def expect(self, total_tokens: int) -> None:
        """The run has become shorter."""
        self._total_tokens = total_tokens

    def beat(self, status: Status) -> None:
        """Write the file now."""
        last = self._last
        record: StateRecord = {
            "attempt": last.attempt,
            "step": last.step,
            "tokens": last.tokens,
            "status": status,
            "heartbeat": time.time(),
            "total_tokens": self._total_tokens,
            "loss": last.loss,
            "pid": self._owner["pid"],
            "host": self._owner["host"],
            "boot": self._owner["boot"],
            "started": self._owner["started"],
        }
        with contextlib.suppress(StorageError):  # the next beat tries again; a save reports the disk
            self._write_state(record)
        self._written = time.monotonic()


class Evaluation:
    """Validation loss and bits-per-byte per source, every `eval.every` steps and at the end.

    Each evaluation is over the same rows, `eval.tokens` of each source, so that its figures can be compared along the
    run: `checkpoint.best` rests on them. After the last step, once it is saved, all rows are scored too.
    """

    def __init__(self, job: Job, engine: Engine, show: Sequence[Console]) -> None:
        self._job, self._engine, self._show = job, engine, show
        self._token_bytes = job.inputs.tokenizer.token_bytes()
        self.newest: tuple[int, Figure] | None = None
        """(step, figure) of the newest evaluation of this attempt."""

    def __call__(self, step: Step) -> None:
        if self._job.inputs.corpus.validation and (step.final or is_due(step.step, self._job.recipe.eval.every)):
            self._evaluate(step, last=step.final)

    def score_start(self, at: Position) -> None:
        """Score weights that were trained elsewhere before the first step here, unless that was done."""
        done = self._job.place.is_rank0 and self._record(at.step) is not None
        if self._job.inputs.corpus.validation and not self._engine.world.all_reduce_max([done])[0]:
            self._evaluate(at)

    @cached_property
    def _rows(self) -> dict[str, HeldOut]:
        recipe = self._job.recipe
        return validation_rows(self._job.inputs.corpus, recipe, recipe.train.sequence, recipe.eval.tokens)

    def _evaluate(self, at: Position, *, last: bool = False) -> None:
        started = time.monotonic()
        scores = self._score(self._rows, at, last=last)
        if self._gives_way(at, last=last):
            return
        report = scores.report()
        self.newest = (at.step, Figure(scores.total.loss, report["rows"]))
        self._write(at.step, self._position(at) | {"seconds": round(time.monotonic() - started, 3)} | report)
        self._job.ledger.note("evaluation", at, **report)
        self._tell(scores)

    def _position(self, at: Position) -> dict[str, Any]:
        return {"attempt": self._job.ledger.attempt, "step": at.step, "tokens": at.tokens}

    def score_all(self, at: Position) -> None:
        """Score every validation token at the end of the run, unless that was done; someone who interrupts ends it."""
        if not self._job.inputs.corpus.validation or self._has_all(at.step):
            return
        started = time.monotonic()
        scores = self._score({name: part.whole for name, part in self._rows.items()}, at)
        if self._gives_way(at):
            self._say(f"not all validation text was scored; `hornbook eval {self._job.run.path}` does it")
            return
        report = scores.report()
        before = self._record(at.step) or self._position(at) | report
        whole = {"seconds": round(time.monotonic() - started, 3)} | report
        self._write(at.step, before | {"whole": whole})
        self._job.ledger.note("evaluation", at, whole=report)
        self._tell(scores)

    def _has_all(self, step: int) -> bool:
        """Whether the figures of this step are over all rows; all ranks take it from the one that leads."""
        record = self._record(step) if self._job.place.is_rank0 else None
        done = record is not None and fullest(record)["all"].get("read") == sum(part.of for part in self._rows.values())
        return bool(self._engine.world.all_reduce_max([done])[0])

    def _record(self, step: int) -> dict[str, Any] | None:
        return next((each for each in evaluations(self._job.run) if each.get("step") == step), None)

    def _write(self, step: int, record: dict[str, Any]) -> None:
        self._job.write(self._job.run.evals / f"step-{step:08d}.json", json.dumps(record, indent=2) + "\n")

    def _tell(self, scores: Scores) -> None:
        total = scores.total
        for console in self._show:
            if isinstance(total, Score):
                console.scored(total.bits_per_byte, scores.coverage)
        self._say(f"validation loss {total.loss:.4f}, {total.summary}, on {scores.coverage}")

    def _say(self, text: str) -> None:
        for console in self._show:
            console.note(text)

    def _gives_way(self, at: Position, *, last: bool = False) -> bool:
        """Whether someone waits for the run to stop: half an evaluation is dropped, the last step's is not."""
        self._job.pulse.enter("evaluate", at)
        (interrupted,) = self._engine.world.all_reduce_max([self._job.inbox.interrupted])
        return bool(interrupted) and not last

    def _score(self, rows: Mapping[str, HeldOut], at: Position, *, last: bool = False) -> Scores:
        micro_batch = self._job.recipe.train.micro_batch
        return score_rows(
            self._engine,
            self._job.inputs.corpus,
            rows,
            self._token_bytes,
            micro_batch=micro_batch,
            going=lambda: not self._gives_way(at, last=last),
        )


class Samples:
    """What the model makes of a fixed prompt, with a fixed seed, so that one sees it learn.

    A decoder continues it, an encoder-decoder answers to it with a hole at its end, an encoder fills one there.
    """

    def __init__(self, job: Job, engine: Engine, show: Sequence[Console]) -> None:
        self._job, self._engine, self._show = job, engine, show
        self._every = job.recipe.eval.sample_every or job.recipe.eval.every
        labelled = isinstance(job.recipe.model.head, LabelHeadConfig)  # such a model says labels, not text
        self._prompt = "" if labelled else job.recipe.eval.prompt

    def __call__(self, step: Step) -> None:
        if self._prompt and (step.final or is_due(step.step, self._every)):
            self._sample(step)

    def _sample(self, step: Step) -> None:
        prompt = self._prompt
        text = self._fill(prompt) if self._job.recipe.model.kind == "encoder" else self._continue(prompt, step)
        record = {"attempt": step.attempt, "step": step.step, "tokens": step.tokens, "prompt": prompt, "text": text}
        self._job.write(self._job.run.samples / f"step-{step.step:08d}.json", json.dumps(record, indent=2) + "\n")
        for console in self._show:
            console.note(f"sample {prompt}{text}")

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
            self._job.pulse.enter("sample", step)
            for token in made:
                self._job.pulse.enter("sample", step)
                tokens.append(token)
            return tokenizer.decode(tokens)

    def _fill(self, prompt: str) -> str:
        """The likeliest token behind the prompt, of a model that sees both ways."""
        tokenizer = self._job.inputs.tokenizer
        with self._engine.evaluation_mode() as model:
            tokens = encode_spelled(tokenizer, prompt + _hole(self._job.recipe, tokenizer))
            (found,) = fill_masks(model, tokens, tokenizer.special.mask, tokenizer.vocab_size, count=1)
            return f" [{tokenizer.decode(found.tokens).strip()}]"


def _hole(recipe: Recipe, tokenizer: Tokenizer) -> str:
    """What stands for missing text where it was learned: a mask, or the first sentinel."""
    special = tokenizer.special
    masks = recipe.model.kind == "encoder" or isinstance(recipe.data.objective, Infill) or not special.sentinels
    missing = special.mask if masks else special.sentinels[0]
    return "" if missing is None else tokenizer.decode([missing])


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every `every` steps (0: never) happens after step `step`."""
    return every > 0 and step % every == 0


@dataclass(frozen=True)
class Observers:
    """All observers of a run, in the order in which they are called."""

    metrics: Metrics
    heartbeat: Heartbeat
    consoles: list[Console]
    evaluation: Evaluation
    samples: Samples
    event_files: list[EventFiles]

    def __iter__(self) -> Iterator[Observer]:
        yield from (self.metrics, self.heartbeat, *self.consoles, *self.event_files, self.evaluation, self.samples)

    @property
    def notes(self) -> list[Callable[[str], None]]:
        """Where a line for people goes."""
        return [console.note for console in self.consoles]

    def shorten(self, step: int, horizon: Horizon) -> None:
        """The run has become shorter after a step: people hear of it, and all figures of its length follow."""
        self.heartbeat.expect(horizon.tokens)
        for console in self.consoles:
            console.shorten(step, horizon.steps_from(0), horizon.tokens)

    def score(self, step: int) -> Figure | None:
        """What was measured at this very step, if something was."""
        newest = self.evaluation.newest
        return newest[1] if newest is not None and newest[0] == step else None


@contextlib.contextmanager
def open_observers(job: Job, engine: Engine, consoles: list[Console]) -> Iterator[Observers]:
    """Everything that looks at the run; on an exception the heartbeat says `failed`. Only the leader's say a word."""
    with contextlib.ExitStack() as stack:
        if job.place.is_rank0:
            lines = stack.enter_context(Appender(job.run.metrics, sync_seconds=job.recipe.log.sync_seconds))
            write = job.run.write_state
        else:
            lines, write = SilentAppender(), _drop
        heartbeat = stack.enter_context(Heartbeat(write, job.owner, job.horizon.tokens))
        evaluation, samples = Evaluation(job, engine, consoles), Samples(job, engine, consoles)
        event_files = _open_event_files(job, consoles, stack)
        yield Observers(Metrics(lines), heartbeat, consoles, evaluation, samples, event_files)


def _open_event_files(job: Job, consoles: Sequence[Console], stack: contextlib.ExitStack) -> list[EventFiles]:
    """TensorBoard's, where they are asked for."""
    if not (job.place.is_rank0 and job.recipe.log.tensorboard):
        return []

    def tell(text: str) -> None:
        for console in consoles:
            console.note(text)

    files = stack.enter_context(EventFiles(job.run, tell))
    job.ledger.listeners.append(files.hear)
    return [files]


def _drop(record: StateRecord) -> None:
    """Where the heartbeat of a rank goes that does not lead."""
