"""Number of parameters of a model, by part: arithmetic on its configuration, without building it."""

from collections import Counter

from hornbook.model.config.model_config import ModelConfig, Parallel


def count_parameters(config: ModelConfig, vocab: int) -> int:
    """Number of trained values of the model; `vocab` is the rows of its embedding."""
    return sum(parameter_counts(config, vocab).values())


def parameter_counts(config: ModelConfig, vocab: int) -> dict[str, int]:
    """Parameters by part, over all layers and both stacks: embedding, positions, attention, mlp, norms, head.

    Blocks of multi-token prediction count as layers; what stands around them has a name of its own, where there is any,
    and so has the generator of replaced-token detection.
    """
    stacks = stacks_of(config)
    blocks = [(stack.layer(first), count) for stack in stacks for first, count in kinds_of(stack, stack.num_blocks)]
    # Each layer of a decoder with an encoder has a second attention, to the encoder.
    crossed = kinds_of(config, config.layers) if len(stacks) > 1 else []
    attentions = blocks + [(config.layer(first), count) for first, count in crossed]
    found = {
        "embedding": sum(stack.embedding.num_parameters(stack) for stack in stacks)
        + vocab * (config.embedding.width or config.width),
        "positions": sum(stack.position.num_parameters(stack.entrance) for stack in stacks),
        "attention": sum(count * layer.attention.num_parameters(layer) for layer, count in attentions),
        "mlp": sum(count * layer.mlp.num_parameters(layer) for layer, count in blocks),
        "norms": sum(_norms(stack, crossed=stack is config and len(stacks) > 1) for stack in stacks),
        "head": config.head.num_parameters(config, vocab),
    }
    joins, generator = config.mtp.num_parameters(config), config.head.generator_of(config)
    found |= {"multi-token prediction": joins} if joins else {}
    if generator is not None:  # it reads the model's embedding
        found["generator"] = count_parameters(generator, vocab) - vocab * config.width
    return found


def stacks_of(config: ModelConfig) -> list[ModelConfig]:
    """The stack that the head reads, then the encoder it attends to, if any."""
    return [config, config.encoder] if config.kind == "encoder_decoder" else [config]


def kinds_of(stack: ModelConfig, blocks: int) -> list[tuple[int, int]]:
    """(number of the first one, how many there are) of each kind of the first `blocks` blocks."""
    if not stack.first and not stack.pattern:
        return [(0, blocks)] if blocks else []
    firsts, counts = dict[int, int](), Counter[int]()
    for number in range(blocks):
        kind = stack.alike(number)
        firsts.setdefault(kind, number)
        counts[kind] += 1
    return [(first, counts[kind]) for kind, first in firsts.items()]


def _norms(stack: ModelConfig, crossed: bool) -> int:
    """Norms of a stack; crossed: its layers attend to an encoder."""
    entrance = stack.embedding.norm * stack.norm.num_parameters(stack.entrance)
    ends = entrance + stack.final_norm * stack.norm.num_parameters(stack)
    kinds = kinds_of(stack, stack.num_blocks)
    return ends + sum(count * block_norms(stack, first, crossed=crossed) for first, count in kinds)


def block_norms(stack: ModelConfig, number: int, *, crossed: bool) -> int:
    """Norms of one block of a stack; crossed: it attends to an encoder."""
    each = stack.norm.num_parameters(stack)
    if isinstance(stack.block, Parallel):
        return (1 if stack.block.shared_norm else 2) * each
    attention = stack.attention_norm(number).num_parameters(stack)
    return len(stack.block.norms) * (attention + (2 if crossed else 1) * each)


def embedding_rows(config: ModelConfig, tokenizer_size: int) -> int:
    """Rows of the embedding: as configured, else the tokenizer's size rounded up to a multiple of 64."""
    return config.vocab or rounded_rows(tokenizer_size)


def rounded_rows(tokenizer_size: int) -> int:
    """Rows for so many tokens: a multiple of 64, with which products are faster."""
    return -(-tokenizer_size // 64) * 64
