"""The optimizers that `optim.kind` names: those of the package, and any other by its import path."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from hornbook.optim.config.optimizer import Factors, OptimizerConfig, StateTensor
from hornbook.settings.fields import Config, Number, open_to

if TYPE_CHECKING:
    from torch.optim import Optimizer


class AdamSettings(Config):
    """Settings of Adam's update, which recipes list before those of every optimizer."""

    kind: Literal["adamw"] = "adamw"
    lr: Number = Field(default=3e-4, gt=0)
    """Peak learning rate."""
    beta1: Number = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: Number = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment."""
    eps: Number = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""


class AdamW(OptimizerConfig, AdamSettings):
    """Loshchilov and Hutter 2019 (arXiv 1711.05101); decay falls on matrices, not on norms, biases or vectors."""

    def state_tensors(self) -> tuple[StateTensor, ...]:
        return StateTensor("step", "scalar", "float32"), StateTensor("exp_avg"), StateTensor("exp_avg_sq")

    def group_settings(self, decayed: bool, factors: Factors) -> dict[str, float]:
        return {**super().group_settings(decayed, factors), "eps": self.eps * factors.eps}

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """Torch's fused kernel, which takes the flag of a non-finite gradient without a host synchronisation."""
        import torch

        return torch.optim.AdamW(groups, betas=(self.beta1, self.beta2), fused=True)


def _has_lr(found: OptimizerConfig) -> OptimizerConfig:
    if "lr" not in type(found).model_fields:
        raise ValueError(
            f"{getattr(found, 'kind', found)} is no optimizer without a setting `lr`, the peak learning rate"
        )
    return found


AnyOptimizer = Annotated[AdamW, *open_to("optimizer", OptimizerConfig), AfterValidator(_has_lr)]
