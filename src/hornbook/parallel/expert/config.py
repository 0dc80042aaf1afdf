"""What `parallel.expert` does not go with. Torch-free."""

from collections.abc import Iterator
from typing import Any

from hornbook.model.config.mlp import ExpertsConfig
from hornbook.model.config.model import ModelConfig


def mixtures(model: ModelConfig) -> list[ModelConfig]:
    """The layers with experts, the encoder's first, as the model's configuration stands for each."""
    stacks = [model.encoder, model] if model.kind == "encoder_decoder" else [model]
    layers = (stack.layer(number) for stack in stacks for number in range(stack.layers))
    return [layer for layer in layers if isinstance(layer.mlp, ExpertsConfig)]


def expert_problems(recipe: Any) -> Iterator[tuple[str, str]]:
    """Problems of a recipe: (dotted key, what is wrong and the remedy)."""
    ranks, train = recipe.parallel.expert, recipe.train
    if ranks == 1:
        return
    counts = [layer.mlp.count for layer in mixtures(recipe.model)]
    if not counts:
        yield "parallel.expert", "the model has no experts to divide: leave it 1, and raise parallel.data"
    elif ranks > min(counts):
        text = f"{ranks} ranks cannot share {min(counts)} experts, for one would hold none"
        yield "parallel.expert", f"{text}: lower it to {min(counts)} or less, and raise parallel.data"
    if recipe.parallel.exact:
        text = "an expert adds up tokens of all ranks at once, so its bits depend on their number"
        yield "parallel.exact", f"{text}: leave it out, or set parallel.expert = 1"
    if train.cuda_graphs:
        text = "how many tokens a rank's experts get differs from step to step, and a graph does not"
        yield "train.cuda_graphs", f"{text}: set it to false, or parallel.expert = 1"
    if train.micro_batch == "auto":
        text = "how many tokens a rank's experts get, and keep for backward, is not known before the model runs"
        yield "train.micro_batch", f"{text}: give a number"
    if recipe.log.noise_scale:
        text = "experts see the tokens of all ranks at once, so no gradient of a part of the batch can be read"
        yield "log.noise_scale", f"{text}: leave it 0, or set parallel.expert = 1"
