"""Optimizers with one rule for matrices and another for the rest."""

from hornbook.optim.config.matrix_rules import MuonRule, SoapRule
from hornbook.optim.config.optimizer import OptimizerConfig
from hornbook.optim.config.rule import Shape, UpdateRule
from hornbook.optim.config.rules import AdamWRule


class Muon(MuonRule, OptimizerConfig):
    """Muon (Jordan et al. 2024; Moonlight, arXiv 2502.16982) on matrices, `rest` on all other parameters."""

    rest: AdamWRule = AdamWRule()
    """Of embeddings, head, norms, biases and vectors, with a learning rate of its own on the same schedule."""

    def rule_for(self, role: str, shape: Shape) -> UpdateRule:
        return self.rest if self.refusal(role, shape) else self


class SOAP(SoapRule, OptimizerConfig):
    """SOAP (Vyas et al. 2024, arXiv 2409.11321) on matrices, embeddings and head, AdamW on norms, biases and vectors.

    Of an embedding and a head only the shorter side has an eigenbasis, as in the paper (section 4).
    """

    def rule_for(self, role: str, shape: Shape) -> UpdateRule:
        if self.refusal(role, shape):
            own = {name: getattr(self, name) for name in ("lr", "weight_decay", "beta1", "beta2", "eps")}
            return AdamWRule(**own)
        return self if role == "matrix" else self.model_copy(update={"one_sided": True})
