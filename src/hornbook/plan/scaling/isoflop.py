"""Runs of equal compute and several sizes (Hoffmann et al. 2022, arXiv 2203.15556, approach 2), around the size that a
published law finds best."""

from collections.abc import Sequence

from hornbook.errors import UsageError
from hornbook.plan.planner import vocabulary
from hornbook.plan.scaling.budget import LEAST_STEPS, MAIN
from hornbook.plan.scaling.laws import OPERATIONS, law_named
from hornbook.plan.scaling.shape import count_as, shaped
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe

LEAST = 3
"""Sizes of a budget, without which no parabola goes through its losses."""


class PlannedRun(Config):
    """One run of a ladder."""

    name: str
    layers: int
    width: int
    heads: int
    parameters: int
    """All of them."""
    tokens: int
    """Whole steps."""

    @property
    def operations(self) -> float:
        """6 N D."""
        return OPERATIONS * self.parameters * self.tokens

    def words(self) -> list[str]:
        """Settings of the run beside its recipe."""
        model = [f"model.{name}={getattr(self, name)}" for name in ("layers", "width", "heads")]
        return [*model, f"train.tokens={self.tokens}", f"name={self.name}"]


def isoflop_runs(
    recipe: Recipe, budgets: Sequence[float], sizes: int, spread: float
) -> tuple[list[PlannedRun], dict[str, str]]:
    """(runs, name -> why one is left out): for each budget of operations `sizes` models from 1 / spread to spread times
    the law's best size, the smallest first. Raises UsageError where a budget is left with fewer than three."""
    found, left_out = list[PlannedRun](), dict[str, str]()
    for budget in sorted(budgets):
        runs = dict[tuple[int, int, int], PlannedRun]()
        for number in range(sizes):
            factor = spread ** (2 * number / (sizes - 1) - 1)
            run = _planned(recipe, budget, law_named(MAIN).best_size(budget) * factor)
            steps = run.tokens // recipe.train.batch_tokens
            if steps < LEAST_STEPS:
                left_out[run.name] = f"{steps} steps are no training: a larger budget or a smaller train.batch_tokens"
            else:
                runs.setdefault((run.layers, run.width, run.heads), run)
        if len(runs) < LEAST:
            reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
            raise UsageError(
                f"--compute {budget:g}: {len(runs)} different models are too few, {LEAST} are the least: a larger "
                f"budget, or a larger --spread or --sizes{f' ({reasons})' if reasons else ''}"
            )
        found += runs.values()
    return found, left_out


def _planned(recipe: Recipe, budget: float, size: float) -> PlannedRun:
    """The run of a budget with a model of about this size; it is named by its shape and budget."""
    model = shaped(recipe, size).model
    parameters = count_as(model, vocabulary(recipe), "all")
    step = recipe.train.batch_tokens
    return PlannedRun(
        name=f"{budget:.3g}-{model.layers}x{model.width}".replace("+", ""),
        layers=model.layers,
        width=model.width,
        heads=model.heads,
        parameters=parameters,
        tokens=max(round(budget / OPERATIONS / parameters / step), 1) * step,
    )
