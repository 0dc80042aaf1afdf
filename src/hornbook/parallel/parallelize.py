"""Activation recomputation: keep each block's input, compute the rest again in backward.

Chen et al. 2016 (arXiv 1604.06174). Randomness is keyed by sample and site, so nothing has to be stashed for
the second pass to draw the same masks.
"""

import functools

from torch.utils.checkpoint import checkpoint

from hornbook.model.transformer import Transformer
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.mesh import Mesh


def apply_recompute(model: Transformer, mesh: Mesh, config: ParallelConfig) -> None:
    """Wrap the blocks' forward as `config.recompute` says; parameter names do not change."""
    del mesh
    if config.recompute == "none":
        return
    for block in model.all_blocks():
        block.forward = functools.partial(
            checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
        )
