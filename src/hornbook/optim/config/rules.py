"""Update rules by their `kind`: what `optim.groups` may give a group of parameters."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hornbook.optim.config.adamw_8bit import AdamW8bitRule
from hornbook.optim.config.classic_rules import (
    AdafactorRule,
    AdagradRule,
    AdamRule,
    LAMBRule,
    LionRule,
    RMSPropRule,
    SGDRule,
)
from hornbook.optim.config.matrix_rules import MuonRule, SoapRule
from hornbook.optim.config.rule import Factors, Shape, StateTensor, UpdateRule
from hornbook.settings.fields import Number, open_to

if TYPE_CHECKING:
    from torch.optim import Optimizer


class AdamWRule(UpdateRule):
    """Loshchilov and Hutter 2019 (arXiv 1711.05101)."""

    stochastic: ClassVar = True
    kind: Literal["adamw"] = "adamw"
    lr: Number = Field(default=3e-4, gt=0)
    """Peak learning rate."""
    beta1: Number = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: Number = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment."""
    eps: Number = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    state: Literal["parameter", "bf16"] = "parameter"
    """Dtype of both moments: the parameter's, or bfloat16 with stochastic rounding: half the bytes of float32."""

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        dtype = "bfloat16" if self.state == "bf16" else "parameter"
        step = StateTensor("step", "scalar", "float32")
        return step, StateTensor("exp_avg", dtype=dtype), StateTensor("exp_avg_sq", dtype=dtype)

    def group_settings(self, decayed: bool, factors: Factors) -> dict[str, float]:
        return {**super().group_settings(decayed, factors), "eps": self.eps * factors.eps}

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """Torch's fused kernel, which takes the flag of a non-finite gradient without a host synchronisation.

        Ours where moments or parameters are bfloat16.
        """
        import torch

        if self.state == "bf16" or any(each.dtype == torch.bfloat16 for group in groups for _, each in group["params"]):
            from hornbook.optim.low_precision.adamw import AdamWBf16

            return AdamWBf16(groups, betas=(self.beta1, self.beta2))
        return torch.optim.AdamW(groups, betas=(self.beta1, self.beta2), fused=True)


AnyRule = Annotated[
    AdamWRule
    | AdamW8bitRule
    | SGDRule
    | AdagradRule
    | RMSPropRule
    | AdamRule
    | AdafactorRule
    | LionRule
    | LAMBRule
    | MuonRule
    | SoapRule,
    Field(discriminator="kind"),
    *open_to("update rule", UpdateRule),
]
