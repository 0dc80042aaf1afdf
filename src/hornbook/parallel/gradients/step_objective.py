"""What the head adds to the objective of a microbatch: the loss of each token, or of answers that are compared."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hornbook.data.batch import Batch, Compared, Mixed
from hornbook.data.config.preferences import Reward
from hornbook.data.config.teacher import TeacherConfig, TopTeacher
from hornbook.model.forward_context import Auxiliary
from hornbook.model.heads.head import Head
from hornbook.model.heads.label_heads import OtherLabels
from hornbook.model.heads.losses import SoftTargets
from hornbook.model.heads.mtp import STATES
from hornbook.model.heads.preference import Answers, comparison_losses, reward_losses
from hornbook.model.heads.replaced import GENERATED, Detector
from hornbook.model.layers.transfer import to_device
from hornbook.parallel.gradients.detection import detection_loss
from hornbook.parallel.gradients.live_teacher import LiveTeacher
from hornbook.parallel.world import LOSSES, World
from hornbook.settings.training import LossConfig

Ahead = Callable[[int], tuple[Tensor, Tensor]]
"""Of how many tokens further on -> targets and weights of this rank's tokens (`hornbook.model.heads.mtp`)."""


def head_terms(
    head: Head,
    hidden: Tensor,
    auxiliary: Auxiliary,
    batch: Batch,
    loss: LossConfig,
    keys: Tensor | None,
    early: float,
    teacher: LiveTeacher | None = None,
    ahead: Ahead | None = None,
) -> dict[str, Tensor]:
    """Sums by name, of the hidden states and of those of multi-token prediction among the auxiliary values.

    The head makes its gradients in the forward pass, before the loss is scaled: in fp16 they carry `early`, a power of
    two of that scale, so that small ones do not vanish. The sums do not. teacher: adds the term `distillation`.
    ahead: of a model with multi-token prediction.
    """
    device = hidden.device
    targets, weights = targets_of(batch, device), to_device(batch.weights, device)
    if batch.compared is not None:
        found = _compared(head, hidden, targets, weights, batch.compared, early)
        return {name: term / early if name == "loss" else term for name, term in found.items()}
    few, told = _soft_targets(batch, loss.teacher, device), dict[str, Tensor]()
    if isinstance(head, Detector) and head.generator is not None:
        told = {"detection": detection_loss(head, hidden, auxiliary, batch, loss.detection)}
        head, hidden = head.generator.head, auxiliary[GENERATED]
    if head.takes_rows:
        few["rows"] = batch.weights.flatten().nonzero().squeeze(1)
    if batch.mixed is not None:
        few["mixed"] = _other_labels(batch.mixed, device)
    more = {"smoothing": loss.smoothing, "z_loss": loss.z_loss, "lengths": batch.document_lengths, "keys": keys}
    found = head.losses(hidden, targets, weights * early, **more, **few)
    if states := [value for name, value in auxiliary.items() if name.startswith(STATES)]:
        assert ahead is not None
        found["mtp"] = _further_loss(head, states, ahead, loss.mtp, early)
    live = {} if teacher is None else {"distillation": teacher.term(batch)}
    return {name: term / early for name, term in found.items()} | live | told


def _further_loss(head: Head, states: list[Tensor], targets_ahead: Ahead, weight: float, early: float) -> Tensor:
    """The loss of multi-token prediction, of the states of each block: the mean over blocks, times its weight."""
    losses = []
    for ahead, hidden in enumerate(states, 1):
        targets, weights = (to_device(each, hidden.device) for each in targets_ahead(ahead))
        losses.append(head.losses(hidden, targets, weights * early)["loss"])
    return torch.stack(losses).mean() * weight


def _other_labels(mixed: Mixed, device: torch.device) -> OtherLabels:
    targets = mixed.targets if mixed.values is None else mixed.values
    return OtherLabels(to_device(targets, device), to_device(mixed.shares, device))


def targets_of(batch: Batch, device: torch.device) -> Tensor:
    """Targets of the head: labels that are numbers, or ids."""
    return to_device(batch.targets if batch.values is None else batch.values, device)


def _compared(
    head: Head, hidden: Tensor, targets: Tensor, weights: Tensor, compared: Compared, early: float
) -> dict[str, Tensor]:
    """Losses of objectives that compare answers, and what is told beside them."""
    parts = compared.marks, compared.sides, compared.references
    marks, sides, references = (to_device(each, hidden.device) for each in parts)
    said = Answers(marks, sides, references, compared.counts)
    if isinstance(compared.objective, Reward):
        return reward_losses(head, hidden, weights, said, scale=early)
    return comparison_losses(head, hidden, targets, weights, said, compared.objective, scale=early)


def _soft_targets(batch: Batch, teacher: TeacherConfig, device: torch.device) -> dict[str, Any]:
    """The argument `soft` of `Head.losses`: the teacher's predictions, the tokens of all rows in one line, if any."""
    if not isinstance(teacher, TopTeacher) or batch.teacher_ids is None or batch.teacher_logs is None:
        return {}
    ids, logs = (to_device(each, device).flatten(0, 1) for each in (batch.teacher_ids, batch.teacher_logs))
    return {"soft": SoftTargets(ids, logs, teacher.temperature, teacher.weight)}


def sum_terms(found: Sequence[Tensor], world: World) -> Tensor:
    """Sums of [terms] over the microbatches of all ranks; each stage has its own terms."""
    total = functools.reduce(torch.add, found)
    if world.axis_size(LOSSES) == 1:
        return total
    return world.all_reduce_sum(total.double(), LOSSES).to(total.dtype)
