"""The protocol of update rules: how gradients change parameters, and the declaration of the state that one keeps.

Snapshots, checkpoints, resharding and memory estimates read the declaration, so none of them knows a particular rule.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from hornbook.settings.fields import Config, Number

if TYPE_CHECKING:
    from torch.optim import Optimizer

Shape = tuple[int, ...]

EAGER = "kernels.torch_versions:eager_optimizer"
"""Import path of what builds one of torch's optimizers: (class, groups, settings) -> optimizer."""
ITEM_BYTES = {"parameter": 4, "float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}
ITEM_BYTES |= {"int16": 2, "int8": 1, "uint8": 1}
"""Bytes of a value by dtype, as torch spells it; `parameter` is that of the parameter, as a rule float32."""


@dataclass(frozen=True)
class StateTensor:
    """A tensor that an optimizer keeps for each parameter; it is zero before the first step."""

    name: str
    """Key in `optimizer.state[parameter]`, in torch's form."""
    extent: Literal["shape", "rows", "columns", "blocks", "scalar", "left", "right"] = "shape"
    """`shape`: a value for each value of the parameter; `rows`: one for each row of each matrix, and for each value of
    a vector; `columns`: one for each column of each matrix, and one for a vector; `blocks`: one for each `block`
    neighbours along its last dim; `scalar`: one; `left`, `right`: a square for the last dim but one, the last dim, of
    each matrix. Squares need `UpdateRule.whole`."""
    dtype: str = "parameter"
    """A key of `ITEM_BYTES`."""
    block: int = 0
    """Of `blocks`: values of the parameter that share a value of the state."""
    is_parameter: bool = False
    """It is the parameter itself, saved bit for bit where the model in a checkpoint has other weights
    (`UpdateRule.averages`)."""

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
                return parameter[:-1] if len(parameter) > 1 else parameter
            case "columns":
                return (*parameter[:-2], parameter[-1]) if len(parameter) > 1 else ()
            case "blocks" if parameter:
                return (*parameter[:-1], -(-parameter[-1] // self.block))
            case "left" | "right":
                side = parameter[-2 if self.extent == "left" else -1]
                # A rank that does not own the parameter has none of its rows, and no square.
                return (*parameter[:-2], side, side) if 0 not in parameter else (0,) * len(parameter)
        return ()

    def dropped_dims(self, dims: int) -> range:
        """Dims of a parameter of `dims` dims that the tensor lacks: shards that differ only in these hold the same."""
        rows = (dims - 1, dims) if dims > 1 else (0, 0)
        dropped = {"rows": rows, "columns": (max(dims - 2, 0), max(dims - 1, min(dims, 1))), "scalar": (0, dims)}
        return range(*dropped.get(self.extent, (0, 0)))


@dataclass(frozen=True)
class Factors:
    """Factors on the optimizer's settings for one parameter."""

    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0


class UpdateRule(Config):
    """How gradients change parameters. A subclass has its `kind`, a default `lr` and settings of its own."""

    stochastic: ClassVar[bool] = False
    """Whether it rounds updates of bfloat16 parameters stochastically; without that small ones would be lost."""
    whole: ClassVar[bool] = False
    """Whether an update of a value reads others of its parameter (norms, sums over rows, products of matrices): where
    ranks share a parameter, one of them is then given all of it, and updates it for the others."""

    averages: ClassVar[bool] = False
    """Whether other weights than those that are trained are evaluated and saved as the model. What `build` makes then
    has `evaluation_weights(parameter)`, which computes them."""

    lr: Number = Field(gt=0)
    """Peak learning rate."""
    weight_decay: Number = Field(default=0.1, ge=0)
    """Decoupled decay, multiplied by the learning rate."""

    def rule_for(self, role: str, shape: Shape) -> "UpdateRule":  # noqa: ARG002
        """The update rule of parameters of this role and shape, where this one is asked for."""
        return self

    def refusal(self, role: str, shape: Shape) -> str:  # noqa: ARG002
        """Why it cannot update a parameter of this role and shape; empty where it can."""
        return ""

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        """The tensors kept for a parameter whose shape, on all ranks together, is `shape`."""
        return ()

    def group_settings(self, decayed: bool, factors: Factors) -> dict[str, float]:
        """Settings of a group of parameters: `weight_decay`, and `lr_factor`, the factor on its learning rate."""
        decay = self.weight_decay * factors.weight_decay if decayed else 0.0
        return {"weight_decay": decay, "lr_factor": factors.lr}

    def role_settings(self, role: str) -> dict[str, Any]:  # noqa: ARG002
        """More settings of a group, for parameters of this role."""
        return {}

    def mup_problem(self) -> str:
        """Why muP's factors, those of updates that do not grow with the gradient, do not fit it; empty if they do."""
        return ""

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """The update in torch's form over `groups`: `params` as (name, tensor) pairs, and their `group_settings`.

        Tensors are this rank's shards, or whole and empty ones. `lr` of each group is set before each step, the state
        before the first.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method `build`")

    @property
    def narrow_products(self) -> bool:
        """Whether the products of `update_operations` are in bfloat16 where a device has it."""
        return False

    def update_operations(self, shape: Shape) -> float:  # noqa: ARG002
        """Operations of the products of matrices in an update of one of this shape."""
        return 0.0

    def state_bytes(self, parameters: int, item_bytes: int = ITEM_BYTES["parameter"]) -> int:
        """Bytes of the state of that many values of `item_bytes` each.

        Without what is kept per row, column or parameter: it is little.
        """
        sizes = 0
        for each in self.state_tensors((parameters, 1)):
            if each.extent in ("shape", "blocks") and not each.is_parameter:
                size = item_bytes if each.dtype == "parameter" else ITEM_BYTES[each.dtype]
                sizes += size * -(-parameters // max(each.block, 1))
        return sizes
