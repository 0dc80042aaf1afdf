"""The optimizers that `optim.kind` names: those of the package, and any other by its import path."""

from typing import Annotated

from pydantic import Field

from hornbook.optim.config.matrix_optimizers import SOAP, Muon
from hornbook.optim.config.optimizer import OptimizerConfig
from hornbook.optim.config.rules import AdamWRule
from hornbook.optim.config.schedule_free import ScheduleFree, ScheduleFreeSGD
from hornbook.settings.fields import open_to


class AdamW(AdamWRule, OptimizerConfig):
    """Loshchilov and Hutter 2019 (arXiv 1711.05101); decay falls on matrices, not on norms, biases or vectors."""


AnyOptimizer = Annotated[
    AdamW | Muon | SOAP | ScheduleFree | ScheduleFreeSGD,
    Field(discriminator="kind"),
    *open_to("optimizer", OptimizerConfig),
]
