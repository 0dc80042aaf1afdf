"""Optimizers with one rule for matrices and another for the rest."""

from hornbook.optim.config.matrix_rules import MuonRule, SoapRule
from hornbook.optim.config.optimizer import OptimizerConfig
from hornbook.optim.config.rule import ITEM_BYTES, Shape, UpdateRule
from hornbook.optim.config.rules import AdamWRule

SQUARES = 6
"""Values of squares for each value of a matrix, 2 (r / c + c / r), where one side is about 2.6 times the other."""


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
