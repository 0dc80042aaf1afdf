"""What the training loop calls: one model on one mesh.

The loop never sees devices, ranks, precision or compilation; whatever spreads the model over more processes
replaces this class and nothing else.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from hornbook.data.batch import Batch
from hornbook.model.dropout import row_keys
from hornbook.model.head import Head
from hornbook.model.transformer import Transformer
from hornbook.optim.moments import check_cover
from hornbook.parallel.clip import clip, gradient_norm, unsound
from hornbook.parallel.compile import apply_compile
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.mesh import Mesh, choose_device
from hornbook.parallel.recompute import apply_recompute
from hornbook.run.config import TrainConfig

PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}


def parallelize(model: Transformer, parallel: ParallelConfig, train: TrainConfig, mesh: Mesh | None = None) -> "Engine":
    """Put `model` on the mesh. A model on meta gets memory, not values: initialise or load it next."""
    mesh = mesh or Mesh(choose_device(train.device))
    model.compute_dtype = PRECISIONS[train.precision]
    apply_recompute(model, mesh, parallel)
    apply_compile(model, mesh, train)
    apply_placement(model, mesh)
    return Engine(model, mesh)


def apply_placement(model: nn.Module, mesh: Mesh) -> None:
    """Move the parameters to the mesh's device, or give them memory there if they are on meta."""
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=mesh.device)
    else:
        model.to(mesh.device)


class Engine:
    """A model of one process."""

    def __init__(self, model: Transformer, mesh: Mesh) -> None:
        self.model = model
        self.mesh = mesh
        self._objective: Tensor | None = None
        self._found_inf: Tensor | None = None

    @property
    def _head(self) -> Head:
        assert self.model.head is not None, "one process holds the whole model"
        return self.model.head

    @property
    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter once, a tied one under its first name."""
        return dict(self.model.named_parameters())

    def zero_gradients(self) -> None:
        """Forget the gradients of the step before."""
        for parameter in self.model.parameters():
            parameter.grad = None
        self._objective = self._found_inf = None

    def forward_backward(
        self, batches: Sequence[Batch], total_weight: float, key: tuple[int, int] | None = None
    ) -> dict[str, Tensor]:
        """Gradients of the mean over the whole global batch; returns weighted sums by name (float32 scalars).

        `total_weight` is the sum of target weights over all microbatches of all processes. Dividing by it before
        each backward makes k ragged microbatches equal one big batch; a mean of means is not. The microbatches
        are taken in the order given, so the bits of the sum do not vary. `key` is (seed, step): with the sample
        it keys what is random in the model; None turns dropout off.
        """
        self.model.train()
        sums: dict[str, Tensor] = {}
        for batch in batches:
            terms = self._terms(batch, key)
            objective = torch.stack(list(terms.values())).sum() / max(total_weight, 1.0)
            objective.backward()
            for name, term in terms.items():
                sums[name] = sums[name] + term.detach() if name in sums else term.detach()
        self._objective = torch.stack(list(sums.values())).sum()
        return sums

    def _terms(self, batch: Batch, key: tuple[int, int] | None) -> dict[str, Tensor]:
        """The summands of the objective: the weighted loss, then what the model adds by name."""
        keys = None if key is None else row_keys(*key, self._place(batch.samples))
        hidden, auxiliary = self._forward(batch, keys)
        targets, weights = self._place(batch.targets), self._place(batch.weights)
        return {"loss": self._head.loss(hidden, targets, weights), **auxiliary}

    def _forward(self, batch: Batch, keys: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        return self.model(self._place(batch.tokens), self._place(batch.positions), batch.lengths, keys)

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.mesh.device, non_blocking=True)

    def clip_gradients(self, limit: float) -> Tensor:
        """Scale the gradients to a global norm of at most `limit` (0: leave them); returns the norm before.

        A norm or loss that is not finite is remembered, and `step` then refuses in the optimizer's kernel.
        """
        parameters = list(self.model.parameters())
        norm = gradient_norm(parameters)
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
        return 1.0 - self._found_inf

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        """Negative log-likelihood of each target in nats, float32 [rows, sequence]; changes nothing."""
        self.model.eval()
        try:
            hidden, _ = self._forward(batch)
            return self._head.token_losses(hidden, self._place(batch.targets))
        finally:
            self.model.train()

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """Logits float32 [rows, sequence, vocab] of plain causal rows `tokens` int64 [rows, sequence]."""
        self.model.eval()
        try:
            hidden, _ = self.model(self._place(tokens))
            return self._head.logits(hidden)
        finally:
            self.model.train()

    def export_stream(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter once, whole, float32 on the CPU, one at a time."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach().to(device="cpu", dtype=torch.float32)

    def load_stream(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Copy whole tensors into the parameters; raises IntegrityError unless they cover the model exactly."""
        parameters, found = self.named_parameters, {}
        with torch.no_grad():
            for name, tensor in stream:
                found[name] = tuple(tensor.shape)
                if name in parameters and parameters[name].shape == tensor.shape:
                    parameters[name].copy_(tensor)
        check_cover({name: tuple(p.shape) for name, p in parameters.items()}, found)
