"""Runs of equal compute and several sizes (Hoffmann et al. 2022, arXiv 2203.15556, approach 2), around the size that a
published law finds best."""

from collections.abc import Iterator, Sequence

from hornbook.errors import UsageError
from hornbook.plan.planner import vocabulary
from hornbook.plan.scaling.budget import LEAST_STEPS, MAIN
from hornbook.plan.scaling.ladder import Rung, check
from hornbook.plan.scaling.laws import OPERATIONS, law_named
from hornbook.plan.scaling.shape import count_as, shaped
from hornbook.plan.search.layout_advice import EPOCHS
from hornbook.plan.search.number_words import figure
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
        runs, short = _curve(recipe, budget, sizes, spread)
        left_out |= {name: f"{steps} steps are no training" for name, steps in short.items()}
        if len(runs) < LEAST:
            remedy = _remedy(recipe, budget, sizes, spread)
            raise UsageError(f"--compute {budget:g}: {LEAST} different models are the least, not {len(runs)}{remedy}")
        found += runs
    return found, left_out


def _curve(recipe: Recipe, budget: float, sizes: int, spread: float) -> tuple[list[PlannedRun], dict[str, int]]:
    """(different models of one budget, name -> steps of a run that is too short)."""
    runs, short = dict[tuple[int, int, int], PlannedRun](), dict[str, int]()
    for number in range(sizes):
        factor = spread ** (2 * number / (sizes - 1) - 1)
        run = _planned(recipe, budget, law_named(MAIN).best_size(budget) * factor)
        steps = run.tokens // recipe.train.batch_tokens
        if steps < LEAST_STEPS:
            short[run.name] = steps
        else:
            runs.setdefault((run.layers, run.width, run.heads), run)
    return list(runs.values()), short


def _remedy(recipe: Recipe, budget: float, sizes: int, spread: float) -> str:
    """What would give a budget enough models: the next budget that has them, rounded up."""
    smallest = _planned(recipe, budget, 1.0).parameters
    ladder = (budget * 2**number for number in range(1, 20))
    enough = next((each for each in ladder if len(_curve(recipe, each, sizes, spread)[0]) >= LEAST), None)
    remedy = "" if enough is None else f": --compute {enough:.2g} has as many"
    shortest = f"a run has {LEAST_STEPS} steps of train.batch_tokens {recipe.train.batch_tokens:,} or more"
    return f"{remedy} ({shortest}; the smallest model of this recipe and vocabulary has {smallest:,} parameters)"


def doubts(runs: Sequence[PlannedRun], available: float) -> Iterator[str]:
    """Why a fit of these runs, on so many different tokens, will be refused or mislead."""
    try:
        check([Rung(name=each.name, parameters=each.parameters, tokens=each.tokens, loss=1.0) for each in runs])
    except UsageError as error:
        yield f"a fit will be refused, unless further budgets are trained into the same folder: {error}"
    passes = max(each.tokens for each in runs) / available
    if passes > EPOCHS:
        yield (
            f"the longest run reads the text {figure(passes)} times: beyond {EPOCHS}, repeated text is worth much less "
            "than new text, and the law knows nothing of that"
        )


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
