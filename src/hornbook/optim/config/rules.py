"""Update rules by their `kind`: what `optim.groups` may give a group of parameters."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

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

    kind: Literal["adamw"] = "adamw"
    lr: Number = Field(default=3e-4, gt=0)
    """Peak learning rate."""
    beta1: Number = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: Number = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment."""
    eps: Number = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return StateTensor("step", "scalar", "float32"), StateTensor("exp_avg"), StateTensor("exp_avg_sq")

    def group_settings(self, decayed: bool, factors: Factors) -> dict[str, float]:
        return {**super().group_settings(decayed, factors), "eps": self.eps * factors.eps}

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """Torch's fused kernel, which takes the flag of a non-finite gradient without a host synchronisation."""
        import torch

        return torch.optim.AdamW(groups, betas=(self.beta1, self.beta2), fused=True)


AnyRule = Annotated[
    AdamWRule
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
