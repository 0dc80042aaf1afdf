"""AdamW, and the same with moments of 8 bits."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from hornbook.optim.config.rule import EAGER, Factors, Shape, StateTensor, UpdateRule
from hornbook.settings.fields import Count, Number, named

if TYPE_CHECKING:
    from torch.optim import Optimizer

BLOCK = 256
"""Neighbours along the last dim that share a scale."""


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
            return named("optim.low_precision.narrow_adamw:StochasticAdamW")(groups, betas=(self.beta1, self.beta2))
        return named(EAGER)("AdamW", groups, betas=(self.beta1, self.beta2), fused=True)


class AdamW8bitRule(UpdateRule):
    """AdamW with moments of 8 bits, scaled by blocks of 256 values (Dettmers et al. 2022, arXiv 2110.02861): 2.03 bytes
    per value instead of 8. Vectors, small tensors and embeddings keep float32 moments."""

    stochastic: ClassVar = True
    kind: Literal["adamw8bit"] = "adamw8bit"
    lr: Number = Field(default=3e-4, gt=0)
    """Peak learning rate."""
    beta1: Number = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: Number = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment."""
    eps: Number = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    min_values: Count = Field(default=4096, ge=1)
    """Tensors with fewer values keep float32 moments: they save little."""
    embeddings: bool = False
    """Moments of embeddings in 8 bits too: their gradients are sparse, which makes training less stable."""

    def rule_for(self, role: str, shape: Shape) -> UpdateRule:
        size = 1
        for dim in shape:
            size *= dim
        small = len(shape) < 2 or size < self.min_values
        return self.unquantized if small or (role == "embedding" and not self.embeddings) else self

    @cached_property
    def unquantized(self) -> UpdateRule:
        """AdamW with the same settings and float32 moments."""
        return AdamWRule.model_validate(
            {name: getattr(self, name) for name in AdamWRule.model_fields if name in _SHARED}
        )

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        moments = [
            (StateTensor(name, "shape", "uint8"), StateTensor(f"{name}_scale", "blocks", "float32", BLOCK))
            for name in ("exp_avg", "exp_avg_sq")
        ]
        return StateTensor("step", "scalar", "float32"), *moments[0], *moments[1]

    def group_settings(self, decayed: bool, factors: Factors) -> dict[str, float]:
        return {**super().group_settings(decayed, factors), "eps": self.eps * factors.eps}

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        return named("optim.low_precision.narrow_adamw:QuantizedAdamW")(groups, betas=(self.beta1, self.beta2))


_SHARED = ("lr", "weight_decay", "beta1", "beta2", "eps")
