"""Parameters of a model by name, and their number by part: arithmetic on its configuration, without building it."""

from collections.abc import Iterator
from typing import NamedTuple

from hornbook.model.config.model_config import ModelConfig, Parallel
from hornbook.model.config.norm_config import norm_weights
from hornbook.model.config.part import Cut, Weight, method, placed
from hornbook.settings.fields import kept_by_config


class PlacedParts(NamedTuple):
    """Parts of a model that are configured alike."""

    part: str
    """Key under which `parameter_counts` counts them."""
    names: list[str]
    """Names of their modules."""
    weights: list[Weight]
    """Parameters of one of them."""


def count_parameters(config: ModelConfig, vocab: int) -> int:
    """Number of trained values of the model; `vocab` is the rows of its embedding."""
    return sum(parameter_counts(config, vocab).values())


def parameter_counts(config: ModelConfig, vocab: int) -> dict[str, int]:
    """Parameters by part, over all layers and both stacks: embedding, positions, attention, mlp, norms, head.

    Blocks of multi-token prediction count as layers; what stands around them has a name of its own, where there is any,
    and so has the generator of replaced-token detection.
    """
    found: dict[str, int] = dict.fromkeys(("embedding", "positions", "attention", "mlp", "norms", "head"), 0)
    for place in places_of(config, vocab):
        size = len(place.names) * sum(each.size for each in place.weights)
        found[place.part] = found.get(place.part, 0) + size
    return found


@kept_by_config
def parameters_of(model: ModelConfig, vocab: int) -> list[Weight]:
    """All parameters by their names in the built model; what a router adds to choose experts is not trained."""
    return [each for place in places_of(model, vocab) for name in place.names for each in placed(name, place.weights)]


def places_of(model: ModelConfig, vocab: int) -> Iterator[PlacedParts]:
    """Everything that has parameters; `vocab` is the rows of the embedding, which comes first."""
    shape = vocab, model.embedding.width or model.width
    yield PlacedParts("embedding", ["embedding"], [Weight("weight", shape, "embedding", Cut(0, "vocabulary", vocab))])
    for stack, prefix in zip(stacks_of(model), ("", "encoder."), strict=False):
        yield from _stack(stack, prefix, crossed=model.kind == "encoder_decoder" and not prefix)
    if around := model.mtp.weights(model):
        yield PlacedParts("multi-token prediction", ["mtp"], around)
    yield PlacedParts("head", ["head"], model.head.weights(model, vocab))
    if (generator := model.head.generator_of(model)) is not None:
        _, *own = places_of(generator, vocab)  # it reads the model's embedding
        for each in own:
            yield PlacedParts("generator", [f"head.generator.{name}" for name in each.names], each.weights)


def _stack(stack: ModelConfig, prefix: str, *, crossed: bool) -> Iterator[PlacedParts]:
    """crossed: its layers attend to an encoder."""
    entrance = stack.entrance
    yield PlacedParts("positions", [f"{prefix}{stack.position.place}"], stack.position.weights(entrance))
    yield PlacedParts("embedding", [f"{prefix}entrance"], stack.embedding.weights(stack))
    if stack.embedding.norm:
        yield PlacedParts("norms", [f"{prefix}entrance.norm"], norm_weights(stack.norm, entrance))
    for numbers in kinds_of(stack):
        blocks = [f"{prefix}{'mtp.' * (number >= stack.layers)}blocks.{number}" for number in numbers]
        for part, name, weights in _block(stack, numbers[0], crossed=crossed):
            yield PlacedParts(part, [f"{block}.{name}" for block in blocks], weights)
    if stack.final_norm:
        yield PlacedParts("norms", [f"{prefix}norm"], norm_weights(stack.norm, stack))


def _block(stack: ModelConfig, number: int, *, crossed: bool) -> Iterator[tuple[str, str, list[Weight]]]:
    """(part, name in the block, parameters) of all that a block consists of."""
    layer, block, norm = stack.layer(number), stack.block, norm_weights(stack.norm, stack)
    attention, mlp = (method(part, "weights")(layer) for part in (layer.attention, layer.mlp))
    yield "attention", "attention", attention
    yield "mlp", "mlp", mlp
    if isinstance(block, Parallel):
        yield from (("norms", name, norm) for name in ("norm1", "norm2")[: 1 if block.shared_norm else 2])
        return
    if crossed:
        yield "attention", "cross", attention
    for site in block.norms:
        out = "" if site == "before" else f"{site}_"
        yield "norms", f"{out}norm1", norm_weights(stack.attention_norm(number), stack)
        yield "norms", f"{out}norm2", norm
        if crossed:
            yield "norms", f"cross_{out}norm", norm


def stacks_of(config: ModelConfig) -> list[ModelConfig]:
    """The stack that the head reads, then the encoder it attends to, if any."""
    return [config, config.encoder] if config.kind == "encoder_decoder" else [config]


def kinds_of(stack: ModelConfig) -> list[list[int]]:
    """Numbers of the blocks of each kind."""
    if not stack.first and not stack.pattern:
        return [[*range(stack.num_blocks)]]
    found = dict[int, list[int]]()
    for number in range(stack.num_blocks):
        found.setdefault(stack.alike(number), []).append(number)
    return [*found.values()]


def embedding_rows(config: ModelConfig, tokenizer_size: int) -> int:
    """Rows of the embedding: as configured, else the tokenizer's size rounded up to a multiple of 64."""
    return config.vocab or rounded_rows(tokenizer_size)


def rounded_rows(tokenizer_size: int) -> int:
    """Rows for so many tokens: a multiple of 64, with which products are faster."""
    return -(-tokenizer_size // 64) * 64
