"""Data parallelism: what each rank holds of the model, and how gradients are summed over the ranks.

| `parallel.shard` | each rank holds | gradients cross ranks |
|---|---|---|
| none | everything (Li et al. 2020, arXiv 2006.15704) | once a step, beside the last backward |
| optimizer | its share of the moments (ZeRO-1; Rajbhandari et al. 2020, arXiv 1910.02054) | once a step |
| gradients | its share of moments and gradients (ZeRO-2) | every microbatch |
| everything | its share of weights too, gathered block by block (ZeRO-3, torch's fully_shard) | every microbatch |

Gradients are summed, never averaged: the objective is divided by the weight of the whole global batch before
backward, so the sum over ranks is the gradient of the whole batch.

Where other axes than those of data have several ranks, and `parallel.shard` is none, gradients are summed after the
last microbatch: what a rank holds of a parameter, over the ranks that hold the same and saw other tokens.
"""

from collections.abc import Iterable

from torch import Tensor, nn

from hornbook.model.transformer import Transformer
from hornbook.parallel.axes.tensor.partial import Partial, add_partial
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.gradients.exact import exact_all_reduce_, fill_neutral_
from hornbook.parallel.gradients.gradient_norm import global_norm, norm_of_shards
from hornbook.parallel.gradients.sums import GradientSums
from hornbook.parallel.parameter_shard import Divisions, ParameterShard, local_shards
from hornbook.parallel.traffic.traffic import sent_bytes
from hornbook.parallel.world import DATA, TOKENS, Axis, World


class SingleProcess:
    """One process holds everything; the base of the forms for several ranks."""

    gathers_weights = False
    """Whether weights are gathered for each use, and absent between uses."""

    def __init__(self, model: Transformer, world: World, divisions: Divisions, partial: Partial) -> None:
        """partial: gradients that ranks of the axis `tensor` add up once those of other tokens are summed."""
        self.model, self.clock, self.partial = model, world.clock, partial
        self.shards: dict[str, ParameterShard] = local_shards(dict(model.named_parameters()), divisions, world)

    def zero_gradients(self) -> None:
        """Drop all gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def copy_gradients(self) -> None:
        """Move the gradients into memory of their own, which the next microbatch adds to."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    def begin_microbatch(self, *, last: bool, is_empty: bool) -> None:
        """Called before the forward pass of each microbatch.

        last: after its backward the gradients are complete. is_empty: this rank has no microbatch left, others have.
        """

    def finish_gradients(self) -> None:
        """Called when gradients are complete: every shard's `grad` is then its part of the sum."""

    def take_gradients(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        """In exact mode, after each microbatch: its gradients, summed over ranks; the parameters have none then."""
        self.finish_gradients()
        gradients = [parameter.grad for parameter in parameters]
        self.zero_gradients()
        taken = [gradient for gradient in gradients if gradient is not None]
        assert len(taken) == len(gradients), "a parameter took no part in the loss"
        with self.clock.phase("communication"):
            self.all_reduce(taken)
        return taken

    def all_reduce(self, gradients: list[Tensor]) -> None:
        """In exact mode, after each microbatch: add the gradients of the other ranks for the same round, in place."""

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Global L2 norm, from the gradients of this rank's trained shards; the same on every rank."""
        return global_norm(gradients)

    def gradients(self) -> list[Tensor]:
        """The gradients so far, of this rank's shards; they may not be summed over the ranks yet."""
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def measure_local(self) -> bool:
        """Measure `local_norm` from the next step on; returns whether this form can."""
        return False

    def local_norm(self) -> Tensor:
        """L2 norm of this rank's gradients before they were summed over the ranks."""
        raise NotImplementedError

    def reshard(self) -> None:
        """Called after evaluation and samples: free whatever training does not hold."""


class Unsharded(SingleProcess):
    """Every rank holds what the axes besides those of data leave to it."""

    def __init__(
        self, model: Transformer, world: World, config: ParallelConfig, divisions: Divisions, partial: Partial
    ) -> None:
        super().__init__(model, world, divisions, partial)
        self._world, self._exact, self._is_empty = world, config.exact, False
        self._sums = GradientSums(self.shards, world, TOKENS, config)
        if world.axis_size(["replica"]) == world.size and not config.exact:
            self._sums.launch_early()

    def begin_microbatch(self, *, last: bool, is_empty: bool) -> None:
        self._is_empty, self._sums.is_last = is_empty, last

    def finish_gradients(self) -> None:
        if not self._exact:
            self._sums.finish()
            with self.clock.phase("communication"):
                add_partial(self.shards, self.partial, self._world)

    def all_reduce(self, gradients: list[Tensor]) -> None:
        if self._is_empty:
            fill_neutral_(gradients)
        exact_sum_(gradients, self._world, DATA)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        return norm_of_shards(self.shards, gradients, self._world)

    def measure_local(self) -> bool:
        self._sums.measures = not self._exact
        return self._sums.measures

    def local_norm(self) -> Tensor:
        return self._sums.local_norm()


def exact_sum_(gradients: list[Tensor], world: World, axes: tuple[Axis, ...]) -> None:
    """Sum gradients over `axes` in the fixed tree, in place: an all-to-all, then an all-gather."""
    size = sum(each.nbytes for each in gradients)
    world.clock.traffic.count(
        world.axes_name(axes), "all-to-all", sent_bytes("all-to-all", size, world.axis_size(axes))
    )
    with world.collective(axes, "all-gather", size):
        exact_all_reduce_(gradients, world.group(axes))
