"""Trains a run again from its ledger, in a new run directory, with all decisions of the first time or without one.

The ledger of the new run begins with the recipe and the decisions of the old one, so that its first attempt is a resume
that knows them all: it makes the same steps again as any restart does. Where settings were changed on a resume, the new
run stops and is resumed with the same changes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hornbook.errors import DivergedError, Exit, IntegrityError, UsageError, quoted
from hornbook.evals.config import NoStop
from hornbook.files.durable import write_atomic
from hornbook.files.filesystem import is_file, is_folder
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import steps_that_count
from hornbook.run.checkpoints.bound import recipe_in_force
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.job import Start
from hornbook.run.job.start.init_from import InitFrom
from hornbook.run.job.start.run_anchor import keep_fisher
from hornbook.run.launch.launch import launch
from hornbook.run.ledger.interventions import sorted_by_step
from hornbook.run.ledger.ledger import At, Ledger, check_ledger, read_past
from hornbook.run.machine.environment import bits_depend_on
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved

OF_PEOPLE = ("intervention", "shorten")
"""Kinds of records that a replay can do without, by leaving them out."""
OF_GUARD = ("skip", "rollback", "pause")
"""Kinds of decisions that the guard would take again, and has to be kept from."""
_OWN = ("sha", "prev", "attempt", "time", "recipe_before")
"""Fields of a record that a copy in another ledger has of its own."""


@dataclass(frozen=True)
class DecisionRecord:
    """A record of the ledger that changed the steps behind it."""

    record: Mapping[str, Any]

    @property
    def id(self) -> str:
        """How it is named on the command line: the beginning of its `sha`."""
        return str(self.record.get("sha", ""))[:10]

    @property
    def begins(self) -> int:
        """Steps done before the first that it changes."""
        record = self.record
        return int(record.get("effective_step", record["step"] - (record["kind"] == "skip")))

    @property
    def text(self) -> str:
        """What was decided, for people."""
        record = self.record
        if record.get("text"):
            return str(record["text"])
        ranges = ", ".join(f"samples {first:,} to {end - 1:,}" for first, end in record.get("windows", ()))
        changes = ", ".join(f"{each['key']} {each['old']} -> {each['new']}" for each in record.get("changes", ()))
        spent = f"{record['before']:,} -> {record['length']:,} tokens" if record["kind"] == "shorten" else ""
        rule = _why(record)
        return "; ".join(part for part in (rule, f"{ranges} skipped" * bool(ranges), changes, spent) if part)


def _why(record: Mapping[str, Any]) -> str:
    """What the guard went by."""
    if record.get("rule") == "D0":
        return "not finite"
    names = {"z_norm": "gradient norm", "z_loss": "loss"}
    return ", ".join(f"{name} z {record[key]:.1f}" for key, name in names.items() if key in record)


@dataclass(frozen=True)
class ReplaySegment:
    """Steps under one recipe, but for the decisions made on the way."""

    recipe: Recipe
    first: int
    """Steps done at its beginning."""
    end: int
    """Steps done at its end."""
    decisions: tuple[DecisionRecord, ...]
    """Those that the ledger has at its end, and not at its beginning."""
    ends_interventions: bool = False
    """Whether the resume that it begins with took the place of the interventions before."""


@dataclass(frozen=True)
class ReplayPlan:
    """How a run is trained again."""

    run: RunDir
    segments: tuple[ReplaySegment, ...]
    init_from: InitFrom | None
    without: DecisionRecord | None = None

    @property
    def first(self) -> int:
        """Steps done at the beginning."""
        return self.segments[0].first

    @property
    def end(self) -> int:
        """Steps done at the end."""
        return self.segments[-1].end

    @property
    def suppressed(self) -> frozenset[tuple[str, int]]:
        """What the guard is kept from deciding again."""
        if self.without is None or self.without.record["kind"] not in OF_GUARD:
            return frozenset()
        return frozenset({(str(self.without.record["kind"]), int(self.without.record["step"]))})

    @property
    def decisions(self) -> list[DecisionRecord]:
        """All that are made again, up to the end."""
        every = [each for segment in self.segments for each in segment.decisions]
        return [each for each in every if each != self.without and each.begins < self.end]

    def environments(self, out: RunDir) -> list[str]:
        """How the environments of the later attempts, and of the replay, differ from that of the first."""
        found = [record.get("environment", {}).get("changed", ()) for record in read_records(self.run.events)]
        first, here = (_bits(each) for each in (self.run, out))
        now = [
            f"{key}: {first[key]} -> {here[key]} here" for key in first.keys() & here.keys() if first[key] != here[key]
        ]
        return list(dict.fromkeys(text for changed in [*found, sorted(now)] for text in changed))


def list_decisions(run: RunDir) -> list[DecisionRecord]:
    """The decisions in the ledger of a run, in order."""
    return [DecisionRecord(record) for record in _records(run) if _decides(record)]


def plan_replay(
    run: RunDir, first: int | None = None, end: int | None = None, without: str | None = None
) -> ReplayPlan:
    """How the steps after `first` (None or 0: all) up to `end` (None: the last) are done again.

    Raises UsageError where the run does not have them, or no such decision; IntegrityError for a damaged ledger.
    """
    check_ledger(run.must_exist())
    first = first or None
    steps = steps_that_count(run)
    last = int(steps[-1]["step"]) if steps else 0
    end = last if end is None else end
    if not (first or 0) < end <= last:
        raise UsageError(f"{run.path} has {last:,} steps: --from and --to name two of them, the first below the second")
    dropped = None if without is None else _named(run, without)
    segments = _segments(run, steps, first, end)
    past = read_past(run)
    origin = InitFrom.from_record(past.init_from)
    if first is not None:
        origin = InitFrom("replay", checkpoint_path(run.path, first))
    elif origin is not None and not is_folder(origin.checkpoint):
        raise UsageError(
            f"{origin.checkpoint}, which {run.path} started from, is not there: --from STEP replays from a checkpoint"
        )
    return ReplayPlan(run, segments, origin, dropped)


def replay_run(plan: ReplayPlan, out: RunDir, *, quiet: bool = False) -> Exit:
    """Train the steps of a plan in a new run directory. DONE when all are done, else the exit code of the stop."""
    start = Start("resume", quiet=quiet, suppressed=plan.suppressed)
    for number, segment in enumerate(plan.segments):
        if number == 0:
            _prepare(plan, out)
        elif (code := _train(out, _changed(out, segment), segment.first, start)) != Exit.DONE:
            return code
        _note(out, [each for each in segment.decisions if each != plan.without])
        resolved = Resolved(recipe_in_force(out), {})
        write_atomic(out.recipe, resolved.to_toml())
        if (code := _train(out, resolved, segment.end, start)) != Exit.DONE:
            return code
    return Exit.DONE


def _train(out: RunDir, resolved: Resolved, end: int, start: Start) -> Exit:
    """Go on until `end` steps are done; DONE when they are, or when the run diverged: the comparison says where."""
    write_request(out, Request(action="stop", reason="end of the replay", at_step=end))
    try:
        code = launch(resolved, out, start)
    except DivergedError:
        return Exit.DONE
    reached = _step(out.read_state()) >= end
    return Exit.DONE if code == Exit.RESUMABLE and reached else code


def _bits(run: RunDir) -> dict[str, Any]:
    """What the last bits of a run's sums depend on; empty where it did not record it."""
    try:
        return bits_depend_on(json.loads(run.env.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _step(state: Mapping[str, Any] | None) -> int:
    return int(state["step"]) if state else 0


def _records(run: RunDir) -> Iterator[dict[str, Any]]:
    """The records of the ledger from the start that counts on."""
    records = list(read_records(run.events))
    starts = [number for number, record in enumerate(records) if record.get("kind") in ("origin", "start")]
    begun = starts[-1] if starts else 0
    if starts and begun and records[begun - 1].get("kind") == "origin":
        begun -= 1
    yield from records[begun:]


def _decides(record: Mapping[str, Any]) -> bool:
    if record["kind"] in ("origin", "start", "replay"):
        return False
    return bool(record["kind"] in (*OF_PEOPLE, *OF_GUARD, "micro_batch") or record.get("windows") or _changes(record))


def _lasts(record: Mapping[str, Any]) -> bool:
    """Whether it changes what later steps do; what the guard decides about one step follows again from the step."""
    return record["kind"] in (*OF_PEOPLE, "micro_batch") or bool(record.get("windows"))


def _changes(record: Mapping[str, Any]) -> bool:
    """Whether it is a resume with other settings."""
    return record["kind"] == "resume" and bool(record.get("changes"))


def _named(run: RunDir, name: str) -> DecisionRecord:
    """The decision whose id begins with `name`. UsageError unless it is one, and one that can be left out."""
    found = [each for each in list_decisions(run) if str(each.record.get("sha", "")).startswith(name)]
    if len(found) != 1 or not name:
        what = "names no decision" if not found else f"names {len(found)} decisions"
        raise UsageError(
            f"--without {name} {what} of {run.path}: `hornbook replay {quoted(run.path)} --list` lists them"
        )
    record = found[0].record
    if record["kind"] not in (*OF_PEOPLE, *OF_GUARD):
        raise UsageError(
            f"--without {name}: a {record['kind']} cannot be left out; `hornbook fork` trains with other settings"
        )
    if record["kind"] == "skip" and record.get("rule", "D0") == "D0":
        raise UsageError(f"--without {name}: step {record['step']:,} was not finite, and is never applied")
    return found[0]


def _segments(run: RunDir, steps: Sequence[dict[str, Any]], first: int | None, end: int) -> tuple[ReplaySegment, ...]:
    """The steps from `first` to `end`, cut where a resume changed settings."""
    records = list(_records(run))
    heads = [number for number, each in enumerate(records) if "recipe" in each]
    if not heads:
        raise UsageError(f"{run.path} was made by a version that did not write its recipe into the ledger")
    cuts = [_first_step(steps, records[number]["attempt"]) for number in heads] + [end]
    cuts[0] = 0
    found: list[ReplaySegment] = []
    known: tuple[DecisionRecord, ...] = ()
    for (head, following), (begins, ends) in zip(pairwise([*heads, len(records)]), pairwise(cuts), strict=True):
        known += tuple(
            DecisionRecord(each) for each in records[head:following] if _decides(each) and not _changes(each)
        )
        begin, stop = max(begins, first or 0), min(ends, end)
        if begin < stop:
            anew = bool(records[head].get("ends_interventions"))
            found.append(ReplaySegment(_recipe(run, records[head]), begin, stop, known, anew))
            known = ()
    return tuple(found)


def _first_step(steps: Sequence[Mapping[str, Any]], attempt: int) -> int:
    """Steps done before the first that counts of an attempt or a later one."""
    later = [each["step"] for each in steps if each["attempt"] >= attempt]
    return later[0] - 1 if later else steps[-1]["step"]


def _recipe(run: RunDir, record: Mapping[str, Any]) -> Recipe:
    """The recipe of a record; what looks at clocks or tells others is off, for the ledger says what came of it."""
    try:
        recipe = Recipe.model_validate(record["recipe"])
    except ValueError as error:
        raise UsageError(f"{run.events}: its recipe is of another version: replay with the one that made it") from error
    log = {"tensorboard": False, "trackers": [], "alerts": [], "profile": "", "statistics_every": 0}
    off = {
        "train": recipe.train.model_copy(update={"seconds": None}),
        "eval": recipe.eval.model_copy(update={"stop": NoStop()}),
        "log": recipe.log.model_copy(update=log),
    }
    return recipe.model_copy(update=off)


def _changed(out: RunDir, segment: ReplaySegment) -> Resolved:
    """The recipe with which the resume at the beginning of a segment went on."""
    resolved = Resolved(segment.recipe, {})
    for each in () if segment.ends_interventions else sorted_by_step(read_past(out).interventions):
        resolved = each.apply(resolved)
    return resolved


def _prepare(plan: ReplayPlan, out: RunDir) -> None:
    """Make the new run directory: the recipe and the origin in its ledger, the digests of the data."""
    if out.exists() or (is_folder(out.path) and any(out.path.iterdir())):
        raise UsageError(f"{out.path} is not empty: give --out a new folder")
    try:
        data = plan.run.data_lock.read_text()
    except OSError as error:
        raise IntegrityError(f"{plan.run.data_lock} cannot be read ({error.strerror}): restore it") from error
    out.create()
    write_atomic(out.data_lock, data)
    if is_file(plan.run.fisher):
        keep_fisher(plan.run.fisher, out.fisher)
    with Ledger(out) as ledger:
        ledger.attempt = 0
        of = {"run": str(plan.run.path.resolve()), "ledger": read_past(plan.run).first}
        origin = {} if plan.init_from is None else plan.init_from.fields()
        origin["windows"] = [*origin.get("windows", ()), *_skipped_from_start(plan.run)]
        recipe = plan.segments[0].recipe.model_dump(mode="json")
        dropped = {} if plan.without is None else {"without": plan.without.id}
        ledger.note("replay", At(), recipe=recipe, of=of, **origin, **dropped)


def _skipped_from_start(run: RunDir) -> list[list[int]]:
    """Ranges that the run skipped from its start on, as its parent did."""
    return [
        each for record in _records(run) if record["kind"] in ("origin", "start") for each in record.get("windows", ())
    ]


def _note(out: RunDir, decisions: Sequence[DecisionRecord]) -> None:
    with Ledger(out) as ledger:
        ledger.attempt = ledger.past.attempt
        for each in decisions:
            if not _lasts(each.record):
                continue
            fields = {key: value for key, value in each.record.items() if key not in (*_OWN, "kind", "step", "tokens")}
            at = At(each.record["step"], each.record["tokens"])
            ledger.note(each.record["kind"], at, replayed=each.record.get("sha"), **fields)
