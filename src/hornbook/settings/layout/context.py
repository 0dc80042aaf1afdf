"""Rules of context parallelism: which models and settings can be computed in parts of rows."""

from collections.abc import Iterator

from hornbook.model.config.head_config import LabelHeadPart
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import stacks_of
from hornbook.parallel.config import ParallelConfig
from hornbook.settings.training import TrainConfig

KNOWN = ("full", "latent")
"""Kinds of attention that look at the rest of a row through one function, which ranks replace."""


def context_problems(parallel: ParallelConfig, train: TrainConfig, model: ModelConfig) -> Iterator[tuple[str, str]]:
    """(Dotted key, what is wrong and the remedy) where `parallel.context` has several ranks."""
    ranks, remedy = parallel.context.ranks, "or leave parallel.context 1"
    if train.compile:
        yield "train.compile", f"parts of rows are not compiled yet: set it to false, {remedy}"
    if "batch" in norm_kinds(model):
        yield "parallel.context", 'a norm of kind "batch" needs whole rows: leave it 1, and widen parallel.data'
    if isinstance(model.head, LabelHeadPart):
        yield "parallel.context", f'the head "{model.head.kind}" reads whole rows: leave it 1, and widen parallel.data'
    if parallel.pipeline.stages > 1 and model.kind == "encoder_decoder":
        text = "stages send on the whole of what an encoder gives, and its rows are in parts"
        yield "parallel.context", f"{text}: leave it 1, or parallel.pipeline"
    layers = [stack.layer(number) for stack in stacks_of(model) for number in range(stack.num_blocks)]
    for kind in dict.fromkeys(layer.attention.kind for layer in layers):
        if kind not in KNOWN:
            text = f'attention of kind "{kind}" passes through a row from token to token and is not divided'
            yield "parallel.context", f"{text}: leave it 1, and widen parallel.data"
    if any(getattr(layer.mlp, "capacity", None) is not None for layer in layers):
        text = "which tokens find room depends on those before them in the row, which other ranks have"
        yield "model.mlp.capacity", f"{text}: leave it out, {remedy}"
    shares = ranks * parallel.tensor
    uneven = sorted({layer.heads for layer in layers if layer.heads % shares})
    if parallel.context.kind == "all-to-all" and uneven:
        text = f"{uneven[0]} heads do not divide among {shares} ranks"
        yield "parallel.context.kind", f'{text}: take "ring", or other ranks'


def norm_kinds(model: ModelConfig) -> set[str]:
    """Kinds of the norms of all stacks and layers."""
    stacks = stacks_of(model)
    layers = {stack.attention_norm(number).kind for stack in stacks for number in range(stack.num_blocks)}
    return layers | {stack.norm.kind for stack in stacks}
