"""Runs that continue: with other settings, with data that were moved, or with more data."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hornbook.errors import UsageError, quoted
from hornbook.files.filesystem import exists
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.bound import base_recipe
from hornbook.run.checkpoints.state import read_counters
from hornbook.run.job.job import Start, course_of
from hornbook.run.job.run_inputs import Inputs, open_loader
from hornbook.run.job.start.init_from import InitFrom
from hornbook.run.job.timekeeper import seconds_spent
from hornbook.run.ledger.interventions import Course, sorted_by_step
from hornbook.run.ledger.ledger import LENGTH_SETTINGS, Monotone
from hornbook.run.ledger.training_length import training_length
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved
from hornbook.settings.resume_rules import Change
from hornbook.settings.sources import COMMAND_LINE

SPENT = 0.9
"""Share of `train.seconds` from which on a longer run is refused: the rest is a few steps."""
JUMP = 1.5
"""Ratio of two learning rates that is worth a line."""
REWARM = 0.01
"""Share of the new tokens over which the rate rises again; its length matters little (Ibrahim et al., 2403.08763)."""


def refuse_missing_data(run: RunDir, recipe: Recipe) -> None:
    """Raise UsageError where the data of a run that continues are not where its recipe says."""
    for option, path in (("--data", recipe.data.path), ("--data.replay.path", recipe.data.replay.path)):
        if path is not None and not exists(Path(path)):
            raise UsageError(
                f"{path}, the data of {run.path}, does not exist: if it was moved, "
                f"`hornbook resume {quoted(run.path)} {option} FOLDER` names its new place"
            )


def refuse_spent_time(run: RunDir, recipe: Recipe, changes: Sequence[Change]) -> None:
    """Raise UsageError where a run shall be longer, and its time limit leaves no time for that."""
    limit, new = recipe.train.seconds, [each for each in changes if each.key in LENGTH_SETTINGS and each.new]
    if limit is None or not new or (spent := seconds_spent(run)) < SPENT * limit:
        return
    words = " ".join(f"--{each.key} {each.new}" for each in new)
    raise UsageError(
        f"train.seconds: the time limit of {run.path} is {limit:g} seconds for all attempts, {spent:.0f} are spent: "
        f"`hornbook resume {quoted(run.path)} {words} --train.seconds N` sets a longer one, "
        "`none` in place of N no limit"
    )


def rate_jump(inputs: Inputs, run: RunDir, start: Start, past: Monotone, at: tuple[int, int]) -> str:
    """A line where the settings that a resume changes make the learning rate jump; "" where they do not.

    at: (steps done, tokens consumed).
    """
    step, tokens = at
    if start.mode != "resume" or not start.changes or not step:
        return ""
    old = Resolved(base_recipe(run, past), {})
    length = training_length(old.recipe.train, inputs.loader.index.epoch_tokens).cut(past.cuts)
    before = Course(old, length, sorted_by_step(past.interventions)).before(step).learning_rate(tokens)
    now = course_of(inputs, past, start).before(step).learning_rate(tokens)
    if before / JUMP <= now <= before * JUMP:
        return ""
    times = f" (x {now / before:.3g})" if before else ""
    return (
        f"the learning rate jumps from {before:.3g} to {now:.3g}{times} after step {step:,}, because the schedule "
        f"follows the new settings; `hornbook fork {quoted(run.path)} --data DATA --out RUN2` re-warms it instead"
    )


def more_data(resolved: Resolved, run: RunDir, init_from: InitFrom) -> tuple[list[str], InitFrom]:
    """(settings with which a fork of `run` trains on the text of `data.path`, what it then starts from).

    Unless given on the command line: one pass over the text after the checkpoint's tokens, and a rate that rises there
    and falls once more. Samples are left out that lead to the next pass over the text, which is then read as a whole.
    """
    recipe, counters = resolved.recipe, read_counters(init_from.checkpoint)
    assert recipe.data.path is not None
    consumed, index = int(counters["tokens"]), open_loader(recipe, recipe.data.path, prefetch=False).index
    given = {key for key, origin in resolved.origins.items() if origin == COMMAND_LINE}
    total, words = recipe.train.tokens, list[str]()
    if "train.tokens" not in given or total is None:
        total = consumed + index.epoch_tokens((recipe.train.epochs if "train.epochs" in given else None) or 1)
        words += [f"train.tokens={total}", "train.epochs=none"]
    if total <= consumed:
        raise UsageError(
            f"train.tokens {total:,} is the length of the whole run, of which {run.path} has read {consumed:,}: give "
            "more, or leave it out for one pass over the text"
        )
    if not any(key.startswith("optim.schedule") for key in given):
        rise = min(max(round(REWARM * (total - consumed)), recipe.train.batch_tokens), total - consumed)
        words += [f"optim.schedule.{key}={value}" for key, value in _rewarmed(recipe, consumed, rise).items()]
    rows = index.epoch_tokens(1) // recipe.train.sequence
    clock = int(counters["clock"])
    skipped = ((clock, -(-clock // rows) * rows),)
    return words, replace(init_from, skipped_ranges=skipped, other_text=consumed)


def _rewarmed(recipe: Recipe, consumed: int, rise: int) -> dict[str, str]:
    """A schedule that rises over `rise` tokens after `consumed` ones, and falls to the floor of the old one."""
    floor = getattr(recipe.optim.schedule, "floor", 0.1)
    points = {"points": f'["{consumed} tokens"]', "rewarm": f"{rise} tokens"}
    return {
        "kind": "cosine_restarts",
        "warmup": "0 tokens",
        "cycles": "1",
        "shrink": "1",
        **points,
        "floor": f"{floor}",
    }
