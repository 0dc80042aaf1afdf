"""The whole configuration of a run, composed of the rooms' configs.

A `Recipe` is frozen and complete: given a recipe, the token shards it names and the code, every number
of the run follows. Rules that span sections live in `cross_check`, and only there.
"""

from pydantic import Field

from hornbook.data.config import DataConfig
from hornbook.evals.config import EvalConfig
from hornbook.fields import Config, Count
from hornbook.model.config import ModelConfig
from hornbook.optim.config import OptimConfig
from hornbook.parallel.config import ParallelConfig
from hornbook.run.config import CheckpointConfig, GuardConfig, LogConfig, TrainConfig
from hornbook.text.config import TextConfig


class Recipe(Config):
    """Raw text to trained model."""

    name: str = "run"
    """Name of the run; the default run directory is runs/NAME."""
    seed: Count = Field(default=1, ge=0, lt=2**63)
    """Seed of everything random: order, initial weights, dropout, samples."""
    text: TextConfig = TextConfig()
    """From raw text to token shards."""
    data: DataConfig = DataConfig()
    """From token shards to batches."""
    model: ModelConfig = ModelConfig()
    """The Transformer."""
    optim: OptimConfig = OptimConfig()
    """Optimizer and schedule."""
    parallel: ParallelConfig = ParallelConfig()
    """Spreading over devices."""
    train: TrainConfig = TrainConfig()
    """Length, batch, arithmetic."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Saving."""
    guard: GuardConfig = GuardConfig()
    """Protection."""
    eval: EvalConfig = EvalConfig()
    """Evaluation."""
    log: LogConfig = LogConfig()
    """Logging."""


ALTERNATIVES = (("train.tokens", "train.epochs"),)
"""Pairs of settings of which at most one is given: a layer that gives one takes back the other."""


def cross_check(recipe: Recipe) -> list[tuple[str, str]]:
    """Problems that no single field can see: (dotted key, what is wrong and the remedy)."""
    problems = []
    model, train, data = recipe.model, recipe.train, recipe.data
    if model.attention.head_dim is None and model.width % model.heads:
        problems.append(
            (
                "model.heads",
                f"width {model.width} does not divide into {model.heads} heads: "
                "change one, or set model.attention.head_dim",
            )
        )
    elif model.position.kind == "rope" and model.head_dim % 2:
        problems.append(("model.attention.head_dim", f"rotary positions need an even head width, not {model.head_dim}"))
    if model.heads % model.kv_heads:
        problems.append(
            ("model.attention.kv_heads", f"{model.heads} heads do not divide among {model.kv_heads} key-value heads")
        )
    if train.sequence > model.position.length:
        problems.append(
            (
                "train.sequence",
                f"{train.sequence} is longer than the {model.position.length} positions of model.position.length",
            )
        )
    if train.batch_tokens % train.sequence:
        problems.append(
            ("train.batch_tokens", f"{train.batch_tokens} is not a multiple of train.sequence ({train.sequence})")
        )
    if train.tokens is not None and train.epochs is not None:
        problems.append(("train.epochs", "give train.tokens or train.epochs, not both"))
    starts = [stage.from_tokens for stage in data.stages]
    if starts != sorted(set(starts)):
        problems.append(("data.stages", "stages must begin at growing from_tokens"))
    return problems
