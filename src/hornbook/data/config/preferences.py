"""Objectives that compare answers: DPO, IPO, ORPO and reward models of pairs, KTO of answers that are good or bad.

What they look at, of an answer y to a prompt x, is r = log pi(y|x) - log ref(y|x), summed over its tokens; the formulas
are in `hornbook.model.heads.preference`. Log-probabilities of the reference are computed once (`hornbook reference`).
"""

from typing import Any, ClassVar, Literal

from pydantic import Field

from hornbook.data.config.objective import Objective
from hornbook.settings.fields import LocalPath, Number, named


class Comparing(Objective):
    """Base of objectives that compare answers, for decoders."""

    kind: Any
    labels: ClassVar[str] = "preference"
    """Kind of the labels that it learns from."""

    def build(self, context: Any) -> Any:
        """Raises UsageError where the data has no such labels, or log-probabilities of the reference are missing."""
        return named("data.labelled.comparisons:build_comparisons")(context, self)

    @property
    def evaluation_key(self) -> str:
        """Evaluation is the loss of good answers, whatever compares them."""
        return "chosen answers"


class Referenced(Comparing):
    """Base of those that compare with a reference model."""

    reference: LocalPath | None = None
    """The reference model: a folder, or the digest that `hornbook reference` told; by default that of `--from`."""


class DPO(Referenced):
    """Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290, equation 7)."""

    kind: Literal["dpo"] = "dpo"
    beta: Number = Field(default=0.1, gt=0)
    """How dear it is to leave the reference."""
    smoothing: Number = Field(default=0.0, ge=0, lt=0.5)
    """Probability that a preference is the wrong way round (conservative DPO)."""


class IPO(Referenced):
    """Identity preference optimization (Azar et al. 2023, arXiv 2310.12036, equation 17), r per token of an answer."""

    kind: Literal["ipo"] = "ipo"
    beta: Number = Field(default=0.1, gt=0)
    """Regularization: differences of r are drawn to 1 / (2 beta)."""


class KTO(Referenced):
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024, arXiv 2402.01306) of answers that are rated alone.

    The divergence z is estimated over each microbatch, of prompts with answers to the prompt before.
    """

    labels: ClassVar[str] = "rated"
    kind: Literal["kto"] = "kto"
    beta: Number = Field(default=0.1, gt=0)
    """How dear it is to leave the reference."""
    desirable: Number = Field(default=1.0, gt=0)
    """Weight of good answers."""
    undesirable: Number = Field(default=1.0, gt=0)
    """Weight of bad answers."""


class Reward(Comparing):
    """Reward models of pairs (Bradley and Terry 1952; Ouyang et al. 2022, arXiv 2203.02155, equation 1).

    The head is `regression` with one output, read at the last token of a conversation.
    """

    predicts_labels: ClassVar[bool] = True
    kind: Literal["reward"] = "reward"


class ORPO(Comparing):
    """Odds ratio preference optimization (Hong et al. 2024, arXiv 2403.07691): no reference model."""

    kind: Literal["orpo"] = "orpo"
    beta: Number = Field(default=0.1, gt=0)
    """Weight of the odds ratio beside the loss of the chosen answer (the paper's lambda)."""
    prompts: bool = True
    """The loss is of the chosen answer and its prompt, as in the authors' code; false: of the answer alone."""
