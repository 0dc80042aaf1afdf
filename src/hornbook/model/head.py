"""From hidden states to the vocabulary: losses without ever holding all logits.

[tokens, vocab] logits are the largest tensor of a small model's step, so the loss is computed over chunks of tokens,
and with it, in the same pass, the gradients: a chunk's logits live in cache and are gone before the next.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.model import config
from hornbook.model.cpu.loss import cross_entropy_
from hornbook.model.cpu.team import supports
from hornbook.model.embedding import Embedding
from hornbook.model.linear import Linear
from hornbook.model.mlp import activate


class Scaled(nn.Module):
    """Hidden states times a number (T5 v1.0, muP)."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return hidden * self.scale


class Transform(nn.Module):
    """`norm(activation(dense(hidden)))`, the masked language model's step before the vocabulary (BERT)."""

    def __init__(self, width: int, bias: bool, activation: config.Activation, norm: nn.Module) -> None:
        super().__init__()
        self.dense, self.norm = Linear(width, width, bias), norm
        self.activation: config.Activation = activation

    def forward(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return self.norm(activate(self.dense(hidden), self.activation))


CHUNK_BYTES = 2048
"""Bytes of logits held at once, per row of the matrix: 1024 tokens in bfloat16, 512 in float32. Fewer tokens cost time,
since each chunk adds to a gradient of the matrix's size, and save little memory beside that gradient."""


def chunk_rows(dtype: torch.dtype) -> int:
    """Tokens whose logits are held at once."""
    return CHUNK_BYTES // dtype.itemsize


class Head(nn.Module):
    """Projection by `weight` [vocab, width]: its own, or the embedding's where they are tied.

    `before` is what the head does to hidden states first; then come the projection, a shift of each token's logit
    where there is a `bias`, and a soft cap.
    """

    def __init__(
        self,
        vocab: int,
        width: int,
        tied_to: Embedding | None,
        before: nn.Module | None = None,
        bias: bool = False,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        # A list hides the embedding from the module tree: tied weights are stored and optimised once.
        self._tied_to: list[Embedding] = [] if tied_to is None else [tied_to]
        if tied_to is None:
            self.weight = nn.Parameter(torch.empty(vocab, width))
        self.bias = nn.Parameter(torch.empty(vocab)) if bias else None
        self.before, self.softcap = before, softcap

    @property
    def matrix(self) -> Float[Tensor, "vocab width"]:
        """The matrix of the projection."""
        return self._tied_to[0].weight if self._tied_to else self.weight

    def logits(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocab"]:
        """Logits in float32."""
        hidden = hidden if self.before is None else self.before(hidden)
        bias = None if self.bias is None else self.bias.to(hidden.dtype)
        logits = torch.nn.functional.linear(hidden, self.matrix.to(hidden.dtype), bias).float()
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def loss(
        self,
        hidden: Float[Tensor, "batch time width"],
        targets: Int[Tensor, "batch time"],
        weights: Float[Tensor, "batch time"],
    ) -> Float[Tensor, ""]:
        """Sum over tokens of weight * negative log-likelihood (nats), float32."""
        grad = torch.is_grad_enabled() and (hidden.requires_grad or self.matrix.requires_grad)
        flat = hidden.flatten(0, 1), self.matrix, targets.flatten(), weights.flatten()
        total = ChunkedLoss.apply(*flat, chunk_rows(hidden.dtype), grad)
        assert isinstance(total, Tensor)
        return total

    @torch.no_grad()
    def token_losses(
        self, hidden: Float[Tensor, "batch time width"], targets: Int[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time"]:
        """Negative log-likelihood (nats) of each target, float32; no gradients."""
        rows = chunk_rows(hidden.dtype)
        matrix, weights = self.matrix.to(hidden.dtype), torch.ones(rows, device=hidden.device)
        parts = zip(hidden.flatten(0, 1).split(rows), targets.flatten().split(rows), strict=True)
        losses = [loss_and_grad_(h @ matrix.T, t, weights[: len(t)], grad=False) for h, t in parts]
        return torch.cat(losses).view(targets.shape)


class ChunkedLoss(torch.autograd.Function):
    """Weighted cross-entropy of a linear projection, chunk by chunk; gradients are computed in forward.

    With p = softmax(logits): d loss / d logits = weight * (p - onehot(target)), hence the gradients of hidden states
    and matrix are two more products per chunk. The matrix's gradient is summed over chunks in float32.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, matrix: Tensor, targets: Tensor, weights: Tensor, rows: int, grad: bool
    ) -> Tensor:
        cast = matrix.to(hidden.dtype)
        losses = weights.new_empty(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32))
        grad_hidden = torch.empty_like(hidden) if grad else None
        grad_matrix = torch.zeros_like(matrix) if grad else None
        # One chunk's logits and one product of the matrix's size serve all chunks: both are too large to ask for again.
        buffer = hidden.new_empty(min(rows, len(hidden)), len(matrix))
        product = torch.empty_like(cast) if grad and cast.dtype != matrix.dtype else None
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits = torch.mm(hidden[part], cast.T, out=buffer[: len(hidden[part])])
            losses[part] = loss_and_grad_(logits, targets[part], weights[part], grad)
            if grad_hidden is not None and grad_matrix is not None:
                torch.mm(logits, cast, out=grad_hidden[part])
                if product is None:
                    grad_matrix.addmm_(logits.T, hidden[part])
                else:
                    grad_matrix += torch.mm(logits.T, hidden[part], out=product)
        ctx.save_for_backward(grad_hidden, grad_matrix)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        grad_hidden, grad_matrix = ctx.saved_tensors
        # The factor stays in float32: rounded to bfloat16 it would scale all below the head by up to 0.4 % wrongly.
        return grad_hidden * grads[0], grad_matrix * grads[0], None, None, None, None


def loss_and_grad_(
    logits: Float[Tensor, "rows vocab"], targets: Int[Tensor, " rows"], weights: Float[Tensor, " rows"], grad: bool
) -> Float[Tensor, " rows"]:
    """Weighted losses of some rows; if `grad`, the logits become their gradients."""
    if supports(logits, weights):
        losses = torch.empty(len(logits))
        cross_entropy_(logits, targets.contiguous(), weights.contiguous(), losses, grad)
        return losses
    target, weight = targets[:, None], weights[:, None]
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logsum = wide.logsumexp(1, keepdim=True)
    losses = (logsum - wide.gather(1, target)) * weight
    if grad:
        logits.copy_((wide - logsum).exp_().mul_(weight).scatter_add_(1, target, -weight.to(wide.dtype)))
    return losses.squeeze(1)
