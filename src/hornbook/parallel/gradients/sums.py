"""Sums of gradients over ranks that hold the same, in buckets that are the same in every step of every run.

The gradients of a bucket cross ranks in one call. A ring adds up an element in an order that depends on its place in
the buffer. So what is in a bucket follows from the model and the settings alone: a run that was killed and resumed sums
as one that was not. All ranks launch the buckets in one order, whatever order their gradients come in.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.traffic.traffic import Flow, sent_bytes
from hornbook.parallel.world import Axis, World, others, wide_axes

BUCKET_MB = 25.0
"""MiB of gradients of a bucket where `parallel.bucket_mb` says nothing."""
LATE = {"encoder": 1, "entrance": 2, "bias": 2, "positions": 2, "embedding": 2}
"""Parts of a model whose gradients are complete behind those of decoder and head: the encoder's, then what is below."""


@dataclass
class _Bucket:
    """Gradients of one dtype that cross the same axes in one call."""

    axes: tuple[Axis, ...]
    flow: Flow
    parameters: list[nn.Parameter] = field(default_factory=list)
    arrived: int = 0
    """Gradients that are complete."""
    sums: torch.futures.Future[Tensor] | None = None
    """Done when the gradients are sums; None before the launch."""
    norm: Tensor | None = None
    """Of this rank's gradients, where it is measured."""

    @property
    def num_bytes(self) -> int:
        """Of its gradients."""
        return sum(each.nbytes for each in self.parameters)


class GradientSums:
    """Adds up the gradients of shards, over those of `axes` along which ranks hold the same."""

    def __init__(
        self, shards: Mapping[str, ParameterShard], world: World, axes: tuple[Axis, ...], config: ParallelConfig
    ) -> None:
        trained = {name: shard for name, shard in shards.items() if shard.tensor.requires_grad}
        self._parameters = [shard.tensor for shard in trained.values()]
        self._buckets = _buckets(trained, world, axes, (config.bucket_mb or BUCKET_MB) * 2**20)
        self._world, self._compress = world, config.compress == "bf16"
        self._launched = 0
        self.is_last = False
        """Whether the backward pass under way completes the gradients; read by `launch_early` alone."""
        self.measures = False
        """Whether `local_norm` is measured."""

    def launch_early(self) -> None:
        """From now on launch each bucket in the backward pass, as soon as it and those before it are complete.

        Not where a backward pass has collectives of its own: ranks might launch these and those in another order.
        """
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(functools.partial(self._arrive, bucket))

    def _arrive(self, bucket: _Bucket, _: Tensor) -> None:
        if not self.is_last:
            return
        bucket.arrived += 1
        for each in self._buckets[self._launched :]:
            if each.arrived < len(each.parameters):
                break
            self._launch(each)

    def finish(self) -> None:
        """Launch what is left and wait for all: every gradient is then a sum. All ranks call it together."""
        for parameter in self._parameters:
            if parameter.grad is None:  # it took no part: no token chose this expert, no microbatch came here
                parameter.grad = torch.zeros_like(parameter)
        with self._world.clock.phase("communication"):
            for bucket in self._buckets[self._launched :]:
                self._launch(bucket)
            for bucket in self._buckets:
                assert bucket.sums is not None
                with self._world.clock.waiting(bucket.flow):
                    bucket.sums.wait()
                bucket.arrived, bucket.sums = 0, None
        self._launched = 0

    def _launch(self, bucket: _Bucket) -> None:
        """Begin to sum a bucket; its gradients are views of one tensor from here on."""
        self._launched += 1
        flat = _flatten(bucket.parameters)
        if self.measures:
            bucket.norm = torch.linalg.vector_norm(flat, dtype=torch.float32)
        sums = _crossing(flat, compress=self._compress)
        sent = sent_bytes("all-reduce", sums.nbytes, self._world.axis_size(bucket.axes))
        ended = self._world.clock.traffic.launch(*bucket.flow, sent)
        work = dist.all_reduce(sums, group=self._world.group(bucket.axes), async_op=True)
        assert work is not None

        def take(future: torch.futures.Future[Any]) -> Tensor:
            future.value()  # raises the error of a lost rank; the sum is in place
            ended()
            return flat if sums is flat else flat.copy_(sums)  # a GPU's stream waits for what is returned

        bucket.sums = work.get_future().then(take)

    def local_norm(self) -> Tensor:
        """L2 norm of this rank's gradients before the sums of the newest step."""
        return torch.linalg.vector_norm(torch.stack([each.norm for each in self._buckets if each.norm is not None]))


def _buckets(shards: Mapping[str, ParameterShard], world: World, axes: tuple[Axis, ...], most: float) -> list[_Bucket]:
    """Of up to `most` bytes each, or one tensor that is larger; about in the order of a backward pass."""
    found, newest = list[_Bucket](), dict[tuple[tuple[Axis, ...], torch.dtype], _Bucket]()
    names = [*shards][::-1]
    names.sort(key=lambda name: LATE.get(name.split(".")[0], 0))
    for name in names:
        tensor, over = shards[name].tensor, wide_axes(others(axes, shards[name].axes), world.sizes)
        if not over:  # other ranks hold nothing of it, or have seen the same tokens
            continue
        bucket = newest.get((over, tensor.dtype))
        if bucket is None or bucket.num_bytes + tensor.nbytes > most:
            bucket = newest[over, tensor.dtype] = _Bucket(over, (world.axes_name(over), "all-reduce"))
            found.append(bucket)
        bucket.parameters.append(tensor)
    return found


def _flatten(parameters: list[nn.Parameter]) -> Tensor:
    """Let the gradients of parameters be views of one flat tensor, which is returned."""
    gradients = [each.grad.flatten() for each in parameters if each.grad is not None]
    flat = torch.cat(gradients) if len(gradients) > 1 else gradients[0]
    for parameter, part in zip(parameters, flat.split([each.numel() for each in gradients]), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat


def _crossing(gradients: Tensor, *, compress: bool) -> Tensor:
    """Gradients as they cross ranks: bfloat16 in float32, or all in bfloat16 (`parallel.compress`)."""
    if compress:
        return gradients.to(torch.bfloat16)
    return gradients.float() if gradients.dtype == torch.bfloat16 else gradients
