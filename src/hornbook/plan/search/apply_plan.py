"""Writing the layout of a plan into the recipe file, whose other bytes stay, or a new one that extends the recipe."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hornbook.errors import DoesNotFitError, UsageError
from hornbook.files.durable import writing
from hornbook.plan.devices.device_rates import NARROW
from hornbook.plan.search.plan_result import Layout, Plan
from hornbook.settings.edit import with_values
from hornbook.settings.recipe import Recipe
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.resolve import resolve


def write_layout(path: Path, target: str | None, overrides: Sequence[str], plan: Plan) -> Path:
    """Write the best layout of a plan: into the file of the recipe `target`, or a new one; returns its path.

    overrides: settings beside the recipe, of which those of the layout alone are written. Raises DoesNotFitError, and
    UsageError where the recipe that is read afterwards would not have the layout; the file is then as it was.
    """
    best, path = plan.best, path.resolve()  # of a link, the file
    if not best.fits:
        raise DoesNotFitError(f"--apply: {best.name} does not fit, so nothing was written: {plan.fits_on}")
    if target is None:
        raise UsageError("--apply: name the recipe whose layout is to be written")
    own = target not in shipped_recipes() and Path(target).resolve() == path
    if path.exists() and not own:
        raise UsageError(f"--apply: {path} is there and is not the recipe {target}: name that one, or a new file")
    base = target if target in shipped_recipes() else os.path.relpath(Path(target).resolve(), path.parent)
    header = f"# {best.name} on {plan.cluster}, chosen by hornbook plan\n\nextends = {json.dumps(base)}\n"
    text = path.read_bytes().decode() if own else header  # ends of lines stay as they are
    draft = path.with_name(f".{path.stem}-draft.toml")
    try:
        with writing(draft) as file:
            file.write(with_values(text, chosen_settings(resolve(target, ()).recipe, best)).encode())
        read = resolve(str(draft), overrides).recipe
        precision = read.train.precision if best.precision in NARROW else best.precision
        chosen = best.parallel, best.micro_batch, best.precision
        if (read.parallel, read.train.micro_batch, precision) != chosen:
            raise UsageError("what it gives in [parallel] cannot be changed in place")
        if own:
            draft.chmod(path.stat().st_mode)
        draft.replace(path)
    except UsageError as error:
        remedy = f": name a new file, which extends {target}" if own else ""
        raise UsageError(f"--apply {path}: {error}{remedy}") from error
    finally:
        draft.unlink(missing_ok=True)
    return path


def chosen_settings(recipe: Recipe, layout: Layout) -> dict[tuple[str | int, ...], Any]:
    """Settings of a layout by path, as far as the recipe has others."""
    chosen, own = layout.parallel, recipe.parallel
    names = ("data", "shard", "replicas", "tensor", "sequence", "expert", "gather", "reshard")
    values = {name: getattr(chosen, name) for name in names if getattr(chosen, name) != getattr(own, name)}
    if chosen.recompute != own.recompute:
        values["recompute"] = chosen.recompute.kind
    if chosen.context != own.context:
        values["context"] = {"ranks": chosen.context.ranks, "kind": chosen.context.kind}
    if chosen.pipeline != own.pipeline:
        pipeline = chosen.pipeline
        chunks = {"chunks": pipeline.chunks} if pipeline.schedule == "interleaved" else {}
        values["pipeline"] = {"stages": pipeline.stages, "schedule": pipeline.schedule} | chunks
    found: dict[tuple[str | int, ...], Any] = {("parallel", name): value for name, value in values.items()}
    if chosen.offload != own.offload:
        found["parallel", "offload", "parameters"] = False  # the host holds them for another `shard`
    if recipe.train.micro_batch != layout.micro_batch:
        found["train", "micro_batch"] = layout.micro_batch
    if recipe.train.precision != layout.precision and (recipe.train.precision != "auto" or layout.precision in NARROW):
        found["train", "precision"] = layout.precision
    return found
