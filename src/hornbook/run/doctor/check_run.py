"""Checks one run for damage: ledger, recipe, metrics, checkpoints and data."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hornbook.errors import HornbookError, IntegrityError
from hornbook.files.filesystem import exists, is_file, is_folder
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import find_runs, steps_that_count
from hornbook.run.checkpoints.bound import (
    base_recipe,
    describe_edits,
    edited_settings,
    lost_checkpoint,
    metrics_problem,
    recipe_in_force,
    why_foreign,
)
from hornbook.run.checkpoints.commit import list_checkpoints
from hornbook.run.checkpoints.lineage import lineage_of
from hornbook.run.checkpoints.manifest import unlisted, verify_folder
from hornbook.run.ledger.interventions import Course, sorted_by_step
from hornbook.run.ledger.ledger import Monotone, check_ledger, read_past, remedy
from hornbook.run.ledger.training_length import training_length
from hornbook.settings.resolve import Resolved


@dataclass(frozen=True)
class Finding:
    """One check of one run."""

    what: str
    ok: bool
    text: str


@dataclass
class Checkup:
    """All checks of one run."""

    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return all(finding.ok for finding in self.findings)

    def try_check(self, what: str, check: Callable[[], str]) -> None:
        """Record the result of a check, or the error it raises."""
        try:
            self.findings.append(Finding(what, True, check()))
        except HornbookError as error:
            self.findings.append(Finding(what, False, str(error)))


def check_run(run: RunDir, *, read_data: bool = False, with_data: bool = True) -> Checkup:
    """Verify the chain of the ledger, and recipe, metrics, checkpoints and data against it.

    `read_data` reads every byte of the token shards; otherwise their digests and sizes are compared. Without
    `with_data` the data may be elsewhere.
    """
    checkup, past = check_records(run.must_exist())
    if is_file(run.recipe):
        checkup.try_check("recipe", lambda: _check_recipe(run, past))
    if past.interventions:
        checkup.try_check("settings", lambda: _check_settings(run, past))
    for folder in list_checkpoints(run.checkpoints):
        checkup.try_check(folder.name, lambda folder=folder: _check_checkpoint(run, past, folder))
    if is_folder(run.checkpoints) and (lost := lost_checkpoint(run, past)) is not None:  # a seal has no weights
        text = f"step {lost:,} was saved last, and its checkpoint is gone: put it back, or a resume starts before it"
        checkup.findings.append(Finding("checkpoints", False, text))
    with suppress(HornbookError):  # a damaged ledger was reported above
        if text := lineage_of(run, find_runs(run.path.parent)).describe():
            checkup.findings.append(Finding("origin", True, text))
    if with_data and exists(run.data_lock):
        checkup.try_check("data", lambda: _check_data(run, read_data))
    return checkup


def check_records(run: RunDir) -> tuple[Checkup, Monotone]:
    """(the chain of the ledger and the metrics against it, what the ledger says)."""
    checkup = Checkup()
    checkup.try_check("ledger", lambda: _check_ledger(run))
    past = read_past(run) if checkup.ok else Monotone()
    checkup.try_check("metrics", lambda: _check_metrics(run, past))
    return checkup, past


def _check_ledger(run: RunDir) -> str:
    """Check the chain of the ledger, and that it reaches as far as the other files of the run."""
    records = check_ledger(run)
    kinds = [record["kind"] for record in read_records(run.events) if "kind" in record]
    state = run.read_state()
    cut = None
    if not records and (exists(run.metrics) or list_checkpoints(run.checkpoints)):
        cut = "it has no records, though the run began"
    elif state is not None and state["status"] == "finished" and "finish" not in kinds:
        cut = f"its last record is of the kind {kinds[-1]}, though state.json says that the run finished"
    elif state is not None and state["attempt"] > read_past(run).attempt:
        cut = f"it ends in attempt {read_past(run).attempt}, though state.json is of attempt {state['attempt']}"
    if cut:
        raise IntegrityError(f"{run.events}: {cut}: it was cut or deleted. {remedy(run)}")
    return f"{records:,} records, the chain holds"


def _check_recipe(run: RunDir, past: Monotone) -> str:
    if not past.chain:
        return "not compared: the ledger is damaged"
    if past.recipe is None:
        return "the version that made the run noted nothing to compare it with"
    if edits := edited_settings(run, past):
        raise IntegrityError(describe_edits(run, edits))
    return "what the ledger says"


def _check_metrics(run: RunDir, past: Monotone) -> str:
    problem = metrics_problem(run, past)
    if problem is not None:
        raise IntegrityError(problem)
    steps = {record["step"] for record in steps_that_count(run)}
    missing = sorted(set(range(min(steps), max(steps) + 1)) - steps) if steps else []
    if missing:
        raise IntegrityError(f"{run.metrics}: step {missing[0]:,} is missing ({len(missing):,} in all)")
    return f"{len(steps):,} steps"


def _check_settings(run: RunDir, past: Monotone) -> str:
    """Make the changes again that the run was told, and compare batch and learning rate of the steps with them.

    Only the newest attempt without settings of its own is compared: those of before followed other recipes.
    """
    base = Resolved(base_recipe(run, past), {})
    told = f"{len(past.interventions)} changes while the run trained"
    if base.recipe.train.tokens is None:
        return f"{told}; rates are not compared, since the length is given in epochs"
    length = training_length(base.recipe.train, lambda _: 0).cut(past.cuts)
    course = Course(base, length, sorted_by_step(past.interventions))
    compared = 0
    for record in steps_that_count(run):
        if record["attempt"] < past.recipe_attempt or "lr" not in record:
            continue
        course, compared = course.before(record["step"]), compared + 1
        consumed = record["tokens"] - record["step_tokens"]
        rate, rows = course.learning_rate(consumed), course.length.rows(consumed)
        if (rate, rows) != (record["lr"], record["num_samples"]):
            text = f"step {record['step']:,} has learning rate {record['lr']:g} and {record['num_samples']} rows"
            raise IntegrityError(f"{run.metrics}: {text}, by recipe and ledger it has {rate:g} and {rows}")
    return f"{told}; learning rate and batch of {compared:,} steps are what recipe and ledger say"


def _check_checkpoint(run: RunDir, past: Monotone, folder: Path) -> str:
    manifest = verify_folder(folder)
    foreign = why_foreign(run, past, manifest) if past.chain else None
    if foreign is not None:
        raise IntegrityError(f"{folder}: {foreign}")
    if extra := unlisted(folder, manifest):
        raise IntegrityError(
            f"{folder}: its manifest does not list {', '.join(extra)}: move what does not belong there"
        )
    return f"{manifest.total_bytes:,} bytes verified"


def _check_data(run: RunDir, read: bool) -> str:
    from hornbook.data.corpus import check_data_lock, open_corpus

    data = recipe_in_force(run).data
    if (path := data.path) is None:
        raise IntegrityError(f"{run.recipe} names no data")
    corpus = open_corpus(data, path)
    check_data_lock(run.data_lock, corpus.lock())
    if read:
        corpus.verify()
    return f"{path} is what the run began with" + (", every byte read" if read else "")
