"""Compares the other files of a run (recipe, checkpoints, metrics) with its ledger.

The ledger is a hash chain, so its records are as they were written. A file that contradicts it was edited or damaged,
belongs to another run, or the ledger was cut. Runs of versions that recorded less are judged by what they recorded.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import xxhash
from pydantic import ValidationError

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.filesystem import exists, is_folder, list_folder
from hornbook.files.journal import first_broken
from hornbook.files.run_directory import RunDir
from hornbook.model.config.replaced_config import HeadConfig
from hornbook.run.checkpoints.manifest import Manifest
from hornbook.run.ledger.interventions import Intervention, sorted_by_step
from hornbook.run.ledger.ledger import Monotone, read_past, remedy
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved, resolve
from hornbook.settings.resume_rules import Change, refuse_incompatible, resume_changes
from hornbook.settings.show import toml_value

LEFT_BEHIND = "the run went back to before it"
"""Why a checkpoint is not used that was saved before a rollback, of a step behind it."""


def recipe_in_force(run: RunDir, past: Monotone | None = None, before: int | None = None) -> Recipe:
    """The recipe in the ledger with all interventions, whatever recipe.toml says by now.

    past: the ledger, if already read. before: leave out interventions at this step and later.
    """
    past = read_past(run) if past is None else past
    made = [each for each in past.interventions if before is None or each.step < before]
    return _after(base_recipe(run, past), made)


def _after(recipe: Recipe, interventions: Sequence[Intervention]) -> Recipe:
    resolved = Resolved(recipe, {})
    for each in sorted_by_step(interventions):
        resolved = each.apply(resolved)
    return resolved.recipe


def recipe_on_file(run: RunDir, past: Monotone) -> Recipe:
    """The recipe that recipe.toml held when the run wrote it last.

    It is the one in force, unless a kill came between the record of an intervention and the writing of recipe.toml.
    """
    stale = bool(past.recipe_before) and digest_of(run.recipe) == past.recipe_before
    return _after(base_recipe(run, past), past.interventions_before if stale else past.interventions)


def digest_of(path: Path) -> str:
    """Digest of a small file; "" where it is gone."""
    try:
        return xxhash.xxh3_128_hexdigest(path.read_bytes())
    except OSError:
        return ""


def base_recipe(run: RunDir, past: Monotone) -> Recipe:
    """The recipe in the ledger without interventions.

    For a run whose ledger has no recipe: recipe.toml with the changes in the ledger.
    """
    if past.recipe is None:
        words = [f"{key}={toml_value(value)}" for key, value in past.settings.items()]
        return resolve(str(run.recipe), words, environ={}).recipe
    try:
        return Recipe.model_validate_json(json.dumps(past.recipe))
    except ValidationError as error:
        raise IntegrityError(
            f"{run.events}: the recipe in it is not one of this version ({error.error_count()} problems, the first at "
            f"{'.'.join(map(str, error.errors()[0]['loc']))}): go on with the version that made the run"
        ) from error


def edited_settings(run: RunDir, past: Monotone | None = None) -> list[Change]:
    """Differences between the recipe in force and recipe.toml (old: the ledger's value)."""
    past = read_past(run) if past is None else past
    return resume_changes(recipe_on_file(run, past), resolve(str(run.recipe), environ={}).recipe)


def describe_edits(run: RunDir, edits: Sequence[Change]) -> str:
    """The edits as text."""
    values = ", ".join(f"{edit.key} = {toml_value(edit.old)} (now {toml_value(edit.new)})" for edit in edits)
    return f"{run.recipe} was changed since the run wrote it; the ledger has {values}"


def refuse_edited(run: RunDir) -> None:
    """Raise IntegrityError if recipe.toml is not what the run was trained with."""
    if edits := edited_settings(run):
        raise IntegrityError(f"{describe_edits(run, edits)}: put the values back, and give new ones as settings")


def changed_settings(run: RunDir, recipe: Recipe) -> list[Change]:
    """The changes of a resume with `recipe`; UsageError naming old, new and `fork` for what must not change."""
    old = recipe_on_file(run, read_past(run))
    path = old.data.path if recipe.data.path is None else str(Path(recipe.data.path).resolve())
    settled = {"vocab": recipe.model.vocab or old.model.vocab, "head": _settled_head(recipe, old)}
    data, model = recipe.data.model_copy(update={"path": path}), recipe.model.model_copy(update=settled)
    changes = resume_changes(old, recipe.model_copy(update={"data": data, "model": model}))
    try:
        refuse_incompatible(changes)
    except UsageError as error:
        edits = [edit for edit in edited_settings(run) if edit.policy == "refused"]
        raise UsageError(f"{error}\n{describe_edits(run, edits)}: put these values back") if edits else error from None
    return changes


def _settled_head(recipe: Recipe, old: Recipe) -> HeadConfig:
    """The head of `recipe`, with the labels of the run where `recipe` leaves them to the data."""
    head, before = recipe.model.head, old.model.head
    is_open = getattr(head, "labels", None) == [] and head.kind == before.kind
    return head.model_copy(update={"labels": getattr(before, "labels", [])}) if is_open else head


def why_foreign(run: RunDir, past: Monotone, manifest: Manifest) -> str | None:
    """Why an undamaged checkpoint is not one to go on from; None: it is, or the run recorded nothing about it.

    IntegrityError where the ledger lacks the records under which the checkpoint was saved.
    """
    if manifest.ledger is not None:
        first, last = manifest.ledger
        if not past.chain or (first == past.first and last not in past.chain):
            raise IntegrityError(
                f"{run.events} lacks records that were there when the checkpoint of step {manifest.step:,} was saved: "
                f"it was cut or deleted. {remedy(run)}"
            )
        if first != past.first:
            return "it was saved by another run"
        if any(manifest.step > step and past.chain.get(last, 0) < records for step, records in past.rollbacks):
            return LEFT_BEHIND
    noted = past.saved_manifests.get(manifest.step)
    if noted is not None:
        known = None in noted or manifest.digest in noted
        return None if known else "it is not the checkpoint of this step that the run saved"
    binding = any(None not in digests for digests in past.saved_manifests.values())
    return "no record of the ledger says that this run saved it" if binding and manifest.ledger is None else None


def metrics_problem(run: RunDir, past: Monotone) -> str | None:
    """What is wrong with metrics.jsonl up to the newest save; None: nothing, or its extent was not recorded."""
    broken = first_broken(run.metrics, past.metrics)
    if broken is None:
        return None
    if not exists(run.metrics):
        what = "it is gone"
    elif (size := run.metrics.stat().st_size) < broken["bytes"]:
        what = f"it has {size:,} bytes of {broken['bytes']:,}"
    else:
        what = "lines before it were changed"
    return f"{run.metrics} is not what it was when step {broken['step']:,} was saved ({what}): put back a copy of it"


def lost_checkpoint(run: RunDir, past: Monotone) -> int | None:
    """Step of the newest save on record whose checkpoint is gone, damaged or not; None: it is there.

    Retention never deletes the newest, so somebody else did; steps behind it are computed anew.
    """
    newest = max(past.saved_manifests, default=None)
    if newest is None:
        return None
    there = list_folder(run.checkpoints, f"*step-{newest:08d}*") if is_folder(run.checkpoints) else []
    return None if any(not path.name.startswith(".") for path in there) else newest
