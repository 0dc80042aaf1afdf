"""Update rules: SGD, Adagrad, RMSProp and Adam, which are torch's own, and Lion, LAMB and Adafactor, which are ours.

The weight decay of the first four is an L2 penalty in the gradient: g + weight_decay * w, before momentum and moments
see it, as in the papers and in torch. That is not decoupled decay (AdamW, Lion): there the weights shrink by
lr * weight_decay whatever the moments are.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from hornbook.optim.config.rule import EAGER, Factors, Shape, StateTensor, UpdateRule
from hornbook.settings.fields import Number, named

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
        settings = {"momentum": self.momentum, "dampening": self.dampening, "nesterov": self.nesterov}
        return named(EAGER)("SGD", groups, lr=self.lr, fused=True, **settings)


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
        on_cpu = all(tensor.device.type == "cpu" for group in groups for _, tensor in group["params"])
        return named(EAGER)("Adagrad", groups, fused=True) if on_cpu else named("optim.adagrad:AdagradUpdate")(groups)


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
        settings = {"alpha": self.alpha, "momentum": self.momentum, "centered": self.centered}
        return named(EAGER)("RMSprop", groups, lr=self.lr, **settings)


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
        return named(EAGER)("Adam", groups, betas=(self.beta1, self.beta2), fused=True)


class LionRule(UpdateRule):
    """Chen et al. 2023 (arXiv 2302.06675, algorithm 2): w -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay w).

    Every value moves by the learning rate, so take a third to a tenth of AdamW's, and as many times its decay.
    """

    kind: Literal["lion"] = "lion"
    lr: Number = Field(default=1e-4, gt=0)
    """Peak learning rate."""
    weight_decay: Number = Field(default=0.3, ge=0)
    """Decoupled decay, multiplied by the learning rate."""
    beta1: Number = Field(default=0.9, ge=0, lt=1)
    """Weight of the momentum in the direction of a step."""
    beta2: Number = Field(default=0.99, ge=0, lt=1)
    """Decay of the momentum."""

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return (StateTensor("exp_avg"),)

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        return named("optim.lion:LionUpdate")(groups, self.beta1, self.beta2)


class LAMBRule(UpdateRule):
    """You et al. 2020 (arXiv 1904.00962, algorithm 2): Adam's step, scaled to the norm of each matrix.

    u = m_hat / (sqrt(v_hat) + eps) + weight_decay w, then w -= lr |w| / |u| u. The ratio of norms is 1 where one of
    them is 0, and for norms and biases; each expert has its own.
    """

    whole: ClassVar = True

    kind: Literal["lamb"] = "lamb"
    lr: Number = Field(default=2e-3, gt=0)
    """Peak learning rate: the share of its norm by which a matrix moves."""
    weight_decay: Number = Field(default=0.01, ge=0)
    """Decay as a part of the update, before it is scaled to the norm."""
    beta1: Number = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: Number = Field(default=0.999, ge=0, lt=1)
    """Decay of the second moment."""
    eps: Number = Field(default=1e-6, gt=0)
    """Added to the root of the second moment."""

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return STEP, StateTensor("exp_avg"), StateTensor("exp_avg_sq")

    def role_settings(self, role: str) -> dict[str, Any]:
        return {"scaled": role not in ("norm", "vector")}

    def mup_problem(self) -> str:
        return "a step of LAMB is a share of the norm of a matrix, and muP says nothing of such: take AdamW"

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        return named("optim.lamb:LAMBUpdate")(groups, self.beta1, self.beta2, self.eps)


class AdafactorRule(UpdateRule):
    """Shazeer and Stern 2018 (arXiv 1804.04235), as T5 was trained and transformers has it.

    The second moment of a matrix is kept as means over its rows and columns. With `relative_step` the rate of step t is
    lr min(0.01, 1 / sqrt(t)): leave lr at 1 and the schedule constant, and the steps are those of T5.
    """

    whole: ClassVar = True

    kind: Literal["adafactor"] = "adafactor"
    lr: Number = Field(default=1.0, gt=0)
    """Peak learning rate; with `relative_step` a factor on min(0.01, 1 / sqrt(step))."""
    weight_decay: Number = Field(default=0.0, ge=0)
    """Decoupled decay, multiplied by the rate of the parameter."""
    relative_step: bool = True
    """The rate falls with the number of steps; false takes `lr` and the schedule alone."""
    scale_parameter: bool = True
    """Multiply the rate by the root mean square of the parameter."""
    warmup_init: bool = False
    """With `relative_step`: the rate of step t is lr min(1e-6 t, 1 / sqrt(t))."""
    eps: Number = Field(default=1e-30, gt=0)
    """Added to the squares of gradients."""
    min_scale: Number = Field(default=1e-3, gt=0)
    """Least root mean square of a parameter that `scale_parameter` takes."""
    clip_threshold: Number = Field(default=1.0, gt=0)
    """Largest root mean square of an update, before the rate."""
    decay_rate: Number = Field(default=0.8, gt=0)
    """The second moment of step t is a mean with decay 1 - t^-decay_rate."""
    beta1: Number = Field(default=0.0, ge=0, lt=1)
    """Decay of the mean of updates; 0 keeps none."""

    @model_validator(mode="after")
    def _check_rate(self) -> "AdafactorRule":
        if not self.relative_step and self.lr >= 1:
            raise ValueError("without relative_step lr is the rate itself, and 1 would end training: give lr, as 1e-3")
        if self.warmup_init and not self.relative_step:
            raise ValueError("warmup_init belongs to relative_step: leave out one, and use schedule.warmup")
        return self

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:
        means = StateTensor("exp_avg_sq_row", "rows"), StateTensor("exp_avg_sq_col", "columns")
        squares = means if len(shape) > 1 else (StateTensor("exp_avg_sq"),)
        return STEP, *squares, *((StateTensor("exp_avg"),) if self.beta1 else ())

    def group_settings(self, decayed: bool, factors: Factors) -> dict[str, float]:
        """eps is one of squares here."""
        return {**super().group_settings(decayed, factors), "eps": self.eps * factors.eps**2}

    def mup_problem(self) -> str:
        text = "muP gives each matrix a rate, and scale_parameter another: set it to false, with relative_step"
        return text if self.scale_parameter or self.relative_step else ""

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        return named("optim.adafactor:AdafactorUpdate")(groups, self)
