"""What the training loop calls: one model on one mesh.

The loop never sees devices, ranks, precision or compilation; whatever spreads the model over more processes
stands behind this class (`hornbook.parallel.spread`).
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from hornbook.data.batch import Batch
from hornbook.model.heads.head import Head
from hornbook.model.layers.dropout import row_keys
from hornbook.model.layers.precision import choose_precision
from hornbook.model.transformer import Source, Transformer
from hornbook.optim.moments import check_cover
from hornbook.parallel.balance import Balance, counted_tokens
from hornbook.parallel.clip import clip, unsound
from hornbook.parallel.compile import apply_compile
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.exact import TreeSum, check_cut, exact_norm
from hornbook.parallel.mesh import Mesh, choose_device
from hornbook.parallel.pieces import Piece
from hornbook.parallel.recompute import apply_recompute
from hornbook.parallel.scaling import Scaler, power_below
from hornbook.parallel.spread import Replicated, Sharded, Whole, shard_model
from hornbook.run.config import LossConfig, TrainConfig

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def parallelize(
    model: Transformer,
    parallel: ParallelConfig,
    train: TrainConfig,
    mesh: Mesh | None = None,
    tokens: int | None = None,
) -> "Engine":
    """Put `model` on the mesh. A model on meta gets memory, not values: initialise or load it next.

    tokens: how many the tokenizer has, where the vocabulary has more rows.
    """
    mesh = mesh or Mesh(choose_device(train.device))
    if model.head is not None:
        model.head.tokens = tokens
    precision = choose_precision(mesh.device).precision if train.precision == "auto" else train.precision
    model.compute_dtype = PRECISIONS[precision]
    apply_recompute(model, mesh, parallel)
    apply_compile(model, mesh, train)
    spread = apply_spread(model, mesh, parallel)
    if parallel.exact:
        check_cut(spread.pieces)
    return Engine(
        model,
        mesh,
        spread,
        exact=parallel.exact,
        loss=train.loss,
        scaler=Scaler() if precision == "fp16" else None,
    )


def apply_spread(model: Transformer, mesh: Mesh, config: ParallelConfig) -> Whole:
    """Give the model memory on the mesh's device: whole, as one of several copies, or this rank's share."""
    if mesh.size == 1:
        apply_placement(model, mesh)
        return Whole(model)
    if config.shard == "none":
        apply_placement(model, mesh)
        return Replicated(model, mesh, exact=config.exact)
    shard_model(model, mesh, config)
    apply_placement(model, mesh)
    return Sharded(model, mesh, config)


def apply_placement(model: nn.Module, mesh: Mesh) -> None:
    """Move the parameters to the mesh's device, or give them memory there if they are on meta."""
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=mesh.device)
    else:
        model.to(mesh.device)


class Engine:
    """A model on this rank and, behind `spread`, on the others: every rank makes the same calls in the same order."""

    def __init__(
        self,
        model: Transformer,
        mesh: Mesh,
        spread: Whole,
        *,
        exact: bool = False,
        scaler: Scaler | None = None,
        loss: LossConfig = LossConfig(),  # noqa: B008 - frozen
    ) -> None:
        self.model, self.mesh, self.scaler = model, mesh, scaler
        self._spread, self._exact, self._loss = spread, exact, loss
        self._balance = Balance(model)
        self._objective: Tensor | None = None
        self._found_inf: Tensor | None = None

    @property
    def _head(self) -> Head:
        assert self.model.head is not None, "one process holds the whole model"
        return self.model.head

    @property
    def pieces(self) -> dict[str, Piece]:
        """What this rank holds of every parameter; a tied one once, under its first name."""
        return self._spread.pieces

    @property
    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The tensors of the pieces that are trained: what the optimizer updates."""
        return {name: piece.tensor for name, piece in self.pieces.items() if piece.tensor.requires_grad}

    @property
    def num_parameters(self) -> int:
        """Numbers in the whole model."""
        return sum(math.prod(piece.shape) for piece in self.pieces.values())

    @property
    def num_trained(self) -> int:
        """Numbers that training changes: all of the model, but for frozen parts (`hornbook.model.surgery`)."""
        return sum(math.prod(self.pieces[name].shape) for name in self.named_parameters)

    def zero_gradients(self) -> None:
        """Forget the gradients of the step before."""
        self._spread.zero()
        self._balance.forget()
        self._objective = self._found_inf = None

    def forward_backward(
        self, batches: Sequence[Batch], total_weight: float, key: tuple[int, int] | None = None
    ) -> dict[str, Tensor]:
        """Gradients of the mean over the whole global batch; returns weighted sums by name (float32 scalars).

        `batches` are this rank's, and every rank has as many. `total_weight` is the sum of target weights over all
        microbatches of all ranks. Dividing by it before each backward makes k ragged microbatches equal one big
        batch; a mean of means is not. The microbatches are taken in the order given, so the bits of the sum do not
        vary. `key` is (seed, step): with the sample it keys what is random in the model; None turns dropout off.
        """
        self.model.train()
        factor = (self.scaler.scale if self.scaler else 1.0) / max(total_weight, 1.0)
        tree = TreeSum() if self._exact else None
        found: list[dict[str, Tensor]] = []
        for number, batch in enumerate(batches):
            self._spread.before(last=number == len(batches) - 1, blank=batch.blank)
            terms = self._terms(batch, key, factor)
            (torch.stack(list(terms.values())).sum() * factor).backward()
            found.append({name: term.detach() for name, term in terms.items()})
            if tree is not None:
                tree.push(self._take_gradients())
        self._spread.collect() if tree is None else self._set_gradients(tree.total())
        sums = self._sum_exactly(found) if self._exact else self._sum(found)
        self._objective = torch.stack(list(sums.values())).sum()
        return sums

    def _sum(self, found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Sums by name over the microbatches of all ranks."""
        sums: dict[str, Tensor] = {}
        for terms in found:
            for name, term in terms.items():
                sums[name] = sums[name] + term if name in sums else term
        if self.mesh.size == 1:
            return sums
        total = self.mesh.sum_(torch.stack([value.double() for value in sums.values()]))
        return dict(zip(sums, total.to(next(iter(sums.values())).dtype), strict=True))

    def _sum_exactly(self, found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """The same, correctly rounded, so that neither order nor number of ranks matters."""
        columns = self.mesh.gather(torch.stack([torch.stack(list(terms.values())).double() for terms in found]))
        rows = torch.cat(columns).T.tolist()
        device = self.mesh.device
        return {name: torch.tensor(math.fsum(row), device=device) for name, row in zip(found[0], rows, strict=True)}

    def _take_gradients(self) -> list[Tensor]:
        """Of one microbatch of each rank: the sum over ranks, taken out of the parameters."""
        self._spread.collect()
        gradients = [parameter.grad for parameter in self.named_parameters.values()]
        self._spread.zero()
        taken = [gradient for gradient in gradients if gradient is not None]
        assert len(taken) == len(gradients), "a parameter took no part in the loss"
        self._spread.add_ranks(taken)
        return taken

    def _set_gradients(self, gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(self.named_parameters.values(), gradients, strict=True):
            parameter.grad = gradient

    def _terms(self, batch: Batch, key: tuple[int, int] | None, factor: float) -> dict[str, Tensor]:
        """The summands of the objective: the weighted loss, then what the model adds by name.

        `factor` is what their sum is multiplied by. The head makes its gradients in the forward pass, before that: in
        fp16 they carry a power of two of it all the same, so that small ones do not vanish.
        """
        keys = None if key is None else row_keys(*key, self._place(batch.samples))
        hidden, auxiliary = self._forward(batch, keys)
        targets, weights = self._targets(batch), self._place(batch.weights)
        loss = self._loss
        early = power_below(factor) if self.scaler else 1.0
        terms = {"smoothing": loss.smoothing, "z_loss": loss.z_loss}
        found = self._head.losses(hidden, targets, weights * early, **terms, lengths=batch.lengths, keys=keys)
        rest = self._balance.take(auxiliary, weights, batch.blank)
        return {**{name: term / early for name, term in found.items()}, **rest}

    def _forward(self, batch: Batch, keys: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        call = self._spread.module if torch.is_grad_enabled() else self.model
        tokens, positions = self._place(batch.tokens), self._place(batch.positions)
        counted, source = counted_tokens(batch) if self._balance.present else (None, None)
        return call(
            tokens,
            positions,
            batch.lengths,
            keys,
            prefixes=batch.prefixes,
            types=self._types(batch),
            source=self._source(batch, source),
            counted=None if counted is None else self._place(counted),
        )

    def _targets(self, batch: Batch) -> Tensor:
        """What a head of labels, or of tokens, is to give."""
        return self._place(batch.targets if batch.values is None else batch.values)

    def _types(self, batch: Batch) -> Tensor | None:
        """Token types, where the model has two of them."""
        kinds = None if self.model.entrance is None else self.model.entrance.types
        return None if batch.types is None or kinds is None or len(kinds.weight) < 2 else self._place(batch.types)

    def _source(self, batch: Batch, counted: Tensor | None) -> Source | None:
        """What the encoder of an encoder-decoder reads."""
        if batch.source is None:
            return None
        tokens, positions = self._place(batch.source.tokens), self._place(batch.source.positions)
        return Source(tokens, positions, batch.source.lengths, None if counted is None else self._place(counted))

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.mesh.device, non_blocking=True)

    def clip_gradients(self, limit: float) -> Tensor:
        """Scale the gradients to a global norm of at most `limit` (0: leave them); returns the norm before.

        A norm or loss that is not finite is remembered, and `step` then refuses in the optimizer's kernel. All ranks
        see the same norm, so they refuse together.
        """
        parameters = list(self.named_parameters.values())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.scaler:
            for gradient in gradients:
                gradient.mul_(1.0 / self.scaler.scale)
        norm = exact_norm(self.pieces, self.mesh) if self._exact else self._spread.norm(gradients)
        assert self._objective is not None
        self._found_inf = unsound(norm, self._objective)
        if limit:
            clip(parameters, norm, limit)
        return norm

    def step(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """Update the weights; returns 1.0 if the step was applied, 0.0 if it was refused and changed no bit."""
        assert self._found_inf is not None, "clip_gradients comes before step"
        # torch's fused optimizers read these two attributes; nothing else reaches the kernel.
        optimizer.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]
        optimizer.found_inf = self._found_inf  # pyright: ignore[reportAttributeAccessIssue]
        optimizer.step()
        applied = 1.0 - self._found_inf
        self._balance.step(self.pieces, self.mesh, applied)
        if self.scaler:
            self.scaler.update(applied=bool(applied))
        return applied

    @contextlib.contextmanager
    def looking(self) -> Iterator[Transformer]:
        """The model in evaluation mode, without gradients; afterwards all is as before. Every rank looks together."""
        self.model.eval()
        try:
            with torch.no_grad():
                yield self.model
        finally:
            self.model.train()
            self._spread.settle()

    def evaluate(self, batch: Batch) -> Tensor:
        """Negative log-likelihood of each target that counts in nats, float32 [rows, sequence]; changes nothing."""
        with self.looking():
            hidden, _ = self._forward(batch)
            return self._token_losses(hidden, batch)

    def answers(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses of labels as `evaluate` gives them, and what the head says: float32 [rows, sequence, outputs]."""
        with self.looking():
            hidden, _ = self._forward(batch)
            return self._token_losses(hidden, batch), self._head.logits(hidden)

    def _token_losses(self, hidden: Tensor, batch: Batch) -> Tensor:
        return self._head.token_losses(hidden, self._targets(batch), self._place(batch.weights), batch.lengths)

    def logits(self, tokens: Tensor) -> Tensor:
        """Logits float32 [rows, sequence, vocab] of plain causal rows `tokens` int64 [rows, sequence]."""
        with self.looking() as model:
            hidden, _ = model(self._place(tokens))
            return self._head.logits(hidden)

    def export_stream(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter once, whole, float32 on the CPU, one at a time; every rank must go through all of it."""
        for name in self.pieces:
            yield name, self._spread.whole(name).to(device="cpu", dtype=torch.float32)

    def load_stream(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Copy this rank's part of whole tensors; raises IntegrityError unless they cover the model exactly."""
        pieces, found = self.pieces, {}
        with torch.no_grad():
            for name, tensor in stream:
                found[name] = tuple(tensor.shape)
                if name in pieces and pieces[name].shape == tensor.shape:
                    pieces[name].tensor.copy_(tensor[pieces[name].slices])
        check_cover({name: piece.shape for name, piece in pieces.items()}, found)
