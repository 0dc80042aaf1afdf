"""From hidden states to the vocabulary: losses without ever holding all logits.

[tokens, vocab] logits are the largest tensor of a small model's step, so the loss is computed over chunks of tokens,
and with it, in the same pass, the gradients: a chunk's logits live in cache and are gone before the next.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

CHUNK_LOGITS = 2**22
"""Logits held at once: 16 MiB in float32."""


class Head(nn.Module):
    """Projection by `weight` [vocab, width]: its own, or the embedding's where they are tied."""

    def __init__(self, vocab: int, width: int, tied_to: nn.Module | None) -> None:
        super().__init__()
        # A list hides the embedding from the module tree: tied weights are stored and optimised once.
        self._tied_to = [] if tied_to is None else [tied_to]
        if tied_to is None:
            self.weight = nn.Parameter(torch.empty(vocab, width))

    @property
    def matrix(self) -> Float[Tensor, "vocab width"]:
        """The matrix of the projection."""
        return self._tied_to[0].weight if self._tied_to else self.weight

    def logits(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocab"]:
        """Logits in float32."""
        return torch.nn.functional.linear(hidden, self.matrix.to(hidden.dtype)).float()

    def loss(
        self,
        hidden: Float[Tensor, "batch time width"],
        targets: Int[Tensor, "batch time"],
        weights: Float[Tensor, "batch time"],
    ) -> Float[Tensor, ""]:
        """Sum over tokens of weight * negative log-likelihood (nats), float32."""
        rows = max(CHUNK_LOGITS // self.matrix.shape[0], 1)
        total = ChunkedLoss.apply(hidden.flatten(0, 1), self.matrix, targets.flatten(), weights.flatten(), rows)
        assert isinstance(total, Tensor)
        return total

    @torch.no_grad()
    def token_losses(
        self, hidden: Float[Tensor, "batch time width"], targets: Int[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time"]:
        """Negative log-likelihood (nats) of each target, float32; no gradients."""
        matrix = self.matrix.to(hidden.dtype)
        rows = max(CHUNK_LOGITS // matrix.shape[0], 1)
        parts = zip(hidden.flatten(0, 1).split(rows), targets.flatten().split(rows), strict=True)
        losses = [torch.nn.functional.cross_entropy((h @ matrix.T).float(), t, reduction="none") for h, t in parts]
        return torch.cat(losses).view(targets.shape)


class ChunkedLoss(torch.autograd.Function):
    """Weighted cross-entropy of a linear projection, chunk by chunk; gradients are computed in forward.

    With p = softmax(logits): d loss / d logits = weight * (p - onehot(target)), hence the gradients of hidden states
    and matrix are two more products per chunk. The matrix's gradient is summed over chunks in float32.
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, matrix: Tensor, targets: Tensor, weights: Tensor, rows: int) -> Tensor:
        cast = matrix.to(hidden.dtype)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.zeros((), dtype=wide, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_matrix = torch.zeros_like(matrix) if ctx.needs_input_grad[1] else None
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits = (hidden[part] @ cast.T).to(wide)
            target, weight = targets[part, None], weights[part, None].to(wide)
            picked = logits.gather(1, target)
            logsum = logits.logsumexp(1, keepdim=True)
            total += ((logsum - picked) * weight).sum()
            if grad_hidden is None and grad_matrix is None:
                continue
            logits.sub_(logsum).exp_().mul_(weight).scatter_add_(1, target, -weight)
            grad = logits.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(grad, cast, out=grad_hidden[part])
            if grad_matrix is not None:
                grad_matrix += grad.T @ hidden[part]
        ctx.save_for_backward(grad_hidden, grad_matrix)
        return total

    @staticmethod
    def backward(ctx, grad: Tensor):
        grad_hidden, grad_matrix = ctx.saved_tensors
        scaled = [None if part is None else part * grad.to(part.dtype) for part in (grad_hidden, grad_matrix)]
        return scaled[0], scaled[1], None, None, None
