"""The engine: the training loop's view of one model on all ranks.

The loop never sees devices, ranks, precision or compilation; `hornbook.parallel.data_parallel` says how the model is
divided over ranks, `hornbook.parallel.parallelize` builds an engine.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hornbook.data.batch import Batch
from hornbook.model.build_model import parameter_roles
from hornbook.model.forward_context import Auxiliary
from hornbook.model.heads.head import Head
from hornbook.model.heads.preference import MEASURED
from hornbook.model.layers.dropout import row_keys
from hornbook.model.layers.held import held_weights
from hornbook.model.layers.transfer import fetch, to_device
from hornbook.model.transformer import Transformer
from hornbook.optim.config.clipping_config import AnyClip, NormClip, StepLimits
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.axes.context.context import RowParts
from hornbook.parallel.axes.expert.load_balance import Balance
from hornbook.parallel.compiled_model import CompiledParts
from hornbook.parallel.data_parallel import SingleProcess
from hornbook.parallel.gradients.clipping import Clipping
from hornbook.parallel.gradients.detection import detections
from hornbook.parallel.gradients.exact import TreeSum, exact_norm, exact_terms
from hornbook.parallel.gradients.gradient_norm import Refusal, Scaler, power_below, refusal
from hornbook.parallel.gradients.live_teacher import LiveTeacher
from hornbook.parallel.gradients.noise_scale import BatchPart
from hornbook.parallel.gradients.penalties import Penalties
from hornbook.parallel.gradients.step_objective import head_terms, sum_terms, targets_of
from hornbook.parallel.gradients.zeros import Zeros
from hornbook.parallel.owners import Owners
from hornbook.parallel.parameter_shard import ParameterShard, Shape, fill_shards
from hornbook.parallel.runner import Apply, InOrder, Runner, apply_to, model_inputs, refuse_unnamed
from hornbook.parallel.traffic.step_clock import StepClock
from hornbook.parallel.world import World
from hornbook.settings.training import LossConfig


class Engine:
    """A model on all ranks, as one of them sees it. Every rank makes the same calls in the same order."""

    def __init__(
        self,
        model: Transformer,
        world: World,
        data_parallel: SingleProcess,
        *,
        exact: bool = False,
        scaler: Scaler | None = None,
        loss: LossConfig = LossConfig(),  # noqa: B008 - frozen
        compiled: CompiledParts | None = None,
        hold_weights: bool = False,
        shapes: Mapping[str, Shape],
        trained: Sequence[str],
        auxiliary: Sequence[str] = (),
        runner: Runner | None = None,
        apply: Apply | None = None,
        sum_copies: Callable[[], None] = lambda: None,
    ) -> None:
        """shapes: of all parameters of the whole model; trained: their names, but those that surgery froze; auxiliary:
        names of its losses.

        runner, apply: what calls the model in training and in evaluation. sum_copies: sums gradients of what several
        stages hold, once they are summed over the data axes.
        """
        self.model, self.world, self.scaler = model, world, scaler
        self.shards: dict[str, ParameterShard] = data_parallel.shards
        """This rank's shard of every parameter; a tied one once, under its first name."""
        self.shapes = shapes
        """Shape of every parameter of the whole model, those of other stages too."""
        self.owners = Owners(self.shards, world)
        """Gives an optimizer whole parameters where its rules need them."""
        self.clipping = Clipping(self.shards, world, lambda: parameter_roles(model), exact=exact)
        """Limits gradients; remembers norms where it judges by them."""
        self.penalties = Penalties(loss, self.shards, world, exact=exact)
        """Terms of the objective that are functions of the weights alone."""
        self.zeros = Zeros(model, self.shards, world)
        """Weights that are 0 and stay so."""
        self.teacher: LiveTeacher | None = None
        """Computes beside the model, and gives the term `distillation`."""
        self.clock: StepClock = data_parallel.clock
        """Where the time of a step goes."""
        self.runner: Runner = runner or InOrder(model, self.clock)
        self.apply: Apply = apply or apply_to(model)
        self.sum_copies = sum_copies
        self._data_parallel, self._exact, self._loss, self._trained = data_parallel, exact, loss, trained
        self._compiled, self._hold_weights, self._balance = compiled or CompiledParts(), hold_weights, Balance(model)
        self.parts = RowParts(model, world)
        """What this rank computes of the rows of a batch."""
        self.loss_names: tuple[str, ...] = (*loss.terms, *auxiliary)
        """Of the terms of the objective, in the order in which they are added."""
        self.weights_to_evaluate: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """Entered around evaluations and samples of a run: puts other weights than those that are trained in place."""
        self._learned = [True] * len(self.loss_names)
        """Of each name: part of the objective, and not only told beside it."""
        self._part: BatchPart | None = None
        self._sums: tuple[Tensor, Tensor, float] | None = None
        """Of the step: objective, loss, and the weight of its targets, which the loss is not divided by."""
        self._refusal: Refusal | None = None
        self.own_terms: list[Tensor] = []
        """Of the step: terms of each microbatch of this rank, before they were summed over the ranks."""

    @property
    def _head(self) -> Head:
        assert self.model.head is not None, "one process holds the whole model"
        return self.model.head

    @property
    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The local tensors that training changes, for the optimizer."""
        return {name: shard.tensor for name, shard in self.shards.items() if shard.tensor.requires_grad}

    @property
    def num_parameters(self) -> int:
        """Number of values in the whole model."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def num_trained(self) -> int:
        """Number of values that training changes: all but those of frozen parts (`hornbook.model.surgery`)."""
        return sum(math.prod(self.shapes[name]) for name in self._trained)

    def zero_gradients(self) -> None:
        """Drop the gradients and router loads of the step before."""
        self._data_parallel.zero_gradients()
        self._balance.begin_step()
        self._sums = self._refusal = None

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
        step = _Step(self, [self._compiled.filled(batch) for batch in batches], key, factor)
        if self._part is not None:
            self._part.begin(batches, total_weight, self.scaler.scale if self.scaler else 1.0)
        several = self._hold_weights and len(batches) > 1
        with held_weights(self.model, self.model.compute_dtype) if several else contextlib.nullcontext():
            self.runner.run(step)
        self.own_terms = step.terms
        self._data_parallel.finish_gradients() if step.tree is None else step.tree.give(self.named_parameters.values())
        self.sum_copies()
        with self.clock.phase("communication" if self.world.size > 1 else "forward"):
            sums = (exact_terms if self._exact else sum_terms)(step.terms, self.world)
        penalties = self.penalties.add(self.scaler.scale if self.scaler else 1.0)
        self.zeros.leave_gradients()
        losses = dict(zip(self.loss_names, sums.unbind(), strict=True))
        losses |= {name: penalty * max(total_weight, 1.0) for name, penalty in penalties.items()}
        total = self.objective_of(sums)
        total = torch.stack([total, *penalties.values()]).sum() if penalties else total
        self._sums = total, sums[0], total_weight
        return losses

    def gradients_alone(self, batch: Batch, key: tuple[int, int] | None) -> list[Tensor]:
        """Of one microbatch's summed objective on this rank, which holds the whole model; `grad` and hooks stay out."""
        self.model.train()
        step = _Step(self, [self._compiled.filled(batch)], key, 1.0)
        hidden, auxiliary = self.model(**step.inputs(0))
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        found = torch.autograd.grad(step.objective(hidden, auxiliary, 0), trained, allow_unused=True)
        return [each for each in found if each is not None]

    def objective_of(self, terms: Tensor) -> Tensor:
        """Sum of the terms that are learned, of all of `loss_names`."""
        return terms.sum() if all(self._learned) else terms[self._learned].sum()

    def add_names(self, names: Sequence[str]) -> None:
        """Take further terms by name, behind those there are."""
        refuse_unnamed(self.world, names)
        self.loss_names += tuple(names)
        self._learned += [name not in MEASURED for name in names]

    def measure_part(self) -> None:
        """Measure the gradient over parts of each batch from the next step on; it changes no bit of training."""
        self._part = BatchPart(self._data_parallel, self.world)

    def part_of_batch(self) -> list[Tensor]:
        """What `BatchPart.measured` returns, after `forward_backward`; nothing where it is not measured."""
        return [] if self._part is None else self._part.measured()

    def _terms(
        self, batch: Batch, hidden: Tensor | None, auxiliary: Auxiliary, keys: Tensor | None, factor: float
    ) -> dict[str, Tensor]:
        """Summands of the objective by name: the head's, then what the model adds; `factor` scales their sum."""
        mine = self.parts.batch(batch)
        rows = self.parts.row_weights(batch, to_device(mine.weights, self.world.device))
        rest = self._balance.microbatch(auxiliary, rows, is_empty=mine.is_empty)
        if hidden is None:
            return rest
        how = self._loss, keys, power_below(factor) if self.scaler else 1.0, self.teacher
        return head_terms(self._head, hidden, auxiliary, mine, *how, self.parts.ahead(batch)) | rest

    def inputs(self, batch: Batch, keys: Tensor | None = None) -> dict[str, Any]:
        """Arguments of `Transformer.forward` for this rank's part of a microbatch, on its device."""
        return self.parts.inputs(model_inputs(self.model, batch, keys, self.world.device, masked=self._balance.present))

    def clip_gradients(self, how: AnyClip | float, limits: StepLimits | None = None) -> Tensor:
        """Limit the gradients; returns their global norm before. A number is the largest norm (0: leave them).

        `step` will refuse the update if norm or loss is not finite or beyond `limits`: on all ranks, by the same norm.
        """
        gradients = [each.grad for each in self.named_parameters.values() if each.grad is not None]
        if self.scaler:
            self.scaler.unscale(gradients)
        norm = exact_norm(self.shards, self.world) if self._exact else self._data_parallel.norm(gradients)
        assert self._sums is not None
        self._refusal = refusal(norm, *self._sums, limits)
        how = NormClip(limit=how) if isinstance(how, int | float) else how
        self.clipping.apply(how, norm, self._refusal.any, limits)
        return norm

    def step(self, optimizer: Optimizer) -> Tensor:
        """Update the weights; returns 1.0 if the step was applied, 0.0 if it was refused and changed no bit."""
        assert self._refusal is not None, "clip_gradients comes before step"
        applied = self._update(optimizer, self._refusal.any, self._refusal)
        if self.scaler:
            self.scaler.follow(*map(bool, self._refusal))
        return applied

    def fetch(self, *scalars: Tensor) -> tuple[bool, list[float]]:
        """Whether `step` will apply the update, and the values of scalars on the device. The host waits."""
        assert self._refusal is not None, "clip_gradients comes before step"
        refused, *values = fetch(self._refusal.any, *scalars)
        return not refused, values

    def step_and_fetch(self, optimizer: Optimizer, *scalars: Tensor) -> tuple[bool, list[float]]:
        """The same, and the values of scalars on the device. The host waits for it once, all in all."""
        assert self._refusal is not None, "clip_gradients comes before step"
        known = fetch(*self._refusal, *scalars) if optimizer.asks_host else None
        self._update(optimizer, known[0] if known else self._refusal.any, self._refusal)
        refused, nonfinite, *values = known or fetch(*self._refusal, *scalars)
        if self.scaler:
            self.scaler.follow(bool(refused), bool(nonfinite))
        return not refused, values

    def _update(self, optimizer: Optimizer, refused: Tensor | float, found: Refusal) -> Tensor:
        with self.zeros.kept():
            optimizer.step(refused)
        applied = 1.0 - found.any
        self._balance.step(self.shards, self.world, applied)
        return applied

    @contextlib.contextmanager
    def evaluation_mode(self) -> Iterator[Transformer]:
        """The model without dropout, gradients and compilation; afterwards all is as before. All ranks enter."""
        with self._compiled.set_aside(), self._looking():
            yield self.model

    @contextlib.contextmanager
    def _looking(self) -> Iterator[Transformer]:
        self.model.eval()
        try:
            with torch.no_grad():
                yield self.model
        finally:
            self.model.train()
            self._data_parallel.reshard()
            self.clock.begin()  # records of what crossed ranks would add up until the next step

    def evaluate(self, batch: Batch) -> Tensor:
        """float32 [rows, sequence]: negative log-likelihood in nats of each target, whatever its weight."""
        if batch.detection is not None:  # not compiled: there is no number of rows to fill
            return detections(self, batch)[..., 0]
        rows, batch = len(batch.tokens), self._compiled.filled(batch)
        with self._looking():
            return self.apply(self.inputs(batch), lambda hidden: (self._token_losses(hidden, batch),))[0][:rows]

    def outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses of labels, as `evaluate` gives them, and outputs of the head: float32 [rows, sequence, outputs]."""
        rows, batch = len(batch.tokens), self._compiled.filled(batch)

        def read(hidden: Tensor) -> tuple[Tensor, ...]:
            return self._token_losses(hidden, batch)[:rows], self._head.logits(hidden)[:rows]

        with self._looking():
            losses, outputs = self.apply(self.inputs(batch), read)
        return losses, outputs

    def predictions(self, batch: Batch) -> tuple[Tensor, ...]:
        """Losses as of `evaluate`, and 1 where the likeliest token is the target. Rows of any length: not compiled."""

        def read(hidden: Tensor) -> tuple[Tensor, ...]:
            return self._token_losses(hidden, batch), self._token_losses(hidden, batch, self._head.likeliest)

        with self.evaluation_mode():
            return self.apply(self.inputs(batch), read)

    def _token_losses(self, hidden: Tensor, batch: Batch, measure: Callable[..., Tensor] | None = None) -> Tensor:
        mine, measure = self.parts.batch(batch), measure or self._head.token_losses
        weights, lengths = to_device(mine.weights, self.world.device), batch.document_lengths
        rows = mine.weights.flatten().nonzero().squeeze(1)  # the host knows them: it need not ask the device
        return self.parts.whole(measure(hidden, targets_of(mine, self.world.device), weights, lengths, rows), batch)

    def logits(self, tokens: Tensor) -> Tensor:
        """float32 [rows, sequence, vocab]: logits of plain causal rows `tokens`, int64 [rows, sequence]."""
        with self.evaluation_mode():
            return self.apply({"tokens": to_device(tokens, self.world.device)}, lambda x: (self._head.logits(x),))[0]

    def load_stream(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Copy this rank's shards out of whole tensors; raises IntegrityError unless they cover the model exactly."""
        fill_shards(self.shards, stream, self.shapes)


class _Step:
    """The microbatches of one step of this rank, as a runner sees them (`hornbook.parallel.runner.Step`)."""

    def __init__(self, engine: Engine, batches: Sequence[Batch], key: tuple[int, int] | None, factor: float) -> None:
        self._engine, self._batches, self._key, self._factor = engine, batches, key, factor
        self._keys: dict[int, Tensor] = {}
        self.tree = TreeSum() if engine._exact else None
        self.terms: list[Tensor] = []
        """Of each microbatch, the terms of the objective in the order of `Engine.loss_names`."""

    @property
    def num_microbatches(self) -> int:
        return len(self._batches)

    def begin(self, number: int) -> None:
        last = number == self.num_microbatches - 1
        self._engine._data_parallel.begin_microbatch(last=last, is_empty=self._batches[number].is_empty)

    def _row_keys(self, number: int) -> Tensor | None:
        if self._key is not None and number not in self._keys:
            keys = row_keys(*self._key, self._batches[number].samples)
            self._keys[number] = to_device(keys, self._engine.world.device)
        return self._keys.get(number)

    def inputs(self, number: int) -> dict[str, Any]:
        return self._engine.inputs(self._batches[number], self._row_keys(number))

    def objective(self, hidden: Tensor | None, auxiliary: Auxiliary, number: int) -> Tensor:
        engine, batch = self._engine, self._batches[number]
        found = engine._terms(batch, hidden, auxiliary, self._row_keys(number), self._factor)
        # A part from outside may give losses that it has not named: they were 0 in the microbatches before.
        if unnamed := tuple(name for name in found if name not in engine.loss_names):
            engine.add_names(unnamed)
            self.terms = [nn.functional.pad(each, (0, len(unnamed))) for each in self.terms]
        dtype = torch.promote_types(engine.model.compute_dtype, torch.float32)
        none = torch.zeros((), dtype=dtype, device=engine.world.device)
        terms = torch.stack([found.get(name, none) for name in engine.loss_names])
        self.terms.append(terms.detach())
        return engine.objective_of(terms) * self._factor

    def end(self) -> None:
        engine, gradients = self._engine, None
        if engine._compiled.keeps_memory and len(self.terms) == 1 < self.num_microbatches:
            engine._data_parallel.copy_gradients()
        if self.tree is not None:
            gradients = engine._data_parallel.take_gradients(engine.named_parameters.values())
        if engine._part is not None:
            engine._part.end_microbatch(gradients)
        if self.tree is not None and gradients is not None:
            self.tree.push(gradients)
