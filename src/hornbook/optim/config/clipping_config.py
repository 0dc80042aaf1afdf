"""How gradients are limited before an update: by one norm, by value, by row, or by the norms of past steps."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from hornbook.settings.fields import Config, Count, Number, parse_number


@dataclass(frozen=True)
class StepLimits:
    """What one step may not exceed, from those before it (`hornbook.run.guard`)."""

    norm_over: float = math.inf
    """A gradient norm beyond this is clipped,"""
    norm_to: float = math.inf
    """to this."""
    norm: float = math.inf
    """With a gradient norm beyond this the update is refused,"""
    loss: float = math.inf
    """or with a mean loss per target token beyond this,"""
    spike_norm: float = math.inf
    """or with a norm beyond this"""
    spike_loss: float = math.inf
    """and a loss beyond this, both in one step."""


class NormClip(Config):
    """By the global norm (Pascanu et al. 2013, arXiv 1211.5063): all gradients are scaled alike."""

    number: ClassVar = "limit"
    """The setting that a plain number in place of the section sets; `none` there is 0, no clipping."""

    kind: Literal["norm"] = "norm"
    limit: Number = Field(default=1.0, ge=0)
    """Largest global gradient norm; 0 turns clipping off."""


class ValueClip(Config):
    """Each value by itself, to [-limit, limit]; the direction of a step changes."""

    kind: Literal["value"] = "value"
    limit: Number = Field(default=0.5, gt=0)
    """Largest absolute value of a gradient."""


class AdaptiveClip(Config):
    """Each row of a matrix by itself (AGC; Brock et al. 2021, arXiv 2102.06171, eq. 3), a vector as a whole.

    The norm of its gradient is at most `limit` times that of its weights. Embeddings, positions and the head are left.
    """

    kind: Literal["adaptive"] = "adaptive"
    limit: Number = Field(default=0.01, gt=0)
    """Largest norm of the gradient of a row, as a share of the norm of its weights."""
    least: Number = Field(default=1e-3, gt=0)
    """Least norm of the weights that counts, so that rows of zeros can begin to grow."""


class ZScoreClip(Config):
    """By the global norm, with a limit from past steps: norms that stand out are cut back to the edge of the usual.

    The logarithms of the norms after clipping of the last applied steps give a median and a deviation, 1.4826 times the
    median of distances from it. A z-score over them is ZClip's idea (arXiv 2504.02507); medians are not moved by a
    spike, as its means are. A lasting change of the norm is followed within half a window.
    """

    kind: Literal["zscore"] = "zscore"
    z: Number = Field(default=3.0, gt=0)
    """Distance from the median in deviations up to which a norm is usual."""
    window: Count = Field(default=128, ge=4)
    """Applied steps that are remembered."""
    warmup: Count = Field(default=16, ge=4)
    """Remembered steps from which on norms are judged."""
    limit: Number = Field(default=1.0, ge=0)
    """Largest global norm before that; 0: none."""


def _from_number(value: Any) -> Any:
    """A plain number is the largest global norm; `none` is no limit."""
    number = 0 if value == "none" else parse_number(value)
    if isinstance(number, int | float) and not isinstance(number, bool):
        return {"kind": "norm", "limit": number}
    return value


class _OrNumber:
    """The JSON schema of a section in place of which a number may stand."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "number", "minimum": 0}, {"const": "none"}]}


AnyClip = NormClip | ValueClip | AdaptiveClip | ZScoreClip
Clip = Annotated[
    AnyClip,
    Field(discriminator="kind"),
    BeforeValidator(_from_number),
    _OrNumber(),
]
"""How gradients are limited; a plain number is the largest global norm."""
