"""The optimizers that `optim.kind` names: those of the package, and any other by its import path."""

from typing import Annotated

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
from hornbook.optim.config.matrix_optimizers import SOAP, Muon
from hornbook.optim.config.optimizer import OptimizerConfig
from hornbook.optim.config.rules import AdamWRule
from hornbook.optim.config.schedule_free import ScheduleFree, ScheduleFreeSGD
from hornbook.optim.config.schedules import Constant, Schedule
from hornbook.settings.fields import open_to


class AdamW(AdamWRule, OptimizerConfig):
    """Loshchilov and Hutter 2019 (arXiv 1711.05101); decay falls on matrices, not on norms, biases or vectors."""


class SGD(SGDRule, OptimizerConfig):
    """Gradient descent with momentum."""


class Adagrad(AdagradRule, OptimizerConfig):
    """Duchi et al. 2011 (JMLR 12)."""


class RMSProp(RMSPropRule, OptimizerConfig):
    """Tieleman and Hinton 2012, in torch's form."""


class Adam(AdamRule, OptimizerConfig):
    """Kingma and Ba 2015 (arXiv 1412.6980)."""


class Adafactor(AdafactorRule, OptimizerConfig):
    """Shazeer and Stern 2018 (arXiv 1804.04235), T5's form."""

    schedule: Schedule = Constant()
    """Factor on the rate over the run; `relative_step` is a schedule of its own."""


class Lion(LionRule, OptimizerConfig):
    """Chen et al. 2023 (arXiv 2302.06675)."""


class LAMB(LAMBRule, OptimizerConfig):
    """You et al. 2020 (arXiv 1904.00962)."""


AnyOptimizer = Annotated[
    AdamW | SGD | Adagrad | RMSProp | Adam | Adafactor | Lion | LAMB | Muon | SOAP | ScheduleFree | ScheduleFreeSGD,
    Field(discriminator="kind"),
    *open_to("optimizer", OptimizerConfig),
]
