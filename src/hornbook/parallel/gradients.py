"""Dynamic loss scaling for fp16 (Micikevicius et al. 2018, arXiv 1710.03740), with torch's GradScaler's numbers.

The loss is multiplied by the scale before backward, so that small gradients do not vanish in fp16, and gradients are
divided by it before they are judged and used. A step refused for a gradient that is not finite halves the scale, a
long run of good steps doubles it. The scale is a power of two: multiplying and dividing by it rounds nothing.

Every rank judges by the same global norm, so all hold the same scale without asking each other.
"""

import math
from dataclasses import asdict, dataclass

FIRST_SCALE = 2.0**16
FLOOR = 1.0
CEILING = 2.0**127
"""Largest power of two in float32."""
GROWTH_STEPS = 2000
"""Good steps after which the scale is doubled."""


@dataclass(frozen=True)
class ScaleState:
    """What the next step depends on."""

    scale: float = FIRST_SCALE
    good_steps: int = 0
    """Applied since the scale last changed."""

    def after(self, *, applied: bool) -> "ScaleState":
        """The state that follows a step that was applied, or refused because something was not finite."""
        if not applied:
            return ScaleState(max(self.scale / 2, FLOOR))
        if self.good_steps + 1 < GROWTH_STEPS:
            return ScaleState(self.scale, self.good_steps + 1)
        return ScaleState(min(self.scale * 2, CEILING))


def power_below(factor: float) -> float:
    """The largest power of two up to `factor`, and 1 at least; multiplying and dividing by it rounds nothing."""
    _, exponent = math.frexp(factor)
    return 2.0 ** max(exponent - 1, 0)


class Scaler:
    """The scale of a run."""

    def __init__(self) -> None:
        self._state = ScaleState()

    @property
    def scale(self) -> float:
        """What the loss is multiplied by, and gradients are divided by."""
        return self._state.scale

    @property
    def spent(self) -> bool:
        """Whether the scale cannot fall any more: a refused step is then not its fault but the run's (the guard's)."""
        return self._state.scale <= FLOOR

    def update(self, *, applied: bool) -> None:
        """Go on after a step that was applied or refused."""
        self._state = self._state.after(applied=applied)

    def state(self) -> dict[str, float]:
        """Two numbers for a checkpoint."""
        return asdict(self._state)

    def load(self, state: dict[str, float]) -> None:
        """Go on from `state()`."""
        self._state = ScaleState(float(state["scale"]), int(state["good_steps"]))
