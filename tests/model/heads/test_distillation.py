"""The teacher's divergence and its gradient, against autograd on the formula over all classes."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hornbook.model.heads.head import Head
from hornbook.model.heads.losses import SoftTargets, distillation

VOCAB, ROWS = 23, 5


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2


def likeliest(teacher: Tensor, top: int, temperature: float) -> SoftTargets:
    logs, ids = (teacher / temperature).log_softmax(-1).topk(top, dim=-1)
    return SoftTargets(ids, logs, temperature, 0.7)


def written_out(logits: Tensor, teacher: Tensor, top: int, temperature: float, cap: float | None) -> Tensor:
    """KL over the likeliest classes and one for all others, as a sum of probabilities, in float64."""
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    p, q = (each.softmax(-1) for each in (teacher / temperature, logits / temperature))
    ids = p.topk(top, dim=-1).indices
    p, q = (torch.cat([each.gather(1, ids), 1 - each.gather(1, ids).sum(1, keepdim=True)], 1) for each in (p, q))
    p, q = (p[:, :top], q[:, :top]) if top == VOCAB else (p, q)
    return (p * (p.log() - q.log())).sum(1) * temperature**2 * 0.7


@pytest.mark.parametrize(
    ("top", "temperature", "cap"), [(VOCAB, 1.0, None), (4, 1.0, None), (4, 2.5, None), (7, 2.0, 3.0)]
)
def test_loss_and_gradient_are_those_of_the_formula(top: int, temperature: float, cap: float | None) -> None:
    logits, teacher = drawn(1, ROWS, VOCAB).double().requires_grad_(), drawn(2, ROWS, VOCAB).double()
    weights = torch.tensor([1.0, 0.5, 0.0, 1.0, 2.0]).double()
    expected = written_out(logits, teacher, top, temperature, cap) * weights
    (slope,) = torch.autograd.grad(expected.sum(), logits)
    soft = likeliest(teacher, top, temperature)
    losses, found = distillation(logits.detach(), soft, weights, True, cap)
    torch.testing.assert_close(losses, expected.detach(), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(found, slope, atol=1e-9, rtol=1e-9)


def test_a_teacher_that_agrees_is_no_loss() -> None:
    teacher = drawn(3, ROWS, VOCAB)
    losses, slope = distillation(teacher, likeliest(teacher, 6, 1.5), torch.ones(ROWS), True)
    assert losses.abs().max() < 1e-5
    assert slope is not None
    assert slope.abs().max() < 1e-5


def test_the_head_adds_it_to_its_loss_and_gradients() -> None:
    head = Head(VOCAB, 8, None, bias=True)
    for number, each in enumerate(head.parameters()):
        each.data = drawn(number, *each.shape)
    hidden, targets = drawn(5, 1, ROWS, 8).requires_grad_(), torch.arange(ROWS)[None]
    teacher, weights = drawn(6, ROWS, VOCAB), torch.ones(1, ROWS)
    found = head.losses(hidden, targets, weights, soft=likeliest(teacher, VOCAB, 2.0))
    assert set(found) == {"loss", "distillation"}
    ours = torch.autograd.grad(sum(found.values(), torch.zeros(())), [hidden, *head.parameters()])
    logits = head.logits(hidden)[0]
    soft = F.kl_div((logits / 2).log_softmax(-1), (teacher / 2).softmax(-1), reduction="sum") * 4 * 0.7
    hard = F.cross_entropy(logits, targets[0], reduction="sum")
    torch.testing.assert_close(found["distillation"], soft.detach(), atol=1e-4, rtol=1e-5)
    theirs = torch.autograd.grad(hard + soft, [hidden, *head.parameters()])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
