"""From hidden states to the vocabulary: losses without ever holding all logits.

[tokens, vocab] logits are the largest tensor of a small model's step, so the loss is computed over chunks of tokens,
and with it, in the same pass, the gradients: a chunk's logits live in cache and are gone before the next.
"""

import functools
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.model.attention.position import Lengths
from hornbook.model.config.head_config import CHUNK_BYTES, DEVICE_SHARE, LMHead, MaskedHead
from hornbook.model.config.mlp_config import Activation
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.heads.losses import LossAndGrad, LossTerms, SoftTargets, distillation, loss_and_grad_
from hornbook.model.layers.embedding import Embedding
from hornbook.model.layers.linear import Change, Linear, Product
from hornbook.model.layers.products import add_weight_gradient_, is_own, linear, mm_into
from hornbook.model.layers.transfer import to_device
from hornbook.model.mlp.mlp import activate


class Scaled(nn.Module):
    """Hidden states times a number (T5 v1.0, muP)."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return hidden * self.scale


class Transform(nn.Module):
    """`norm(activation(dense(hidden)))`, the masked language model's step before the vocabulary (BERT).

    Also what some heads do before labels, where the activation may be `tanh` and the norm missing (BERT's pooler).
    """

    def __init__(
        self,
        width: int,
        bias: bool,
        activation: Literal["tanh"] | Activation,
        norm: nn.Module | None,
        outputs: int | None = None,
    ) -> None:
        """outputs: width of the result; by default that of the input."""
        super().__init__()
        self.dense, self.norm = Linear(width, outputs or width, bias), norm
        self.activation: Literal["tanh"] | Activation = activation

    def forward(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        x = self.dense(hidden)
        x = torch.tanh(x) if self.activation == "tanh" else activate(x, self.activation)
        return x if self.norm is None else self.norm(x)


DEVICE_CHUNK_BYTES = 2**28
"""Bytes of all logits held at once on a device that does not say how much memory it has."""

ROW_UNIT = 128
"""On a GPU each row of logits begins at a multiple of so many bytes: wide reads and writes of products need that."""


def chunk_rows(hidden: Tensor, matrix: Tensor, most_rows: int | None = None) -> int:
    """Tokens of hidden states [..., width] whose logits are held at once; `most_rows` in place of those of the matrix.

    On a GPU all chunks have one size where the number of tokens allows it: the loss is compiled for each size.
    """
    rows = CHUNK_BYTES // hidden.element_size()
    if hidden.device.type == "cpu":
        return rows
    most = max(rows, device_chunk_bytes(hidden.device) // ((most_rows or len(matrix)) * hidden.element_size()))
    tokens = hidden.shape[:-1].numel()
    least = max(-(-tokens // most), 1)
    count = next((count for count in range(least, 2 * least) if tokens % count == 0), least)
    return max(-(-tokens // count), 1)


def row_values(vocab: int, hidden: Tensor) -> int:
    """Numbers from the beginning of one row of logits to the next."""
    unit = 1 if hidden.device.type == "cpu" else ROW_UNIT // hidden.element_size()
    return -(-vocab // unit) * unit


@functools.cache
def device_chunk_bytes(device: torch.device) -> int:
    """Bytes of the logits held at once on a device that is no CPU."""
    if device.type != "cuda":
        return DEVICE_CHUNK_BYTES
    return torch.cuda.get_device_properties(device).total_memory // DEVICE_SHARE


class Head(nn.Module):
    """Projection by `weight` [vocab, width]: its own, or the embedding's where they are tied.

    `before` transforms hidden states first; then come the projection, a shift of each token's logit where there is a
    `bias`, and a soft cap.
    """

    role: ClassVar = "head"

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
        self.enter: Change | None = None
        """What becomes of hidden states before the projection of which losses are computed."""
        self.most_rows: int | None = None
        """Rows by which chunks are measured, where others have more rows of the matrix than are here; None: all."""
        self.loss_and_grad_: LossAndGrad = loss_and_grad_
        """Compiled on a GPU."""
        self.held: Tensor | None = None
        """The matrix in the dtype of products, while microbatches of one step share it (`layers.held`)."""
        self.product: Product | None = None
        """Makes logits in a way of its own, of packed weights (`layers.packed`)."""
        self.num_real_tokens: int | None = None
        """Rows of the vocabulary that are tokens; the others pad it. Label smoothing spreads over these. None: all."""

    @property
    def takes_rows(self) -> bool:
        """Whether `losses` reads `rows`, which the host knows, and would have to ask the device without them."""
        return self.before is not None

    @property
    def matrix(self) -> Float[Tensor, "vocab width"]:
        """The matrix of the projection."""
        return self._tied_to[0].weight if self._tied_to else self.weight

    def logits(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocab"]:
        """Logits in float32."""
        hidden = hidden if self.before is None else self.before(hidden)
        logits = self._project(hidden, self.matrix.to(hidden.dtype)).float()
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def losses(
        self,
        hidden: Float[Tensor, "batch time width"],
        targets: Int[Tensor, "batch time"],
        weights: Float[Tensor, "batch time"],
        *,
        smoothing: float = 0.0,
        z_loss: float = 0.0,
        lengths: Lengths | None = None,
        keys: Int[Tensor, " batch"] | None = None,
        rows: Int[Tensor, " counting"] | None = None,
        soft: SoftTargets | None = None,
    ) -> dict[str, Float[Tensor, ""]]:
        """Sums over tokens, float32: `loss`, weight * negative log-likelihood (nats), `z_loss` if asked for, and
        `distillation` with `soft`, which has the tokens of all rows in one line.

        The gradient of all of them hangs on `loss`: backward of their sum is that of the objective. Documents of each
        row (`lengths`) and dropout keys are for heads of labels (`hornbook.model.heads.label_heads`).
        rows: where weights are not 0, of all tokens in a line, on the host; else the device is asked, if there is a
        `before`.
        """
        del lengths, keys
        hidden, targets, weights = hidden.flatten(0, 1), targets.flatten(), weights.flatten()
        if self.before is not None:  # costly, and a masked model predicts few of its tokens
            rows = counting(weights, rows)
            hidden, targets, weights = self.before(hidden[rows]), targets[rows], weights[rows]
            soft = None if soft is None else soft.part(rows)
        hidden = hidden if self.enter is None else self.enter(hidden)
        trained = any(each is not None and each.requires_grad for each in (hidden, self.matrix, self.bias))
        grad = torch.is_grad_enabled() and trained
        terms = LossTerms(smoothing, z_loss, self.softcap, self.num_real_tokens)
        how = grad, self.loss_and_grad_, self.held, self.most_rows, soft
        total, extra, taught = ChunkedLoss.apply(hidden, self.matrix, self.bias, targets, weights, terms, *how)
        found = {"loss": total, "z_loss": extra} if z_loss else {"loss": total}
        return found if soft is None else {**found, "distillation": taught}

    @torch.no_grad()
    def token_losses(
        self,
        hidden: Float[Tensor, "batch time width"],
        targets: Int[Tensor, "batch time"],
        weights: Float[Tensor, "batch time"] | None = None,
        lengths: Lengths | None = None,
        rows: Int[Tensor, " counting"] | None = None,
    ) -> Float[Tensor, "batch time"]:
        """Negative log-likelihood (nats) of each target, float32; no gradients.

        weights: where they are 0 nobody looks, so that a masked model's losses are computed at its few targets alone.
        rows: as of `losses`.
        """
        del lengths
        if weights is not None and self.before is not None:
            rows, losses = counting(weights, rows), torch.zeros_like(weights).flatten()
            few = self.token_losses(hidden.flatten(0, 1)[rows][None], targets.flatten()[rows][None])[0]
            return losses.index_copy_(0, rows, few.to(losses.dtype)).view_as(weights)
        hidden = hidden if self.before is None else self.before(hidden)
        size, terms = chunk_rows(hidden, self.matrix, self.most_rows), LossTerms(softcap=self.softcap)
        matrix, ones = self.matrix.to(hidden.dtype), torch.ones(size, device=hidden.device)
        parts = zip(hidden.flatten(0, 1).split(size), targets.flatten().split(size), strict=True)
        losses = [self.loss_and_grad_(self._project(h, matrix), t, ones[: len(t)], False, terms)[0] for h, t in parts]
        return torch.cat(losses).view(targets.shape)

    @torch.no_grad()
    def likeliest(
        self,
        hidden: Float[Tensor, "batch time width"],
        targets: Int[Tensor, "batch time"],
        weights: Float[Tensor, "batch time"],
        lengths: Lengths | None = None,
        rows: Int[Tensor, " counting"] | None = None,
    ) -> Float[Tensor, "batch time"]:
        """1 where no token is likelier than the target, float32; 0 elsewhere. rows: as of `losses`."""
        del lengths
        rows, right = counting(weights, rows), torch.zeros_like(weights).flatten()
        parts = hidden.flatten(0, 1)[rows].split(chunk_rows(hidden, self.matrix, self.most_rows))
        chosen = torch.cat([self.logits(part).argmax(-1) for part in parts])
        return right.index_copy_(0, rows, (chosen == targets.flatten()[rows]).to(right.dtype)).view_as(weights)

    def _project(self, hidden: Tensor, matrix: Tensor) -> Tensor:
        return (self.product or linear)(hidden, matrix, None if self.bias is None else self.bias.to(hidden.dtype))


def counting(weights: Float[Tensor, "*tokens"], rows: Int[Tensor, " counting"] | None) -> Int[Tensor, " counting"]:
    """`rows` on the device of the weights; where the host does not know them, the tokens whose weight is not 0."""
    return weights.flatten().nonzero().squeeze(1) if rows is None else to_device(rows, weights.device)


def lm_head(cfg: LMHead, model: ModelConfig, vocab: int, embedding: Embedding) -> Head:
    """Projection to the vocabulary, of hidden states that are scaled or projected to the embedding's width first."""
    before = Scaled(cfg.scale) if cfg.scale != 1 else None
    width = model.embedding.width or model.width
    if model.embedding.width:
        before = Linear(model.width, width, bias=False)
    head = Head(vocab, width, embedding if cfg.tied else None, before, cfg.bias, cfg.softcap)
    if head.bias is not None and model.kind == "encoder_decoder":  # BART's final_logits_bias: constant in transformers
        head.bias.requires_grad_(False)
    return head


def masked_head(cfg: MaskedHead, model: ModelConfig, vocab: int, embedding: Embedding) -> Head:
    """BERT's head: a projection, an activation and a norm before the projection to the vocabulary."""
    read = model.embedding.width or model.width
    before = Transform(model.width, cfg.dense_bias, cfg.activation, model.norm.build(read), read)
    return Head(vocab, read, embedding if cfg.tied else None, before, cfg.bias)


class _ChunkLogits:
    """Logits of one chunk after the other."""

    def __init__(self, rows: int, matrix: Tensor) -> None:
        self._rows, self._matrix = rows, matrix
        self._memory: Tensor | None = None

    def of(self, hidden: Float[Tensor, "rows width"]) -> Float[Tensor, "rows vocab"]:
        """hidden W^T, in the memory of the former ones where the product can be told where to write."""
        vocab = len(self._matrix)
        if is_own(hidden, vocab):
            return linear(hidden, self._matrix)
        if self._memory is None:
            self._memory = hidden.new_empty(self._rows, row_values(vocab, hidden))
        return mm_into(hidden, self._matrix.T, self._memory[: len(hidden), :vocab])


class ChunkedLoss(torch.autograd.Function):
    """Weighted cross-entropy of a linear projection, chunk by chunk; gradients are computed in forward.

    With g = d loss / d logits, the gradients of hidden states and matrix are two more products per chunk. The matrix's
    gradient is summed over chunks in float32. Gives the loss, which carries all gradients, and the z-loss and the
    teacher's divergence, which are there to be seen.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        matrix: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor,
        terms: LossTerms,
        grad: bool,
        compute: LossAndGrad,
        held: Tensor | None = None,
        most_rows: int | None = None,
        soft: SoftTargets | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        cast = held if held is not None and held.dtype == hidden.dtype else matrix.to(hidden.dtype)
        rows = chunk_rows(hidden, matrix, most_rows)
        losses = weights.new_empty(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32))
        extra, taught = losses.new_zeros(()), losses.new_zeros(())
        # None: it is frozen, and for hidden states all that made them.
        grad_hidden = torch.empty_like(hidden) if grad and ctx.needs_input_grad[0] else None
        grad_matrix = torch.zeros_like(matrix) if grad and ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias) if grad and bias is not None and ctx.needs_input_grad[2] else None
        # One chunk's logits and one product of the matrix's size serve all chunks: both are too large to ask for again.
        buffer = _ChunkLogits(min(rows, len(hidden)), cast)
        product = torch.empty_like(cast) if grad_matrix is not None and cast.dtype != matrix.dtype else None
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits = buffer.of(hidden[part])
            if bias is not None:
                logits += bias.to(logits.dtype)
            slope = None
            if soft is not None:
                divergence, slope = distillation(logits, soft.part(part), weights[part], grad, terms.softcap)
                taught += divergence.sum()
            losses[part], z_losses = compute(logits, targets[part], weights[part], grad, terms)
            if slope is not None:
                logits += slope
            if z_losses is not None:
                extra += z_losses.sum()
            if grad_hidden is not None:
                mm_into(logits, cast, grad_hidden[part])
            if grad_bias is not None:
                grad_bias += logits.sum(0, dtype=grad_bias.dtype)
            if product is not None and grad_matrix is not None:
                grad_matrix += mm_into(logits.T, hidden[part], product)
            elif grad_matrix is not None:
                add_weight_gradient_(grad_matrix, logits, hidden[part])
            del logits  # before the next
        ctx.save_for_backward(grad_hidden, grad_matrix, grad_bias)
        ctx.mark_non_differentiable(extra, taught)
        return losses.sum(), extra, taught

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        # The factor stays in float32: rounded to bfloat16 it would scale all below the head by up to 0.4 % wrongly.
        scaled = (None if grad is None else grad * grads[0] for grad in ctx.saved_tensors)
        return (*scaled, *[None] * 8)
