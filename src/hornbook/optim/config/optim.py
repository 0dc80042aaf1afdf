"""The optimizers that `optim.kind` names: those of the package, and any other by its import path."""

from typing import Annotated

from hornbook.optim.config.adamw_8bit import AdamW8bitRule
from hornbook.optim.config.optimizer import OptimizerConfig
from hornbook.optim.config.rules import AdamWRule
from hornbook.settings.fields import open_to


class AdamW(AdamWRule, OptimizerConfig):
    """Loshchilov and Hutter 2019 (arXiv 1711.05101); decay falls on matrices, not on norms, biases or vectors."""


class AdamW8bit(AdamW8bitRule, OptimizerConfig):
    """AdamW with moments of 8 bits, scaled by blocks of 256 values (Dettmers et al. 2022, arXiv 2110.02861): 2.03 bytes
    per value instead of 8. Vectors, small tensors and embeddings keep float32 moments."""


AnyOptimizer = Annotated[AdamW | AdamW8bit, *open_to("optimizer", OptimizerConfig)]
