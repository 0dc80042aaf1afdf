"""Learning-rate schedules: pure functions of tokens consumed.

A schedule is a frozen config that is also the function: `schedule(tokens, total_tokens, batches)` returns the factor
on the peak learning rate. Nothing counts calls, so a resume, a changed world size or a batch ramp cannot shift it: at a
given token the factor is the same for any batches. A warm-up of N steps is linear over the tokens of the first N steps
of the run. Sources: cosine with a floor (GPT-3, arXiv 2005.14165, app. B); WSD (MiniCPM, arXiv 2404.06395, eq. 1; 1 -
sqrt decay from arXiv 2405.18392).
"""

import math
from typing import Annotated, Literal

from pydantic import Field

from hornbook.optim.config.batch_schedule import Batches
from hornbook.settings.fields import Config, Duration

NO_WARMUP = Duration(amount=0, unit="tokens")


class _Schedule(Config):
    warmup: Duration = NO_WARMUP
    """Linear warm-up: `"200 steps"`, `"375M tokens"` or a share of the run such as `"1%"`."""

    def __call__(self, tokens: float, total_tokens: int, batches: Batches) -> float:
        """Factor on the peak learning rate for the step that starts at `tokens`; `batches` are the sizes of all steps.

        During warm-up it is the tokens consumed after the step over those of the warm-up, so that no step has a rate
        of zero.
        """
        warmup = self.warmup.tokens(total_tokens, batches.tokens_of)
        consumed = tokens + batches.at(tokens)
        if consumed <= warmup:
            return consumed / warmup
        progress = (tokens - warmup) / max(total_tokens - warmup, 1)
        return self.decay(min(max(progress, 0.0), 1.0))

    def decay(self, progress: float) -> float:  # noqa: ARG002
        """Factor after warm-up; `progress` runs from 0 (end of warm-up) to 1 (end of the run)."""
        raise AssertionError("each kind defines its decay")


class Constant(_Schedule):
    """Warm-up, then the peak rate."""

    kind: Literal["constant"] = "constant"

    def decay(self, progress: float) -> float:  # noqa: ARG002
        return 1.0


class Linear(_Schedule):
    """Straight line from the peak to `floor` x peak."""

    kind: Literal["linear"] = "linear"
    floor: float = Field(default=0.0, ge=0, le=1)
    """Factor at the end of the run."""

    def decay(self, progress: float) -> float:
        return 1.0 - (1.0 - self.floor) * progress


class Cosine(_Schedule):
    """Half a cosine from the peak to `floor` x peak."""

    kind: Literal["cosine"] = "cosine"
    floor: float = Field(default=0.1, ge=0, le=1)
    """Factor at the end of the run."""

    def decay(self, progress: float) -> float:
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


class WSD(_Schedule):
    """Warm-up, stable, decay: the peak rate until the last `decay_share` of the run, then down to `floor`."""

    kind: Literal["wsd"] = "wsd"
    floor: float = Field(default=0.0, ge=0, le=1)
    """Factor at the end of the run."""
    decay_share: float = Field(default=0.2, gt=0, le=1)
    """Share of the steps after warm-up that decay."""
    shape: Literal["sqrt", "linear"] = "sqrt"
    """Form of the decay: 1 - sqrt(x) or a straight line."""

    def decay(self, progress: float) -> float:
        into = max(progress - (1.0 - self.decay_share), 0.0) / self.decay_share
        return 1.0 - (1.0 - self.floor) * (math.sqrt(into) if self.shape == "sqrt" else into)


Schedule = Annotated[Constant | Linear | Cosine | WSD, Field(discriminator="kind")]
