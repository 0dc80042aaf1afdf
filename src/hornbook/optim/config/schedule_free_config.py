"""Schedule-Free optimizers (Defazio et al. 2024, arXiv 2405.15682): averaging takes the place of a falling rate."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.config.rule import Factors, Shape, StateTensor
from hornbook.optim.config.schedule_base import duration
from hornbook.optim.config.schedules import Constant, Schedule
from hornbook.settings.fields import Number, named

if TYPE_CHECKING:
    from torch.optim import Optimizer

AVERAGING = (
    StateTensor("z"),
    StateTensor("y", is_parameter=True),
    StateTensor("step", "scalar", "float32"),
    StateTensor("lr_max", "scalar", "float32"),
    StateTensor("steps_averaged", "scalar", "float32"),
)
"""State of each: z is what the gradients move; y, where they are computed, is the parameter itself. A checkpoint's
model is x, the average of z, so y is saved too: y computed from x and z would differ in the last bits."""


class _ScheduleFree(OptimizerConfig):
    averages: ClassVar = True
    weight_decay: Number = Field(default=0.0, ge=0)
    """Decay at y, multiplied by the learning rate."""
    beta1: Number = Field(default=0.9, gt=0, lt=1)
    """Share of the average x in y, where gradients are computed; the rest is z."""
    schedule: Schedule = Constant(warmup=duration(0.05, "share"))
    """Learning rate over the run: constant, with a warm-up."""

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.schedule.kind != "constant":
            text = f'the average of a Schedule-Free optimizer takes the place of "{self.schedule.kind}"'
            yield "schedule.kind", f'{text}: set it to "constant", with a warm-up'

    def build(self, groups: list[dict[str, Any]]) -> "Optimizer":
        return named("optim.schedule_free:ScheduleFreeUpdate")(groups, self.beta1, getattr(self, "beta2", None))


class ScheduleFree(_ScheduleFree):
    """AdamW with averaging (algorithm 1 of the paper): no moment of the gradient, only of its square."""

    kind: Literal["schedule_free"] = "schedule_free"
    lr: Number = Field(default=2.5e-3, gt=0)
    """Learning rate after the warm-up, about 1 to 10 times that of AdamW."""
    beta2: Number = Field(default=0.999, ge=0, lt=1)
    """Decay of the second moment."""
    eps: Number = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return *AVERAGING, StateTensor("exp_avg_sq")

    def group_settings(self, decayed: bool, factors: Factors) -> dict[str, float]:
        return {**super().group_settings(decayed, factors), "eps": self.eps * factors.eps}


class ScheduleFreeSGD(_ScheduleFree):
    """SGD with averaging, which takes the place of momentum."""

    kind: Literal["schedule_free_sgd"] = "schedule_free_sgd"
    lr: Number = Field(default=1.0, gt=0)
    """Learning rate after the warm-up."""

    def mup_problem(self) -> str:
        return "its updates grow with the gradient, and the factors are those of AdamW: take schedule_free"

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return AVERAGING
