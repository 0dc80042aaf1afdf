"""Losses of objectives that compare answers, as functions of the log-probabilities of whole answers.

With l the log-probability of an answer (a sum over its tokens), n its number of tokens, r = l - l_ref, c the chosen and
d the rejected answer of a prompt, s the logistic function:

    DPO    -(1 - e) log s(beta (r_c - r_d)) - e log s(-beta (r_c - r_d))
    IPO    (r_c / n_c - r_d / n_d - 1 / (2 beta))^2
    KTO    w (1 - s(beta (r - z))) of good answers, w (1 - s(beta (z - r))) of bad ones; z = max(0, mean mismatched r)
    ORPO   nll_c - beta log s(o_c - o_d),  o = m - log(1 - e^m),  m = l / n
    reward -log s(R_c - R_d), R the output of a head at the last token of a conversation

All but the last are sums of f(l) over answers, so the gradient of a token's log-probability is that of its answer:
losses of tokens are computed without gradients, f is differentiated, and the head then computes one weighted loss, in
which each token has the weight -df/dl. So no logits are ever held, as in plain training.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hornbook.data.config.preferences import DPO, IPO, KTO, ORPO, Comparing
from hornbook.model.heads.head import Head

CHOSEN, REJECTED, MISMATCHED = 0, 1, 2
"""Sides of a comparison, as in `hornbook.data.batch`."""
MEASURED = ("reward_chosen", "reward_rejected", "reward_margin", "accuracy", "log_ratio", "kl")
"""What is told beside the loss, and not learned."""

LEAST_LOSS = 1e-7
"""Nats per token of an answer that a model is certain of: of exactly 0, which float32 rounds to, no odds are finite."""


class Answers(NamedTuple):
    """The answers of a microbatch."""

    marks: Int[Tensor, "rows time"]
    sides: Int[Tensor, "rows most"]
    references: Float[Tensor, "rows most"]
    counts: tuple[int, int, int]
    """These four as in `hornbook.data.batch.Compared`."""


class _Sums(NamedTuple):
    """Of each answer, in the order of the rows."""

    logps: Float[Tensor, " answers"]
    lengths: Float[Tensor, " answers"]
    sides: Int[Tensor, " answers"]
    references: Float[Tensor, " answers"]
    counts: tuple[int, int, int]

    @property
    def ratios(self) -> Float[Tensor, " answers"]:
        """Log-probability beyond the reference's."""
        return self.logps - self.references

    def pairs(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Values of chosen and of rejected answers, the k-th of both of one prompt."""
        return values[self.sides == CHOSEN], values[self.sides == REJECTED]


def comparison_losses(
    head: Head,
    hidden: Float[Tensor, "rows time width"],
    targets: Int[Tensor, "rows time"],
    weights: Float[Tensor, "rows time"],
    answers: Answers,
    objective: Comparing,
    *,
    scale: float = 1.0,
    **more: Any,
) -> dict[str, Float[Tensor, ""]]:
    """Sum of the loss over comparisons (`loss`, with its gradient times `scale`), and sums of what is told.

    weights: 1 at tokens that take part; 0 leaves rows out. more: as of `Head.losses`.
    """
    answered = (answers.marks % 2 == 1) & (weights > 0)
    losses = head.token_losses(hidden.detach(), targets, weights, more.get("lengths"))
    index, found = _summed(losses, answered, answers)
    with torch.enable_grad():
        leaf = found.logps.detach().requires_grad_(True)
        value, told = _FORMULAS[type(objective)](objective, found._replace(logps=leaf))
        (slopes,) = torch.autograd.grad(value, leaf) if len(leaf) else (leaf,)
    padded = torch.cat([slopes, slopes.new_zeros(1)])
    learned = -padded[index] * answered
    value = value.detach()
    if isinstance(objective, ORPO):
        plain = _plain_tokens(objective, answers, weights) * (answers.counts[0] / max(answers.counts[2], 1))
        learned, value = learned + plain, value + (plain * losses).sum()
    term = head.losses(hidden, targets, (learned * scale).to(weights.dtype), **more)["loss"]
    return {"loss": term + (value * scale - term).detach(), **{name: each.detach() for name, each in told.items()}}


def reward_losses(
    head: Head,
    hidden: Float[Tensor, "rows time width"],
    weights: Float[Tensor, "rows time"],
    answers: Answers,
    *,
    scale: float = 1.0,
) -> dict[str, Float[Tensor, ""]]:
    """Sum of the loss of pairs, times `scale`, and sums of what is told.

    weights: 1 at the last token of each conversation.
    """
    places = ((answers.marks % 2 == 1) & (weights > 0)).flatten().nonzero().squeeze(1)
    rewards = head.logits(hidden.flatten(0, 1)[places])[:, 0].float()
    number = (answers.marks // 2 - 1).clamp(min=0)
    sides = answers.sides.gather(1, number).flatten()[places]
    chosen, rejected = rewards[sides == CHOSEN], rewards[sides == REJECTED]
    told = _told(chosen.detach(), rejected.detach())
    loss = -F.logsigmoid(chosen - rejected).sum() * scale
    return {"loss": loss, **told}


def answer_logps(losses: Float[Tensor, "rows time"], marks: Int[Tensor, "rows time"], most: int) -> Tensor:
    """float64 [rows, most] on the host: log-probability of each answer of a row, from losses of tokens."""
    losses, marks = losses.cpu().double(), marks.cpu()
    number = (marks // 2 - 1).clamp(min=0)
    logps = torch.zeros(len(marks), most, dtype=torch.float64)
    return logps.scatter_add_(1, number, -losses * (marks % 2 == 1))


def _summed(losses: Tensor, answered: Bool[Tensor, "rows time"], answers: Answers) -> tuple[Tensor, _Sums]:
    """(number of the answer of each token; behind the last where there is none), and what there is of each answer."""
    rows, most = answers.sides.shape
    first = torch.arange(rows, device=losses.device)[:, None] * most
    place = torch.where(answered, first + answers.marks // 2 - 1, rows * most)
    size = rows * most + 1
    logps = losses.new_zeros(size).index_add(0, place.flatten(), (-losses * answered).flatten())
    lengths = losses.new_zeros(size).index_add(0, place.flatten(), answered.flatten().to(losses.dtype))
    kept = ((answers.sides.flatten() >= 0) & (lengths[:-1] > 0)).nonzero().squeeze(1)
    number = torch.full((size,), len(kept), device=losses.device)
    number[kept] = torch.arange(len(kept), device=losses.device)
    sides, references = answers.sides.flatten()[kept], answers.references.flatten()[kept]
    return number[place], _Sums(logps[kept], lengths[kept], sides, references.to(losses.dtype), answers.counts)


def _plain_tokens(objective: ORPO, answers: Answers, weights: Tensor) -> Tensor:
    """1 at tokens whose own loss counts: chosen answers, and their prompts if asked for."""
    number = (answers.marks // 2 - 1).clamp(min=0)
    chosen = (answers.sides.gather(1, number) == CHOSEN) & (answers.marks > 0) & (weights > 0)
    return (chosen if objective.prompts else chosen & (answers.marks % 2 == 1)).to(weights.dtype)


def _told(chosen: Tensor, rejected: Tensor) -> dict[str, Tensor]:
    """Sums over pairs of rewards: by side, their margin, and how often the chosen answer has the higher one."""
    return {
        "reward_chosen": chosen.sum(),
        "reward_rejected": rejected.sum(),
        "reward_margin": (chosen - rejected).sum(),
        "accuracy": (chosen > rejected).to(chosen.dtype).sum(),
    }


def _compared_with_reference(objective: DPO | IPO, found: _Sums) -> dict[str, Tensor]:
    rewards = found.pairs(objective.beta * found.ratios.detach())
    return _told(*rewards) | {"log_ratio": found.ratios.sum() / 2}


def _dpo(objective: DPO, found: _Sums) -> tuple[Tensor, dict[str, Tensor]]:
    chosen, rejected = found.pairs(objective.beta * found.ratios)
    margin = chosen - rejected
    value = -(1 - objective.smoothing) * F.logsigmoid(margin) - objective.smoothing * F.logsigmoid(-margin)
    return value.sum(), _compared_with_reference(objective, found)


def _ipo(objective: IPO, found: _Sums) -> tuple[Tensor, dict[str, Tensor]]:
    chosen, rejected = found.pairs(found.ratios / found.lengths)
    value = (chosen - rejected - 1 / (2 * objective.beta)).square().sum()
    return value, _compared_with_reference(objective, found)


def _orpo(objective: ORPO, found: _Sums) -> tuple[Tensor, dict[str, Tensor]]:
    mean = (found.logps / found.lengths).clamp(max=-LEAST_LOSS)
    chosen, rejected = found.pairs(mean - torch.log(-torch.expm1(mean)))
    return -objective.beta * F.logsigmoid(chosen - rejected).sum(), _told(*found.pairs(objective.beta * mean.detach()))


def _kto(objective: KTO, found: _Sums) -> tuple[Tensor, dict[str, Tensor]]:
    ratios = found.ratios
    mismatched = ratios[found.sides == MISMATCHED].detach()
    z = mismatched.mean().clamp(min=0) if len(mismatched) else ratios.new_zeros(())
    good, bad = found.pairs(ratios)
    value = objective.desirable * (1 - torch.sigmoid(objective.beta * (good - z))).sum()
    value = value + objective.undesirable * (1 - torch.sigmoid(objective.beta * (z - bad))).sum()
    total = found.counts[0] + found.counts[1]
    chosen, rejected = (
        objective.beta * each.detach().sum() * (total / max(count, 1))
        for each, count in zip((good, bad), found.counts, strict=False)
    )
    told = {"reward_chosen": chosen, "reward_rejected": rejected, "reward_margin": chosen - rejected}
    return value, told | {"kl": z * (len(good) + len(bad))}


_FORMULAS: dict[type[Comparing], Callable[[Any, _Sums], tuple[Tensor, dict[str, Tensor]]]] = {
    DPO: _dpo,
    IPO: _ipo,
    KTO: _kto,
    ORPO: _orpo,
}
