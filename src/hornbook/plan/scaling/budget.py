"""From a budget to model size and tokens: what each scaling law would train, how long it takes, what loss to expect.

The model of a size is a decoder of the usual proportions (`shape.py`), planned on the cluster as any run is: a day or a
dollar buys what that model reaches there, and a budget of operations takes the time that it needs.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

from pydantic import PositiveFloat

from hornbook.errors import UsageError
from hornbook.plan.devices.hardware import Cluster
from hornbook.plan.planner import Plan, vocabulary
from hornbook.plan.scaling.advice import Suggestion, good_batch, suggestions
from hornbook.plan.scaling.budget_words import Budget, seconds_of
from hornbook.plan.scaling.compute import petaflops_days
from hornbook.plan.scaling.laws import (
    OPERATIONS,
    Allocation,
    AnyLaw,
    FittedLaw,
    RepeatedLaw,
    SumLaw,
    data_constrained,
    interval,
    law_named,
)
from hornbook.plan.scaling.shape import count_as, shaped
from hornbook.plan.search.layout_advice import EPOCHS
from hornbook.plan.search.number_words import duration, figure, rounded_down
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe

ROUNDS = 4
"""Of size and speed, until they agree."""
CLOSE = 0.05
"""Change of the size, in log, below which they agree."""
LEAST_STEPS = 100
"""Fewer are no training."""
FITTED = (6e18, 3e21)
"""Operations of the isoFLOP runs of Hoffmann et al. (arXiv 2203.15556), whose data three of the laws share."""
OPEN = 3.0
"""Upper over lower end of an interval of tokens per parameter that leaves them open."""
RULES_FROM = 1e17
"""Operations of the smallest runs behind the rules for batch and learning rate (arXiv 2401.02954, section 3.1)."""
MAIN = "besiroglu"
"""The law whose choice is described where nobody chose another."""


class Planner(Protocol):
    """Plans a recipe on the cluster."""

    def __call__(self, recipe: Recipe, *, remedy: bool) -> Plan:
        """remedy: name the smallest cluster on which it fits, where it does not; that takes longer."""
        ...


class TextSource(Config):
    """Prepared text, as measured."""

    tokens: PositiveFloat
    """To train on."""
    retention: PositiveFloat
    """Share of the bytes read that preparation kept."""
    bytes_per_token: PositiveFloat
    """Bytes to read for a token to train on."""


class Question(Config):
    """What is asked of the laws."""

    budget: Budget
    cluster: Cluster
    price: float | None = None
    """Dollars for an hour of a device."""
    price_source: str = ""
    unique: PositiveFloat | None = None
    """Tokens that there are to read."""
    serve: PositiveFloat | None = None
    """Tokens that the model will serve."""
    text: TextSource | None = None


class Choice(Config):
    """What one law would train, or the model that was asked for."""

    law: AnyLaw
    counted: int
    """Parameters as the law counts them."""
    parameters: int
    """All of them."""
    bare: int
    """Those without embeddings."""
    layers: int
    width: int
    heads: int
    tokens: float
    loss: float | None
    """By this law; nats per token of its own text."""
    low: float | None
    high: float | None
    """Of the loss: over the laws of a sum, or the 90 % interval of the law of one's own runs."""
    batch_tokens: int
    compiled: bool
    """Planned with `train.compile`."""
    seconds: float
    dollars: float | None
    layout: str
    mfu: float
    fits: bool

    @property
    def ratio(self) -> float:
        """Tokens per parameter, as the law counts."""
        return self.tokens / self.counted

    @property
    def operations(self) -> float:
        """6 N D, as the law counts."""
        return OPERATIONS * self.counted * self.tokens


class BudgetPlan(Config):
    """What the laws make of a budget."""

    question: Question
    seconds: float | None
    """That time and money allow on the cluster."""
    choices: list[Choice]
    own: Choice | None
    """The model that was asked for."""
    suggestions: list[Suggestion]
    """Batch and learning rate for `main`."""
    served: Allocation | None
    """A smaller model of the loss of `main`, that is cheaper over training and serving."""
    fits_on: str
    """Where `main` fits, in words, if it does not fit here."""
    warnings: list[str]

    @cached_property
    def main(self) -> Choice:
        """The model that was asked for, else what the law of one's own runs says, else the replicated one."""
        return _main(self.own, self.choices)

    @property
    def petaflops_days(self) -> float:
        """Of `main`."""
        return petaflops_days(self.main.operations)

    @property
    def text_bytes(self) -> float | None:
        """Bytes to collect, before preparation, for one pass over the tokens of `main`."""
        text = self.question.text
        return None if text is None else self.main.tokens * text.bytes_per_token


def _main(own: Choice | None, choices: Sequence[Choice]) -> Choice:
    fitted = next((each for each in choices if isinstance(each.law, FittedLaw)), None)
    return own or fitted or next((each for each in choices if each.law.name == MAIN), choices[0])


class _Search:
    """The choices for one question; each size is planned once."""

    def __init__(
        self, question: Question, recipe: Recipe, planner: Planner, laws: Sequence[AnyLaw], batch: bool
    ) -> None:
        self.question, self.recipe, self.planner, self.laws = question, recipe, planner, laws
        self.choose_batch = batch  # by published rules
        self.vocab = vocabulary(recipe)
        self.seconds, self.notes = seconds_of(question.budget, question.cluster, question.price)
        self._plans: dict[tuple[int, int, int, int], Plan] = {}
        self._recipes: dict[tuple[int, int, int, int], Recipe] = {}
        self._spent: float | None = None

    def choice(self, law: AnyLaw, recipe: Recipe | None = None) -> Choice:
        """What a law would train; with a recipe, what the law says of that model."""
        operations = self.question.budget.operations
        found = self._spend(law, operations or self._first_guess(), recipe)
        for _ in range(ROUNDS if recipe is None and operations is None else 0):
            if abs(math.log(self._best_size(law, found.operations) / found.counted)) < CLOSE:
                break
            found = self._spend(law, found.operations, recipe)
        self._spent = found.operations
        return found

    def _spend(self, law: AnyLaw, compute: float, recipe: Recipe | None) -> Choice:
        """The law's model for so many operations, or the recipe's, trained for the whole budget."""
        model = recipe or shaped(self.recipe, self._best_size(law, compute), law.parameters)
        counted = count_as(model.model, self.vocab, law.parameters)
        tokens = compute / OPERATIONS / counted
        plan, batch = self._plan(model, tokens)
        if self.question.budget.operations is None and self.seconds is not None:
            tokens = plan.best.tokens_per_second * self.seconds
        return self._described(law, plan, model, counted, tokens, batch)

    def _plan(self, model: Recipe, tokens: float) -> tuple[Plan, int]:
        train = model.train
        if self.choose_batch:
            bare = count_as(model.model, self.vocab, "without embeddings")
            batch = good_batch(bare, tokens, train.sequence, self.question.cluster.count)
            train = train.model_copy(update={"batch_tokens": batch, "micro_batch": "auto"})
        key = (model.model.layers, model.model.width, model.model.heads, train.batch_tokens)
        if key not in self._plans:
            self._recipes[key] = model.model_copy(update={"train": train})
            self._plans[key] = self.planner(self._recipes[key], remedy=False)
        return self._plans[key], train.batch_tokens

    def fits_on(self, choice: Choice) -> str:
        """Where a choice that does not fit would; "" where it fits."""
        recipe = self._recipes[choice.layers, choice.width, choice.heads, choice.batch_tokens]
        return "" if choice.fits else self.planner(recipe, remedy=True).fits_on

    def anchor(self, choice: Choice) -> str:
        """What the times of a choice rest on beside data sheets."""
        return self._plans[choice.layers, choice.width, choice.heads, choice.batch_tokens].anchor

    def _first_guess(self) -> float:
        """Operations of the choice before, or at four tenths of the peak."""
        assert self.seconds is not None
        if self._spent is not None:
            return self._spent
        device = self.question.cluster.device
        return 0.4 * device.rate("auto") * self.question.cluster.count * self.seconds

    def _best_size(self, law: AnyLaw, compute: float) -> float:
        if isinstance(law, RepeatedLaw) and self.question.unique is not None:
            return law.constrained(compute, self.question.unique).parameters
        return law.best_size(compute)

    def _loss(self, law: AnyLaw, parameters: float, tokens: float) -> float | None:
        unique = self.question.unique
        if unique is None or unique >= tokens:
            return law.loss(parameters, tokens)
        if isinstance(law, RepeatedLaw):
            return law.repeated_loss(parameters, tokens, unique)
        return law.loss(parameters, data_constrained().worth(tokens, unique))

    def _described(self, law: AnyLaw, plan: Plan, model: Recipe, counted: int, tokens: float, batch: int) -> Choice:
        parameters = count_as(model.model, self.vocab, "all")
        best, seconds = plan.best, tokens / plan.best.tokens_per_second
        if isinstance(law, FittedLaw):
            low, high = law.loss_interval(counted, tokens)
        else:
            alike = [each for each in self.laws if isinstance(each, SumLaw) and not isinstance(each, FittedLaw)]
            known = [loss for each in alike if (loss := self._loss(each, parameters, tokens)) is not None]
            low, high = (min(known), max(known)) if known else (None, None)
        price = self.question.price
        return Choice(
            law=law,
            counted=counted,
            parameters=parameters,
            bare=count_as(model.model, self.vocab, "without embeddings"),
            layers=model.model.layers,
            width=model.model.width,
            heads=model.model.heads,
            tokens=tokens,
            loss=self._loss(law, counted, tokens),
            low=low,
            high=high,
            batch_tokens=batch,
            compiled=model.train.compile,
            seconds=seconds,
            dollars=None if price is None else seconds / 3600 * price * self.question.cluster.count,
            layout=best.name,
            mfu=best.mfu,
            fits=best.fits,
        )


def plan_budget(
    question: Question, recipe: Recipe, planner: Planner, laws: Sequence[AnyLaw], *, fixed: bool, batch: bool = True
) -> BudgetPlan:
    """What each law makes of a budget.

    fixed: the recipe's model is the one to train, beside those of the laws. batch: choose it by published rules. Raises
    UsageError where the parts of a budget contradict each other.
    """
    search = _Search(question, recipe, planner, laws, batch)
    fitted = next((law for law in laws if isinstance(law, FittedLaw)), None)
    own = search.choice(fitted or law_named(MAIN), recipe) if fixed else None
    choices = [search.choice(law) for law in laws]
    main = _main(own, choices)
    _check(search, main)
    served = _served(question, main)
    return BudgetPlan(
        question=question,
        seconds=search.seconds,
        choices=choices,
        own=own,
        suggestions=suggestions(main.bare, main.tokens),
        served=served,
        fits_on=search.fits_on(main),
        warnings=[
            *search.notes,
            *filter(None, [search.anchor(main)]),
            *_of_laws(choices, main, fitted),
            *_of_model(question, main, served, chosen=own is not None),
        ],
    )


def _served(question: Question, main: Choice) -> Allocation | None:
    """The cheapest model of the loss of `main` over training and serving; None where its law does not say."""
    if question.serve is None or not isinstance(main.law, SumLaw):
        return None
    found = main.law.served(main.law.loss(main.counted, main.tokens), question.serve)
    return None if question.unique is not None and found.tokens > question.unique else found


def _check(search: _Search, main: Choice) -> None:
    """Refuse operations that take more time or money than is there, and budgets of a few steps."""
    operations, allowed, cluster = search.question.budget.operations, search.seconds, search.question.cluster
    if operations is not None and allowed is not None and main.seconds > allowed:
        factor = main.seconds / allowed
        raise UsageError(
            f"--budget: {operations:.3g} operations take {duration(main.seconds)} on {cluster}, and the other budget "
            f"allows {duration(allowed)}: about {figure(factor)} times as many devices, or as much time or money, or "
            f"{rounded_down(operations / factor):.2g} operations"
        )
    if main.tokens < LEAST_STEPS * main.batch_tokens:
        raise UsageError(
            f"--budget: it buys {main.tokens:,.0f} tokens for {main.parameters:,} parameters on {cluster}, less than "
            f"{LEAST_STEPS} steps of {main.batch_tokens:,}: a larger budget, a smaller model or a smaller batch"
        )


def _of_laws(choices: Sequence[Choice], main: Choice, fitted: FittedLaw | None) -> Iterator[str]:
    """How far the laws can be believed."""
    if fitted is None:
        low, high = (extreme(each.ratio for each in choices) for extreme in (min, max))
        yield f"the laws differ: {figure(low)} to {figure(high)} tokens a parameter; `hornbook ladder fit` fits yours"
    else:
        low, high = interval(each.optimum(main.operations).ratio for each in fitted.laws())
        if high > OPEN * low:
            yield f"your law leaves the optimum open: {figure(low)} to {figure(high)} tokens a parameter (90 %)"
    least, most = FITTED if fitted is None else fitted.compute
    if not least / 3 <= main.operations <= 3 * most:
        yield f"{main.operations:.2g} operations: the law was fitted to runs of {least:.2g} to {most:.2g}"
    if main.operations < RULES_FROM:
        yield f"rules for batch and learning rate are of runs of {RULES_FROM:.0g} operations and more: measure yours"


def _of_model(question: Question, main: Choice, served: Allocation | None, *, chosen: bool) -> Iterator[str]:
    """What is odd about the model; chosen: by the person, not by a law."""
    if main.ratio < 1:
        yield f"{main.ratio:.2g} tokens a parameter: the model is far too large for the budget"
    elif chosen and main.ratio > 200:
        yield f"{main.ratio:,.0f} tokens a parameter, {main.ratio / 20:,.0f} times 20: a larger model would learn more"
    if question.unique is not None and main.tokens > EPOCHS * question.unique:
        epochs = main.tokens / question.unique
        yield f"{epochs:,.1f} passes over the text: beyond {EPOCHS}, repeated text is worth much less than new text"
    if question.serve is not None and question.unique is not None and served is None:
        yield "--serve: a smaller model of this loss would read the text several times, of which the law says nothing"
    critical = next(each.value for each in suggestions(main.bare, main.tokens) if each.what == "critical batch")
    if main.batch_tokens > critical:
        yield f"a batch of {main.batch_tokens:,} tokens is beyond the critical one of {critical:,.0f}: it wastes text"
