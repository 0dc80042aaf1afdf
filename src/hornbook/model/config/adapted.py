"""What surgery leaves to train, and how what is frozen is held: arithmetic on configurations.

Names of layers are those of the built model; the parts that have them are named here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from hornbook.errors import UsageError
from hornbook.model.config.attention import FullAttentionConfig, LatentAttentionConfig
from hornbook.model.config.mlp import GLUConfig, PlainMLPConfig
from hornbook.model.config.model import ModelConfig
from hornbook.model.config.surgery import Dora, Lora, Nf4, PromptConfig

SCALES_PER_BLOCK = 256
"""Scales of 4-bit blocks that have a range in common (`hornbook.model.surgery.quantization.nf4`)."""


class Matrix(NamedTuple):
    """A linear layer of a block."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Adapted:
    """A model after surgery."""

    trained: int
    """Values that surgery added, which are all that training changes."""
    coded: int
    """Values of the base that are held as codes."""
    code_bytes: int
    """Bytes of the codes."""
    inner: int
    """Values of a token that are kept of what low-rank updates compute, of all layers."""


def adapted(model: ModelConfig, steps: Sequence[Any]) -> Adapted:
    """The model after these steps. Raises UsageError for steps and parts whose layers are not known here."""
    trained = coded = code_bytes = inner = 0
    for step in steps:
        match step:
            case Lora():
                chosen = _chosen(model, step.targets)
                lengths = sum(each.outputs for each in chosen) if isinstance(step, Dora) else 0
                trained = step.rank * sum(each.inputs + each.outputs for each in chosen) + lengths
                inner = step.rank * len(chosen) + 2 * lengths  # a row's length scales the product and its update
            case PromptConfig():
                trained = step.length * model.width
            case Nf4():
                chosen = _chosen(model, step.targets)
                coded = sum(each.inputs * each.outputs for each in chosen)
                code_bytes = sum(_code_bytes(each, step.block) for each in chosen)
            case _:
                raise UsageError(f"the planner does not know what {step.kind} (surgery) leaves to train")
    return Adapted(trained, coded, code_bytes, inner)


def _code_bytes(matrix: Matrix, block: int) -> int:
    """Codes, a scale of a byte for each block, ranges of scales and their mean."""
    size = matrix.inputs * matrix.outputs
    blocks = size // block
    return -(-size // 2) + blocks + 4 * -(-blocks // SCALES_PER_BLOCK) + 4


def _chosen(model: ModelConfig, targets: Sequence[str]) -> list[Matrix]:
    matrices = [each for number in range(model.layers) for each in _matrices(model, number)]
    return [each for each in matrices if any(fnmatchcase(each.name, target) for target in targets)]


def _matrices(model: ModelConfig, number: int) -> Iterator[Matrix]:
    """Linear layers of a block. Raises UsageError for a part without names here."""
    layer = model.layer(number)
    if model.kind == "encoder_decoder":
        raise UsageError("the planner does not know the layers of an encoder-decoder after surgery")
    for place, sizes in (("attention", _attention(layer)), ("mlp", _mlp(layer))):
        for name, inputs, outputs in sizes:
            yield Matrix(f"blocks.{number}.{place}.{name}", inputs, outputs)


def _attention(layer: ModelConfig) -> list[tuple[str, int, int]]:
    part, width = layer.attention, layer.width
    if isinstance(part, FullAttentionConfig):
        queries, keys = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        return [("query", width, queries), ("key", width, keys), ("value", width, keys), ("out", queries, width)]
    if isinstance(part, LatentAttentionConfig):
        queries, rank = layer.heads * (part.nope_dim + part.rope_dim), part.query_rank
        first = [("query_down", width, rank), ("query_up", rank, queries)] if rank else [("query", width, queries)]
        values = layer.heads * (part.nope_dim + part.value_dim)
        first += [("kv_down", width, part.kv_rank + part.rope_dim), ("kv_up", part.kv_rank, values)]
        return [*first, ("out", layer.heads * part.value_dim, width)]
    raise UsageError(f"the planner does not know the layers of attention {part.kind} after surgery")


def _mlp(layer: ModelConfig) -> list[tuple[str, int, int]]:
    part = layer.mlp
    if isinstance(part, PlainMLPConfig | GLUConfig):
        names = ("gate", "up")[3 - part.projections :]
        return [*((name, layer.width, layer.hidden) for name in names), ("down", layer.hidden, layer.width)]
    raise UsageError(f"the planner does not know the layers of mlp {part.kind} after surgery")
