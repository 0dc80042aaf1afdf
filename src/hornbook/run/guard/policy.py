"""The ladder: what is done about a finding, as a pure function of it and of what was done before.

| rung | when | what |
|---|---|---|
| 0, 1 | a step stands out (D1a; D0, D1b) | it is clipped or refused on the device (`guard.py`) |
| 2 | it was refused | it is computed again, which tells a faulty machine from bad data (`recompute.py`) |
| 3 | the run does not come back (D2), or too many updates were refused | back to before it, without its data |
| 4 | again there, or a slow divergence (D3), or fp16 fails (D4) | rung 3, and a lower learning rate for a while |
| 5 | again | rung 3, and the next of the settings that may be changed |
| 6 | again, or the budget is spent | pause |
| - | the loss stays high after a change of settings (change) | back to before it, without it; all data is kept |
| - | the rate is too high from the start (rate) | `auto`: from the first step with a tenth of it; `safe`: pause |

Rungs 4 and 5 belong to the mode `auto`. Numbers of steps hold for runs of 10,000 steps and more, and are smaller in
proportion in shorter ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hornbook.run.ledger.decisions import Decision

FULL = 10_000
"""Steps of a run from which on numbers of steps are as they are written."""
MARGIN, LEAST_MARGIN = 50, 2
"""Steps left out before the onset and behind the finding; behind it no fewer than were refused in a row up to it."""
WINDOW, LEAST_WINDOW = 200, 8
"""Steps left out, the fewest."""
LEAST_BACK = 40
"""Steps that a run of any length must be able to go back."""
NEAR, LEAST_NEAR = 1000, 50
"""Steps behind a window within which another finding is the same again."""
ROLLBACKS = 3
"""Within `FULL` steps."""
SAME_PLACE = 2
"""At the same place, where only data can be left out."""
LEFT_OUT, LEAST_LEFT_OUT = 0.02, 200
"""Share of the steps of the run whose data may be left out, and the number that always may."""
OVERLAY_FACTOR, OVERLAY_STEPS, LEAST_OVERLAY = 0.7, 1000, 20
"""Of the learning rate; steps for which it is held, and over which it comes back."""

LOWER_RATE = 0.1
"""Factor on a learning rate that was too high from the start."""

Rule = Literal["D0", "D1a", "D1b", "D1c", "D2", "D3", "D4", "level", "change", "rate"]
REASONS: dict[Rule, str] = {
    "D0": "loss or gradient is not finite",
    "D1b": "too many updates stood far out and were refused",
    "D2": "the loss does not come back from a spike",
    "D3": "the loss rises slowly, and held-out text confirms it",
    "D4": "fp16 cannot represent the gradients",
    "change": "the loss stays far above what it was before the settings changed",
    "rate": "the loss is that of a model which has learned nothing: the learning rate is too high",
}
"""Why a run goes back or pauses."""


@dataclass(frozen=True)
class Detection:
    """What a detector found."""

    rule: Rule
    step: int
    """The last step done."""
    onset: int
    """The first step that stood out."""
    inputs: dict[str, Any] = field(default_factory=dict)
    """What it judged by."""

    @property
    def reason(self) -> str:
        """`D2: the loss does not come back from a spike`."""
        return f"{self.rule}: {REASONS[self.rule]}" if self.rule in REASONS else self.rule

    def fields(self) -> dict[str, Any]:
        """Its fields in a record of the ledger."""
        return {"rule": self.rule, "onset": self.onset, "inputs": self.inputs}


@dataclass(frozen=True)
class Action:
    """What to do about a finding."""

    kind: Literal["rollback", "pause"]
    first: int
    """The first step whose data is left out."""
    last: int
    """The last one: some of them were not done yet."""
    text: str
    overlay: bool = False
    """Lower the learning rate from `first` on."""
    swap: str = ""
    """The setting to change from `first` on."""
    undo: bool = False
    """Leave out the changes of settings from `first` on that the ledger has."""

    @property
    def effective_step(self) -> int:
        """Steps done before the first that is left out."""
        return self.first - 1


@dataclass(frozen=True)
class Spans:
    """Numbers of steps for a run of so many steps."""

    steps: int

    def of(self, number: int, least: int) -> int:
        """`number` in a long run, fewer in proportion in a shorter one, `least` at least."""
        return max(round(number * min(1.0, self.steps / FULL)), min(least, number))


def decide(finding: Detection, past: Sequence[Decision], mode: str, spans: Spans, swaps: Sequence[str] = ()) -> Action:
    """What a guard of this mode does about a finding, given its decisions so far; `swaps`: settings it may change."""
    if finding.rule in ("change", "rate"):
        return _without_the_cause(finding, past, mode, spans, swaps)
    margin = spans.of(MARGIN, LEAST_MARGIN)
    first = max(finding.onset - margin, 1)
    behind = max(margin, finding.inputs.get("in_a_row", 0))  # what was refused until now may last as long again
    last = max(finding.step + behind, first + spans.of(WINDOW, LEAST_WINDOW) - 1)
    rollbacks = [each for each in past if each.kind == "rollback"]
    near = spans.of(NEAR, LEAST_NEAR)
    same = [each for each in past if abs(finding.onset - each.effective_step) <= near]
    before = [each for each in same if each.kind == "rollback"]
    problem = _spent(finding, rollbacks, last - first + 1, spans)
    if not problem and mode != "auto" and len(before) >= SAME_PLACE:
        problem = f"going back {len(before)} times has not helped here"
    if problem:
        return Action("pause", first, last, problem)
    text = f"steps {first:,} to {last:,} are left out"
    if mode != "auto" or not (before or finding.rule in ("D3", "D4")):
        return Action("rollback", first, last, text)
    if not any(each.kind == "overlay" for each in same):
        return Action("rollback", first, last, f"{text}, with a lower learning rate", overlay=True)
    done = {each.words for each in past if each.kind == "swap"}
    swap = next((each for each in swaps if each not in done), None)
    if swap is None:
        return Action("pause", first, last, "no setting is left that guard.swaps allows to change")
    return Action("rollback", first, last, f"{text}, with {swap}", swap=swap)


def _without_the_cause(
    finding: Detection, past: Sequence[Decision], mode: str, spans: Spans, swaps: Sequence[str]
) -> Action:
    """Settings are the cause, and no data is left out: the window ends before its first step."""
    first = finding.onset
    if problem := _spent(finding, [each for each in past if each.kind == "rollback"], 0, spans):
        return Action("pause", first, first - 1, problem)
    if finding.rule == "change":
        text = f"the change of settings after step {first - 1:,} is undone"
        return Action("rollback", first, first - 1, text, undo=True)
    if mode != "auto" or not swaps:
        return Action("pause", first, first - 1, 'the learning rate is lowered in guard.mode = "auto" alone')
    return Action("rollback", first, first - 1, f"from the first step with {swaps[0]}", swap=swaps[0])


def _spent(finding: Detection, rollbacks: Sequence[Decision], steps: int, spans: Spans) -> str:
    """Which budget a further rollback would exceed; "": none."""
    recent = [each for each in rollbacks if each.step > finding.step - FULL]
    if len(recent) >= ROLLBACKS:
        return f"it went back {len(recent)} times within {FULL:,} steps"
    limit = max(round(LEFT_OUT * spans.steps), LEAST_LEFT_OUT)
    if (total := sum(each.left_out for each in rollbacks) + steps) > limit:
        return f"the data of {total:,} steps would be left out, and {limit:,} may be"
    return ""
