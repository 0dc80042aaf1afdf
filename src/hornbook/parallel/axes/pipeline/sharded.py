"""Stages whose parts the data ranks of a stage share: ZeRO in a pipeline.

FSDP's hooks gather weights as everywhere: those of a stage's blocks around each pass, the others (embedding, head, last
norm) with the first pass of a step. They do not sum gradients: passes of several microbatches are under way at once,
and a backward pass may come in two parts, of which hooks see the first. So gradients add up whole, and cross ranks
between passes: after each microbatch, or once a step with `shard = "optimizer"`. Ranks that share a stage compute the
same passes in the same order, so their collectives meet.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

from hornbook.model.context import Auxiliary
from hornbook.model.layers.torch_versions import fsdp_groups
from hornbook.model.transformer import Transformer
from hornbook.parallel.axes.pipeline.stages import StageModel
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.data_parallel import FSDP
from hornbook.parallel.shard import Divisions
from hornbook.parallel.world import World


class ShardedStages(FSDP):
    """The ranks of a group hold the stages of one rank between them."""

    def __init__(self, model: Transformer, world: World, config: ParallelConfig, divisions: Divisions) -> None:
        super().__init__(model, world, config, divisions)
        self._defer()

    def begin_microbatch(self, *, last: bool, is_empty: bool) -> None:
        """Nothing depends on which microbatch is the last."""

    def call_through_hooks(self, stage: StageModel, number: int) -> Callable[..., Any]:
        """The same call, which gathers what it needs of the weights outside of blocks."""

        def call(received: Sequence[Tensor], inputs: dict[str, Any]) -> tuple[tuple[Tensor, ...], Auxiliary]:
            sent, auxiliary = stage(received, inputs)
            # Hooks see the encoder's memory come in, and must not see the same tensor go out.
            return tuple(each if each._base is None else each.clone() for each in sent), auxiliary

        name = f"stage_{number}"
        setattr(self.model, name, call)
        register_fsdp_forward_method(self.model, name)
        return getattr(self.model, name)

    @contextlib.contextmanager
    def gathered(self, stage: StageModel) -> Iterator[None]:
        """Around a pass that no hook comes before: the weights of a stage's blocks stay gathered."""
        blocks = [block for block in stage.blocks if isinstance(block, FSDPModule)]
        for block in blocks:
            block.set_reshard_after_backward(False)
            block.unshard()
        yield
        for block in blocks:
            block.set_reshard_after_backward(self._releases)
        self._post_backward()

    def end_microbatch(self) -> None:
        """Called between passes when all of a microbatch's gradients are there, and perhaps some of others."""
        if self._config.shard != "optimizer":
            self._reduce()

    def finish_gradients(self) -> None:
        self._reduce()
        root = self._root
        root._state_ctx.is_last_backward = True
        root._root_post_backward_final_callback()  # waits for the sums
        self._defer()
        self.reshard()
        super().finish_gradients()

    @property
    def _root(self) -> Any:
        """FSDP's state of the whole model, which torch keeps to itself."""
        assert isinstance(self.model, FSDPModule)
        return self.model._get_fsdp_state()

    @property
    def _releases(self) -> bool:
        """Whether gathered weights of blocks are released between passes."""
        return self._config.shard == "everything" and self._config.reshard

    def _defer(self) -> None:
        """Let backward passes add gradients up, and release weights of blocks at most."""
        for module in self._fsdp_modules:
            module.set_requires_gradient_sync(False, recurse=False)
            module.set_reshard_after_backward(self._releases and module is not self.model, recurse=False)
        self._root._state_ctx.is_last_backward = False

    def _reduce(self) -> None:
        """Sum over the ranks what has added up since the last call, each rank its part."""
        for module in self._fsdp_modules:
            module.set_requires_gradient_sync(True, recurse=False)
            module.set_reshard_after_backward(False, recurse=False)
        self._post_backward()
        self._defer()

    def _post_backward(self) -> None:
        """What hooks do behind a backward pass: gradients are added up in the dtype in which they cross ranks."""
        for state in self._root._state_ctx.all_states:
            for group in fsdp_groups(state):
                before = group._training_state
                group.post_backward()
                group._training_state = before
