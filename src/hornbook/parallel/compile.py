"""torch.compile of each block: all blocks share one graph, so the cost does not grow with depth."""

from hornbook.model.transformer import Transformer
from hornbook.parallel.mesh import Mesh
from hornbook.run.config import TrainConfig


def apply_compile(model: Transformer, mesh: Mesh, config: TrainConfig) -> None:
    """Compile the blocks in place when `config.compile` is set; parameter names do not change."""
    del mesh
    if not config.compile:
        return
    for block in model.all_blocks():
        block.compile()
