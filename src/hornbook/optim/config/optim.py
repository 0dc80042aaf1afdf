"""The optimizers that `optim.kind` names: those of the package, and any other by its import path."""

from typing import Annotated

from pydantic import Field

from hornbook.optim.config.adamw_config import AdamW8bitRule, AdamWRule
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
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.config.rule import ITEM_BYTES, Shape, UpdateRule
from hornbook.optim.config.schedule_free_config import ScheduleFree, ScheduleFreeSGD
from hornbook.optim.config.schedules import Constant, Schedule
from hornbook.settings.fields import open_to

SQUARES = 6
"""Values of squares for each value of a matrix, 2 (r / c + c / r), where one side is about 2.6 times the other."""


class AdamW(AdamWRule, OptimizerConfig):
    """Loshchilov and Hutter 2019 (arXiv 1711.05101); decay falls on matrices, not on norms, biases or vectors."""


class AdamW8bit(AdamW8bitRule, OptimizerConfig):
    """AdamW with moments of 8 bits, scaled by blocks of 256 values (Dettmers et al. 2022, arXiv 2110.02861): 2.03 bytes
    per value instead of 8. Vectors, small tensors and embeddings keep float32 moments."""


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


class Muon(MuonRule, OptimizerConfig):
    """Muon (Jordan et al. 2024; Moonlight, arXiv 2502.16982) on matrices, `rest` on all other parameters."""

    rest: AdamWRule = AdamWRule()
    """Of embeddings, head, norms, biases and vectors, with a learning rate of its own on the same schedule."""

    def rule_for(self, role: str, shape: Shape) -> UpdateRule:
        return self.rest if self.refusal(role, shape) else self

    def model_state_bytes(self, parameters: int) -> int:
        return max(self.state_bytes(parameters), self.rest.state_bytes(parameters))


class SOAP(SoapRule, OptimizerConfig):
    """SOAP (Vyas et al. 2024, arXiv 2409.11321) on matrices, embeddings and head, AdamW on norms, biases and vectors.

    Of an embedding and a head only the shorter side has an eigenbasis, as in the paper (section 4).
    """

    def rule_for(self, role: str, shape: Shape) -> UpdateRule:
        if self.refusal(role, shape):
            own = {name: getattr(self, name) for name in ("lr", "weight_decay", "beta1", "beta2", "eps")}
            return AdamWRule(**own)
        return self if role == "matrix" else self.model_copy(update={"one_sided": True})

    def model_state_bytes(self, parameters: int) -> int:
        squares = SQUARES * parameters if self.max_side else 0
        return self.state_bytes(parameters) + ITEM_BYTES["float32"] * squares


AnyOptimizer = Annotated[
    AdamW
    | AdamW8bit
    | SGD
    | Adagrad
    | RMSProp
    | Adam
    | Adafactor
    | Lion
    | LAMB
    | Muon
    | SOAP
    | ScheduleFree
    | ScheduleFreeSGD,
    Field(discriminator="kind"),
    *open_to("optimizer", OptimizerConfig),
]
