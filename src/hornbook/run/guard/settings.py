"""Settings that are at fault: a change that the loss does not come back from, a learning rate too high from the start.

| rule | a run that | threshold |
|---|---|---|
| change | loses more since settings changed | median of 16 losses too high by a quarter of what was learned |
| rate | is worse than before its first step | sum of relative distances beyond 1.25 times the first loss over 2 |
| rate | has learned frequencies soon, and nothing since | no lower than 0.99 times single tokens' entropy |

The thresholds were set on half of the cells of `benchmarks.reliability.guard.rates`; its page reports the other half.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from hornbook.run.guard.policy import Rule, Spans
from hornbook.run.guard.robust_statistics import RobustWindow, middle_of

NEWEST = 16
"""Losses whose median is compared with the one before a change."""
LASTING, LEAST_LASTING = 64, 16
"""Steps in a row for which it is too high, beside those that the change explains."""
UNSETTLED = 128
"""Steps after a change in which anything that the guard finds is put down to it."""
HARM, LEAST_HARM, NOISE_Z = 0.25, 0.05, 3.0
"""How much too high: share of the fall of the loss so far, of the loss itself, and deviations, whichever is most. A
rate that rises again after its decay costs less: what annealing gains is a few hundredths of the loss."""
ABOVE_FIRST, EXCESS = 1.25, 2.0
"""Share of the first loss beyond which losses are counted, and the sum of their relative distances that is a finding:
10 steps at 1.5 times the first loss. In early steps with a high rate a few losses lie beyond it."""
HARD = 2.0
"""Loss in nats of a target that a model does not know yet. Batches of n targets scatter by the root of loss x HARD / n,
however alike the last ones were."""
REACHED, NEAR_UNIGRAM, PROGRESS = 1.05, 0.99, 0.02
"""Shares of the unigram entropy: where a model has begun to know frequencies, and above which it knows little else; and
of the loss, what counts as a fall."""
TIMES, NORM_GROWTH = 5, 2.5
"""Signs of a rate that is too high and not too low: frequencies were learned in a fifth of the steps, or gradients
are so many times as large as in the first step."""
UNLEARNED_FROM, UNLEARNED, LEAST_UNLEARNED = 200, 1000, 100
"""Steps behind the warm-up from which on, and steps without a fall after which, that is a finding."""
UNKNOWN = 1e30
"""A limit that no loss reaches."""
Found = tuple[Rule, int, dict[str, float]]
"""(rule, onset, what it judged by)."""


@dataclass
class ChangeWatch:
    """Losses since a change of settings, measured against the loss before it."""

    step: int
    """Steps done before the change."""
    limit: float
    """Median of losses beyond which the change does harm."""
    patience: int
    """Steps in a row for which it may."""
    losses: list[float] = field(default_factory=list)
    done: int = 0
    high: int = 0
    """Steps in a row in which the median was beyond."""

    def add(self, loss: float) -> bool:
        """Whether the loss has been too high for too long with this one."""
        self.losses = [*self.losses, loss if math.isfinite(loss) else UNKNOWN][-NEWEST:]
        self.done += 1
        is_high = len(self.losses) == NEWEST and middle_of(sorted(self.losses)) > self.limit
        self.high = self.high + 1 if is_high else 0
        return self.high >= self.patience

    @property
    def is_unsettled(self) -> bool:
        """Whether the change may be the reason for anything that is found."""
        return self.high > 0 or self.done <= max(UNSETTLED, self.patience)


@dataclass
class Unlearned:
    """A run whose loss is that of a model which has learned nothing."""

    limit: float = 0.0
    """Loss beyond which the model is worse than before its first step; 0: no step was seen."""
    excess: float = 0.0
    """Sum of relative distances beyond it."""
    least: float = UNKNOWN
    """The lowest usual loss."""
    least_step: int = 0
    reached: int = 0
    """The first step with a usual loss near the unigram entropy; 0: none."""
    log_norm: float | None = None
    """Logarithm of the gradient norm of the first step."""
    rate: float = 0.0
    """Learning rate before its schedule."""

    def is_worse(self, loss: float, targets: float) -> bool:
        """Whether the model has long been worse than before its first step; it counts anew then."""
        if not self.limit:
            self.limit = ABOVE_FIRST * loss + NOISE_Z * math.sqrt(max(loss, 0.0) * HARD / max(targets, 1.0))
            return False
        self.excess = max(0.0, self.excess + min(loss / self.limit - 1.0, 1.0))
        if self.limit < 0 or self.excess < EXCESS:
            return False
        self.excess = 0.0
        return True

    def follow(self, rate: float, step: int) -> None:
        """Give the run time where its rate is another now."""
        if rate != self.rate:
            self.rate, self.excess, self.least, self.least_step = rate, 0.0, UNKNOWN, step

    def is_stuck(self, step: int, usual: float, log_norm: float, unigram: float, lasting: int) -> bool:
        """Whether the usual loss has not fallen for `lasting` steps and shows a model that knows frequencies alone."""
        if usual < self.least * (1 - PROGRESS):
            self.least, self.least_step = usual, step
        if not self.reached and usual < REACHED * unigram:
            self.reached = step
        if self.log_norm is None:
            self.log_norm = log_norm
        if step - self.least_step < lasting or usual < NEAR_UNIGRAM * unigram:
            return False
        is_soon = 0 < TIMES * self.reached <= step
        return is_soon or log_norm - self.log_norm > math.log(NORM_GROWTH)


class SettingsWatch:
    """Whether the settings of a run are at fault."""

    def __init__(self, spans: Spans, warmup: int, unigram: float | None) -> None:
        """warmup: steps of it; unigram: loss in nats of a model that knows frequencies alone, where there is one."""
        self._spans, self._warmup, self._unigram = spans, warmup, unigram
        self._change: ChangeWatch | None = None
        self._unlearned = Unlearned()

    @property
    def suspect(self) -> int | None:
        """Steps done before a change that anything found now is put down to; None: there is none."""
        change = self._change
        return None if change is None or change.limit >= UNKNOWN or not change.is_unsettled else change.step

    def change(self, step: int, patience: int, usual: RobustWindow, first: float | None) -> None:
        """Settings change after `step` steps: the usual loss before is the measure of what follows.

        patience: steps for which the change explains a higher loss; first: usual loss of the first steps, None where
        they were too few. While an earlier change is not settled, the loss before that one stays the measure.
        """
        start, limit = step, UNKNOWN
        if self.suspect is not None and self._change is not None:
            start, limit = self._change.step, self._change.limit
        elif first is not None:
            learned = max(first - usual.middle, 0.0)
            limit = usual.middle + max(HARM * learned, LEAST_HARM * usual.middle, NOISE_Z * usual.deviation)
        self._change = ChangeWatch(start, limit, patience + self._spans.of(LASTING, LEAST_LASTING))

    def meet_other_text(self) -> None:
        """A stage of the mixture begins: losses before it are no measure."""
        self._change, self._unlearned.limit = None, UNKNOWN

    def judge(self, step: int, loss: float, targets: float, rate: float, usual: float, log_norm: float) -> Found | None:
        """Take in a step with a loss, which may not be finite, and a learning rate before its schedule.

        usual, log_norm: medians of the losses before it, and of the logarithms of their gradient norms.
        """
        change, unlearned = self._change, self._unlearned
        unlearned.follow(rate, step)
        if change is not None:
            if change.add(loss):
                return "change", change.step + 1, {"loss": loss, "limit": change.limit}
            if not change.is_unsettled:
                self._change = None
        # A text that the run has not met yet can be that much harder, for a model that knew something from the start.
        knew = self._unigram is None or unlearned.limit < ABOVE_FIRST * self._unigram
        is_early = step <= self._warmup + UNLEARNED_FROM
        if math.isfinite(loss) and unlearned.is_worse(loss, targets) and (is_early or not knew):
            return "rate", 1, {"loss": loss, "limit": unlearned.limit}
        if self._unigram is None or not usual:  # no step since the start, or since a change
            return None
        lasting = self._spans.of(UNLEARNED, LEAST_UNLEARNED)
        is_stuck = unlearned.is_stuck(step, usual, log_norm, self._unigram, lasting)
        if is_stuck and step >= max(self._warmup + UNLEARNED_FROM, self._spans.steps // 10):
            return "rate", 1, {"loss": usual, "unigram": self._unigram}
        return None

    def state(self) -> dict[str, Any]:
        """State that `load` takes."""
        change = None if self._change is None else asdict(self._change)
        return {"change": change, "unlearned": asdict(self._unlearned)}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state()` returned."""
        self._change = None if state["change"] is None else ChangeWatch(**state["change"])
        self._unlearned = Unlearned(**state["unlearned"])
