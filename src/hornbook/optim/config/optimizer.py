"""The protocol of optimizers: settings that all have, and the declaration of the state that one keeps.

A user's optimizer from outside the package is a subclass of `OptimizerConfig` (docs/parts.md). Snapshots, checkpoints,
resharding and memory estimates read the declaration, so none of them knows a particular optimizer.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from hornbook.optim.config.schedules import Cosine, Schedule
from hornbook.settings.fields import Config, Number

if TYPE_CHECKING:
    from torch.optim import Optimizer

Shape = tuple[int, ...]

ITEM_BYTES = {"parameter": 4, "float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}
ITEM_BYTES |= {"int16": 2, "int8": 1, "uint8": 1}
"""Bytes of a value by dtype, as torch spells it; `parameter` is that of the parameter, float32 in every run."""


@dataclass(frozen=True)
class StateTensor:
    """A tensor that an optimizer keeps for each parameter; it is zero before the first step."""

    name: str
    """Key in `optimizer.state[parameter]`, in torch's form."""
    extent: Literal["shape", "rows", "columns", "blocks", "scalar"] = "shape"
    """`shape`: a value for each value of the parameter; `rows`: one for each index of its first dim; `columns`: one for
    each index of its other dims; `blocks`: one for each `block` neighbours along its last dim; `scalar`: one."""
    dtype: str = "parameter"
    """A key of `ITEM_BYTES`."""
    block: int = 0
    """Of `blocks`: values of the parameter that share a value of the state."""

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"state {self.name!r} has dtype {self.dtype!r}: take one of {', '.join(ITEM_BYTES)}")
        if (self.extent == "blocks") != (self.block > 0):
            raise ValueError(f'state {self.name!r}: block belongs to extent "blocks", and is more than 0 there')

    def shape(self, parameter: Shape) -> Shape:
        """Shape of the tensor for a parameter of this shape; so too its first index from that of a shard."""
        match self.extent:
            case "shape":
                return parameter
            case "rows":
                return parameter[:1]
            case "columns":
                return parameter[1:]
            case "blocks" if parameter:
                return (*parameter[:-1], -(-parameter[-1] // self.block))
        return ()

    def dropped_dims(self, dims: int) -> range:
        """Dims of a parameter of `dims` dims that the tensor lacks: shards that differ only in these hold the same."""
        first, last = {"rows": (1, dims), "columns": (0, 1), "scalar": (0, dims)}.get(self.extent, (0, 0))
        return range(first, min(last, dims))


@dataclass(frozen=True)
class Factors:
    """Factors on the optimizer's settings for one parameter."""

    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0


class OptimizerConfig(Config):
    """Base of the settings of an optimizer. A subclass adds `kind`, `lr` (the peak learning rate) and its own."""

    weight_decay: Number = Field(default=0.1, ge=0)
    """Decoupled decay, multiplied by the learning rate."""
    decay_embeddings: bool = False
    """Decay embeddings too (GPT-3, nanoGPT)."""
    clip: Number = Field(default=1.0, ge=0)
    """Largest global gradient norm; 0 turns clipping off."""
    schedule: Schedule = Cosine()
    """Learning rate over the run."""

    def state_tensors(self) -> tuple[StateTensor, ...]:
        """The tensors kept for each parameter."""
        return ()

    def group_settings(self, decayed: bool, factors: Factors) -> dict[str, float]:
        """Settings of a group of parameters: `weight_decay`, and `lr_factor`, the factor on its learning rate."""
        decay = self.weight_decay * factors.weight_decay if decayed else 0.0
        return {"weight_decay": decay, "lr_factor": factors.lr}

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """The update in torch's form over `groups`: `params` as (name, tensor) pairs, and their `group_settings`.

        Tensors are this rank's shards. `lr` of each group is set before each step, the state before the first.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method `build`")

    def state_bytes(self, parameters: int) -> int:
        """Bytes of the state of that many values, without what is kept per row, column or parameter: it is little."""
        sizes = 0
        for each in self.state_tensors():
            if each.extent in ("shape", "blocks"):
                sizes += ITEM_BYTES[each.dtype] * -(-parameters // max(each.block, 1))
        return sizes
