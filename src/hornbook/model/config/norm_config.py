"""Configuration of normalisation."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hornbook.model.config.part import Model, Rows, Weight, WeightedPart, method
from hornbook.settings.fields import OPEN, Number


class NormPart(WeightedPart):
    """A norm over vectors of some width."""

    rebuilt: ClassVar[bool] = True
    """Whether `parallel.recompute = "selective"` makes its result again in backward."""

    def build(self, width: int, /) -> Any:
        """The module; None where nothing is done."""
        return self.make(width, self)

    def weights(self, model: Model, /) -> list[Weight]:
        """Parameters; by default one of all `num_parameters`."""
        return [Weight("weight", (self.num_parameters(model),), "norm")]

    def num_parameters(self, model: Model, /) -> int:
        """Trained values of a norm of the model's width: of one that lists none, a factor for each feature."""
        listed = type(self).weights is not NormPart.weights
        return sum(each.size for each in self.weights(model)) if listed else model.width

    def keeps_input(self, _rows: Rows, /) -> bool:
        """Whether its input is kept for backward, and not a float32 copy in its place."""
        return True

    def saved_bytes(self, _width: int, rows: Rows, /) -> int:
        """Bytes kept for backward besides: by default a scale for each vector, in float32."""
        return 4 * rows.tokens


def _rms_bytes(part: NormPart, width: int, rows: Rows) -> int:
    """A scale for each vector, the float32 copy of it, and where the norm is several operations its normalised copy."""
    copies = (not part.keeps_input(rows)) + (rows.traced and not rows.frozen)
    return 4 * rows.tokens * (1 + copies * width)


def _keeps_narrow(rows: Rows) -> bool:
    """Whether a norm keeps its input as it is: else it is copied to float32 first."""
    return not rows.eager or rows.itemsize == 4 or rows.rebuilding


class LayerNormConfig(NormPart):
    """Ba et al. 2016 (arXiv 1607.06450)."""

    builder = "layers.norm:LayerNorm"
    kind: Literal["layer"] = "layer"
    eps: Number = 1e-5
    """Added to the variance."""
    bias: bool = True
    """Learned shift."""

    def weights(self, model: Model) -> list[Weight]:
        return [Weight(name, (model.width,), "norm") for name in ("weight", "bias")[: 1 + self.bias]]

    def keeps_input(self, rows: Rows) -> bool:
        return rows.itemsize == 4 or rows.rebuilding

    def saved_bytes(self, width: int, rows: Rows) -> int:
        return 8 * rows.tokens + (0 if self.keeps_input(rows) else 4 * rows.tokens * width)


class RMSNormConfig(NormPart):
    """Zhang and Sennrich 2019 (arXiv 1910.07467)."""

    builder = "layers.norm:RMSNorm"
    kind: Literal["rms"] = "rms"
    eps: Number = 1e-6
    """Added to the mean square."""

    def keeps_input(self, rows: Rows) -> bool:
        return _keeps_narrow(rows)

    def saved_bytes(self, width: int, rows: Rows) -> int:
        return _rms_bytes(self, width, rows)


class OffsetRMSNormConfig(NormPart):
    """RMSNorm that multiplies by 1 + weight, so that decay pulls it to 1 (as Gemma)."""

    builder = "layers.norm:OffsetRMSNorm"
    kind: Literal["rms_offset"] = "rms_offset"
    eps: Number = 1e-6
    """Added to the mean square."""

    def saved_bytes(self, width: int, rows: Rows) -> int:
        return _rms_bytes(self, width, rows) + 4 * width

    def keeps_input(self, rows: Rows) -> bool:
        return _keeps_narrow(rows)


class BatchNormConfig(NormPart):
    """Ioffe and Szegedy 2015 (arXiv 1502.03167), over batch and time; for encoders only, as a comparison."""

    builder = "layers.norm:BatchNorm"
    rebuilt: ClassVar = False
    kind: Literal["batch"] = "batch"
    eps: Number = 1e-5
    """Added to the variance."""

    def weights(self, model: Model) -> list[Weight]:
        return [Weight(name, (model.width,), "norm") for name in ("weight", "bias")]

    def keeps_input(self, rows: Rows) -> bool:
        return rows.itemsize == 4

    def saved_bytes(self, width: int, rows: Rows) -> int:
        """Values less their mean, the same over the deviation, and the deviations; with 16 bits a float32 copy."""
        return (2 if self.keeps_input(rows) else 3) * 4 * rows.tokens * width + 4 * width


class NoNorm(NormPart):
    """No normalisation: the input passes unchanged (T-Fixup)."""

    rebuilt: ClassVar = False
    kind: Literal["none"] = "none"

    def build(self, _width: int) -> None:
        pass

    def weights(self, _model: Model) -> list[Weight]:
        return []

    def keeps_input(self, _rows: Rows) -> bool:
        return False

    def saved_bytes(self, _width: int, _rows: Rows) -> int:
        return 0


def norm_weights(norm: Any, model: Model) -> list[Weight]:
    """Parameters of a norm of the model's width, also of one from outside that is no `NormPart`."""
    return method(norm, "weights", NormPart)(model)


NormConfig = Annotated[
    LayerNormConfig | RMSNormConfig | OffsetRMSNormConfig | BatchNormConfig | NoNorm, Field(discriminator="kind"), *OPEN
]
