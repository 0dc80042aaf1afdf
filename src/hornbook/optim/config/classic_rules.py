"""Update rules whose weight decay is an L2 penalty in the gradient: SGD, Adagrad, RMSProp and Adam, all torch's own.

Decay is added to the gradient, g + weight_decay * w, before momentum and moments see it, as in the papers and in torch.
That is not decoupled decay (AdamW, Lion): there the weights shrink by lr * weight_decay whatever the moments are.
"""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from hornbook.optim.config.rule import Factors, Shape, StateTensor, UpdateRule
from hornbook.settings.fields import Number

if TYPE_CHECKING:
    from torch.optim import Optimizer

STEP = StateTensor("step", "scalar", "float32")


class _WithL2(UpdateRule):
    weight_decay: Number = Field(default=0.0, ge=0)
    """L2 penalty in the gradient: this times the weight is added to it. It is not decoupled decay."""

    def mup_problem(self) -> str:
        """With an L2 penalty in the gradient no factor keeps both, since weights and gradients shrink differently."""
        return "muP says nothing of L2 in the gradient: set weight_decay to 0" if self.weight_decay else ""


class SGDRule(_WithL2):
    """Stochastic gradient descent with momentum (Sutskever et al. 2013): b = momentum b + (1 - dampening) g, w -= lr b.

    The buffer is zero before the first step, which is dampened like all others; torch leaves the first undampened.
    """

    kind: Literal["sgd"] = "sgd"
    lr: Number = Field(default=0.1, gt=0)
    """Peak learning rate."""
    momentum: Number = Field(default=0.9, ge=0, lt=1)
    """Decay of the sum of gradients; 0 keeps no state."""
    dampening: Number = Field(default=0.0, ge=0, lt=1)
    """Share of each gradient that is left out of that sum."""
    nesterov: bool = False
    """Step along g + momentum b, which looks a step ahead."""

    @model_validator(mode="after")
    def _check_nesterov(self) -> "SGDRule":
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening")
        return self

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return (StateTensor("momentum_buffer"),) if self.momentum else ()

    def group_settings(self, decayed: bool, factors: Factors) -> dict[str, float]:
        """Factors are those of updates of one size, and this one grows with the gradient, whose size is that of eps.

        So the rate is divided by it, which for width gives the column SGD of table 8 of arXiv 2203.03466: 1 for
        matrices, width / base_width for the rest. The shrinkage of a step stays as it was.
        """
        adapted = Factors(factors.lr / factors.eps, 1.0, factors.weight_decay * factors.eps)
        return super().group_settings(decayed, adapted)

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """Torch's fused kernel."""
        import torch

        settings = {"momentum": self.momentum, "dampening": self.dampening, "nesterov": self.nesterov}
        return torch.optim.SGD(groups, lr=self.lr, fused=True, **settings)


class _WithEps(_WithL2):
    eps: Number = Field(default=1e-8, gt=0)
    """Added to the root, not below it."""

    def group_settings(self, decayed: bool, factors: Factors) -> dict[str, float]:
        return {**super().group_settings(decayed, factors), "eps": self.eps * factors.eps}


class AdagradRule(_WithEps):
    """Duchi et al. 2011 (JMLR 12, 2121-2159): w -= lr g / (sqrt(sum of g^2) + eps)."""

    kind: Literal["adagrad"] = "adagrad"
    lr: Number = Field(default=1e-2, gt=0)
    """Peak learning rate."""
    eps: Number = Field(default=1e-10, gt=0)
    """Added to the root, not below it."""

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return STEP, StateTensor("sum")

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """Torch's fused kernel on a CPU; elsewhere it has none, and its loop waits for the device."""
        import torch

        from hornbook.optim.adagrad import AdagradUpdate

        on_cpu = all(tensor.device.type == "cpu" for group in groups for _, tensor in group["params"])
        return torch.optim.Adagrad(groups, fused=True) if on_cpu else AdagradUpdate(groups)


class RMSPropRule(_WithEps):
    """Tieleman and Hinton 2012 (Coursera, lecture 6e): w -= lr g / (sqrt(mean of g^2) + eps), in torch's form.

    eps is added to the root, as in torch; TensorFlow adds it below. There is no bias correction, so first steps are
    1 / sqrt(1 - alpha) times as large as Adam's.
    """

    kind: Literal["rmsprop"] = "rmsprop"
    lr: Number = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    alpha: Number = Field(default=0.99, ge=0, lt=1)
    """Decay of the mean of squares."""
    momentum: Number = Field(default=0.0, ge=0, lt=1)
    """Decay of the sum of updates; 0 keeps none."""
    centered: bool = False
    """Subtract the square of the mean gradient: the root is that of the variance (Graves 2013, arXiv 1308.0850)."""

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        more = {"momentum_buffer": self.momentum > 0, "grad_avg": self.centered}
        return STEP, StateTensor("square_avg"), *(StateTensor(name) for name, there in more.items() if there)

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """Torch's update; it has no fused kernel."""
        import torch

        settings = {"alpha": self.alpha, "momentum": self.momentum, "centered": self.centered}
        return torch.optim.RMSprop(groups, lr=self.lr, **settings)


class AdamRule(_WithEps):
    """Kingma and Ba 2015 (arXiv 1412.6980). Its state is AdamW's, and without decay so is its step, bit for bit."""

    kind: Literal["adam"] = "adam"
    lr: Number = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    beta1: Number = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: Number = Field(default=0.999, ge=0, lt=1)
    """Decay of the second moment."""

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return STEP, StateTensor("exp_avg"), StateTensor("exp_avg_sq")

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """Torch's fused kernel."""
        import torch

        return torch.optim.Adam(groups, betas=(self.beta1, self.beta2), fused=True)
